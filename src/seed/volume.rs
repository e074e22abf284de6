//! A FAT file system labelled `CIDATA`, in memory.

use std::io::{self, Cursor, Write as _};

use fatfs::{FileSystem, FormatVolumeOptions, FsOptions};
use uuid::Uuid;

/// As cloud-init looks for it; a label is padded to eleven bytes.
const LABEL: [u8; 11] = *b"CIDATA     ";
const MIB: usize = 1 << 20;

/// A volume with `files`. Its serial number comes from `uuid`, and there are no times
/// in it, so that the same content gives the same bytes.
pub(super) fn render(uuid: Uuid, files: &[(&str, Vec<u8>)]) -> io::Result<Vec<u8>> {
    let content: usize = files.iter().map(|(_, bytes)| bytes.len()).sum();
    // An eighth more for the allocation table, and a MiB for everything else.
    let size = (content + content / 8).next_multiple_of(MIB) + MIB;
    let mut disk = Cursor::new(vec![0; size]);
    let (serial, ..) = uuid.as_fields();
    let options = FormatVolumeOptions::new().volume_label(LABEL).volume_id(serial);
    fatfs::format_volume(&mut disk, options)?;
    let system = FileSystem::new(&mut disk, FsOptions::new().update_accessed_date(false))?;
    for (name, bytes) in files {
        let mut file = system.root_dir().create_file(name)?;
        file.write_all(bytes)?;
        file.flush()?;
    }
    system.unmount()?;
    Ok(disk.into_inner())
}
