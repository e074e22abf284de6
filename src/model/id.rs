//! Identifiers: provider entries, image keys and Proxy names share one grammar
//! and one checker, but are types of their own so that they can't be swapped.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{ResourceUrl, Sha256Digest};

/// The longest identifier, in characters: a DNS label, since a Proxy's name
/// becomes its guest's hostname.
pub const MAX_LENGTH: usize = 63;

/// Why a string is no identifier. The message repeats the grammar, so that it
/// can be shown to the person who typed it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what} {value:?} is not valid: use 1 to 63 lower-case letters, digits and hyphens, \
     beginning and ending with a letter or digit"
)]
pub struct InvalidIdentifier {
    what: &'static str,
    value: String,
}

/// The grammar `[a-z0-9]([a-z0-9-]*[a-z0-9])?`, at most [`MAX_LENGTH`] characters.
fn is_identifier(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    match (bytes.first(), bytes.last()) {
        (Some(&first), Some(&last)) => {
            bytes.len() <= MAX_LENGTH
                && inner(first)
                && inner(last)
                && bytes.iter().all(|&b| inner(b) || b == b'-')
        }
        _ => false,
    }
}

fn check(what: &'static str, text: &str) -> Result<(), InvalidIdentifier> {
    if is_identifier(text) {
        return Ok(());
    }
    // A hostile value must not flood a log: show enough of it to recognise it.
    let value = text.chars().take(80).collect();
    Err(InvalidIdentifier { what, value })
}

macro_rules! identifier {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Checks `text` and takes it.
            pub fn new(text: &str) -> Result<Self, InvalidIdentifier> {
                check($what, text)?;
                Ok(Self(text.to_owned()))
            }

            /// The identifier as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidIdentifier;
            fn try_from(text: String) -> Result<Self, Self::Error> {
                Self::new(&text)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }
    };
}

identifier!(
    /// The name of a provider entry, as in `providers.<entry>`.
    EntryName,
    "provider entry"
);
identifier!(
    /// The key of an image, as in `images.<key>`.
    ImageKey,
    "image key"
);
identifier!(
    /// The name of a Proxy; also its guest's hostname.
    ProxyName,
    "proxy name"
);

impl EntryName {
    /// The name under which this daemon's own spool has its images.
    pub fn spool() -> Self {
        Self("spool".to_owned())
    }
}

impl ImageKey {
    /// The key of an image that is known by its sha256: the first 20 bytes of it in hex,
    /// which is an identifier always; all 32 are too long for one.
    pub fn of_digest(digest: &Sha256Digest) -> Self {
        Self(digest.to_string().chars().take(40).collect())
    }

    /// The key of an image that is given by URL alone: the first 8 bytes of the URL's
    /// sha256 in hex, which is an identifier always.
    pub fn of_url(url: &ResourceUrl) -> Self {
        let digest = Sha256Digest::of(url.expose().as_str().as_bytes());
        Self(digest.to_string()[..16].to_owned())
    }
}

/// Which image of which provider entry.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ImageId {
    /// The entry.
    pub entry: EntryName,
    /// The image's key there.
    pub key: ImageKey,
}

impl fmt::Display for ImageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of provider entry {}", self.key, self.entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grammar() {
        for good in ["a", "9", "a-b", "debian-13", &"x".repeat(63)] {
            assert!(ImageKey::new(good).is_ok(), "{good}");
        }
        for bad in ["", "-", "a-", "-a", "A", "a_b", "a.b", "a/b", "é", "a\n", &"x".repeat(64)] {
            assert!(ImageKey::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_refusal_names_the_thing_and_shortens_the_value() {
        let long = "Z".repeat(5000);
        let message = ProxyName::new(&long).unwrap_err().to_string();
        assert!(message.starts_with("proxy name"), "{message}");
        assert!(message.len() < 300, "{message}");
    }
}
