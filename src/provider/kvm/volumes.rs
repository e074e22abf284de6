//! Overlay and seed: volumes that libvirt makes in the pool.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use quick_xml::Writer;
use quick_xml::events::BytesText;
use serde::Deserialize;
use virt::connect::Connect;
use virt::error::{Error, ErrorNumber};
use virt::storage_pool::StoragePool;
use virt::storage_vol::StorageVol;
use virt::stream::Stream;

use super::connection::{CallError, found, is};
use crate::image::Volume;
use crate::model::{Fault, FaultKind};
use crate::store::BaseRef;

/// Bytes handed to libvirt at once: its RPC takes a quarter of a MiB per message.
pub(super) const CHUNK: usize = 256 << 10;

/// For how long a pool that has something else to do is asked again, and how often.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(200);

/// What a new volume shall be.
pub(super) struct NewVolume<'a> {
    pub(super) name: &'a str,
    pub(super) format: &'a str,
    /// Size of the disk it presents, in bytes.
    pub(super) capacity: u64,
    /// Bytes that the file system sets aside at once.
    pub(super) allocation: u64,
    /// Permission bits in octal; libvirt's default (0600) when absent.
    pub(super) mode: Option<&'a str>,
    /// The base it backs onto, with its format.
    pub(super) backing: Option<(&'a Path, &'a str)>,
}

impl<'a> NewVolume<'a> {
    /// A file of exactly `size` bytes, whatever is in it: of another format than raw,
    /// libvirt would write a header of its own. All its room is set aside at once.
    pub(super) fn file(name: &'a str, size: u64) -> Self {
        let (capacity, allocation) = (size, size);
        Self { name, format: "raw", capacity, allocation, mode: None, backing: None }
    }

    /// The same, for all to read and nobody to write: QEMU's user reads bases, and libvirt
    /// gives those to it that a guest has used.
    pub(super) fn published(name: &'a str, size: u64) -> Self {
        Self { mode: Some("0444"), ..Self::file(name, size) }
    }

    /// The overlay `name` of `size` bytes over `base`.
    pub(super) fn overlay(name: &'a str, base: &'a BaseRef, size: u64) -> Self {
        Self {
            name,
            format: "qcow2",
            capacity: size,
            allocation: 0,
            mode: None,
            backing: Some((&base.path, base.format.as_str())),
        }
    }

    fn xml(&self) -> io::Result<String> {
        let mut xml = Writer::new(Vec::new());
        xml.create_element("volume").write_inner_content(|xml| {
            text(xml, "name", self.name)?;
            text(xml, "capacity", &self.capacity.to_string())?;
            text(xml, "allocation", &self.allocation.to_string())?;
            xml.create_element("target").write_inner_content(|xml| {
                format(xml, self.format)?;
                match self.mode {
                    Some(mode) => permissions(xml, mode),
                    None => Ok(()),
                }
            })?;
            if let Some((path, backing)) = self.backing {
                xml.create_element("backingStore").write_inner_content(|xml| {
                    text(xml, "path", &path.to_string_lossy())?;
                    // Left out, libvirt records "raw" and the guest boots garbage.
                    format(xml, backing)
                })?;
            }
            Ok(())
        })?;
        String::from_utf8(xml.into_inner()).map_err(io::Error::other)
    }

    /// Makes the volume; `None` when one of the name exists.
    pub(super) fn create(&self, pool: &StoragePool) -> Result<Option<StorageVol>, CallError> {
        let xml = self.xml().map_err(|error| {
            Fault::new(FaultKind::StateFailed, format!("no volume XML: {error}"))
        })?;
        check_room(pool, self.name, self.allocation)?;
        match StorageVol::create_xml(pool, &xml, 0) {
            Ok(volume) => Ok(Some(volume)),
            Err(error) if is(&error, ErrorNumber::StorageVolExist) => Ok(None),
            Err(error) => self.refused(pool, &error),
        }
    }

    /// libvirt may not have known of a file of the name, or have run out of room on the
    /// way: look which it is.
    fn refused<T>(&self, pool: &StoragePool, error: &Error) -> Result<Option<T>, CallError> {
        refresh(pool)?;
        if lookup(pool, self.name)?.is_some() {
            return Ok(None);
        }
        check_room(pool, self.name, self.allocation)?;
        Err(pool_error(pool, error))
    }
}

/// Makes sure that `pool` has `bytes` left for the volume `name`.
///
/// # Errors
/// `NoSpace`.
pub(super) fn check_room(pool: &StoragePool, name: &str, bytes: u64) -> Result<(), CallError> {
    let available = pool.info()?.available;
    if bytes <= available {
        return Ok(());
    }
    let text = format!(
        "the volume {name} needs {bytes} bytes and the pool {} has {available} left: free some, \
         or give the pool more room",
        pool.name()?
    );
    Err(Fault::new(FaultKind::NoSpace, text).into())
}

fn text(xml: &mut Writer<Vec<u8>>, name: &str, content: &str) -> io::Result<()> {
    xml.create_element(name).write_text_content(BytesText::new(content))?;
    Ok(())
}

fn format(xml: &mut Writer<Vec<u8>>, name: &str) -> io::Result<()> {
    xml.create_element("format").with_attribute(("type", name)).write_empty()?;
    Ok(())
}

fn permissions(xml: &mut Writer<Vec<u8>>, mode: &str) -> io::Result<()> {
    xml.create_element("permissions").write_inner_content(|xml| text(xml, "mode", mode))?;
    Ok(())
}

/// Has libvirt take notice of what was laid into the pool, or taken out of it. While
/// anybody has a volume made there, libvirt refuses that, by no error number of its own.
pub(super) fn refresh(pool: &StoragePool) -> Result<(), CallError> {
    let deadline = Instant::now() + PATIENCE;
    while let Err(error) = pool.refresh(0) {
        let passes = is(&error, ErrorNumber::InternalError) && is_alive(pool);
        if !passes || Instant::now() > deadline {
            return Err(pool_error(pool, &error));
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

fn is_alive(pool: &StoragePool) -> bool {
    pool.connect().and_then(|connection| connection.is_alive()).unwrap_or(false)
}

/// What libvirt tells of a volume, looking at its file.
#[derive(Debug)]
pub(super) struct Facts {
    /// Whether it is a file, and not, say, a directory.
    pub(super) is_file: bool,
    /// Its size on disk, and when it was last written.
    pub(super) identity: Volume,
    /// What it backs onto.
    pub(super) backing: Option<Backing>,
}

/// What a volume backs onto.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Backing {
    pub(super) path: PathBuf,
    /// Whether that, in turn, may back onto something.
    pub(super) may_back: bool,
}

#[derive(Deserialize)]
struct VolumeXml {
    #[serde(rename = "@type", default)]
    kind: String,
    physical: Option<u64>,
    target: Option<TargetXml>,
    #[serde(rename = "backingStore")]
    backing: Option<BackingXml>,
}

#[derive(Deserialize)]
struct TargetXml {
    timestamps: Option<Timestamps>,
}

#[derive(Deserialize)]
struct Timestamps {
    mtime: Option<String>,
}

#[derive(Deserialize)]
struct BackingXml {
    path: Option<PathBuf>,
    format: Option<FormatXml>,
}

#[derive(Deserialize)]
struct FormatXml {
    #[serde(rename = "@type")]
    kind: String,
}

impl BackingXml {
    fn backing(self) -> Option<Backing> {
        let may_back = self.format.is_none_or(|format| format.kind != "raw");
        Some(Backing { path: self.path?, may_back })
    }
}

impl Facts {
    /// # Errors
    /// `PoolUnavailable` when its file has gone.
    pub(super) fn of(volume: &StorageVol) -> Result<Self, CallError> {
        Self::read(&volume.xml_desc(0)?)
    }

    fn read(xml: &str) -> Result<Self, CallError> {
        let parsed: VolumeXml = super::host::parse(xml, "volume")?;
        let times = parsed.target.and_then(|target| target.timestamps);
        let mtime = times.and_then(|times| nanoseconds(&times.mtime?));
        Ok(Self {
            is_file: matches!(&*parsed.kind, "file" | ""),
            identity: Volume {
                size: parsed.physical.unwrap_or_default(),
                mtime_ns: mtime.unwrap_or_default(),
            },
            backing: parsed.backing.and_then(BackingXml::backing),
        })
    }
}

/// The file of that name, as it is now, whatever libvirt believed of it.
///
/// # Errors
/// `ForeignFile` for something else of the name.
pub(super) fn file(
    pool: &StoragePool,
    name: &str,
) -> Result<Option<(StorageVol, Facts)>, CallError> {
    let Some(volume) = lookup(pool, name)? else { return Ok(None) };
    let facts = match Facts::of(&volume) {
        // It may have been removed by somebody who didn't tell libvirt.
        Err(CallError::Libvirt(_)) => {
            refresh(pool)?;
            if lookup(pool, name)?.is_none() {
                return Ok(None);
            }
            Facts::of(&volume)?
        }
        facts => facts?,
    };
    if facts.is_file {
        return Ok(Some((volume, facts)));
    }
    let text = format!(
        "the volume {} is not a file that proxyd made: it stays untouched; move it away, or use \
         another name",
        volume.path()?
    );
    Err(Fault::new(FaultKind::ForeignFile, text).into())
}

/// Seconds with nine places behind the point, or none, as libvirt writes a time.
fn nanoseconds(time: &str) -> Option<i64> {
    let (seconds, rest) = time.split_once('.').unwrap_or((time, "0"));
    let rest: i64 = rest.parse().ok()?;
    seconds.parse::<i64>().ok()?.checked_mul(1_000_000_000)?.checked_add(rest)
}

/// A failed storage operation; libvirt runs one asynchronous job a pool and refuses
/// the next for the time being, so it is always worth another try.
fn pool_error(pool: &StoragePool, error: &Error) -> CallError {
    // That a connection broke is no word of the pool's.
    if !is_alive(pool) {
        return error.clone().into();
    }
    let name = pool.name().unwrap_or_default();
    let text = format!("the storage pool {name}: libvirt: {}", error.message());
    Fault::new(FaultKind::PoolUnavailable, text).into()
}

/// The volume of that name, as libvirt knows the pool now.
pub(super) fn lookup(pool: &StoragePool, name: &str) -> Result<Option<StorageVol>, CallError> {
    found(pool.lookup_storage_vol_by_name(name), ErrorNumber::NoStorageVolume)
}

/// The path of the volume of that name.
///
/// # Errors
/// `PoolUnavailable` when there is none.
pub(super) fn path(pool: &StoragePool, name: &str) -> Result<PathBuf, CallError> {
    let volume = lookup(pool, name)?.ok_or_else(|| {
        Fault::new(FaultKind::PoolUnavailable, format!("the volume {name} has gone from its pool"))
    })?;
    Ok(volume.path()?.into())
}

/// Deletes the volume of that name; that there is none is fine.
pub(super) fn delete(pool: &StoragePool, name: &str) -> Result<(), CallError> {
    match lookup(pool, name)?.map(|volume| volume.delete(0)) {
        None | Some(Ok(())) => Ok(()),
        Some(Err(error)) if is(&error, ErrorNumber::NoStorageVolume) => Ok(()),
        Some(Err(error)) => Err(pool_error(pool, &error)),
    }
}

/// Writes all of `content` into `volume`, and nothing more: libvirtd does not survive
/// an upload beyond the declared length.
pub(super) fn upload(
    connection: &Connect,
    volume: &StorageVol,
    content: &[u8],
) -> Result<(), CallError> {
    if super::host::is_test(connection)? {
        return Ok(());
    }
    let stream = Stream::new(connection, 0)?;
    volume.upload(&stream, 0, content.len() as u64, 0)?;
    match content.chunks(CHUNK).try_for_each(|chunk| send(&stream, chunk)) {
        Ok(()) => Ok(stream.finish()?),
        Err(error) => {
            // The first error is the one to report.
            let _ = stream.abort();
            Err(error)
        }
    }
}

/// Sends all of `bytes`.
pub(super) fn send(stream: &Stream, mut bytes: &[u8]) -> Result<(), CallError> {
    while !bytes.is_empty() {
        let sent = usize::try_from(stream.send(bytes)?).unwrap_or(0);
        if sent == 0 {
            let text = "libvirt takes no more of an upload";
            return Err(Fault::new(FaultKind::PoolUnavailable, text).into());
        }
        bytes = bytes.get(sent..).unwrap_or_default();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_libvirt_tells_of_a_volume_is_read() {
        let xml = "<volume type='file'><name>o</name><key>/p/o</key><capacity \
            unit='bytes'>9</capacity><physical unit='bytes'>200</physical><target><path>/p/o\
            </path><format type='qcow2'/><timestamps><atime>1.000000001</atime><mtime>\
            1764745000.012345678</mtime></timestamps></target><backingStore><path>/p/a&amp;b\
            </path><format type='raw'/></backingStore></volume>";
        let Ok(facts) = Facts::read(xml) else { panic!("unreadable") };
        assert!(facts.is_file);
        assert_eq!(facts.identity, Volume { size: 200, mtime_ns: 1_764_745_000_012_345_678 });
        let backing = Backing { path: "/p/a&b".into(), may_back: false };
        assert_eq!(facts.backing, Some(backing));
        assert_eq!(nanoseconds("7"), Some(7_000_000_000));
        let Ok(facts) = Facts::read("<volume type='dir'><name>d</name></volume>") else {
            panic!("unreadable")
        };
        assert!(!facts.is_file);
    }

    #[test]
    fn an_overlay_names_its_backing_format() {
        let base = BaseRef {
            file: "a&b.qcow2".into(),
            path: "/pool/a&b.qcow2".into(),
            digest: crate::model::Sha256Digest::of(b""),
            format: crate::model::ImageFormat::Qcow2,
            virtual_size: 1 << 30,
        };
        let volume = NewVolume::overlay("proxy-a.qcow2", &base, 1 << 30);
        let xml = volume.xml().unwrap();
        let backing = "<backingStore><path>/pool/a&amp;b.qcow2</path><format type=\"qcow2\"/>";
        assert!(xml.contains(backing), "{xml}");
    }
}
