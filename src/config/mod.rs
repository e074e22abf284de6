//! The configuration file: text → JSON → typed sections → [`Settings`]. Everything that
//! is wrong is reported at once, each with its JSON pointer; nothing downstream checks
//! again. Durations are written as `30s`; `health.interval` is 1s to 24h, and
//! `health.timeout` 100ms to the interval.

mod collide;
mod error;
mod health;
mod image;
mod json;
mod metrics;
mod provider;
mod proxy;
mod section;
mod settings;
mod shown;
mod suggest;
mod uri;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod testing;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::path::Path;

pub use error::{ConfigError, ConfigErrors};
pub use health::DEFAULT_HEALTH_URL;
pub use settings::{
    DeclaredProxy, HealthSettings, ImageSettings, MetricsListen, NetworkAttachment, OnRemoval,
    ProviderSettings, ProviderType, Settings, SshDestination, SshSettings, VirtType,
};

use error::{Pointer, Report};
use section::{Node, Section};

use crate::model::{EntryName, MAX_PROXIES};

const KEYS: [&str; 5] = ["images", "providers", "proxies", "health", "metrics"];
/// More than this is no configuration.
const MAX_BYTES: u64 = 16 << 20;

/// Reads the configuration file at `path`. That there is none is an error of its own,
/// [`ConfigErrors::is_not_found`], which the caller may answer with [`Settings::builtin`].
pub fn load(path: &Path) -> Result<Settings, ConfigErrors> {
    parse(&read(path)?)
}

/// Checks the text of a configuration file.
pub fn parse(text: &str) -> Result<Settings, ConfigErrors> {
    let mut value = json::parse(text)?;
    let report = Report::default();
    json::drop_duplicates(&mut value, &report);
    let settings = settings(&Node::new(&value, Pointer::default(), &report));
    report.finish(settings)
}

impl Settings {
    /// What holds without a file: one entry `local` of the defaults, and no images.
    /// The defaults go the way of any file, hence the `Result`; it doesn't fail.
    pub fn builtin() -> Result<Self, ConfigErrors> {
        parse("{}")
    }
}

fn settings(node: &Node<'_>) -> Option<Settings> {
    let root = node.section(&KEYS)?;
    let (providers, proxies) = providers_and_proxies(&root);
    let health = health::section(&root.get_or_empty("health"));
    let health = health.and_then(|section| health::read(&section));
    let metrics = metrics::read(&root.get_or_empty("metrics"));
    let (providers, proxies) = (providers?, proxies?);
    Some(Settings { providers, proxies, health: health?, metrics: metrics? })
}

/// The entries when all is well with them.
type Providers = BTreeMap<EntryName, ProviderSettings>;

fn providers_and_proxies(root: &Section<'_>) -> (Option<Providers>, Option<proxy::Proxies>) {
    let images = image::read_all(&root.get_or_empty("images"));
    let entries = provider::read_all(root, &images.clone().unwrap_or_default());
    let references = entries.as_ref().filter(|_| images.is_some());
    let proxies = proxy::read_all(&root.get_or_empty("proxies"), references);
    if let Some(number) = proxies.as_ref().map(BTreeMap::len).filter(|of| *of > MAX_PROXIES) {
        let text = format!("{number} Proxies are too many: one daemon keeps at most {MAX_PROXIES}");
        root.node().report().add(&Pointer::default().child("proxies"), text);
    }
    if let (Some(entries), Some(proxies)) = (&entries, &proxies) {
        collide::check(entries, proxies, root.node().report());
    }
    let finished = |entries: provider::Entries| {
        let named = entries.into_iter();
        named.map(|(name, entry)| Some((name, entry.finish()?))).collect()
    };
    (entries.and_then(finished), proxies)
}

fn read(path: &Path) -> Result<String, ConfigErrors> {
    let refuse = |what: String| ConfigErrors::of_file(format!("{}: {what}", path.display()));
    let file = File::open(path).map_err(|error| unreadable(path, &error))?;
    let mut bytes = Vec::new();
    // One byte more tells a file that is just as long from one that is longer.
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|error| unreadable(path, &error))?;
    if bytes.len() as u64 > MAX_BYTES {
        let most = MAX_BYTES >> 20;
        return Err(refuse(format!("the file is larger than {most} MiB: is it the right one?")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        refuse(format!("the file is not UTF-8 text (byte {at}): save it as UTF-8"))
    })
}

fn unreadable(path: &Path, error: &std::io::Error) -> ConfigErrors {
    let shown = path.display();
    match error.kind() {
        // A link that leads nowhere was meant to lead somewhere: going on without a
        // configuration would take away what the lost one declared.
        ErrorKind::NotFound if path.ancestors().any(leads_nowhere) => {
            let ways = "mend the link, or remove it to go without a file";
            ConfigErrors::of_file(format!("{shown}: a link on the way leads nowhere: {ways}"))
        }
        ErrorKind::NotFound => ConfigErrors::file_not_found(format!("{shown}: there is no file")),
        ErrorKind::IsADirectory => ConfigErrors::of_file(format!(
            "{shown}: it is a directory: give the path of the file in it"
        )),
        _ => ConfigErrors::of_file(format!("{shown}: the file can't be read: {error}")),
    }
}

fn leads_nowhere(path: &Path) -> bool {
    path.is_symlink() && !path.exists()
}

#[cfg(test)]
mod tests {
    use super::testing::{errors, errors_at, ok};
    use super::*;

    fn load_bytes(bytes: &[u8]) -> Result<Settings, ConfigErrors> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.json");
        std::fs::write(&path, bytes).unwrap();
        load(&path)
    }

    #[test]
    fn the_built_in_settings() {
        let settings = Settings::builtin().unwrap();
        assert_eq!(settings, ok("{}"));
        let (name, entry) = settings.providers.iter().next().unwrap();
        assert_eq!((settings.providers.len(), name.as_str()), (1, "local"));
        assert_eq!(entry.uri, "qemu:///system");
        assert!(entry.images.is_empty() && settings.proxies.is_empty());
    }

    #[test]
    fn the_file_that_the_documentation_shows() {
        let digest = "ab".repeat(32);
        let text = format!(
            r#"{{
  "images": {{
    "debian-13": {{ "url": "https://example.org/debian-13-genericcloud-amd64.qcow2",
                    "sha256": "{digest}", "format": "qcow2", "firmware": "uefi" }}
  }},
  "providers": {{
    "kvm-home": {{
      "type": "kvm",
      "uri": "qemu+ssh://operator@host/system",
      "pool": "default",
      "network": {{ "network": "default" }},
      "virtType": "auto",
      "installGuestAgent": true,
      "vendorData": null,
      "images": {{}},
      "ssh": {{ "keyCredential": "ssh-kvm-home", "knownHosts": "host ssh-ed25519 AAAA" }}
    }}
  }},
  "proxies": {{ }},
  "health": {{ "url": "http://example.org/generate_204", "expectStatus": 204,
               "interval": "30s", "timeout": "5s", "unhealthyAfter": 3 }}
}}"#
        );
        assert_eq!(load_bytes(text.as_bytes()).unwrap(), ok(&text));
    }

    #[test]
    fn mistakes_all_over_are_reported_at_once() {
        let text = r#"{"image": {}, "health": {"interval": 1}, "images": {"A": 1},
            "providers": {"e": {"pool": 1, "pool": 2}}, "proxies": {"p": {}}}"#;
        let expected = [
            "/providers/e/pool",
            "/image",
            "/images/A",
            "/images/A",
            "/providers/e/pool",
            "/proxies/p/image",
            "/health/interval",
        ];
        assert_eq!(errors_at(text), expected);
        let message = errors(text)[1].message.clone();
        assert!(message.contains("did you mean \"images\"?"), "{message}");
    }

    #[test]
    fn the_whole_must_be_an_object() {
        for text in ["[]", "null", "5", "\"x\""] {
            assert_eq!(errors_at(text), [""], "{text}");
        }
    }

    #[test]
    fn only_a_missing_file_is_not_found() {
        let directory = tempfile::tempdir().unwrap();
        assert!(load(&directory.path().join("none")).unwrap_err().is_not_found());
        let link = directory.path().join("link");
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        for path in [directory.path(), &link, &link.join("below")] {
            let found = load(path).unwrap_err();
            assert!(!found.is_not_found(), "{found}");
            assert!(found.to_string().starts_with(&path.display().to_string()), "{found}");
        }
    }

    #[test]
    fn only_utf8_of_a_sensible_size_is_read() {
        let found = load_bytes(b"{\"a\": \"\xff\"}").unwrap_err().to_string();
        assert!(found.contains("not UTF-8 text (byte 7)"), "{found}");
        let mut bytes = vec![b' '; 16 << 20];
        bytes[..2].copy_from_slice(b"{}");
        assert!(load_bytes(&bytes).is_ok());
        bytes.push(b' ');
        let found = load_bytes(&bytes).unwrap_err().to_string();
        assert!(found.contains("larger than 16 MiB"), "{found}");
    }
}
