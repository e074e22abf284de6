//! The marker beside a base: JSON that says what the base is and that it is complete.
//! It is written last, so a base without a valid one is debris.

use serde::{Deserialize, Serialize};

use super::name::base_file_name;
use super::pending::{MARKER_VOLUME_SIZE, PENDING_SIZE, Pending};
use super::{Found, ImageSource};
use crate::model::{EntryName, ImageFormat, ImageKey, Pin, ResourceUrl, Sha256Digest};

/// The version that this program writes and reads.
const VERSION: u32 = 1;
/// A larger file is no marker.
pub(super) const MAX_MARKER_BYTES: usize = 64 << 10;

/// What a server said to recognise the file by.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Validators {
    /// The `ETag` header.
    pub etag: Option<String>,
    /// The `Last-Modified` header.
    pub last_modified: Option<String>,
}

/// The file that a marker vouches for, as the file system tells it from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Identity {
    pub(super) size: u64,
    pub(super) inode: u64,
    pub(super) mtime_ns: i64,
}

/// A volume, as libvirt tells it from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Volume {
    /// Its size in bytes.
    pub size: u64,
    /// When it was last written, in nanoseconds since 1970.
    pub mtime_ns: i64,
}

/// No base is so empty and so old.
const NO_VOLUME: Volume = Volume { size: 0, mtime_ns: 0 };

impl Volume {
    fn identity(self) -> Identity {
        Identity { size: self.size, inode: 0, mtime_ns: self.mtime_ns }
    }
}

/// What a base is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Marker {
    // First, so that a pending marker, cut off after these, is no JSON.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    nonce: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    writer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    held: Option<Sha256Digest>,
    version: u32,
    /// The provider entry it belongs to.
    pub entry: EntryName,
    /// Its key there.
    pub key: ImageKey,
    /// Where it came from, without credentials.
    pub url: String,
    /// sha256 of the URL without user name and password: tells two URLs apart that
    /// are shown alike.
    url_sha256: Sha256Digest,
    /// sha256 of the downloaded file.
    pub sha256: Sha256Digest,
    /// sha256 of the base, where it was downloaded compressed and differs.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    content_sha256: Option<Sha256Digest>,
    /// The base from which it was copied instead of being downloaded.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub copied_from: Option<String>,
    /// Whether that digest was configured when the base was last hashed.
    pub pinned: bool,
    /// Its size in bytes.
    pub size: u64,
    /// Size of the disk it presents, in bytes.
    pub virtual_size: u64,
    /// Its format.
    pub format: ImageFormat,
    /// When it was fetched, as RFC 3339.
    pub fetched_at: String,
    #[serde(flatten)]
    validators: Validators,
    /// Absent in markers that were written through libvirt without. There, the inode is
    /// not known, and it is 0.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) identity: Option<Identity>,
    /// sha256 of this marker's JSON with this member empty.
    check: String,
}

/// What the bytes of an image hash to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Digests {
    /// As they were downloaded, which is what a publisher gives.
    pub(crate) downloaded: Sha256Digest,
    /// As they are in the pool: unpacked.
    pub(crate) content: Sha256Digest,
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

/// What stands where a marker should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MarkerState {
    /// Nothing.
    Absent,
    /// Something that is no valid marker: torn, pending, or not a file.
    Garbage,
    /// The marker of a later version of this program.
    Newer,
    /// A valid marker.
    Valid(Box<Marker>),
}

impl Marker {
    /// The marker of a base of `source` that was just fetched.
    pub(crate) fn new(
        source: &ImageSource,
        digests: Digests,
        size: u64,
        virtual_size: u64,
        validators: Validators,
    ) -> Self {
        Self {
            nonce: None,
            writer: None,
            held: None,
            version: VERSION,
            entry: source.entry.clone(),
            key: source.key.clone(),
            url: source.url.to_string(),
            url_sha256: url_digest(&source.url),
            sha256: digests.downloaded,
            content_sha256: Some(digests.content).filter(|own| *own != digests.downloaded),
            copied_from: None,
            pinned: source.pin != Pin::None,
            size,
            virtual_size,
            format: source.format,
            fetched_at: humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string(),
            validators,
            identity: None,
            check: String::new(),
        }
    }

    /// The marker of a base of `source` that is there and was found to have this digest.
    pub fn of_what_is_there(
        source: &ImageSource,
        digest: Sha256Digest,
        size: u64,
        virtual_size: u64,
    ) -> Self {
        let digests = Digests { downloaded: digest, content: digest };
        Self::new(source, digests, size, virtual_size, Validators::default())
    }

    /// sha256 of the base itself.
    pub fn content(&self) -> Sha256Digest {
        self.content_sha256.unwrap_or(self.sha256)
    }

    /// What the base hashes to.
    pub(super) fn digests(&self) -> Digests {
        Digests { downloaded: self.sha256, content: self.content() }
    }

    /// The name that its base has.
    pub(super) fn base_name(&self) -> String {
        base_file_name(&self.entry, &self.key, self.format)
    }

    /// Whether `name` is the name that its base has.
    pub fn is_at(&self, name: &str) -> bool {
        self.base_name() == name
    }

    /// Whether it marks the image `source`, or another one under the same name.
    pub fn is_of(&self, source: &ImageSource) -> bool {
        self.belongs_to(&source.entry, &source.key)
    }

    /// Whether it marks image `key` of `entry`.
    pub fn belongs_to(&self, entry: &EntryName, key: &ImageKey) -> bool {
        (&self.entry, &self.key) == (entry, key)
    }

    /// Whether it was fetched from `url`.
    pub fn is_from(&self, url: &ResourceUrl) -> bool {
        self.url_sha256 == url_digest(url)
    }

    /// The marker of a base of `source` that is a copy of this one, and has no file yet.
    pub(super) fn for_another(&self, source: &ImageSource) -> Self {
        let mut marker = Self {
            nonce: None,
            writer: None,
            held: None,
            entry: source.entry.clone(),
            key: source.key.clone(),
            copied_from: None,
            pinned: source.pin != Pin::None,
            identity: None,
            ..self.clone()
        };
        marker.moved_to(&source.url);
        marker
    }

    /// Takes note of the volume that it vouches for, as libvirt tells it from others.
    pub fn vouch_for(&mut self, volume: Volume) {
        self.identity = Some(volume.identity());
    }

    /// From now on it vouches for no file: what it vouched for was found damaged.
    pub fn renounce(&mut self) {
        self.vouch_for(NO_VOLUME);
    }

    /// Whether it vouches for no file.
    pub(super) fn is_renounced(&self) -> bool {
        self.identity == Some(NO_VOLUME.identity())
    }

    /// Whether it vouches for `volume`. One that was written before volumes had an
    /// identity vouches for whatever has the name.
    pub fn vouches_for(&self, volume: Volume) -> bool {
        // libvirt does not tell the inode.
        self.identity.is_none_or(|of| Volume { size: of.size, mtime_ns: of.mtime_ns } == volume)
    }

    /// What `volume` is to it, for whoever only looks.
    pub fn found(&self, volume: Volume) -> Found {
        match self.vouches_for(volume) {
            true => Found::Vouched,
            false if self.is_renounced() => Found::Unproven,
            false => Found::Other,
        }
    }

    /// Takes note of what the configuration says of the same bytes now.
    pub fn note(&mut self, source: &ImageSource) {
        self.moved_to(&source.url);
        self.pinned |= source.pin != Pin::None;
    }

    /// Takes over another URL of the same bytes.
    pub(super) fn moved_to(&mut self, url: &ResourceUrl) {
        self.url = url.to_string();
        self.url_sha256 = url_digest(url);
    }

    /// The JSON, with its self-check.
    pub(super) fn render(&self) -> serde_json::Result<Vec<u8>> {
        let sealed = Self { check: self.seal()?, ..self.clone() };
        let mut bytes = serde_json::to_vec(&sealed)?;
        bytes.push(b'\n');
        Ok(bytes)
    }

    fn seal(&self) -> serde_json::Result<String> {
        let open = Self { check: String::new(), ..self.clone() };
        Ok(Sha256Digest::of(&serde_json::to_vec(&open)?).to_string())
    }

    /// Reads what stands where a marker should be.
    pub fn parse(bytes: &[u8]) -> MarkerState {
        let garbage = MarkerState::Garbage;
        if bytes.len() > MAX_MARKER_BYTES {
            return garbage;
        }
        if serde_json::from_slice::<Version>(bytes).is_ok_and(|of| of.version > VERSION) {
            return MarkerState::Newer;
        }
        let Ok(marker) = serde_json::from_slice::<Self>(bytes) else { return garbage };
        // Nothing but what is sealed may stand there: no unknown or misspelt member.
        let exact = serde_json::from_slice::<serde_json::Value>(bytes).ok()
            == serde_json::to_value(&marker).ok();
        let sealed = marker.seal().is_ok_and(|seal| seal == marker.check);
        if marker.version == VERSION && exact && sealed {
            MarkerState::Valid(Box::new(marker))
        } else {
            garbage
        }
    }

    /// The same marker as written through libvirt: what [`Pending::render`]
    /// gives, which alone is no JSON, and the rest, which completes it. There may be white space
    /// between the two.
    ///
    /// # Errors
    /// When it does not fit.
    pub fn render_in_two(&self, by: &Pending) -> Result<[Vec<u8>; 2], String> {
        let Pending { nonce, writer, held } = by.clone();
        let signed = Self { nonce: Some(nonce), writer: Some(writer), held, ..self.clone() };
        let whole = signed.render().map_err(|error| error.to_string())?;
        let pending = by.render()?;
        let rest = whole.get(pending.trim_ascii_end().len()..).unwrap_or_default().to_vec();
        if !whole.starts_with(pending.trim_ascii_end())
            || PENDING_SIZE + rest.len() > MARKER_VOLUME_SIZE
        {
            return Err("the marker does not fit into its volume".to_owned());
        }
        Ok([pending, rest])
    }

    /// The same marker in place of the one that `bytes` are, in as many bytes at least:
    /// volumes are never cut.
    ///
    /// # Errors
    /// When it does not fit.
    pub fn render_over(&self, bytes: &[u8]) -> Result<Vec<u8>, String> {
        let mut whole = match Pending::of(bytes) {
            Some(by) => self.render_in_two(&by)?.concat(),
            None => self.render().map_err(|error| error.to_string())?,
        };
        whole.resize(whole.len().max(bytes.len()), b' ');
        Ok(whole)
    }
}

fn url_digest(url: &ResourceUrl) -> Sha256Digest {
    let mut bare = url.expose().clone();
    // These fail only for URLs without a host, which have no credentials either.
    let _ = bare.set_username("");
    let _ = bare.set_password(None);
    Sha256Digest::of(bare.as_str().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::tests::source;

    fn by() -> Pending {
        Pending { nonce: "n1".into(), writer: "w1".into(), held: Some(Sha256Digest::of(b"h")) }
    }

    fn marker() -> Marker {
        let digest = Sha256Digest::of(b"x");
        let digests = Digests { downloaded: digest, content: digest };
        let source = source("http://me:pw@h/x?sig=secret");
        Marker::new(&source, digests, 7, 1 << 20, Validators::default())
    }

    #[test]
    fn what_is_written_is_read_and_credentials_are_not_in_it() {
        let bytes = marker().render().unwrap();
        let text = String::from_utf8(bytes.clone()).unwrap();
        assert!(!text.contains("pw") && !text.contains("secret"), "{text}");
        let MarkerState::Valid(read) = Marker::parse(&bytes) else { panic!("{text}") };
        assert!(
            read.is_of(&source("http://h/y")) && read.is_from(&source("http://h/x?sig=secret").url)
        );
        assert!(!read.is_from(&source("http://h/x?sig=other").url));
    }

    #[test]
    fn any_change_of_any_byte_makes_it_garbage() {
        let bytes = marker().render().unwrap();
        for index in 0..bytes.len() - 1 {
            let mut torn = bytes.clone();
            torn[index] ^= 1;
            assert_eq!(Marker::parse(&torn), MarkerState::Garbage, "byte {index}");
            assert_eq!(Marker::parse(&bytes[..index]), MarkerState::Garbage, "cut at {index}");
        }
    }

    #[test]
    fn the_marker_of_a_later_version_is_not_taken_for_garbage() {
        let newer = r#"{"version": 2, "entry": "a", "whatever": [1]}"#;
        assert_eq!(Marker::parse(newer.as_bytes()), MarkerState::Newer);
        let older = r#"{"version": 0, "entry": "a"}"#;
        assert_eq!(Marker::parse(older.as_bytes()), MarkerState::Garbage);
    }

    #[test]
    fn a_marker_in_two_parts_is_valid_only_with_both() {
        let [begun, rest] = marker().render_in_two(&by()).unwrap();
        assert_eq!(begun, by().render().unwrap());
        let mut zeroed = begun.clone();
        zeroed.resize(MARKER_VOLUME_SIZE, 0);
        assert_eq!(Marker::parse(&zeroed), MarkerState::Garbage);
        let whole = [begun, b" \t\n ".to_vec(), rest].concat();
        assert!(matches!(Marker::parse(&whole), MarkerState::Valid(_)));
        for bytes in [zeroed, whole] {
            assert_eq!(Pending::of(&bytes), Some(by()));
        }
    }

    /// In place of one that libvirt wrote, and of one that was written as a file.
    #[test]
    fn a_marker_is_rewritten_in_no_fewer_bytes_and_keeps_its_writer() {
        let mut parts = marker().render_in_two(&by()).unwrap().concat();
        parts.resize(MARKER_VOLUME_SIZE, b' ');
        let mut longer = marker();
        longer.url = "http://h/".to_owned() + &"x".repeat(200);
        for old in [parts, longer.render().unwrap()] {
            let MarkerState::Valid(read) = Marker::parse(&old) else { panic!("{old:?}") };
            let mut changed = *read;
            changed.note(&source("http://h/y"));
            let new = changed.render_over(&old).unwrap();
            assert!(new.len() >= old.len());
            assert_eq!(Pending::of(&new), Pending::of(&old));
            let MarkerState::Valid(read) = Marker::parse(&new) else { panic!("{new:?}") };
            assert!(read.is_from(&source("http://h/y").url));
        }
    }

    #[test]
    fn a_marker_vouches_for_one_volume() {
        let mut marker = marker();
        let volume = Volume { size: 7, mtime_ns: 5 };
        assert!(marker.vouches_for(volume), "an old marker was refused");
        marker.vouch_for(volume);
        assert!(marker.vouches_for(volume));
        assert!(!marker.vouches_for(Volume { mtime_ns: 6, ..volume }));
        marker.renounce();
        assert!(!marker.vouches_for(volume));
    }
}
