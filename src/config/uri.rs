//! `uri`: which libvirt, and how to get there.

use url::{Url, form_urlencoded};

use super::section::Node;
use super::shown::shown;

const WAYS: &str = "use qemu:///system, qemu+unix:///system or qemu+ssh://user@host/system";

/// Parameters that would let another key or another host in than the `ssh` section
/// says; some of them libvirt ignores without a word.
const SSH_PARAMETERS: [&str; 6] =
    ["command", "keyfile", "known_hosts", "known_hosts_verify", "no_verify", "sshauth"];

/// A libvirt URI that proxyd can drive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LibvirtUri {
    pub(super) text: String,
    pub(super) over_ssh: bool,
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
        "qemu" | "qemu+unix" => local(url).and_then(|()| daemon(url)).map(|()| false),
        "qemu+ssh" => ssh(url).map(|()| true),
        "test" => local(url).map(|()| false),
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

fn ssh(url: &Url) -> Result<(), String> {
    if url.host_str().is_none_or(str::is_empty) {
        return Err(format!("{} names no host", shown(url.as_str())));
    }
    if let Some(key) = ssh_parameter(url) {
        let what = "which the ssh section decides (leave it out)";
        return Err(format!("{} has the parameter {key}, {what}", shown(url.as_str())));
    }
    daemon(url)
}

/// One of [`SSH_PARAMETERS`], as libvirt finds it: it parts parameters at `;` too, and
/// takes their names in capitals as well.
fn ssh_parameter(url: &Url) -> Option<&'static str> {
    let parts = url.query().unwrap_or_default().split(['&', ';']);
    let mut names = parts.flat_map(|part| form_urlencoded::parse(part.as_bytes()));
    names.find_map(|(name, _)| {
        SSH_PARAMETERS.into_iter().find(|parameter| name.eq_ignore_ascii_case(parameter))
    })
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
            let uri = LibvirtUri { text: text.to_owned(), over_ssh: false };
            assert_eq!(check(text), Ok(uri));
        }
        for text in
            ["qemu+ssh://op@host/system", "qemu+ssh://host:2222/system", "qemu+ssh://[::1]/system"]
        {
            assert_eq!(check(text), Ok(LibvirtUri { text: text.to_owned(), over_ssh: true }));
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

    #[test]
    fn parameters_around_the_ssh_section_are_refused() {
        for key in SSH_PARAMETERS {
            let capital = key.to_uppercase();
            for query in [format!("{key}=1"), format!("proxy=native;{capital}"), format!("a&{key}")]
            {
                let message = check(&format!("qemu+ssh://host/system?{query}")).unwrap_err();
                assert!(message.contains(key), "{message}");
            }
        }
        assert!(check("qemu+ssh://host/system?%6eo_verify=1").is_err());
        assert!(check("qemu+ssh://host/system?proxy=netcat").is_ok());
    }
}
