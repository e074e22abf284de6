//! The command-line client: a thin layer over the D-Bus API.

mod arguments;
mod client;
mod failure;
mod follow;
mod images;
mod monitor;
mod output;
mod path;
mod providers;
mod proxies;
mod spec;
mod value;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};
use proxyd::config;
use proxyd::seed;

use arguments::{Arguments, Command, Config, Preset};
use client::Client;
use failure::Failure;
use output::write;

/// How results are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// For people.
    Text,
    /// For programs.
    Json,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("proxyctl: {}", output::printable_lines(&failure.to_string()));
            ExitCode::from(failure.exit_code())
        }
    }
}

fn run(arguments: Arguments) -> Result<(), Failure> {
    let form = if arguments.json { Form::Json } else { Form::Text };
    // What needs no daemon works without one.
    match &arguments.command {
        Command::Preset(Preset::Show(preset)) => {
            return write(seed::preset(preset.port, &preset.allow).as_bytes());
        }
        Command::Config(Config::Check { path }) => return check(path),
        Command::Completions { shell } => return complete(*shell),
        _ => {}
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::other(format!("no runtime: {error}")))?;
    runtime.block_on(async {
        let client = Client::connect(arguments.host.as_deref()).await?;
        call(&client, arguments.command, form).await
    })
}

async fn call(client: &Client, command: Command, form: Form) -> Result<(), Failure> {
    match command {
        Command::Image(command) => images::run(client, command, form).await,
        Command::Job(command) => images::jobs(client, command, form).await,
        Command::Provider(command) => providers::run(client, command, form).await,
        Command::Monitor => monitor::run(client, form).await,
        Command::Config(_) => client.manager().await?.call("Reload", &()).await,
        command => proxies::run(client, command, form).await,
    }
}

fn check(path: &std::path::Path) -> Result<(), Failure> {
    match config::load(path) {
        Ok(settings) => write(format!("{}: {}\n", path.display(), settings.summary()).as_bytes()),
        Err(errors) if errors.is_not_found() => {
            Err(Failure::no_input(format!("{}: there is no such file", path.display())))
        }
        Err(errors) => Err(Failure::bad_config(format!("{}:\n{errors}", path.display()))),
    }
}

fn complete(shell: clap_complete::Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "proxyctl", &mut script);
    write(&script)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definitions_are_sound() {
        Arguments::command().debug_assert();
    }

    /// The pages in docs/man are made from the definitions. With `BLESS=1` they are
    /// written anew.
    #[test]
    fn the_man_pages_are_those_of_the_definitions() {
        let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/man");
        let made = tempfile::tempdir().unwrap();
        clap_mangen::generate_to(Arguments::command(), made.path()).unwrap();
        let names = |of: &std::path::Path| {
            let entries = std::fs::read_dir(of).unwrap().map(|entry| entry.unwrap().file_name());
            let mut names: Vec<_> = entries.map(|name| name.into_string().unwrap()).collect();
            names.retain(|name| name.starts_with("proxyctl"));
            names.sort();
            names
        };
        if std::env::var_os("BLESS").is_some() {
            std::fs::create_dir_all(&directory).unwrap();
            for name in names(&directory) {
                std::fs::remove_file(directory.join(name)).unwrap();
            }
            for name in names(made.path()) {
                std::fs::copy(made.path().join(&name), directory.join(&name)).unwrap();
            }
        }
        assert_eq!(names(&directory), names(made.path()));
        for name in names(made.path()) {
            let [known, made] = [&directory, made.path()]
                .map(|of| std::fs::read_to_string(of.join(&name)).unwrap());
            assert_eq!(known, made, "{name}: run with BLESS=1");
        }
    }

    #[test]
    fn every_shell_has_completions() {
        use clap::ValueEnum as _;
        for shell in clap_complete::Shell::value_variants() {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Arguments::command(), "proxyctl", &mut script);
            assert!(String::from_utf8(script).unwrap().contains("remove-leftover"), "{shell}");
        }
    }
}
