//! The specification of a Proxy on the command line.

use std::collections::HashMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::Args;
use proxyd::dbus::SpecValue;

use crate::failure::Failure;

/// The specification of a Proxy as it goes over the bus.
pub(crate) type Spec = HashMap<&'static str, SpecValue>;

#[derive(Debug, Args)]
pub(crate) struct Definition {
    /// Name of the Proxy
    pub(crate) name: String,
    /// Provider entry; the only one when the configuration has no other
    #[arg(long)]
    provider: Option<String>,
    /// Image: a key that the provider offers, or an http or https URL
    #[arg(long)]
    image: String,
    #[command(flatten)]
    keys: Keys,
}

/// The keys of a specification that may be left out.
#[derive(Debug, Args)]
struct Keys {
    /// sha256 that the image of a URL must have
    #[arg(long, value_name = "HEX")]
    image_sha256: Option<String>,
    /// Format of the image of a URL: qcow2 or raw
    #[arg(long, value_name = "FORMAT")]
    image_format: Option<String>,
    /// cloud-init user-data, taken byte for byte; "-" is standard input
    #[arg(long, value_name = "FILE")]
    user_data: Option<PathBuf>,
    /// cloud-init network-config, taken byte for byte; "-" is standard input
    #[arg(long, value_name = "FILE")]
    network_config: Option<PathBuf>,
    /// A network or host that the preset's squid serves, once for each
    #[arg(long = "allow", value_name = "NETWORK")]
    allowed_clients: Vec<String>,
    /// Virtual processors
    #[arg(long)]
    vcpus: Option<u32>,
    /// Memory in MiB
    #[arg(long, value_name = "MIB")]
    memory: Option<u64>,
    /// Disk size in GiB, at least the image's own
    #[arg(long, value_name = "GIB")]
    disk: Option<u64>,
    /// Port of the proxy in the guest
    #[arg(long)]
    port: Option<u16>,
    /// URL to fetch through the proxy as its health check: it has to answer with the status
    /// that the configuration expects, 204 unless it says otherwise
    #[arg(long, value_name = "URL")]
    health_url: Option<String>,
    /// Don't start the guest together with its host
    #[arg(long)]
    no_autostart: bool,
}

impl Definition {
    pub(crate) fn spec(&self) -> Result<Spec, Failure> {
        let mut spec = self.keys.spec()?;
        spec.insert("Image", SpecValue::Text(self.image.clone()));
        spec.extend(self.provider.clone().map(|entry| ("Provider", SpecValue::Text(entry))));
        Ok(spec)
    }
}

impl Keys {
    /// What goes over the bus; files are read here, with the caller's own rights.
    fn spec(&self) -> Result<Spec, Failure> {
        let mut spec = Spec::new();
        let texts = [
            ("ImageSha256", &self.image_sha256),
            ("ImageFormat", &self.image_format),
            ("HealthUrl", &self.health_url),
        ];
        for (key, text) in texts {
            spec.extend(text.clone().map(|text| (key, SpecValue::Text(text))));
        }
        for (key, file) in [("UserData", &self.user_data), ("NetworkConfig", &self.network_config)]
        {
            if let Some(file) = file {
                spec.insert(key, SpecValue::Bytes(read(file)?));
            }
        }
        if !self.allowed_clients.is_empty() {
            spec.insert("AllowedClients", SpecValue::Texts(self.allowed_clients.clone()));
        }
        spec.extend(self.vcpus.map(|number| ("Vcpus", SpecValue::U32(number))));
        spec.extend(self.memory.map(|number| ("MemoryMiB", SpecValue::U64(number))));
        spec.extend(self.disk.map(|number| ("DiskGiB", SpecValue::U64(number))));
        spec.extend(self.port.map(|number| ("Port", SpecValue::U16(number))));
        if self.no_autostart {
            spec.insert("Autostart", SpecValue::Flag(false));
        }
        Ok(spec)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let read = if path == Path::new("-") {
        std::io::stdin().lock().read_to_end(&mut bytes)
    } else {
        std::fs::File::open(path).and_then(|mut file| file.read_to_end(&mut bytes))
    };
    match read {
        Ok(_) => Ok(bytes),
        Err(error) => Err(Failure::no_input(format!("{}: {error}", path.display()))),
    }
}

#[derive(Debug, Args)]
pub(crate) struct Update {
    /// Name of the Proxy
    pub(crate) name: String,
    /// Image: a key that the provider offers, or an http or https URL
    #[arg(long)]
    image: Option<String>,
    /// Start the guest together with its host
    #[arg(long, conflicts_with = "no_autostart")]
    autostart: bool,
    #[command(flatten)]
    keys: Keys,
}

impl Update {
    pub(crate) fn spec(&self) -> Result<Spec, Failure> {
        let mut spec = self.keys.spec()?;
        spec.extend(self.image.clone().map(|image| ("Image", SpecValue::Text(image))));
        if self.autostart {
            spec.insert("Autostart", SpecValue::Flag(true));
        }
        Ok(spec)
    }
}

#[derive(Debug, Args)]
pub(crate) struct Adopt {
    /// Name of the provider entry
    pub(crate) entry: String,
    /// Name of the Proxy
    pub(crate) name: String,
    /// Image that its guest was made from
    #[arg(long)]
    image: String,
    #[command(flatten)]
    keys: Keys,
}

impl Adopt {
    pub(crate) fn spec(&self) -> Result<Spec, Failure> {
        let mut spec = self.keys.spec()?;
        spec.insert("Image", SpecValue::Text(self.image.clone()));
        Ok(spec)
    }
}

#[derive(Debug, Args)]
pub(crate) struct Rebuild {
    /// Name of the Proxy
    pub(crate) name: String,
    /// Bring the new guest up beside the present one, which it replaces when it answers
    #[arg(long)]
    pub(crate) overlap: bool,
    /// How long the new guest may take, in seconds
    #[arg(long, value_name = "SECONDS", requires = "overlap")]
    pub(crate) timeout: Option<u64>,
}

impl Rebuild {
    /// What goes over the bus.
    pub(crate) fn options(&self) -> Spec {
        let timeout = self.timeout.map(|seconds| ("Timeout", SpecValue::U64(seconds)));
        let overlap = self.overlap.then_some(("Overlap", SpecValue::Flag(true)));
        overlap.into_iter().chain(timeout).collect()
    }
}
