//! What the tests of the sections share.

use super::{ConfigError, Settings, parse};

/// The settings of a file in which nothing is wrong.
pub(super) fn ok(text: &str) -> Settings {
    parse(text).unwrap_or_else(|errors| panic!("{errors}"))
}

/// What is wrong with a file.
pub(super) fn errors(text: &str) -> Vec<ConfigError> {
    parse(text).unwrap_err().errors().to_vec()
}

/// Where something is wrong with a file.
pub(super) fn errors_at(text: &str) -> Vec<String> {
    errors(text).into_iter().map(|error| error.pointer).collect()
}
