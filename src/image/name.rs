//! File names in a pool. Whoever needs one asks here.

use crate::model::{EntryName, ImageFormat, ImageKey};

/// The base of image `key` of `entry`. Two images can have one name (`a-b`+`c` and
/// `a`+`b-c`): the configuration refuses that, and the marker detects it.
pub fn base_file_name(entry: &EntryName, key: &ImageKey, format: ImageFormat) -> String {
    format!("base-{entry}-{key}.{format}")
}

/// The marker beside a base: the record that it is complete and verified.
pub fn marker_file_name(base: &str) -> String {
    format!("{base}.json")
}

/// Where the successor of a marker stands until it takes its place.
pub(super) fn staged_file_name(base: &str) -> String {
    format!("{}.new", marker_file_name(base))
}

/// The file that is locked while a base is downloaded. It is never removed.
pub(super) fn lock_file_name(base: &str) -> String {
    format!("{base}.lock")
}

/// The base whose lock file `name` is.
pub(super) fn base_of_lock(name: &str) -> Option<&str> {
    name.strip_suffix(".lock").filter(|base| is_base(base))
}

/// The base whose marker `name` is.
pub fn base_of_marker(name: &str) -> Option<&str> {
    name.strip_suffix(".json").filter(|base| is_base(base))
}

/// Whether `name` can be that of a base.
pub(super) fn is_base(name: &str) -> bool {
    let stem =
        ImageFormat::ALL.iter().find_map(|of| name.strip_suffix(of.as_str())?.strip_suffix('.'));
    stem.is_some_and(|stem| stem.starts_with("base-"))
}

/// Whether `base` can be a base of `entry`: only a marker tells which of the entries
/// that it can be of has made it.
pub fn can_be_of(base: &str, entry: &EntryName) -> bool {
    base.strip_prefix("base-")
        .and_then(|rest| rest.strip_prefix(entry.as_str()))
        .is_some_and(|rest| rest.starts_with('-'))
}
