//! What stands in a marker that is written through libvirt before it is complete: who
//! works on its base.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::Sha256Digest;

/// The size of a marker that is written through libvirt: volumes have a fixed size.
pub const MARKER_VOLUME_SIZE: usize = 8192;
/// A pending marker that hasn't moved for so long has no writer any more.
pub const DEAD_AFTER: Duration = Duration::from_secs(600);
/// Where the pending part of such a marker ends.
pub(super) const PENDING_SIZE: usize = 1024;

/// The part of a marker that says that a base is on its way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// Tells this work from any other.
    pub nonce: String,
    /// The daemon.
    pub writer: String,
    /// What the base was that is missed, and that something backs onto: it comes back as
    /// nothing else.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub held: Option<Sha256Digest>,
}

/// Who has begun a marker through libvirt and not completed it; nobody when that is
/// not what `bytes` are.
pub fn pending_writer(bytes: &[u8]) -> Option<String> {
    if bytes.len() == MARKER_VOLUME_SIZE && bytes.iter().all(|byte| *byte == 0) {
        // Its volume is there, and its first bytes are on their way.
        return Some("it has not said which".to_owned());
    }
    let Pending { writer, .. } = Pending::of(bytes)?;
    serde_json::from_slice::<serde_json::Value>(bytes).is_err().then_some(writer)
}

/// White space to JSON: from then on what has the base's name was made by the marker's
/// writer, and is of no use to anybody until the marker is complete.
pub const MAKING: u8 = b'\r';

/// Whether these bytes are a pending marker whose writer had begun to make its base.
pub fn is_half_made(bytes: &[u8]) -> bool {
    let beats = bytes.get(PENDING_SIZE..).unwrap_or_default();
    pending_writer(bytes).is_some() && beats.contains(&MAKING)
}

impl Pending {
    /// Who wrote a marker through libvirt, even one that is still pending.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        let head = bytes.get(..PENDING_SIZE.min(bytes.len()))?;
        let text = std::str::from_utf8(head).ok()?.trim_end_matches(['\0', ' ', '\n']);
        let json = format!("{}}}", text.strip_suffix(',')?);
        serde_json::from_str(&json).ok()
    }

    /// Its bytes, which alone are no JSON.
    ///
    /// # Errors
    /// When they do not fit.
    pub fn render(&self) -> Result<Vec<u8>, String> {
        let mut bytes = serde_json::to_vec(self).map_err(|error| error.to_string())?;
        // The closing brace gives way to a comma: the rest goes on from there.
        if let Some(last) = bytes.last_mut() {
            *last = b',';
        }
        if bytes.len() > PENDING_SIZE {
            return Err("the pending part of the marker does not fit into its volume".to_owned());
        }
        bytes.resize(PENDING_SIZE, b' ');
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_made_is_what_was_begun_and_not_completed() {
        let by = Pending { nonce: "n".into(), writer: "w".into(), held: None };
        let mut bytes = by.render().unwrap();
        bytes.resize(MARKER_VOLUME_SIZE, 0);
        assert!(!is_half_made(&bytes));
        bytes[PENDING_SIZE + 3] = MAKING;
        assert!(is_half_made(&bytes) && Pending::of(&bytes) == Some(by));
        assert!(!is_half_made(b"\r") && !is_half_made(&[0; MARKER_VOLUME_SIZE]));
    }
}
