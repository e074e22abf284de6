//! Vendor-data: the script that brings the guest agent, and the operator's own data
//! beside it. Only data that cloud-init can deliver is accepted: what it chokes on
//! would keep the user-data from being applied, too.

use std::io::Read as _;

use flate2::read::MultiGzDecoder;

use super::mime::{Part, is_document, multipart};
use super::script;
use crate::model::Secret;

const GZIP: &[u8] = b"\x1f\x8b";
/// The types whose parts cloud-init decompresses (`DECOMP_TYPES` in its user_data.py).
const COMPRESSED: [&str; 8] = [
    "application/gzip",
    "application/gzip-compressed",
    "application/gzipped",
    "application/x-compress",
    "application/x-compressed",
    "application/x-gunzip",
    "application/x-gzip",
    "application/x-gzip-compressed",
];
/// Decompressed data beyond this is an attack.
const MAX_BYTES: u64 = 32 << 20;

/// Vendor-data of the operator's own that cloud-init can deliver: text, whatever it
/// was given as.
#[derive(Clone, PartialEq, Eq)]
pub struct VendorData(String);

impl VendorData {
    /// Checks `data`, and decompresses it if it is gzip.
    ///
    /// # Errors
    /// Why cloud-init could not deliver it, and the way out.
    pub fn new(data: &Secret) -> Result<Self, String> {
        let bytes = data.expose();
        let plain = if bytes.starts_with(GZIP) { decompress(bytes)? } else { bytes.to_vec() };
        let text = String::from_utf8(plain).map_err(|error| {
            format!(
                "it is not UTF-8 text (at byte {}): cloud-init would stop at it before it applies \
                 any user-data; give cloud-config, a script, or a MIME archive of such",
                error.utf8_error().valid_up_to()
            )
        })?;
        if is_document(&text) {
            check_parts(&text)?;
        }
        Ok(Self(text))
    }

    /// The text itself: for the seed, and nothing else.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for VendorData {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "VendorData({} bytes)", self.0.len())
    }
}

fn decompress(bytes: &[u8]) -> Result<Vec<u8>, String> {
    let mut plain = Vec::new();
    // As cloud-init reads it: one member after the other.
    MultiGzDecoder::new(bytes)
        .take(MAX_BYTES + 1)
        .read_to_end(&mut plain)
        .map_err(|error| format!("it is gzip that can't be decompressed: {error}"))?;
    if plain.len() as u64 > MAX_BYTES {
        return Err(format!("it decompresses to more than {MAX_BYTES} bytes"));
    }
    Ok(plain)
}

/// Makes sure that what an archive declares to be compressed can be decompressed: at
/// anything else cloud-init stops.
fn check_parts(document: &str) -> Result<(), String> {
    let archive = mailparse::parse_mail(document.as_bytes())
        .map_err(|error| format!("it is no MIME archive that can be read: {error}"))?;
    for (number, part) in archive.parts().filter(|part| part.subparts.is_empty()).enumerate() {
        if COMPRESSED.contains(&part.ctype.mimetype.as_str()) {
            part.get_body_raw()
                .map_err(|error| error.to_string())
                .and_then(|body| decompress(&body))
                .map_err(|why| {
                    let kind = &part.ctype.mimetype;
                    format!(
                        "part {} of its MIME archive is declared as {kind}: {why}; cloud-init \
                         would stop at it before it applies any user-data",
                        number + 1
                    )
                })?;
        }
    }
    Ok(())
}

/// The vendor-data file; nothing when there is nothing to deliver.
pub(super) fn render(agent: bool, own: Option<&VendorData>) -> Option<String> {
    match (agent, own) {
        (false, None) => None,
        (true, None) => Some(script::agent()),
        (false, Some(own)) => Some(alone(own.expose())),
        (true, Some(own)) => {
            let (kind, name) = ("text/x-shellscript", "proxyd-agent");
            let script = Part::Text { kind, name, text: &script::agent() };
            Some(multipart(&[script, part(own.expose())]))
        }
    }
}

/// The text as it is, unless cloud-init would take it for the MIME document that it
/// isn't, such as a script that sends mail: then as the only part of one.
fn alone(text: &str) -> String {
    if super::mime::is_taken_for_document(text) && !is_document(text) {
        return multipart(&[part(text)]);
    }
    text.to_owned()
}

fn part(text: &str) -> Part<'_> {
    if is_document(text) {
        // cloud-init drops a MIME document that is wrapped as text: it goes in as a
        // part of its own kind.
        return Part::Document(text);
    }
    // Declared as plain text, so that cloud-init itself finds out what it is.
    Part::Text { kind: "text/plain", name: "vendor-data", text }
}
