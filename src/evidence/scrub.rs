//! Takes secrets out of what a guest and its host have printed. Evidence is made to be
//! passed on.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::Regex;

use crate::model::Secret;

const REMOVED: &str = "[removed]";

/// Shorter words are in every log.
const LEAST: usize = 5;

/// A key that names a secret, and its value.
static NAMED: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(
        r#"(?i)([\w.-]*(?:passw(?:or)?d|passwd|passphrase|secret|token|api[_-]?key|private[_-]?key|credential|psk)[\w.-]*["']?\s*[:=]\s*)("[^"\n]*"|'[^'\n]*'|[^\s,;]+)"#,
    )
    .ok()
});

/// Secrets that are known by their looks: what is between `://` and `@`, what
/// follows `Authorization:`, crypt(3) hashes, and private keys.
static LOOKS: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    let looks = [
        (r"(\w://)[^\s/@]+@", "${1}[removed]@"),
        (r"(?i)((?:proxy-)?authorization:\s*)[^\r\n]+", "${1}[removed]"),
        (r"\$(?:1|2[abxy]|5|6|y|gy|7)\$[./\w$=,-]{8,}", REMOVED),
        (
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\z)",
            REMOVED,
        ),
    ];
    let compiled =
        looks.into_iter().filter_map(|(look, with)| Some((Regex::new(look).ok()?, with)));
    compiled.collect()
});

/// What is taken out for one Proxy.
pub(super) struct Scrubber {
    values: Vec<String>,
}

impl Scrubber {
    /// Learns the values that `given`, such as user-data, names as secrets.
    pub(super) fn new(given: &[Secret]) -> Self {
        let mut values = Vec::new();
        for secret in given {
            let text = String::from_utf8_lossy(secret.expose());
            let named = NAMED.iter().flat_map(|named| named.captures_iter(&text));
            values.extend(named.map(|found| bare(&found[2]).to_owned()));
            values.extend(chpasswd(&text));
        }
        values.retain(|value| value.len() >= LEAST);
        // The longer first: it may hold a shorter one.
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        values.dedup();
        Self { values }
    }

    /// `text` without secrets.
    pub(super) fn clean(&self, text: &str) -> String {
        let mut text = Cow::Borrowed(text);
        for value in &self.values {
            if text.contains(value.as_str()) {
                text = Cow::Owned(text.replace(value.as_str(), REMOVED));
            }
        }
        for (look, with) in LOOKS.iter() {
            text = Cow::Owned(look.replace_all(&text, *with).into_owned());
        }
        match NAMED.as_ref() {
            Some(named) => named.replace_all(&text, "${1}[removed]").into_owned(),
            None => text.into_owned(),
        }
    }
}

fn bare(value: &str) -> &str {
    value.trim_matches(['"', '\''])
}

/// The passwords of cloud-init's `chpasswd` lists, `user:password` a line.
fn chpasswd(text: &str) -> Vec<String> {
    let Some((_, list)) = text.split_once("chpasswd") else { return Vec::new() };
    let lines = list.lines().skip(1).take_while(|line| line.starts_with([' ', '-']));
    let line = |line: &str| {
        let line = line.trim_matches([' ', '-', '"', '\'']);
        line.split_once(':').map(|(_, password)| password.trim().to_owned())
    };
    lines.filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_sound() {
        assert!(NAMED.is_some());
        assert_eq!(LOOKS.len(), 4);
    }

    #[test]
    fn what_the_user_data_names_as_secret_is_taken_out_everywhere() {
        let data = "#cloud-config\npassword: hunter22\nwrite_files:\n - content: |\n     \
                    TOKEN='tok-12345'\nchpasswd:\n  list: |\n    root:r00tpass\nuser: plainname\n";
        let scrubber = Scrubber::new(&[Secret::new(data.into())]);
        let clean = scrubber.clean("hunter22 tok-12345 in r00tpass for plainname");
        assert_eq!(clean, "[removed] [removed] in [removed] for plainname");
    }

    #[test]
    fn what_looks_like_a_secret_is_taken_out() {
        let clean = |text: &str| Scrubber::new(&[]).clean(text);
        assert_eq!(clean("GET http://me:pw@host/x"), "GET http://[removed]@host/x");
        assert_eq!(
            clean("Authorization: Basic QWxhZGRpbjpv\nnext"),
            "Authorization: [removed]\nnext"
        );
        assert_eq!(clean("root:$6$salt$abcdefghijk:1"), "root:[removed]:1");
        assert_eq!(clean("db_password = \"x y\", port=1"), "db_password = [removed], port=1");
        let key = "-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY-----\nafter";
        assert_eq!(clean(key), "[removed]\nafter");
        let plain = "[    1.0] eth0: link up\nlogin: ";
        assert_eq!(clean(plain), plain);
    }
}
