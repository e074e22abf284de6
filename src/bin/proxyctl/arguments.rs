//! What can be said on the command line.

use std::collections::HashMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand};
use ipnet::IpNet;
use proxyd::dbus::SpecValue;

use crate::failure::Failure;

/// The specification of a Proxy as it goes over the bus.
pub(crate) type Spec = HashMap<&'static str, SpecValue>;

/// Manages forward proxies that run as virtual machines.
#[derive(Debug, Parser)]
#[command(name = "proxyctl", version, about)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a Proxy
    Create(Box<Create>),
    /// Remove a Proxy with its guest; the base image stays
    Delete {
        /// Name of the Proxy
        name: String,
    },
    /// Tell why a Proxy is not as it should be, as JSON
    Evidence {
        /// Name of the Proxy
        name: String,
    },
    /// Print the end of a guest's serial console
    Console {
        /// Name of the Proxy
        name: String,
        /// How much of it
        #[arg(long, default_value_t = 64 << 10)]
        bytes: u64,
    },
    /// The built-in user-data
    #[command(subcommand)]
    Preset(Preset),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Preset {
    /// Print the user-data that a Proxy without user-data of its own gets
    Show(PresetShow),
}

#[derive(Debug, Args)]
pub(crate) struct PresetShow {
    /// Port of the proxy in the guest
    #[arg(long, default_value_t = 3128, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: u16,
    /// A network or host that may use it, once for each; without any, the networks of
    /// the guest's own interface
    #[arg(long, value_name = "NETWORK")]
    pub(crate) allow: Vec<IpNet>,
}

#[derive(Debug, Args)]
pub(crate) struct Create {
    /// Name of the Proxy
    pub(crate) name: String,
    /// Provider entry; the only one when the configuration has no other
    #[arg(long)]
    provider: Option<String>,
    /// Image: a key that the provider offers, or an http or https URL
    #[arg(long)]
    image: String,
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
    /// URL to fetch through the proxy as its health check
    #[arg(long, value_name = "URL")]
    health_url: Option<String>,
    /// Don't start the guest together with its host
    #[arg(long)]
    no_autostart: bool,
}

impl Create {
    /// What goes over the bus; files are read here, with the caller's own rights.
    pub(crate) fn spec(&self) -> Result<Spec, Failure> {
        let mut spec = Spec::from([("Image", SpecValue::Text(self.image.clone()))]);
        let texts = [
            ("Provider", &self.provider),
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
