//! A MIME multipart for cloud-init. Text is base64: the only encoding in which all
//! that real cloud-init can deliver arrives whole.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::model::Sha256Digest;

/// RFC 2045: lines of an encoded body.
const LINE: usize = 76;

/// Where cloud-init looks for the words that make a document MIME
/// (`convert_string` in cloudinit/user_data.py).
const SNIFFED: usize = 4096;

/// Whether cloud-init takes `text` for a MIME document: the words stand anywhere near
/// its begin.
pub(super) fn is_taken_for_document(text: &str) -> bool {
    let head = &text.as_bytes()[..text.len().min(SNIFFED)];
    head.to_ascii_lowercase().windows(b"mime-version:".len()).any(|at| at == b"mime-version:")
}

/// Whether `text` is a MIME document: cloud-init takes it for one, and it begins with a
/// header as RFC 5322 has it.
pub(super) fn is_document(text: &str) -> bool {
    let name = text.split(':').next().unwrap_or_default();
    let is_name = |byte: u8| byte.is_ascii_graphic();
    // No header's name begins so, and everything else that cloud-init knows does.
    let header = !name.is_empty() && !name.starts_with('#') && name.bytes().all(is_name);
    header && is_taken_for_document(text)
}

/// One part of a multipart.
pub(super) enum Part<'a> {
    /// Text of a kind, under a file name.
    Text { kind: &'static str, name: &'static str, text: &'a str },
    /// A MIME document, which brings its own headers.
    Document(&'a str),
}

impl Part<'_> {
    fn render(&self) -> String {
        match self {
            Self::Text { kind, name, text } => format!(
                "Content-Type: {kind}; charset=\"utf-8\"\r\nMIME-Version: 1.0\r\n\
                 Content-Transfer-Encoding: base64\r\n\
                 Content-Disposition: attachment; filename=\"{name}\"\r\n\r\n{}",
                encode(text.as_bytes())
            ),
            Self::Document(document) => (*document).to_owned(),
        }
    }
}

fn encode(bytes: &[u8]) -> String {
    let encoded = STANDARD.encode(bytes);
    let mut lines = String::with_capacity(encoded.len() + encoded.len() / LINE * 2 + 2);
    for (index, letter) in encoded.chars().enumerate() {
        if index > 0 && index % LINE == 0 {
            lines.push_str("\r\n");
        }
        lines.push(letter);
    }
    lines
}

/// The parts as one document. The same parts give the same document.
pub(super) fn multipart(parts: &[Part<'_>]) -> String {
    let bodies: Vec<String> = parts.iter().map(Part::render).collect();
    let boundary = boundary(&bodies);
    let mut document = format!(
        "Content-Type: multipart/mixed; boundary=\"{boundary}\"\r\nMIME-Version: 1.0\r\n\r\n"
    );
    for body in &bodies {
        document.push_str(&format!("--{boundary}\r\n{body}\r\n"));
    }
    document.push_str(&format!("--{boundary}--\r\n"));
    document
}

/// A boundary that stands in none of the bodies.
fn boundary(bodies: &[String]) -> String {
    let mut seed = bodies.concat();
    loop {
        let boundary =
            format!("==proxyd-{}==", &Sha256Digest::of(seed.as_bytes()).to_string()[..32]);
        if !bodies.iter().any(|body| body.contains(&boundary)) {
            return boundary;
        }
        seed.push('.');
    }
}
