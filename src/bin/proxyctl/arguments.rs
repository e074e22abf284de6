//! What can be said on the command line. The man pages and the completions for shells
//! are made from these definitions.

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use ipnet::IpNet;

use crate::spec::{Adopt, Definition, Rebuild, Update};

/// Manages forward proxies that run as virtual machines
///
/// A thin client of the daemon proxyd(8): it speaks org.proxyd1 on the system bus, here or
/// by ssh on another host. Reading is open to everyone; polkit decides who may change
/// something.
#[derive(Debug, Parser)]
#[command(name = "proxyctl", version, arg_required_else_help = true)]
pub(crate) struct Arguments {
    /// Do it on another host, by ssh
    #[arg(
        short = 'H',
        long,
        global = true,
        value_name = "[USER@]HOST",
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub(crate) host: Option<String>,
    /// Print JSON: the properties of D-Bus objects, their names with a small letter in front
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the Proxies
    List,
    /// Show everything about a Proxy
    Show(Name),
    /// Create a Proxy
    Create(Box<Create>),
    /// Show what creating a Proxy would do, and change nothing
    Plan(Box<Definition>),
    /// Change a Proxy; prints when each change takes effect
    Update(Box<Update>),
    /// Have a Proxy's guest run
    Start(Order),
    /// Have a Proxy's guest shut down and stay off
    Stop(Name),
    /// Have a Proxy's guest shut down and start again
    Restart(Name),
    /// Have a Proxy's guest made anew, with the same identity
    Rebuild(Rebuild),
    /// Probe a Proxy at once
    Probe(Name),
    /// Remove a Proxy with its guest; the base image stays
    Delete(Name),
    /// Tell why a Proxy is not as it should be, as JSON
    Evidence(Name),
    /// Print the end of a guest's serial console
    Console {
        /// Name of the Proxy
        name: String,
        /// How much of it
        #[arg(long, default_value_t = 64 << 10)]
        bytes: u64,
    },
    /// The images of the provider entries
    #[command(subcommand)]
    Image(Image),
    /// The hosts that run guests
    #[command(subcommand)]
    Provider(Provider),
    /// Work that takes long
    #[command(subcommand)]
    Job(Job),
    /// Tell what happens, until it is interrupted
    Monitor,
    /// The configuration file
    #[command(subcommand)]
    Config(Config),
    /// The built-in user-data
    #[command(subcommand)]
    Preset(Preset),
    /// Print the completions for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Name {
    /// Name of the Proxy
    pub(crate) name: String,
}

#[derive(Debug, Args)]
pub(crate) struct Order {
    /// Name of the Proxy
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) wait: Wait,
}

#[derive(Debug, Args)]
pub(crate) struct Create {
    #[command(flatten)]
    pub(crate) definition: Definition,
    #[command(flatten)]
    pub(crate) wait: Wait,
}

/// Whether, and how long, to wait for a Proxy.
#[derive(Debug, Args)]
pub(crate) struct Wait {
    /// Wait until it is ready, or until it answers as well; print its Evidence if it fails
    #[arg(
        long = "wait",
        value_name = "STATE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "ready"
    )]
    pub(crate) until: Option<Until>,
    /// How long to wait, in seconds; 0 is for ever
    #[arg(long = "wait-timeout", value_name = "SECONDS", default_value_t = 0, requires = "until")]
    pub(crate) seconds: u64,
}

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Until {
    /// Its guest runs and has told its address
    Ready,
    /// The health URL answers through it
    Healthy,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Image {
    /// List the images
    List,
    /// Show everything about an image
    Show(ImageName),
    /// Have an image in its pool before a Proxy needs it
    Fetch(ImageJob),
    /// Remove an image that nothing uses from its pool
    Evict(ImageName),
    /// Hash an image that is in its pool
    Verify(ImageJob),
    /// Remove every image and leftover that nothing uses
    Prune {
        /// Only list them
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ImageName {
    /// Name of the provider entry
    pub(crate) entry: String,
    /// Key of the image there
    pub(crate) key: String,
}

#[derive(Debug, Args)]
pub(crate) struct ImageJob {
    #[command(flatten)]
    pub(crate) image: ImageName,
    /// Print the number of the job, and don't wait for it
    #[arg(long)]
    pub(crate) no_wait: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Job {
    /// List the jobs
    List,
    /// Call a job off
    Cancel {
        /// Number of the job
        id: u64,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Provider {
    /// List the provider entries
    List,
    /// Look through what guests need of a host
    Check {
        /// Name of the provider entry
        entry: String,
    },
    /// List domains and volumes of guests that belong to no Proxy
    Leftovers {
        /// Name of the provider entry
        entry: String,
    },
    /// Remove a domain that belongs to no Proxy, with its volumes
    RemoveLeftover {
        /// Name of the provider entry
        entry: String,
        /// Name of the domain
        domain: String,
    },
    /// Make a Proxy of a guest that belongs to none; one that runs goes on running
    Adopt(Box<Adopt>),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Config {
    /// Validate a configuration file; needs no daemon
    Check {
        /// The file
        #[arg(default_value = "/etc/proxyd/config.json")]
        path: PathBuf,
    },
    /// Have the daemon read its configuration again
    Reload,
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
