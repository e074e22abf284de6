//! The header of a qcow2 file. Format:
//! <https://www.qemu.org/docs/master/interop/qcow2.html>.

use std::fs::File;

use super::{length, read_at};

const MAGIC: &[u8] = b"QFI\xfb";
/// The fields that version 3 knows without extensions.
const HEADER: usize = 104;
const HEADER_V2: u32 = 72;
/// The specification's limit for the name of a backing file.
const MAX_NAME: u32 = 1023;
/// Header extensions that make QEMU open other files, or need a key.
const DATA_FILE: u32 = 0x4441_5441;
const ENCRYPTION: u32 = 0x0537_be77;
const BACKING_FORMAT: u32 = 0xe279_2aca;

/// Incompatible features that are understood: dirty (bit 0) and compression type
/// (bit 3) and extended L2 entries (bit 4). Corrupt (1) and external data file (2)
/// are not acceptable.
const ACCEPTED_FEATURES: u64 = 1 | 1 << 3 | 1 << 4;

struct Header {
    version: u32,
    backing_offset: u64,
    backing_size: u32,
    cluster_bits: u32,
    size: u64,
    encryption: u32,
    l1_entries: u32,
    l1_offset: u64,
    snapshots: u32,
    incompatible: u64,
    length: u32,
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    let field = bytes.get(offset..offset + 4).and_then(|field| field.try_into().ok());
    field.map(u32::from_be_bytes).unwrap_or_default()
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    let field = bytes.get(offset..offset + 8).and_then(|field| field.try_into().ok());
    field.map(u64::from_be_bytes).unwrap_or_default()
}

/// The header; nothing when the file is no qcow2.
fn header(file: &File) -> Result<Option<Header>, String> {
    let bytes = read_at(file, 0, HEADER)?;
    if !bytes.starts_with(MAGIC) || bytes.len() < HEADER_V2 as usize {
        return Ok(None);
    }
    let version = u32_at(&bytes, 4);
    let newer = version >= 3;
    Ok(Some(Header {
        version,
        backing_offset: u64_at(&bytes, 8),
        backing_size: u32_at(&bytes, 16),
        cluster_bits: u32_at(&bytes, 20),
        size: u64_at(&bytes, 24),
        encryption: u32_at(&bytes, 32),
        l1_entries: u32_at(&bytes, 36),
        l1_offset: u64_at(&bytes, 40),
        snapshots: u32_at(&bytes, 60),
        incompatible: if newer { u64_at(&bytes, 72) } else { 0 },
        length: if newer { u32_at(&bytes, 100) } else { HEADER_V2 },
    }))
}

/// The name of the backing file in a qcow2's header; nothing for any other file.
///
/// # Errors
/// When the file can't be read, or its header names something out of bounds.
pub(in crate::image) fn backing_file(file: &File) -> Result<Option<String>, String> {
    let Some(header) = header(file)? else { return Ok(None) };
    if header.backing_offset == 0 || header.backing_size == 0 {
        return Ok(None);
    }
    if header.backing_size > MAX_NAME {
        return Err("the name of its backing file is longer than qcow2 allows".into());
    }
    let name = read_at(file, header.backing_offset, header.backing_size as usize)?;
    Ok(Some(String::from_utf8_lossy(&name).into_owned()))
}

/// The size of the disk it presents.
pub(super) fn inspect(file: &File) -> Result<u64, String> {
    let header = header(file)?.ok_or("it is not a qcow2 image, though its format is \"qcow2\"")?;
    if !(2..=3).contains(&header.version) {
        return Err(format!("it is qcow2 of version {}, and 2 and 3 are known", header.version));
    }
    if header.backing_offset != 0 || header.backing_size != 0 {
        return Err("it has a backing file, and so would read another file of the host".into());
    }
    if header.encryption != 0 {
        return Err("it is encrypted".into());
    }
    if header.incompatible & !ACCEPTED_FEATURES != 0 {
        let features = header.incompatible;
        return Err(format!(
            "it has incompatible features ({features:#x}) that are not acceptable: an external \
             data file, damage, or something unknown"
        ));
    }
    if header.snapshots != 0 {
        return Err("it has internal snapshots, which a base has no use for".into());
    }
    geometry(file, &header)?;
    extensions(file, &header)?;
    Ok(header.size)
}

/// The mapping table has to be as large as the disk needs, and inside the file.
fn geometry(file: &File, header: &Header) -> Result<(), String> {
    if !(9..=21).contains(&header.cluster_bits) {
        return Err(format!("its clusters have 2^{} bytes, which can't be", header.cluster_bits));
    }
    let entry = if header.incompatible & 1 << 4 == 0 { 8 } else { 16 };
    let cluster = 1_u64 << header.cluster_bits;
    let mapped = cluster.saturating_mul(cluster / entry);
    let needed = header.size.div_ceil(mapped);
    let entries = u64::from(header.l1_entries);
    let end = header.l1_offset.saturating_add(entries * 8);
    if entries < needed || entries > needed.saturating_mul(2).max(1024) || end > length(file)? {
        return Err(format!(
            "its mapping table ({entries} entries at {}) does not fit a disk of {} bytes",
            header.l1_offset, header.size
        ));
    }
    Ok(())
}

fn extensions(file: &File, header: &Header) -> Result<(), String> {
    if !(HEADER_V2..=4096).contains(&header.length) {
        return Err(format!("its header has {} bytes, which can't be", header.length));
    }
    // All of the header stands in the first cluster.
    let bytes = read_at(file, 0, 1 << header.cluster_bits.min(16))?;
    let mut at = header.length as usize;
    while at + 8 <= bytes.len() {
        let (kind, size) = (u32_at(&bytes, at), u32_at(&bytes, at + 4) as usize);
        match kind {
            0 => return Ok(()),
            DATA_FILE => return Err("it keeps its data in another file of the host".into()),
            ENCRYPTION => return Err("it is encrypted".into()),
            BACKING_FORMAT => return Err("it names the format of a backing file".into()),
            _ => at += 8 + size.next_multiple_of(8),
        }
    }
    if bytes.len() < 1 << header.cluster_bits.min(16) && at <= bytes.len() {
        return Ok(());
    }
    Err("its header goes on beyond its first cluster".into())
}

#[cfg(test)]
pub(in crate::image) mod tests {
    use std::io::Write as _;

    use super::*;

    /// A valid image of a disk of 16 MiB without any data.
    pub(in crate::image) fn image() -> Vec<u8> {
        let mut bytes = vec![0; 4 << 16];
        bytes[..4].copy_from_slice(MAGIC);
        bytes[4..8].copy_from_slice(&3_u32.to_be_bytes());
        bytes[20..24].copy_from_slice(&16_u32.to_be_bytes());
        bytes[24..32].copy_from_slice(&(16_u64 << 20).to_be_bytes());
        bytes[36..40].copy_from_slice(&1_u32.to_be_bytes());
        bytes[40..48].copy_from_slice(&(3_u64 << 16).to_be_bytes());
        bytes[48..56].copy_from_slice(&(1_u64 << 16).to_be_bytes());
        bytes[56..60].copy_from_slice(&1_u32.to_be_bytes());
        bytes[96..100].copy_from_slice(&4_u32.to_be_bytes());
        bytes[100..104].copy_from_slice(&104_u32.to_be_bytes());
        bytes
    }

    /// An overlay whose header names `backing`.
    pub(in crate::image) fn overlay(backing: &str) -> Vec<u8> {
        let mut bytes = image();
        bytes[8..16].copy_from_slice(&512_u64.to_be_bytes());
        bytes[16..20].copy_from_slice(&u32::try_from(backing.len()).unwrap().to_be_bytes());
        bytes[512..512 + backing.len()].copy_from_slice(backing.as_bytes());
        bytes
    }

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    fn refused(change: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut bytes = image();
        change(&mut bytes);
        inspect(&file(&bytes)).unwrap_err()
    }

    #[test]
    fn a_plain_image_is_accepted() {
        assert_eq!(inspect(&file(&image())), Ok(16 << 20));
        assert_eq!(backing_file(&file(&image())), Ok(None));
    }

    #[test]
    fn a_backing_file_is_found_and_refused() {
        for name in ["/etc/shadow", "json:{\"driver\":\"nbd\"}", "nbd://h/x"] {
            let file = file(&overlay(name));
            assert_eq!(backing_file(&file), Ok(Some(name.to_owned())));
            assert!(inspect(&file).unwrap_err().contains("backing file"));
        }
    }

    #[test]
    fn what_is_dangerous_or_implausible_is_refused() {
        assert!(refused(|b| b[0] = 0).contains("not a qcow2"));
        assert!(refused(|b| b[7] = 4).contains("version 4"));
        assert!(refused(|b| b[35] = 1).contains("encrypted"));
        assert!(refused(|b| b[79] = 1 << 2).contains("incompatible"));
        assert!(refused(|b| b[79] = 1 << 1).contains("incompatible"));
        assert!(refused(|b| b[72] = 1).contains("incompatible"));
        assert!(refused(|b| b[63] = 1).contains("snapshots"));
        assert!(refused(|b| b[23] = 40).contains("2^40"));
        assert!(refused(|b| b[24] = 0x7f).contains("mapping table"));
        assert!(refused(|b| b[36] = 0x7f).contains("mapping table"));
        assert!(refused(|b| b[40] = 0x7f).contains("mapping table"));
        assert!(refused(|b| b.truncate(80)).contains("mapping table"));
        assert!(refused(|b| b[100] = 0x7f).contains("header has"));
    }

    #[test]
    fn extensions_that_open_other_files_are_refused() {
        for (kind, words) in
            [(DATA_FILE, "another file"), (ENCRYPTION, "encrypted"), (BACKING_FORMAT, "format")]
        {
            let error = refused(|b| b[104..108].copy_from_slice(&kind.to_be_bytes()));
            assert!(error.contains(words), "{error}");
        }
        let endless =
            refused(|b| b[104..112].copy_from_slice(&[1, 1, 1, 1, 0xff, 0xff, 0xff, 0xff]));
        assert!(endless.contains("beyond"), "{endless}");
    }
}
