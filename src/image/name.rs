//! File names in a pool. Whoever needs one asks here.

use crate::model::{EntryName, ImageFormat, ImageKey, ProxyName};

/// The base of image `key` of `entry`. Two images can have one name (`a-b`+`c` and
/// `a`+`b-c`): the configuration refuses that, and the marker detects it.
pub fn base_file_name(entry: &EntryName, key: &ImageKey, format: ImageFormat) -> String {
    format!("base-{entry}-{key}.{format}")
}

/// The marker beside a base: the record that it is complete and verified.
pub fn marker_file_name(base: &str) -> String {
    format!("{base}.json")
}

/// The file that is locked while a base is downloaded. It is never removed.
pub(super) fn lock_file_name(base: &str) -> String {
    format!("{base}.lock")
}

/// The overlay of a Proxy.
pub fn overlay_file_name(proxy: &ProxyName) -> String {
    format!("proxy-{proxy}.qcow2")
}

/// The seed of a Proxy.
pub fn seed_file_name(proxy: &ProxyName) -> String {
    format!("proxy-{proxy}-seed.img")
}
