//! Which domains of a connection use a file, as their XML tells.

use std::path::{Path, PathBuf};

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};
use virt::connect::Connect;
use virt::domain::Domain;
use virt::error::ErrorNumber;
use virt::storage_pool::StoragePool;
use virt::sys;

use super::connection::{CallError, Link, found, is};
use super::volumes::{self, Backing, Facts};
use crate::image::{BaseUsers, DomainDisk};
use crate::model::{Fault, FaultKind};

/// The domains of one connection, running and defined, other owners' included.
pub(super) struct Domains(pub(super) Link);

impl BaseUsers for Domains {
    fn disks(&self) -> Result<Vec<DomainDisk>, Fault> {
        self.0.run_blocking(disks)
    }
}

/// Who uses a base.
#[derive(Debug, Default)]
pub(super) struct Users {
    certain: Vec<String>,
    /// Those that use a file of its name, in what may be another directory.
    namesakes: Vec<String>,
    /// Domains of which libvirt does not tell what their disks back onto.
    hidden: Vec<String>,
}

impl Users {
    pub(super) fn is_empty(&self) -> bool {
        !self.is_named() && self.hidden.is_empty()
    }

    /// Whether any of them names it, so that it is known to be used even when it isn't
    /// there.
    pub(super) fn is_named(&self) -> bool {
        !self.certain.is_empty() || !self.namesakes.is_empty()
    }

    /// What it means that they use a base that is not what it should be: as long as
    /// none of them is sure to, time may tell.
    pub(super) fn fault_kind(&self) -> FaultKind {
        if self.certain.is_empty() { FaultKind::ImageInUse } else { FaultKind::BaseChanged }
    }
}

impl std::fmt::Display for Users {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let lists = [&self.certain, &self.namesakes, &self.hidden];
        let all: Vec<_> = lists.into_iter().flatten().map(String::as_str).collect();
        f.write_str(&all.join(", "))
    }
}

/// Called now and then; what it says ends the search.
pub(super) type Beat<'a> = &'a mut dyn FnMut() -> Result<(), CallError>;

/// Who uses the file `base` of `pool`: what backs onto it in any pool of the connection,
/// and the domains whose disks lead to it.
pub(super) fn of_base(
    connection: &Connect,
    pool: &StoragePool,
    base: &Path,
    beat: Beat<'_>,
) -> Result<Users, CallError> {
    // What libvirt knows of the pool may be older than an overlay made elsewhere.
    volumes::refresh(pool)?;
    let all = all_volumes(connection, beat)?;
    let mut users = Users::default();
    // A pool's directory can be reached by more than one path.
    let perhaps = |path: &Path| path.file_name() == base.file_name();
    let is_known = |file: &Path| all.iter().any(|(path, _)| path == file);
    for (path, backing) in &all {
        let Some(Backing { path: backing, may_back }) = backing else { continue };
        if backing == base {
            let name = path.file_name().unwrap_or_default();
            users.certain.push(name.to_string_lossy().into_owned());
        } else if perhaps(backing) {
            users.namesakes.push(format!("perhaps {}", path.display()));
        } else if *may_back && !is_known(backing) {
            users
                .hidden
                .push(hidden(&format!("perhaps {}, whose backing file", path.display()), backing));
        }
    }
    for (domain, disk) in domain_disks(connection)? {
        beat()?;
        if disk.file == base {
            users.certain.push(format!("domain {domain}"));
        } else if perhaps(&disk.file) {
            users.namesakes.push(format!("perhaps domain {domain}"));
        } else if disk.hidden && !is_known(&disk.file) {
            users.hidden.push(hidden(&format!("perhaps domain {domain}, whose disk"), &disk.file));
        }
    }
    for list in [&mut users.certain, &mut users.namesakes, &mut users.hidden] {
        list.sort();
        list.dedup();
    }
    Ok(users)
}

fn hidden(who: &str, file: &Path) -> String {
    format!(
        "{who} {} is in no active storage pool, so that libvirt does not tell what it backs onto \
         (have an active pool over its directory)",
        file.display()
    )
}

/// A volume's path, and what it backs onto.
type Backed = (PathBuf, Option<Backing>);

/// Every volume of every active pool.
fn all_volumes(connection: &Connect, beat: Beat<'_>) -> Result<Vec<Backed>, CallError> {
    let mut found = Vec::new();
    for pool in connection.list_all_storage_pools(sys::VIR_CONNECT_LIST_STORAGE_POOLS_ACTIVE)? {
        found.extend(match volumes_of(&pool, beat) {
            // It was taken away meanwhile, as one over logs is.
            Err(CallError::Libvirt(_)) if !pool.is_active().unwrap_or(false) => Vec::new(),
            // A file is gone without libvirt's knowledge.
            Err(CallError::Libvirt(_)) => {
                volumes::refresh(&pool)?;
                volumes_of(&pool, beat)?
            }
            all => all?,
        });
    }
    Ok(found)
}

fn volumes_of(pool: &StoragePool, beat: Beat<'_>) -> Result<Vec<Backed>, CallError> {
    let mut found = Vec::new();
    for volume in pool.list_all_volumes(0)? {
        beat()?;
        found.push((volume.path()?.into(), Facts::of(&volume)?.backing));
    }
    Ok(found)
}

/// The disks of all domains, with as much of their backing chains as their XML tells.
fn disks(connection: &Connect) -> Result<Vec<DomainDisk>, CallError> {
    // Where one in a pool that is not active would be, nobody knows.
    let all = domain_disks(connection)?.into_iter().filter(|(_, disk)| disk.file.is_absolute());
    Ok(all.map(|(domain, disk)| DomainDisk { domain, file: disk.file }).collect())
}

fn domain_disks(connection: &Connect) -> Result<Vec<(String, Disk)>, CallError> {
    let mut disks = Vec::new();
    for domain in connection.list_all_domains(0)? {
        match disks_of(connection, &domain) {
            Ok(found) => disks.extend(found),
            // It went away meanwhile.
            Err(CallError::Libvirt(error)) if is(&error, ErrorNumber::NoDomain) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(disks)
}

/// A file that a domain's disk reads.
struct Disk {
    file: PathBuf,
    /// Whether it may back onto something that no XML tells.
    hidden: bool,
}

/// The disks of a domain, as it runs and as it is defined.
fn disks_of(connection: &Connect, domain: &Domain) -> Result<Vec<(String, Disk)>, CallError> {
    let name = domain.name()?;
    let mut named = sources(&domain.xml_desc(0)?);
    named.extend(sources(&domain.xml_desc(sys::VIR_DOMAIN_XML_INACTIVE)?));
    // Of one that runs, the chain is told; of the same as it is defined, it is not.
    named.sort();
    named.dedup_by(|later, first| later.0 == first.0);
    let mut disks = Vec::new();
    for (source, hidden) in named {
        let file = match source {
            Source::File(file) => Some(file),
            // Of one in a pool that is not active, no more is known than its name.
            Source::Volume { pool, volume } => {
                Some(volume_path(connection, &pool, &volume)?.unwrap_or_else(|| volume.into()))
            }
        };
        disks.extend(file.map(|file| (name.clone(), Disk { file, hidden })));
    }
    Ok(disks)
}

/// Where a volume is; nothing when pool or volume are gone, or not there just now.
fn volume_path(
    connection: &Connect,
    pool: &str,
    volume: &str,
) -> Result<Option<PathBuf>, CallError> {
    let lookup = connection.lookup_storage_pool_by_name(pool);
    let Some(pool) = found(lookup, ErrorNumber::NoStoragePool)? else { return Ok(None) };
    match volumes::lookup(&pool, volume) {
        // The pool is not active.
        Err(CallError::Libvirt(error)) if is(&error, ErrorNumber::OperationInvalid) => Ok(None),
        found => Ok(found?.map(|volume| volume.path()).transpose()?.map(PathBuf::from)),
    }
}

/// What a `<source>` names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    File(PathBuf),
    Volume { pool: String, volume: String },
}

/// Every file and volume that a `<source>` of a disk in `xml` names, and whether it is the
/// last of its disk that is told, though it may back onto another.
fn sources(xml: &str) -> Vec<(Source, bool)> {
    let mut reader = Reader::from_str(xml);
    let mut found: Vec<(Source, bool)> = Vec::new();
    let mut may_back = false;
    while let Ok(event) = reader.read_event() {
        let (element, ends) = match event {
            Event::Eof => break,
            Event::Empty(element) => (element, true),
            Event::Start(element) => (element, false),
            _ => continue,
        };
        match element.local_name().as_ref() {
            "disk" => may_back = true,
            "driver" => {
                let raw = attribute(&element, "type").is_some_and(|format| format == "raw");
                may_back = may_back && !raw;
            }
            "source" => found.extend(source(&element).map(|source| (source, may_back))),
            // Empty, it says that the chain ends here; else, what comes next.
            "backingStore" => {
                if let Some((_, hidden)) = found.last_mut() {
                    *hidden = false;
                }
                may_back = !ends;
            }
            _ => {}
        }
    }
    found
}

fn attribute(element: &BytesStart<'_>, name: &str) -> Option<String> {
    let found = element.try_get_attribute(name).ok().flatten()?;
    let value = found.normalized_value(quick_xml::XmlVersion::Explicit1_0).ok()?;
    Some(value.into_owned())
}

fn source(element: &BytesStart<'_>) -> Option<Source> {
    if let Some(file) = attribute(element, "file").or_else(|| attribute(element, "dev")) {
        return Some(Source::File(file.into()));
    }
    Some(Source::Volume {
        pool: attribute(element, "pool")?,
        volume: attribute(element, "volume")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_and_backing_chains_are_seen() {
        let xml = "<domain><devices><disk type='file'><source file='/p/a&amp;b'/><backingStore>\
            <source file='/p/base'><x/></source></backingStore></disk><disk type='volume'>\
            <source pool='p' volume='v'/></disk><interface><source \
            network='default'/></interface></devices></domain>";
        let expected = [
            (Source::File("/p/a&b".into()), false),
            (Source::File("/p/base".into()), true),
            (Source::Volume { pool: "p".into(), volume: "v".into() }, true),
        ];
        assert_eq!(sources(xml), expected);
    }

    #[test]
    fn what_a_disk_backs_onto_is_hidden_only_while_nothing_tells() {
        let of = |inner: &str| {
            let xml =
                format!("<domain><devices><disk type='file'>{inner}</disk></devices></domain>");
            sources(&xml).iter().map(|(_, hidden)| *hidden).collect::<Vec<_>>()
        };
        let (qcow2, raw) = ("<driver name='qemu' type='qcow2'/>", "<driver type='raw'/>");
        assert_eq!(of(&format!("{qcow2}<source file='/o'/>")), [true]);
        assert_eq!(of(&format!("{raw}<source file='/o'/>")), [false]);
        assert_eq!(of(&format!("{qcow2}<source file='/o' index='1'/><backingStore/>")), [false]);
        let chain = "<backingStore type='file'><format type='raw'/><source file='/b'/>\
            <backingStore/></backingStore>";
        assert_eq!(of(&format!("{qcow2}<source file='/o'/>{chain}")), [false, false]);
    }
}
