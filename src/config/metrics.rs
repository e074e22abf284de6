//! `metrics`: where Prometheus may ask. Nowhere, unless it is said.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::section::Node;
use super::settings::MetricsListen;
use super::shown::shown;

const KEYS: [&str; 1] = ["listen"];

/// Reads the `metrics` object; the outer option tells whether it is acceptable.
pub(super) fn read(node: &Node<'_>) -> Option<Option<MetricsListen>> {
    let section = node.section(&KEYS)?;
    section.optional("listen", listen)
}

fn listen(node: &Node<'_>) -> Option<MetricsListen> {
    let text = node.text()?;
    if let Some(path) = text.strip_prefix("unix:") {
        let path = PathBuf::from(path);
        if path.is_absolute() {
            return Some(MetricsListen::Unix(path));
        }
        return node.refuse(format!("{} is no absolute path of a socket", shown(text)));
    }
    match text.parse::<SocketAddr>() {
        Ok(address) if address.ip().is_loopback() => Some(MetricsListen::Tcp(address)),
        Ok(_) => node.refuse(format!(
            "{} can be reached from elsewhere: give a loopback address such as \
             \"127.0.0.1:9750\", or \"unix:/run/proxyd/metrics.sock\"",
            shown(text)
        )),
        Err(_) => node.refuse(format!(
            "{} is no address: give one such as \"127.0.0.1:9750\", or \
             \"unix:/run/proxyd/metrics.sock\"",
            shown(text)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::testing::{errors, errors_at, ok};

    #[test]
    fn it_is_off_unless_asked_for() {
        assert_eq!(ok("{}").metrics, None);
        assert_eq!(ok(r#"{"metrics": {}}"#).metrics, None);
        let tcp = ok(r#"{"metrics": {"listen": "[::1]:9750"}}"#).metrics;
        assert_eq!(tcp, Some(MetricsListen::Tcp("[::1]:9750".parse().unwrap())));
        let unix = ok(r#"{"metrics": {"listen": "unix:/run/x"}}"#).metrics;
        assert_eq!(unix, Some(MetricsListen::Unix("/run/x".into())));
    }

    #[test]
    fn only_this_host_may_ask() {
        for listen in ["0.0.0.0:9750", "192.0.2.1:1", "[::]:80"] {
            let text = format!(r#"{{"metrics": {{"listen": "{listen}"}}}}"#);
            let found = errors(&text).remove(0);
            assert!(found.message.contains("loopback"), "{}", found.message);
        }
        for listen in ["9750", "unix:run/x", "localhost:9750"] {
            let text = format!(r#"{{"metrics": {{"listen": "{listen}"}}}}"#);
            assert_eq!(errors_at(&text), ["/metrics/listen"]);
        }
    }
}
