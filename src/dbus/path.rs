//! Object paths. An element holds only letters, digits and what escapes the rest: a
//! hyphen, and a digit in front, as sd-bus does it (`sd_bus_path_encode(3)`).

use zbus::{ObjectPath, OwnedObjectPath};

use super::ROOT_PATH;
use crate::model::{EntryName, ImageId, ProxyName};

pub(super) fn proxy(name: &ProxyName) -> OwnedObjectPath {
    below("proxy", &[name.as_str()])
}

pub(super) fn provider(entry: &EntryName) -> OwnedObjectPath {
    below("provider", &[entry.as_str()])
}

pub(super) fn image(id: &ImageId) -> OwnedObjectPath {
    below("image", &[id.entry.as_str(), id.key.as_str()])
}

/// A number stays as it is, as systemd's own jobs have it in their paths.
pub(super) fn job(id: u64) -> OwnedObjectPath {
    ObjectPath::from_string_unchecked(format!("{ROOT_PATH}/job/{id}")).into()
}

fn below(kind: &str, labels: &[&str]) -> OwnedObjectPath {
    let labels: Vec<_> = labels.iter().map(|label| escape(label)).collect();
    // `escape` leaves nothing that a path may not hold.
    ObjectPath::from_string_unchecked(format!("{ROOT_PATH}/{kind}/{}", labels.join("/"))).into()
}

fn escape(label: &str) -> String {
    let mut escaped = String::with_capacity(label.len());
    for (index, byte) in label.bytes().enumerate() {
        if byte.is_ascii_alphabetic() || (index > 0 && byte.is_ascii_digit()) {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("_{byte:02x}"));
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ImageKey;

    #[test]
    fn paths_are_escaped_as_sd_bus_does() {
        let of = |name| proxy(&ProxyName::new(name).unwrap());
        assert_eq!(of("a-b").as_str(), "/org/proxyd1/proxy/a_2db");
        assert_eq!(of("9a9").as_str(), "/org/proxyd1/proxy/_39a9");
        let (entry, key) = (EntryName::new("kvm-home"), ImageKey::new("debian-13"));
        let id = ImageId { entry: entry.unwrap(), key: key.unwrap() };
        assert_eq!(image(&id).as_str(), "/org/proxyd1/image/kvm_2dhome/debian_2d13");
        assert_eq!(job(12).as_str(), "/org/proxyd1/job/12");
    }
}
