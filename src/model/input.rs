//! A specification as it comes from outside (D-Bus or the configuration file),
//! before it is checked. All problems are reported at once, each with its key.

use std::str::FromStr;

use ipnet::IpNet;

use super::{
    EntryName, ImageChoice, ImageFormat, ImageKey, ProxySpec, ResourceUrl, Secret, UrlOrigin,
};

/// User-data and network-config are kept in a record and copied into a seed; more
/// than this is a mistake.
const MAX_SECRET_BYTES: usize = 32 << 20;
const DEFAULT_VCPUS: u32 = 1;
const DEFAULT_MEMORY_MIB: u64 = 1024;
const DEFAULT_PORT: u16 = 3128;
const MAX_VCPUS: u32 = 512;
const MIN_MEMORY_MIB: u64 = 128;
const MAX_MEMORY_MIB: u64 = 4 << 20;
const MAX_DISK_GIB: u64 = 64 << 10;
const MAX_ALLOWED_CLIENTS: usize = 1024;

/// The keys of a specification, each absent or of the right type, nothing more.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of ProxySpec, unchecked")]
pub struct SpecInput {
    pub provider: Option<String>,
    pub image: Option<String>,
    pub image_sha256: Option<String>,
    pub image_format: Option<String>,
    pub user_data: Option<Secret>,
    pub network_config: Option<Secret>,
    pub allowed_clients: Option<Vec<String>>,
    pub vcpus: Option<u32>,
    pub memory_mib: Option<u64>,
    pub disk_gib: Option<u64>,
    pub port: Option<u16>,
    pub health_url: Option<String>,
    pub autostart: Option<bool>,
}

/// One thing that is wrong with a specification.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {message}")]
pub struct SpecProblem {
    /// The key in D-Bus spelling, such as `MemoryMiB`.
    pub key: &'static str,
    /// What is wrong, with the value and the way out.
    pub message: String,
}

impl SpecInput {
    /// Every key, in D-Bus spelling. The configuration file spells them with a
    /// small first letter.
    pub const KEYS: [&'static str; 13] = [
        "Provider",
        "Image",
        "ImageSha256",
        "ImageFormat",
        "UserData",
        "NetworkConfig",
        "AllowedClients",
        "Vcpus",
        "MemoryMiB",
        "DiskGiB",
        "Port",
        "HealthUrl",
        "Autostart",
    ];

    /// The keys of a specification that was checked before.
    pub fn of(spec: &ProxySpec) -> Self {
        let (image, sha256, format) = match &spec.image {
            ImageChoice::Key(key) => (key.to_string(), None, None),
            ImageChoice::Url { url, sha256, format } => {
                (url.expose().to_string(), *sha256, Some(*format))
            }
        };
        Self {
            provider: Some(spec.provider.to_string()),
            image: Some(image),
            image_sha256: sha256.map(|digest| digest.to_string()),
            image_format: format.map(|format| format.to_string()),
            user_data: spec.user_data.clone(),
            network_config: spec.network_config.clone(),
            allowed_clients: Some(spec.allowed_clients.iter().map(ToString::to_string).collect()),
            vcpus: Some(spec.vcpus),
            memory_mib: Some(spec.memory_mib),
            disk_gib: spec.disk_gib,
            port: Some(spec.port),
            health_url: spec.health_url.as_ref().map(|url| url.expose().to_string()),
            autostart: Some(spec.autostart),
        }
    }

    /// Checks everything that can be checked without the configuration.
    /// `only_entry` stands in for a missing `Provider` when there is just one.
    pub fn validate(
        self,
        origin: UrlOrigin,
        only_entry: Option<&EntryName>,
    ) -> Result<ProxySpec, Vec<SpecProblem>> {
        let mut problems = Problems(Vec::new());
        let provider = problems.take("Provider", provider(self.provider, only_entry));
        let image = problems.image(self.image, self.image_sha256, self.image_format, origin);
        problems.secret("UserData", self.user_data.as_ref());
        problems.secret("NetworkConfig", self.network_config.as_ref());
        problems.text("NetworkConfig", self.network_config.as_ref());
        let allowed_clients = problems
            .take("AllowedClients", clients(self.allowed_clients.unwrap_or_default()))
            .unwrap_or_default();
        let vcpus = self.vcpus.unwrap_or(DEFAULT_VCPUS);
        problems.range("Vcpus", vcpus.into(), 1, MAX_VCPUS.into());
        let memory_mib = self.memory_mib.unwrap_or(DEFAULT_MEMORY_MIB);
        problems.range("MemoryMiB", memory_mib, MIN_MEMORY_MIB, MAX_MEMORY_MIB);
        if let Some(disk) = self.disk_gib {
            problems.range("DiskGiB", disk, 1, MAX_DISK_GIB);
        }
        let port = self.port.unwrap_or(DEFAULT_PORT);
        problems.range("Port", port.into(), 1, u16::MAX.into());
        let health_url = self.health_url.and_then(|text| {
            // The daemon itself fetches it, so a file is never meant, whoever asks.
            problems.take("HealthUrl", ResourceUrl::parse(&text, UrlOrigin::Api))
        });
        match (provider, image) {
            (Some(provider), Some(image)) if problems.0.is_empty() => Ok(ProxySpec {
                provider,
                image,
                user_data: self.user_data,
                network_config: self.network_config,
                allowed_clients,
                vcpus,
                memory_mib,
                disk_gib: self.disk_gib,
                port,
                health_url,
                autostart: self.autostart.unwrap_or(true),
            }),
            _ => Err(problems.0),
        }
    }
}

fn provider(given: Option<String>, only: Option<&EntryName>) -> Result<EntryName, String> {
    match (given, only) {
        (Some(text), _) => EntryName::new(&text).map_err(|error| error.to_string()),
        (None, Some(only)) => Ok(only.clone()),
        (None, None) => {
            Err("it is missing, and the configuration has more than one entry: name one".into())
        }
    }
}

fn clients(texts: Vec<String>) -> Result<Vec<IpNet>, String> {
    if texts.len() > MAX_ALLOWED_CLIENTS {
        return Err(format!(
            "{} networks are too many: give at most {MAX_ALLOWED_CLIENTS}",
            texts.len()
        ));
    }
    texts.iter().map(|text| client(text)).collect()
}

fn client(text: &str) -> Result<IpNet, String> {
    let net = IpNet::from_str(text)
        .or_else(|_| text.parse::<std::net::IpAddr>().map(IpNet::from))
        .map_err(|_| {
            let shown: String = text.chars().take(80).collect();
            format!("{shown:?} is no network: give an address or a network such as 192.0.2.0/24")
        })?;
    // A host address with a network's mask is more often a slip than a wish, and a
    // slip here opens the proxy to more clients than meant.
    if net.addr() != net.network() {
        return Err(format!(
            "{net} has bits set beyond its mask: give {} for the whole network or {} for one host",
            net.trunc(),
            net.addr()
        ));
    }
    Ok(net)
}

struct Problems(Vec<SpecProblem>);

impl Problems {
    fn add(&mut self, key: &'static str, message: String) {
        self.0.push(SpecProblem { key, message });
    }

    fn take<T, E: ToString>(&mut self, key: &'static str, result: Result<T, E>) -> Option<T> {
        result.map_err(|error| self.add(key, error.to_string())).ok()
    }

    fn range(&mut self, key: &'static str, value: u64, least: u64, most: u64) {
        if !(least..=most).contains(&value) {
            self.add(key, format!("{value} is out of range: give {least} to {most}"));
        }
    }

    fn secret(&mut self, key: &'static str, value: Option<&Secret>) {
        if let Some(length) = value.map(|secret| secret.expose().len())
            && length > MAX_SECRET_BYTES
        {
            self.add(key, format!("{length} bytes are too many: at most {MAX_SECRET_BYTES} fit"));
        }
    }

    /// cloud-init loses the whole seed, and says nothing, when one of the files that
    /// it reads itself is no UTF-8.
    fn text(&mut self, key: &'static str, value: Option<&Secret>) {
        if let Some(Err(error)) = value.map(|secret| std::str::from_utf8(secret.expose())) {
            let at = error.valid_up_to();
            self.add(key, format!("it is not UTF-8 text (at byte {at}): give YAML, uncompressed"));
        }
    }

    fn image(
        &mut self,
        image: Option<String>,
        sha256: Option<String>,
        format: Option<String>,
        origin: UrlOrigin,
    ) -> Option<ImageChoice> {
        let Some(image) = image else {
            self.add("Image", "it is missing: give an image key or a URL".into());
            return None;
        };
        if image.contains(':') {
            let url = self.take("Image", ResourceUrl::parse(&image, origin));
            let sha256 = sha256.map(|text| self.take("ImageSha256", text.parse()));
            let format = format.map(|text| self.take("ImageFormat", text.parse::<ImageFormat>()));
            return Some(ImageChoice::Url {
                url: url?,
                sha256: sha256.flatten(),
                format: format.flatten().unwrap_or_default(),
            });
        }
        for (key, value) in [("ImageSha256", &sha256), ("ImageFormat", &format)] {
            if value.is_some() {
                let message = format!(
                    "it goes with an image given as a URL; {image:?} is a key, whose \
                     properties stand in the configuration: leave it out"
                );
                self.add(key, message);
            }
        }
        self.take("Image", ImageKey::new(&image)).map(ImageChoice::Key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minimal() -> SpecInput {
        SpecInput {
            provider: Some("home".into()),
            image: Some("debian-13".into()),
            ..SpecInput::default()
        }
    }

    fn keys(input: SpecInput) -> Vec<&'static str> {
        let problems = input.validate(UrlOrigin::Api, None).unwrap_err();
        problems.iter().map(|problem| problem.key).collect()
    }

    #[test]
    fn defaults() {
        let spec = minimal().validate(UrlOrigin::Api, None).unwrap();
        assert_eq!((spec.vcpus, spec.memory_mib, spec.port), (1, 1024, 3128));
        assert!(spec.autostart);
    }

    #[test]
    fn a_missing_provider_is_the_only_one() {
        let input = SpecInput { provider: None, ..minimal() };
        let only = EntryName::new("local").unwrap();
        assert_eq!(input.clone().validate(UrlOrigin::Api, Some(&only)).unwrap().provider, only);
        assert_eq!(keys(input), ["Provider"]);
    }

    #[test]
    fn every_problem_is_named_at_once() {
        let input = SpecInput {
            provider: Some("Home".into()),
            image: Some("file:///etc/shadow".into()),
            image_sha256: Some("12".into()),
            image_format: Some("vmdk".into()),
            user_data: Some(Secret::new(vec![0; MAX_SECRET_BYTES + 1])),
            network_config: Some(Secret::new(vec![b'v', 0xff])),
            allowed_clients: Some(vec!["10.0.0.1/8".into()]),
            vcpus: Some(0),
            memory_mib: Some(1),
            disk_gib: Some(0),
            port: Some(0),
            health_url: Some("file:///x".into()),
            ..SpecInput::default()
        };
        let expected = [
            "Provider",
            "Image",
            "ImageSha256",
            "ImageFormat",
            "UserData",
            "NetworkConfig",
            "AllowedClients",
            "Vcpus",
            "MemoryMiB",
            "DiskGiB",
            "Port",
            "HealthUrl",
        ];
        assert_eq!(keys(input), expected);
    }

    #[test]
    fn url_only_keys_are_refused_for_a_key() {
        let input = SpecInput { image_format: Some("raw".into()), ..minimal() };
        assert_eq!(keys(input), ["ImageFormat"]);
    }

    #[test]
    fn clients_as_hosts_and_networks() {
        let texts = ["192.0.2.7", "192.0.2.0/24", "2001:db8::/32"];
        let input =
            SpecInput { allowed_clients: Some(texts.map(String::from).to_vec()), ..minimal() };
        let spec = input.validate(UrlOrigin::Api, None).unwrap();
        let shown: Vec<_> = spec.allowed_clients.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["192.0.2.7/32", "192.0.2.0/24", "2001:db8::/32"]);
    }
}
