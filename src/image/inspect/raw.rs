//! A raw image: anything but an image of a known other kind, which would be probed as
//! that by whoever opens it without naming the format.

use std::fs::File;

use super::{length, read_at};

/// How other kinds of file begin.
const OTHERS: [(&str, usize, &[u8]); 17] = [
    ("qcow2", 0, b"QFI\xfb"),
    ("VMDK", 0, b"KDMV"),
    ("VMDK", 0, b"COWD"),
    ("VMDK", 0, b"# Disk DescriptorFile"),
    ("VHDX", 0, b"vhdxfile"),
    ("VHD", 0, b"conectix"),
    ("VDI", 64, b"\x7f\x10\xda\xbe"),
    ("QED", 0, b"QED\0"),
    ("LUKS", 0, b"LUKS\xba\xbe"),
    ("Parallels", 0, b"WithoutFreeSpace"),
    ("Parallels", 0, b"WithouFreSpacExt"),
    ("xz", 0, b"\xfd7zXZ\0"),
    ("gzip", 0, b"\x1f\x8b"),
    ("zstd", 0, b"\x28\xb5\x2f\xfd"),
    ("bzip2", 0, b"BZh"),
    ("a web page", 0, b"<!DOCTYPE"),
    ("a web page", 0, b"<html"),
];
/// A VHD of fixed size has its mark at the end instead.
const VHD_FOOTER: &[u8] = b"conectix";

/// The size of the disk it presents: its own.
pub(super) fn inspect(file: &File) -> Result<u64, String> {
    let begin = read_at(file, 0, 512)?;
    let size = length(file)?;
    let end = read_at(file, size.saturating_sub(512), 8)?;
    let other = OTHERS
        .iter()
        .find(|(_, offset, magic)| begin.get(*offset..).is_some_and(|rest| rest.starts_with(magic)))
        .map(|(name, ..)| *name)
        .or_else(|| end.starts_with(VHD_FOOTER).then_some("VHD"));
    match other {
        Some(name) => Err(format!("it is {name}, though its format is \"raw\"")),
        None => Ok(size),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn inspected(offset: usize, magic: &[u8]) -> Result<u64, String> {
        let mut bytes = vec![0; 4096];
        bytes[offset..offset + magic.len()].copy_from_slice(magic);
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        inspect(&file)
    }

    #[test]
    fn every_known_kind_is_refused_by_name() {
        for (name, offset, magic) in OTHERS {
            assert!(inspected(offset, magic).unwrap_err().contains(name), "{name}");
        }
        assert!(inspected(4096 - 512, VHD_FOOTER).unwrap_err().contains("VHD"));
        assert_eq!(inspected(0, b"\xeb\x63"), Ok(4096));
    }
}
