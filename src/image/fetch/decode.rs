//! Compressed images: unpacked on the way, with bounded memory.

use std::io::{self, BufReader, Read};

use crate::model::ResourceUrl;

/// Memory that an xz stream may ask for, in KiB: `xz -9` needs 65 MiB.
const XZ_MEMORY: u32 = 192 << 10;
/// The largest window of a zstd stream, as a power of two: 128 MiB, which is zstd's
/// own default.
const ZSTD_WINDOW: u32 = 27;
const BUFFER: usize = 256 << 10;

/// How a downloaded image is compressed, as its URL's file name tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compression {
    None,
    Xz,
    Gzip,
    Zstd,
}

impl Compression {
    pub(super) fn of(url: &ResourceUrl) -> Self {
        let path = url.expose().path().to_ascii_lowercase();
        match path.rsplit_once('.').map(|(_, extension)| extension) {
            Some("xz") => Self::Xz,
            Some("gz") => Self::Gzip,
            Some("zst") => Self::Zstd,
            _ => Self::None,
        }
    }

    /// Its name for people.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::None => "plain",
            Self::Xz => "xz",
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }

    /// Unpacks `packed`: several streams in a row, too, as parallel compressors and
    /// `cat` make them.
    pub(super) fn reader<'a>(self, packed: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
        let packed = BufReader::with_capacity(BUFFER, packed);
        Ok(match self {
            Self::None => Box::new(packed),
            Self::Xz => Box::new(lzma_rust2::XzReader::new_mem_limit(packed, true, XZ_MEMORY)),
            Self::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(packed)),
            Self::Zstd => {
                let mut reader = zstd::stream::read::Decoder::with_buffer(packed)?;
                reader.window_log_max(ZSTD_WINDOW)?;
                Box::new(reader)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::UrlOrigin;

    #[test]
    fn the_file_name_tells() {
        let of = |text: &str| {
            Compression::of(&ResourceUrl::parse(text, UrlOrigin::Configuration).unwrap())
        };
        assert_eq!(of("http://h/a.raw.xz?x=y.gz"), Compression::Xz);
        assert_eq!(of("http://h/a.qcow2.GZ"), Compression::Gzip);
        assert_eq!(of("file:///a.zst"), Compression::Zstd);
        assert_eq!(of("http://h.xz/a.qcow2"), Compression::None);
        assert_eq!(of("http://h/xz"), Compression::None);
    }
}
