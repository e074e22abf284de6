//! Untrusted images: headers are read here, with bounds, before libvirt or QEMU see
//! the file. QEMU's own tools would open whatever a header names.

mod qcow2;
mod raw;

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::model::ImageFormat;

/// The least disk that can hold a system, and the largest that is plausible.
const VIRTUAL_SIZE: std::ops::RangeInclusive<u64> = (1 << 20)..=(64 << 40);

/// The size in bytes of the disk that `file` presents, once it is known to be safe.
///
/// # Errors
/// Why the image is refused.
pub(super) fn virtual_size(file: &File, format: ImageFormat) -> Result<u64, String> {
    let size = match format {
        ImageFormat::Qcow2 => qcow2::inspect(file)?,
        ImageFormat::Raw => raw::inspect(file)?,
    };
    if VIRTUAL_SIZE.contains(&size) && size.is_multiple_of(512) {
        return Ok(size);
    }
    Err(format!("it presents a disk of {size} bytes, which is not plausible"))
}

/// The size in bytes of the disk that an image presents, by the first of its `size` bytes.
///
/// # Errors
/// Why the image is refused.
pub fn disk_size(head: &[u8], size: u64, format: ImageFormat) -> Result<u64, String> {
    let failed = |error: std::io::Error| format!("it can't be inspected: {error}");
    // The rest is a hole: what is looked at stands in front.
    let memory = memfd_create("image", MFdFlags::MFD_CLOEXEC).map_err(|e| failed(e.into()))?;
    let file = File::from(memory);
    file.write_all_at(head, 0).and_then(|()| file.set_len(size)).map_err(failed)?;
    virtual_size(&file, format)
}

pub(super) use qcow2::backing_file;

/// `length` bytes at `offset`, or fewer at the end of the file.
fn read_at(file: &File, offset: u64, length: usize) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; length];
    let mut filled = 0;
    while filled < length {
        let read = file
            .read_at(&mut bytes[filled..], offset + filled as u64)
            .map_err(|error| format!("it can't be read: {error}"))?;
        if read == 0 {
            break;
        }
        filled += read;
    }
    bytes.truncate(filled);
    Ok(bytes)
}

fn length(file: &File) -> Result<u64, String> {
    file.metadata().map(|data| data.len()).map_err(|error| format!("it can't be read: {error}"))
}

#[cfg(test)]
pub(super) use qcow2::tests;
