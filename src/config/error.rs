//! What is wrong with a configuration file, and where.

use std::cell::RefCell;
use std::fmt::{self, Write as _};

use crate::model::{Fault, FaultKind};

/// As many errors as a `Fault`, shown in one line of a tool, still reads well with.
const SHOWN_IN_FAULT: usize = 20;
/// No identifier is nearly as long: only nonsense is ever cut.
const LONGEST_TOKEN: usize = 256;
const LONGEST_MESSAGE: usize = 2000;

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// Where: an RFC 6901 JSON pointer, empty for the file as a whole.
    pub pointer: String,
    /// What is wrong, with the value and the way out.
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.pointer.is_empty() {
            // A line break in a key must not break the rule of one error a line.
            write_escaped(f, &self.pointer)?;
            f.write_str(": ")?;
        }
        write_escaped(f, &self.message)
    }
}

fn write_escaped(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    text.chars().try_for_each(|c| {
        if c.is_control() { write!(f, "{}", c.escape_default()) } else { f.write_char(c) }
    })
}

impl std::error::Error for ConfigError {}

/// Everything that is wrong, in the order in which it was found; `Display` gives
/// one error a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors {
    errors: Vec<ConfigError>,
    not_found: bool,
}

impl ConfigErrors {
    /// An error of the file as a whole.
    pub(super) fn of_file(message: impl Into<String>) -> Self {
        let error = ConfigError { pointer: String::new(), message: message.into() };
        Self { errors: vec![error], not_found: false }
    }

    /// The error of a file that isn't there.
    pub(super) fn file_not_found(message: impl Into<String>) -> Self {
        Self { not_found: true, ..Self::of_file(message) }
    }

    /// Whether there is no file at all: the one case in which a caller may go on
    /// with [`Settings::builtin`](super::Settings::builtin).
    pub fn is_not_found(&self) -> bool {
        self.not_found
    }

    /// The errors; never empty.
    pub fn errors(&self) -> &[ConfigError] {
        &self.errors
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.errors.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

impl From<ConfigErrors> for Fault {
    fn from(mut found: ConfigErrors) -> Self {
        let more = found.errors.len().saturating_sub(SHOWN_IN_FAULT);
        found.errors.truncate(SHOWN_IN_FAULT);
        let mut message = found.to_string();
        if more > 0 {
            let _ = write!(message, "\nand {more} more: proxyd --check-config prints them all");
        }
        Self::new(FaultKind::InvalidConfig, message)
    }
}

/// A JSON pointer under construction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Pointer(String);

impl Pointer {
    /// The pointer to the member or item `token` of what `self` points to.
    pub(super) fn child(&self, token: &str) -> Self {
        let mut child = self.clone();
        child.push(token);
        child
    }

    /// Goes down to `token`; give the result to [`Pointer::pop`] to come back.
    pub(super) fn push(&mut self, token: &str) -> usize {
        let before = self.0.len();
        self.0.push('/');
        for c in token.chars().take(LONGEST_TOKEN) {
            match c {
                '~' => self.0.push_str("~0"),
                '/' => self.0.push_str("~1"),
                other => self.0.push(other),
            }
        }
        if token.chars().nth(LONGEST_TOKEN).is_some() {
            self.0.push('…');
        }
        before
    }

    /// Goes back up to where `before` was taken.
    pub(super) fn pop(&mut self, before: usize) {
        self.0.truncate(before);
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where the checks put what they find, so that one mistake doesn't hide the next.
#[derive(Debug, Default)]
pub(super) struct Report(RefCell<Vec<ConfigError>>);

impl Report {
    /// Records one error.
    pub(super) fn add(&self, at: &Pointer, message: impl Into<String>) {
        let mut message = message.into();
        if let Some((cut, _)) = message.char_indices().nth(LONGEST_MESSAGE) {
            message.truncate(cut);
            message.push('…');
        }
        self.0.borrow_mut().push(ConfigError { pointer: at.0.clone(), message });
    }

    /// Whether the last errors, those of the section `within`, have one of its `key`.
    pub(super) fn mentions(&self, within: &Pointer, key: &str) -> bool {
        let at = within.child(key);
        let errors = self.0.borrow();
        let mut latest =
            errors.iter().rev().take_while(|error| error.pointer.starts_with(&within.0));
        latest.any(|error| error.pointer == at.0)
    }

    /// `checked` when nothing was found. A check that yields `None` has recorded why.
    pub(super) fn finish<T>(self, checked: Option<T>) -> Result<T, ConfigErrors> {
        let errors = self.0.into_inner();
        match checked {
            Some(checked) if errors.is_empty() => Ok(checked),
            _ => Err(ConfigErrors { errors, not_found: false }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(count: usize) -> ConfigErrors {
        let report = Report::default();
        for index in 0..count {
            report.add(&Pointer::default().child(&index.to_string()), "bad");
        }
        report.finish(Some(())).unwrap_err()
    }

    #[test]
    fn pointers_are_escaped() {
        let pointer = Pointer::default().child("a/b").child("~").child("").child("0");
        assert_eq!(pointer.to_string(), "/a~1b/~0//0");
    }

    #[test]
    fn overlong_tokens_and_messages_are_cut() {
        let pointer = Pointer::default().child(&"é".repeat(100_000));
        assert!(pointer.to_string().len() < 1000);
        let report = Report::default();
        report.add(&pointer, "é".repeat(100_000));
        assert!(report.finish(Some(())).unwrap_err().to_string().len() < 6000);
    }

    #[test]
    fn one_line_an_error() {
        assert_eq!(errors(2).to_string(), "/0: bad\n/1: bad");
        let error = ConfigError { pointer: "/a\nb".into(), message: "c\nd".into() };
        assert_eq!(error.to_string(), "/a\\nb: c\\nd");
        assert_eq!(ConfigErrors::of_file("bad").to_string(), "bad");
    }

    #[test]
    fn a_fault_is_permanent_and_of_bounded_length() {
        let fault = Fault::from(errors(1000));
        assert_eq!(fault.kind, FaultKind::InvalidConfig);
        assert!(fault.is_permanent());
        assert_eq!(fault.message.lines().count(), SHOWN_IN_FAULT + 1);
        assert!(fault.message.contains("980 more"), "{fault}");
    }
}
