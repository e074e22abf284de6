//! The daemon's command line.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use proxyd::daemon::{self, ConfigPath, Options};
use proxyd::journal;
use proxyd::model::{Fault, FaultKind};
use proxyd::provider::Places;

const DEFAULT_CONFIG: &str = "/etc/proxyd/config.json";
const DEFAULT_STATE: &str = "/var/lib/proxyd";
const DEFAULT_CACHE: &str = "/var/cache/proxyd";
const DEFAULT_RUNTIME: &str = "/run/proxyd";

/// Calls that hang until a dead host is noticed each take one, a few a host.
const BLOCKING_THREADS: usize = 1024;

/// sysexits(3): the configuration is not acceptable.
const EX_CONFIG: u8 = 78;
/// sysexits(3): a file to read does not exist.
const EX_NOINPUT: u8 = 66;

/// Runs HTTP forward proxies as virtual machines under libvirt.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    /// Configuration file [default: /etc/proxyd/config.json; built in when that is absent]
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,

    /// Validate a configuration file and exit: 0 when it is good, 78 when it is not
    #[arg(long, value_name = "PATH", conflicts_with = "config")]
    check_config: Option<PathBuf>,

    /// Directory of the records
    #[arg(long, value_name = "DIR", env = "STATE_DIRECTORY", default_value = DEFAULT_STATE)]
    state_dir: PathBuf,

    /// Directory for downloads on their way to libvirt
    #[arg(long, value_name = "DIR", env = "CACHE_DIRECTORY", default_value = DEFAULT_CACHE)]
    cache_dir: PathBuf,

    /// Directory for what ssh needs while it runs
    #[arg(long, value_name = "DIR", env = "RUNTIME_DIRECTORY", default_value = DEFAULT_RUNTIME)]
    runtime_dir: PathBuf,

    /// Directory of the credentials, private keys for other hosts among them
    #[arg(long, value_name = "DIR", env = "CREDENTIALS_DIRECTORY")]
    credentials_dir: Option<PathBuf>,

    /// D-Bus address to serve on instead of the system bus
    #[arg(long, value_name = "ADDRESS")]
    bus: Option<String>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(path) = arguments.check_config {
        return check(&path);
    }
    journal::init();
    let config = match arguments.config {
        Some(path) => ConfigPath::Given(path),
        None => ConfigPath::Default(DEFAULT_CONFIG.into()),
    };
    let options = Options {
        config,
        state: arguments.state_dir,
        cache: arguments.cache_dir,
        places: Places { runtime: arguments.runtime_dir, credentials: arguments.credentials_dir },
        bus: arguments.bus,
    };
    match serve(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            let fault = error.downcast_ref::<Fault>().map(|fault| fault.kind);
            let invalid = fault == Some(FaultKind::InvalidConfig);
            if invalid { ExitCode::from(EX_CONFIG) } else { ExitCode::FAILURE }
        }
    }
}

fn serve(options: Options) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .max_blocking_threads(BLOCKING_THREADS)
        .enable_all()
        .build()?;
    let outcome = runtime.block_on(daemon::run(options));
    // A call into libvirt that never returns must not keep the process.
    runtime.shutdown_timeout(std::time::Duration::from_secs(5));
    outcome
}

fn check(path: &std::path::Path) -> ExitCode {
    if !path.exists() {
        eprintln!("{}: there is no such file", path.display());
        return ExitCode::from(EX_NOINPUT);
    }
    match proxyd::config::load(path) {
        Ok(settings) => {
            println!("{}: {}", path.display(), settings.summary());
            ExitCode::SUCCESS
        }
        Err(errors) => {
            eprintln!("{errors}");
            ExitCode::from(EX_CONFIG)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    /// The page in docs/man is made from the definitions. With `BLESS=1` it is written
    /// anew.
    #[test]
    fn the_man_page_is_that_of_the_definitions() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/man/proxyd.8");
        let mut made = Vec::new();
        clap_mangen::Man::new(Arguments::command()).section("8").render(&mut made).unwrap();
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&path, &made).unwrap();
        }
        assert!(std::fs::read(&path).unwrap() == made, "{}: run with BLESS=1", path.display());
    }
}
