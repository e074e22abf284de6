//! What is known of an image before it is fetched: URL, digest, format, firmware.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use url::Url;

/// The file format of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum ImageFormat {
    /// QEMU copy-on-write, version 2 or 3.
    #[default]
    Qcow2,
    /// A plain disk image.
    Raw,
}

impl ImageFormat {
    /// All there are.
    pub const ALL: [Self; 2] = [Self::Qcow2, Self::Raw];

    /// The name that libvirt, qemu-img and file names use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Qcow2 => "qcow2",
            Self::Raw => "raw",
        }
    }
}

impl FromStr for ImageFormat {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "qcow2" => Ok(Self::Qcow2),
            "raw" => Ok(Self::Raw),
            other => Err(format!("image format {other:?} is not known: use \"qcow2\" or \"raw\"")),
        }
    }
}

impl fmt::Display for ImageFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The firmware a guest boots with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum Firmware {
    /// UEFI without secure boot.
    #[default]
    Uefi,
    /// Legacy BIOS (SeaBIOS).
    Bios,
}

impl FromStr for Firmware {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "uefi" => Ok(Self::Uefi),
            "bios" => Ok(Self::Bios),
            other => Err(format!("firmware {other:?} is not known: use \"uefi\" or \"bios\"")),
        }
    }
}

/// A sha256, compared and printed as 64 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Sha256Digest([u8; 32]);

impl Sha256Digest {
    /// Takes the 32 bytes of a finished hash.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The sha256 of `data`.
    pub fn of(data: &[u8]) -> Self {
        use sha2::Digest as _;
        Self(sha2::Sha256::digest(data).into())
    }

    /// The 32 bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Sha256Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Sha256Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{self}")
    }
}

impl FromStr for Sha256Digest {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let refuse = || {
            let shown: String = text.chars().take(80).collect();
            format!("sha256 {shown:?} is not valid: give the 64 hex digits that sha256sum prints")
        };
        if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(refuse());
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| refuse())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| refuse())?;
        }
        Ok(Self(bytes))
    }
}

impl TryFrom<String> for Sha256Digest {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Sha256Digest> for String {
    fn from(digest: Sha256Digest) -> String {
        digest.to_string()
    }
}

/// What the bytes of an image are held to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Pin {
    /// To nothing: whatever the server sends first is kept.
    #[default]
    None,
    /// To this sha256 of the downloaded file.
    Digest(Sha256Digest),
    /// To the sha256 that a list at this URL, as `sha256sum` writes it, has for the
    /// image's file name.
    Listed(ResourceUrl),
}

impl Pin {
    /// The digest, where it is known without asking anybody.
    pub fn digest(&self) -> Option<Sha256Digest> {
        match self {
            Self::Digest(digest) => Some(*digest),
            Self::None | Self::Listed(_) => None,
        }
    }
}

impl From<Option<Sha256Digest>> for Pin {
    fn from(digest: Option<Sha256Digest>) -> Self {
        digest.map_or(Self::None, Self::Digest)
    }
}

/// Who gave a URL: it decides which schemes are allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UrlOrigin {
    /// The configuration file, written by root: `file://` is allowed.
    Configuration,
    /// A D-Bus call: a caller must not read a root-only file through a guest's disk.
    Api,
}

/// Why a URL was refused; the text never repeats credentials.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidUrl(String);

/// An address to fetch from: an image, or the health URL. `Display` leaves out user name, password and query
/// values, so that it may stand in logs, markers and properties.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ResourceUrl(Url);

impl ResourceUrl {
    /// Checks scheme and host of `text`.
    pub fn parse(text: &str, origin: UrlOrigin) -> Result<Self, InvalidUrl> {
        let url = Url::parse(text)
            .map_err(|error| InvalidUrl(format!("the URL can't be read: {error}")))?;
        let allowed = match (url.scheme(), origin) {
            ("http" | "https", _) => url.has_host(),
            ("file", UrlOrigin::Configuration) => url.to_file_path().is_ok(),
            _ => false,
        };
        if allowed {
            return Ok(Self(url));
        }
        let ways = match origin {
            UrlOrigin::Configuration => "http://, https:// or file:///absolute/path",
            UrlOrigin::Api => "http:// or https:// (file:// only in the configuration file)",
        };
        Err(InvalidUrl(format!("the URL {} is not allowed here: use {ways}", public(&url))))
    }

    /// The whole URL, credentials included: for the request, and nothing else.
    pub fn expose(&self) -> &Url {
        &self.0
    }
}

/// `url` without what may be secret in it. A signed URL carries its secret in the
/// query, so only the fact that there is one stays.
fn public(url: &Url) -> String {
    let mut shown = url.clone();
    // These fail only for URLs without a host, which have no credentials either.
    let _ = shown.set_username("");
    let _ = shown.set_password(None);
    shown.set_fragment(None);
    if shown.query().is_some() {
        shown.set_query(Some("…"));
    }
    shown.to_string().replace("%E2%80%A6", "…")
}

impl fmt::Display for ResourceUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&public(&self.0))
    }
}

impl fmt::Debug for ResourceUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl TryFrom<String> for ResourceUrl {
    type Error = InvalidUrl;
    fn try_from(text: String) -> Result<Self, InvalidUrl> {
        Self::parse(&text, UrlOrigin::Configuration)
    }
}

impl From<ResourceUrl> for String {
    fn from(url: ResourceUrl) -> String {
        url.0.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_by_origin() {
        for text in ["http://h/x", "https://h:1/x?y"] {
            assert!(ResourceUrl::parse(text, UrlOrigin::Api).is_ok(), "{text}");
        }
        assert!(ResourceUrl::parse("file:///x", UrlOrigin::Configuration).is_ok());
        for text in ["file:///etc/shadow", "ftp://h/x", "x", "http:", "nbd://h/x", ""] {
            assert!(ResourceUrl::parse(text, UrlOrigin::Api).is_err(), "{text}");
        }
    }

    #[test]
    fn credentials_are_not_shown() {
        let url = ResourceUrl::parse("http://me:pw@h/x?token=t#f", UrlOrigin::Api).unwrap();
        assert_eq!(url.to_string(), "http://h/x?…");
        assert_eq!(format!("{url:?}"), "http://h/x?…");
        let refused = ResourceUrl::parse("ftp://me:pw@h/x", UrlOrigin::Api).unwrap_err();
        assert!(!refused.to_string().contains("pw"), "{refused}");
    }

    #[test]
    fn digests() {
        let digest = Sha256Digest::of(b"");
        let text = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(digest.to_string(), text);
        assert_eq!(text.to_uppercase().parse::<Sha256Digest>().unwrap(), digest);
        for bad in ["", "abc", &text[1..], &format!("é{}", &text[2..])] {
            assert!(bad.parse::<Sha256Digest>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_url_key_is_the_first_eight_bytes_of_its_hash() {
        let url = ResourceUrl::parse("http://example.org/a.qcow2", UrlOrigin::Api).unwrap();
        let whole = Sha256Digest::of(b"http://example.org/a.qcow2").to_string();
        assert_eq!(crate::model::ImageKey::of_url(&url).as_str(), &whole[..16]);
    }
}
