//! Vendor-data: the script that brings the guest agent, and the operator's own data
//! beside it. Only data that cloud-init can deliver is accepted: what it chokes on
//! would keep the user-data from being applied, too.

use std::io::Read as _;

use flate2::read::GzDecoder;

use super::mime::{Part, multipart};
use crate::model::Secret;

/// Installs and starts the guest agent, on the common distributions.
const BOOTSTRAP: &str = include_str!("bootstrap.sh");
const GZIP: &[u8] = b"\x1f\x8b";
/// Decompressed data beyond this is an attack.
const MAX_BYTES: u64 = 32 << 20;

/// Makes sure that `data` can be delivered.
///
/// # Errors
/// Why not, and the way out.
pub fn check_vendor_data(data: &Secret) -> Result<(), String> {
    deliverable(data).map(drop)
}

/// `data` as text, decompressed if need be.
fn deliverable(data: &Secret) -> Result<String, String> {
    let bytes = data.expose();
    let plain = if bytes.starts_with(GZIP) { decompress(bytes)? } else { bytes.to_vec() };
    String::from_utf8(plain).map_err(|error| {
        format!(
            "it is not UTF-8 text (at byte {}): cloud-init would stop at it before it applies any \
             user-data; give cloud-config, a script, or a MIME archive of such",
            error.utf8_error().valid_up_to()
        )
    })
}

fn decompress(bytes: &[u8]) -> Result<Vec<u8>, String> {
    let mut plain = Vec::new();
    GzDecoder::new(bytes)
        .take(MAX_BYTES + 1)
        .read_to_end(&mut plain)
        .map_err(|error| format!("it begins as gzip and can't be decompressed: {error}"))?;
    if plain.len() as u64 > MAX_BYTES {
        return Err(format!("it decompresses to more than {MAX_BYTES} bytes"));
    }
    Ok(plain)
}

/// The vendor-data file; nothing when there is nothing to deliver.
pub(super) fn render(agent: bool, own: Option<&Secret>) -> Result<Option<Vec<u8>>, String> {
    let Some(own) = own else { return Ok(agent.then(|| BOOTSTRAP.as_bytes().to_vec())) };
    if !agent {
        return Ok(Some(own.expose().to_vec()));
    }
    let text = deliverable(own)?;
    let own = if is_mime(&text) {
        // cloud-init drops a MIME document that is wrapped as text: it goes in as a
        // part of its own kind.
        Part::Document(text)
    } else {
        // Declared as plain text, so that cloud-init itself finds out what it is.
        Part::Text { kind: "text/plain", name: "vendor-data", text }
    };
    let script =
        Part::Text { kind: "text/x-shellscript", name: "proxyd-agent", text: BOOTSTRAP.to_owned() };
    Ok(Some(multipart(&[script, own]).into_bytes()))
}

/// Whether `text` is a MIME document, as cloud-init tells it.
fn is_mime(text: &str) -> bool {
    let head: String = text.chars().take(256).collect::<String>().to_lowercase();
    head.starts_with("mime-version:") || head.starts_with("content-type:")
}
