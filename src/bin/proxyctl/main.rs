//! The command-line client: a thin layer over the D-Bus API.

mod arguments;
mod client;
mod failure;

use std::process::ExitCode;

use clap::Parser as _;
use proxyd::seed;

use arguments::{Arguments, Command, Preset};
use client::Client;
use failure::Failure;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(arguments.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("proxyctl: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}

fn run(command: Command) -> Result<(), Failure> {
    // What needs no daemon works without one.
    if let Command::Preset(Preset::Show(preset)) = command {
        return write(seed::preset(preset.port, &preset.allow).as_bytes());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::other(format!("no runtime: {error}")))?;
    runtime.block_on(call(command))
}

async fn call(command: Command) -> Result<(), Failure> {
    match command {
        Command::Create(create) => {
            let spec = create.spec()?;
            Client::connect().await?.create(&create.name, spec).await
        }
        Command::Delete { name } => Client::connect().await?.delete(&name).await,
        Command::Evidence { name } => {
            let evidence = Client::connect().await?.evidence(&name).await?;
            write(format!("{evidence}\n").as_bytes())
        }
        Command::Console { name, bytes } => {
            write(&Client::connect().await?.console(&name, bytes).await?)
        }
        Command::Preset(_) => Ok(()),
    }
}

fn write(bytes: &[u8]) -> Result<(), Failure> {
    use std::io::Write as _;
    let mut output = std::io::stdout().lock();
    match output.write_all(bytes).and_then(|()| output.flush()) {
        // A reader such as `head` has seen enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(|error| Failure::other(format!("can't write: {error}"))),
    }
}
