//! `uri`: which libvirt, and how to get there.

use url::Url;

use super::section::Node;
use super::settings::SshDestination;
use super::shown::shown;

const WAYS: &str = "use qemu:///system, qemu+unix:///system or qemu+ssh://user@host/system";

/// A libvirt URI that proxyd can drive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LibvirtUri {
    pub(super) text: String,
    /// Where it goes over SSH, if it does.
    pub(super) over_ssh: Option<SshDestination>,
}

/// Checks a libvirt URI. The `test` driver is let through for tests.
pub(super) fn read(node: &Node<'_>) -> Option<LibvirtUri> {
    let text = node.text()?;
    // The URL standard drops these silently; libvirt does not.
    if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return node.refuse(format!("{} has a space in it: {WAYS}", shown(text)));
    }
    // Without the slashes nothing tells a user's name and password from a path.
    let slashes =
        |url: &Url| text.get(url.scheme().len()..).is_some_and(|rest| rest.starts_with("://"));
    let Some(url) = Url::parse(text).ok().filter(slashes) else {
        return node.refuse(format!("{} is no libvirt URI: {WAYS}", shown(text)));
    };
    if url.password().is_some() {
        let what = "has a password in it, which nobody must put in this file";
        return node.refuse(format!("{} {what}: log in with a key (ssh section)", shown(text)));
    }
    node.take(checked(&url))
}

fn checked(url: &Url) -> Result<LibvirtUri, String> {
    let over_ssh = match url.scheme() {
        "qemu" | "qemu+unix" => local(url).and_then(|()| daemon(url)).map(|()| None),
        "qemu+ssh" => ssh(url).map(Some),
        "test" => local(url).map(|()| None),
        other => {
            Err(format!("{} has the scheme {other:?}, which is not known", shown(url.as_str())))
        }
    };
    let over_ssh = over_ssh.map_err(|problem| format!("{problem}: {WAYS}"))?;
    Ok(LibvirtUri { text: url.to_string(), over_ssh })
}

fn local(url: &Url) -> Result<(), String> {
    if url.has_host() && url.host_str() != Some("") {
        return Err(format!("{} names a host and no way to it", shown(url.as_str())));
    }
    Ok(())
}

fn ssh(url: &Url) -> Result<SshDestination, String> {
    if let Some(query) = url.query() {
        let what = "and the ssh section says all there is to say: leave it out";
        return Err(format!("{} has the parameters {}, {what}", shown(url.as_str()), shown(query)));
    }
    if url.path() != "/system" {
        return Err(format!("{} does not end in \"/system\"", shown(url.as_str())));
    }
    let named = url.host_str().unwrap_or_default();
    let host = named.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(named);
    if host.is_empty() {
        return Err(format!("{} names no host", shown(url.as_str())));
    }
    let user = Some(url.username()).filter(|user| !user.is_empty());
    // They become arguments of ssh.
    for (what, value) in [("host", Some(host)), ("user", user)] {
        let odd = |c: char| !(c.is_ascii_alphanumeric() || "._-:".contains(c));
        if let Some(value) = value.filter(|value| value.starts_with('-') || value.contains(odd)) {
            return Err(format!("{} is no name of a {what}", shown(value)));
        }
    }
    Ok(SshDestination { host: host.to_owned(), user: user.map(str::to_owned), port: url.port() })
}

fn daemon(url: &Url) -> Result<(), String> {
    if matches!(url.path(), "/system" | "/session") {
        return Ok(());
    }
    Err(format!("{} does not end in \"/system\"", shown(url.as_str())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::error::{Pointer, Report};
    use crate::config::json::Value;

    fn check(text: &str) -> Result<LibvirtUri, String> {
        let value = Value::String(text.to_owned());
        let report = Report::default();
        let result = read(&Node::new(&value, Pointer::default(), &report));
        report.finish(result).map_err(|errors| errors.to_string())
    }

    #[test]
    fn uris_that_are_driven() {
        let local = [
            "qemu:///system",
            "qemu:///session",
            "qemu+unix:///system?socket=/run/x",
            "test:///default",
            "test:///srv/host.xml",
        ];
        for text in local {
            assert_eq!(check(text), Ok(LibvirtUri { text: text.to_owned(), over_ssh: None }));
        }
        let over_ssh = [
            ("qemu+ssh://op@host/system", "host", Some("op"), None),
            ("qemu+ssh://host.example:2222/system", "host.example", None, Some(2222)),
            ("qemu+ssh://[fd00::1]/system", "fd00::1", None, None),
        ];
        for (text, host, user, port) in over_ssh {
            let uri = check(text).unwrap();
            let found = uri.over_ssh.unwrap();
            assert_eq!(uri.text, text);
            assert_eq!((&*found.host, found.user.as_deref(), found.port), (host, user, port));
        }
    }

    #[test]
    fn uris_that_are_not() {
        let texts = [
            "",
            "system",
            "qemu",
            "qemu:///",
            "qemu:///sytem",
            "qemu://host/system",
            "qemu+unix://host/system",
            "qemu+ssh:///system",
            "qemu+ssh:/system",
            "qemu+ssh://host",
            "qemu+ssh://host/session",
            "qemu+ssh://-oProxyCommand=x/system",
            "qemu+ssh://-x@host/system",
            "qemu+ssh://a%20b@host/system",
            "qemu+ssh://a%2fb/system",
            "qemu+tcp://host/system",
            "test://host/default",
            "xen:///system",
            "http://h/system",
            " qemu:///system",
            "qemu:///sys\ttem",
        ];
        for text in texts {
            let message = check(text).unwrap_err();
            assert!(message.contains("use qemu:///system"), "{text}: {message}");
        }
    }

    #[test]
    fn a_password_is_refused_and_not_shown() {
        let texts = [
            "qemu+ssh://op:hunter2@host/system",
            "qemu+ssh://op:hunter2@host/sys tem",
            "qemu+ssh://op:hunter2@ho[st/system",
            "qemu+ssh:op:hunter2@host",
            "qemu+ssh:op:hunter2@host/x://",
            "qemu:///op:hunter2@host",
            "qemu+ssh://host/op:hunter2@host?x=1#y",
            "xen://op:hunter2@host/",
            "test://op:hunter2@host/",
        ];
        for text in texts {
            let message = check(text).unwrap_err();
            assert!(!message.contains("hunter2"), "{message}");
        }
    }

    /// Some would let another key or host in, some libvirt ignores without a word, and
    /// the rest say how to get there, which is decided here.
    #[test]
    fn parameters_of_an_ssh_uri_are_refused() {
        for query in ["no_verify=1", "keyfile=/k", "proxy=netcat", "socket=/run/x", "%6eo_verify=1"]
        {
            let message = check(&format!("qemu+ssh://host/system?{query}")).unwrap_err();
            assert!(message.contains(query) && message.contains("leave it out"), "{message}");
        }
    }
}
