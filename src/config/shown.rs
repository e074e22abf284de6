//! How a value of the file is repeated in a message.

use super::json::Value;

const LONGEST_SHOWN: usize = 60;

/// A value's type, and the value itself where it is short.
pub(super) fn described(value: &Value) -> String {
    match value {
        Value::Null => "null (to leave it unset, leave the key out)".to_owned(),
        Value::Bool(value) => format!("the boolean {value}"),
        Value::Number(number) => format!("the number {number}"),
        Value::String(text) => format!("the string {}", shown(text)),
        // What is inside may be secret, and is long.
        other => other.kind().to_owned(),
    }
}

/// `text` in quotes, so that it is recognised: shortened, and without what may be a
/// password, a signature or a key in it.
pub(super) fn shown(text: &str) -> String {
    if text.contains("PRIVATE KEY") {
        return "(a private key, not shown)".to_owned();
    }
    let public = without_credentials(text);
    let mut short: String = public.chars().take(LONGEST_SHOWN).collect();
    if short.len() < public.len() {
        short.push('…');
    }
    format!("{short:?}")
}

fn without_credentials(text: &str) -> String {
    let (scheme, rest) = text.split_at(scheme_length(text));
    let query = rest.find(['?', '#']).filter(|_| !scheme.is_empty());
    let user = rest.rfind('@');
    match (user, query) {
        // Which of them belongs to a password can't be told.
        (Some(at), Some(query)) if query < at => format!("{scheme}…"),
        (user, query) => {
            let hidden = if user.is_some() { "…" } else { "" };
            let end = query.map_or("", |_| "?…");
            let middle = &rest[user.unwrap_or(0)..query.unwrap_or(rest.len())];
            format!("{scheme}{hidden}{middle}{end}")
        }
    }
}

/// The length of `scheme://` at the beginning of `text`, 0 without it.
fn scheme_length(text: &str) -> usize {
    let letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
    let colon = text.find("://").filter(|&colon| text[..colon].chars().all(letter));
    colon.map_or(0, |colon| colon + 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_a_credential_is_not_shown() {
        let cases = [
            ("plain", "\"plain\""),
            ("http://me:pw@h/x", "\"http://…@h/x\""),
            ("http://me:p@w@h/x", "\"http://…@h/x\""),
            ("http://h/x?token=pw", "\"http://h/x?…\""),
            ("http://h/x?token=pw@y", "\"http://…\""),
            ("http://me:p?w@h/x", "\"http://…\""),
            ("http://me:p#w@h/x", "\"http://…\""),
            ("me:pw@h/x://y", "\"…@h/x://y\""),
            ("me:pw@h", "\"…@h\""),
            ("what?", "\"what?\""),
            ("-----BEGIN EC PRIVATE KEY-----\nMHcCpw", "(a private key, not shown)"),
        ];
        for (text, expected) in cases {
            assert_eq!(shown(text), expected);
        }
        assert!(shown(&"é".repeat(5000)).len() < 200);
    }
}
