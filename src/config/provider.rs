//! `providers`: the entries.

use std::collections::BTreeMap;

use super::image::{self, Images};
use super::json::{EMPTY, Value};
use super::section::{Node, Section};
use super::settings::{NetworkAttachment, ProviderSettings, ProviderType, SshSettings, VirtType};
use super::shown::shown;
use super::uri::{self, LibvirtUri};
use crate::model::EntryName;
use crate::seed::VendorData;

const KEYS: [&str; 10] = [
    "type",
    "uri",
    "pool",
    "network",
    "virtType",
    "installGuestAgent",
    "vendorData",
    "images",
    "ssh",
    "maxConcurrent",
];
const DEFAULT_ENTRY: &str = "local";
const DEFAULT_URI: &str = "qemu:///system";
const DEFAULT_POOL: &str = "default";
const DEFAULT_NETWORK: &str = "default";
const DEFAULT_CONCURRENT: usize = 2;
/// More than this no host and no line has any use for.
const MOST_CONCURRENT: usize = 64;
/// The kernel's IFNAMSIZ, without the closing NUL.
const LONGEST_INTERFACE: usize = 15;
/// What systemd allows for a credential, as for a file name.
const LONGEST_CREDENTIAL: usize = 255;

/// An entry that is declared, whether or not all is well with it.
#[derive(Debug)]
pub(super) struct DeclaredEntry {
    /// The images it offers, inherited ones included.
    pub(super) images: Images,
    /// Whether these are all that were meant: not when `images` can't be read.
    pub(super) complete: bool,
    /// The rest of it, images aside.
    settings: Option<ProviderSettings>,
}

impl DeclaredEntry {
    /// The settings with the images in them.
    pub(super) fn finish(self) -> Option<ProviderSettings> {
        let images = self.images.into_iter();
        let images = images.filter_map(|(key, image)| Some((key, image.settings?))).collect();
        self.settings.map(|settings| ProviderSettings { images, ..settings })
    }
}

/// Entries by name.
pub(super) type Entries = BTreeMap<EntryName, DeclaredEntry>;

/// Reads `providers`; without it, there is one entry of the defaults.
pub(super) fn read_all(root: &Section<'_>, inherited: &Images) -> Option<Entries> {
    if let Some(node) = root.get("providers") {
        return entries(&node, inherited);
    }
    let builtin = Value::Object(vec![(DEFAULT_ENTRY.to_owned(), EMPTY.clone())]);
    let at = root.node().at().child("providers");
    entries(&Node::new(&builtin, at, root.node().report()), inherited)
}

fn entries(node: &Node<'_>, inherited: &Images) -> Option<Entries> {
    let members = node.members("provider entries")?;
    if members.is_empty() {
        let ways = format!("add one, or leave providers out for the built-in {DEFAULT_ENTRY:?}");
        return node.refuse(format!("it has no entry: {ways}"));
    }
    let mut entries = Entries::new();
    for (name, node) in members {
        let name = node.take(EntryName::new(name));
        let declared = entry(name.clone(), &node, inherited);
        entries.extend(name.map(|name| (name, declared)));
    }
    Some(entries)
}

fn entry(name: Option<EntryName>, node: &Node<'_>, inherited: &Images) -> DeclaredEntry {
    let section = node.section(&KEYS);
    let own = section
        .as_ref()
        .and_then(|section| section.read_or("images", Images::new(), image::read_all));
    let complete = own.is_some();
    let mut images = inherited.clone();
    images.extend(own.into_iter().flatten());
    let settings = section.and_then(|section| settings(name, &section));
    DeclaredEntry { images, complete, settings }
}

fn settings(name: Option<EntryName>, section: &Section<'_>) -> Option<ProviderSettings> {
    let kind = section.read_or("type", ProviderType::Kvm, |node| {
        node.word(&ProviderType::ALL.map(|kind| (kind.as_str(), kind)))
    });
    let default_uri = LibvirtUri { text: DEFAULT_URI.to_owned(), over_ssh: None };
    let uri = section.read_or("uri", default_uri, uri::read);
    let pool = section.read_or("pool", DEFAULT_POOL.to_owned(), object_name);
    let default_network = NetworkAttachment::Network(DEFAULT_NETWORK.to_owned());
    let network = section.read_or("network", default_network, network);
    let virt_type = section.read_or("virtType", VirtType::Auto, virt_type);
    let install_guest_agent = section.read_or("installGuestAgent", true, Node::boolean);
    let vendor_data = section.read_or("vendorData", None, vendor_data);
    let ssh = section.optional("ssh", ssh);
    let max_concurrent = section
        .read_or("maxConcurrent", DEFAULT_CONCURRENT, |node| node.whole(1..=MOST_CONCURRENT));
    let ssh = match (&uri, ssh) {
        (Some(uri), Some(login)) => over_ssh(section, uri, login),
        _ => None,
    };
    Some(ProviderSettings {
        name: name?,
        kind: kind?,
        uri: uri?.text,
        pool: pool?,
        network: network?,
        virt_type: virt_type?,
        install_guest_agent: install_guest_agent?,
        vendor_data: vendor_data?,
        images: BTreeMap::new(),
        ssh: ssh?,
        max_concurrent: max_concurrent?,
    })
}

/// What the `ssh` section says beside the destination.
struct Login {
    key_credential: String,
    known_hosts: String,
}

/// Puts destination and login together: each goes with the other.
fn over_ssh(
    section: &Section<'_>,
    uri: &LibvirtUri,
    login: Option<Login>,
) -> Option<Option<SshSettings>> {
    match (uri.over_ssh.clone(), login) {
        (Some(destination), Some(Login { key_credential, known_hosts })) => {
            Some(Some(SshSettings { destination, key_credential, known_hosts }))
        }
        (Some(_), None) => {
            let what = "the uri goes over SSH, so it must say how";
            section.refuse("ssh", format!("it is missing: {what} (keyCredential, knownHosts)"))
        }
        (None, Some(_)) => {
            let ways = "leave ssh out, or make the uri qemu+ssh://user@host/system";
            section
                .refuse("ssh", format!("the uri {} does not go over SSH: {ways}", shown(&uri.text)))
        }
        (None, None) => Some(None),
    }
}

fn virt_type(node: &Node<'_>) -> Option<VirtType> {
    node.word(&[("auto", VirtType::Auto), ("kvm", VirtType::Kvm), ("qemu", VirtType::Qemu)])
}

/// The one key whose null means that it is unset.
fn vendor_data(node: &Node<'_>) -> Option<Option<VendorData>> {
    if node.is_null() {
        return Some(None);
    }
    let secret = node.secret()?;
    node.take(VendorData::new(&secret).map(Some))
}

fn network(node: &Node<'_>) -> Option<NetworkAttachment> {
    let section = node.section(&["network", "bridge"])?;
    match (section.get("network"), section.get("bridge")) {
        (Some(name), None) => object_name(&name).map(NetworkAttachment::Network),
        (None, Some(name)) => bridge(&name).map(NetworkAttachment::Bridge),
        (Some(_), Some(_)) => node.refuse("it has both network and bridge: keep one of them"),
        (None, None) => node.refuse(
            "it names nothing: give {\"network\": NAME} for a libvirt network or \
             {\"bridge\": NAME} for a bridge of the host",
        ),
    }
}

/// The name of a libvirt pool or network.
fn object_name(node: &Node<'_>) -> Option<String> {
    let text = node.text()?;
    if text.trim().is_empty() {
        return node.refuse("the name is empty: give one that virsh lists");
    }
    if text.contains('/') || text.chars().any(char::is_control) {
        let ways = "give a name without \"/\" and control characters";
        return node.refuse(format!("{} is not a libvirt name: {ways}", shown(text)));
    }
    Some(text.to_owned())
}

/// The name of a network interface, by the kernel's own rule.
fn bridge(node: &Node<'_>) -> Option<String> {
    let text = node.text()?;
    let odd = |c: char| matches!(c, '/' | ':') || c.is_whitespace() || c.is_control();
    let length = 1..=LONGEST_INTERFACE;
    if length.contains(&text.len()) && !matches!(text, "." | "..") && !text.contains(odd) {
        return Some(text.to_owned());
    }
    node.refuse(format!(
        "{} is not an interface name: give 1 to {LONGEST_INTERFACE} bytes without \"/\", \":\" \
         and spaces",
        shown(text)
    ))
}

fn ssh(node: &Node<'_>) -> Option<Login> {
    let section = node.section(&["keyCredential", "knownHosts"])?;
    let what = "the name of the systemd credential (LoadCredential=) that holds the private key";
    let key_credential = section.required("keyCredential", what, credential);
    let what = "the host's keys in known_hosts format, as ssh-keyscan prints them";
    let known_hosts = section.required("knownHosts", what, known_hosts);
    Some(Login { key_credential: key_credential?, known_hosts: known_hosts? })
}

fn credential(node: &Node<'_>) -> Option<String> {
    let text = node.text()?;
    let odd = |c: char| !matches!(c, ' '..='~') || matches!(c, '/' | ':');
    let length = 1..=LONGEST_CREDENTIAL;
    if length.contains(&text.len()) && !matches!(text, "." | "..") && !text.contains(odd) {
        return Some(text.to_owned());
    }
    node.refuse(format!(
        "{} is not the name of a systemd credential: give 1 to {LONGEST_CREDENTIAL} ASCII \
         characters without \"/\", \":\" and control characters; never the key itself",
        shown(text)
    ))
}

fn known_hosts(node: &Node<'_>) -> Option<String> {
    let text = node.text()?;
    if text.lines().map(str::trim).any(|line| !line.is_empty() && !line.starts_with('#')) {
        return Some(text.to_owned());
    }
    node.refuse("it has no host key, so no host would be let in: give what ssh-keyscan prints")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::testing::{errors, errors_at, ok};

    fn one(entry: &str) -> ProviderSettings {
        let settings = ok(&format!(r#"{{"providers": {{"e": {entry}}}}}"#));
        settings.providers.into_values().next().unwrap()
    }

    fn refused(entry: &str) -> Vec<String> {
        errors_at(&format!(r#"{{"providers": {{"e": {entry}}}}}"#))
    }

    #[test]
    fn defaults() {
        let entry = one("{}");
        assert_eq!(entry.name.as_str(), "e");
        assert_eq!((entry.kind, entry.virt_type), (ProviderType::Kvm, VirtType::Auto));
        assert_eq!((entry.uri.as_str(), entry.pool.as_str()), ("qemu:///system", "default"));
        assert_eq!(entry.network, NetworkAttachment::Network("default".into()));
        assert!(entry.install_guest_agent);
        assert_eq!((entry.vendor_data, entry.ssh, entry.max_concurrent), (None, None, 2));
    }

    #[test]
    fn all_keys() {
        let entry = one(r##"{"type": "kvm2", "uri": "qemu+ssh://op@h/system", "pool": "p",
                "network": {"bridge": "br0"}, "virtType": "qemu", "installGuestAgent": false,
                "vendorData": "#!/bin/sh", "images": {},
                "ssh": {"keyCredential": "ssh-e", "knownHosts": "h ssh-ed25519 AAAA"},
                "maxConcurrent": 64}"##);
        assert_eq!((entry.kind, entry.virt_type), (ProviderType::Kvm2, VirtType::Qemu));
        assert_eq!(entry.network, NetworkAttachment::Bridge("br0".into()));
        assert_eq!(entry.vendor_data.unwrap().expose(), "#!/bin/sh");
        let ssh = entry.ssh.unwrap();
        assert_eq!((&*ssh.key_credential, &*ssh.destination.host), ("ssh-e", "h"));
        assert_eq!(entry.max_concurrent, 64);
        assert_eq!((entry.uri.as_str(), entry.pool.as_str()), ("qemu+ssh://op@h/system", "p"));
        assert!(!entry.install_guest_agent);
    }

    #[test]
    fn every_mistake_is_pointed_to() {
        let entry = r#"{"type": "vbox", "uri": 5, "pool": "", "network": {}, "virtType": "KVM",
            "installGuestAgent": "yes", "vendorData": 5, "images": [], "ssh": null, "port": 1,
            "maxConcurrent": 0}"#;
        let keys = [
            "port",
            "images",
            "type",
            "uri",
            "pool",
            "network",
            "virtType",
            "installGuestAgent",
            "vendorData",
            "ssh",
            "maxConcurrent",
        ];
        assert_eq!(refused(entry), keys.map(|key| format!("/providers/e/{key}")));
    }

    #[test]
    fn an_unknown_type_lists_the_built_ins() {
        let found = errors(r#"{"providers": {"e": {"type": "vbox"}}}"#);
        assert!(found[0].message.contains(r#""kvm", "kvm2""#), "{}", found[0]);
    }

    #[test]
    fn null_is_absent_for_vendor_data_alone() {
        assert_eq!(one(r#"{"vendorData": null}"#).vendor_data, None);
        assert_eq!(refused(r#"{"pool": null}"#), ["/providers/e/pool"]);
    }

    #[test]
    fn a_network_is_exactly_one_of_two() {
        for network in ["{}", r#"{"network": "n", "bridge": "b"}"#, r#""default""#] {
            let entry = format!(r#"{{"network": {network}}}"#);
            assert_eq!(refused(&entry), ["/providers/e/network"], "{network}");
        }
    }

    #[test]
    fn names_of_pools_networks_and_bridges() {
        for name in ["", "  ", "a/b", "a\\nb"] {
            assert_eq!(refused(&format!(r#"{{"pool": "{name}"}}"#)), ["/providers/e/pool"]);
            let entry = format!(r#"{{"network": {{"network": "{name}"}}}}"#);
            assert_eq!(refused(&entry), ["/providers/e/network/network"]);
        }
        for name in ["", "a/b", "a b", "a:1", ".", "..", "a\\tb", "exactly-16-bytes"] {
            let entry = format!(r#"{{"network": {{"bridge": "{name}"}}}}"#);
            assert_eq!(refused(&entry), ["/providers/e/network/bridge"], "{name}");
        }
        one(r#"{"pool": "my pool", "network": {"bridge": "fifteen-bytes-x"}}"#);
    }

    #[test]
    fn ssh_goes_with_an_ssh_uri_and_no_other() {
        let section = r#""ssh": {"keyCredential": "k", "knownHosts": "h k"}"#;
        assert_eq!(refused(r#"{"uri": "qemu+ssh://h/system"}"#), ["/providers/e/ssh"]);
        assert_eq!(refused(&format!("{{{section}}}")), ["/providers/e/ssh"]);
        let broken = format!(r#"{{"uri": "qemu+shh://h/system", {section}}}"#);
        assert_eq!(refused(&broken), ["/providers/e/uri"]);
    }

    #[test]
    fn both_ssh_keys_are_needed_and_checked() {
        let with =
            |ssh: &str| refused(&format!(r#"{{"uri": "qemu+ssh://h/system", "ssh": {ssh}}}"#));
        let [key, hosts] = ["/providers/e/ssh/keyCredential", "/providers/e/ssh/knownHosts"];
        assert_eq!(with("{}"), [key, hosts]);
        let long = "x".repeat(256);
        for name in ["", "a/b", "a:b", "..", "é", "a\\nb", &long] {
            let ssh = format!(r#"{{"keyCredential": "{name}", "knownHosts": "h k"}}"#);
            assert_eq!(with(&ssh), [key], "{name}");
        }
        for text in ["", " \\n", "# comment\\n\\n"] {
            let ssh = format!(r#"{{"keyCredential": "k", "knownHosts": "{text}"}}"#);
            assert_eq!(with(&ssh), [hosts], "{text}");
        }
    }

    #[test]
    fn a_pasted_key_is_not_repeated() {
        let found = errors(
            r#"{"providers": {"e": {"uri": "qemu+ssh://h/system", "ssh": {"knownHosts": "h k",
                "keyCredential": "-----BEGIN EC PRIVATE KEY-----\nMHcC"}}}}"#,
        );
        assert!(!found[0].message.contains("MHcC"), "{}", found[0]);
    }

    #[test]
    fn an_entry_inherits_adds_and_overrides_images() {
        let settings = ok(r#"{"images": {"a": {"url": "http://h/a"}, "b": {"url": "http://h/b"}},
                "providers": {"e": {"images": {"b": {"url": "http://h/own"},
                "c": {"url": "http://h/c"}}}, "f": {}}}"#);
        let urls = |entry: &str| {
            let images = &settings.providers[&EntryName::new(entry).unwrap()].images;
            images.iter().map(|(key, image)| format!("{key} {}", image.url)).collect::<Vec<_>>()
        };
        assert_eq!(urls("e"), ["a http://h/a", "b http://h/own", "c http://h/c"]);
        assert_eq!(urls("f"), ["a http://h/a", "b http://h/b"]);
    }

    #[test]
    fn without_providers_there_is_one_entry_with_the_images() {
        let settings = ok(r#"{"images": {"a": {"url": "http://h/a"}}}"#);
        let (name, entry) = settings.providers.iter().next().unwrap();
        assert_eq!((name.as_str(), entry.images.len()), ("local", 1));
        assert_eq!(settings.only_entry(), Some(name));
    }

    #[test]
    fn no_entry_and_a_misnamed_entry_are_errors() {
        assert_eq!(errors_at(r#"{"providers": {}}"#), ["/providers"]);
        let text = r#"{"providers": {"E_1": {"pool": 1}, "": []}}"#;
        assert_eq!(
            errors_at(text),
            ["/providers/E_1", "/providers/E_1/pool", "/providers/", "/providers/"]
        );
    }
}
