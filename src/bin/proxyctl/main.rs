//! The command-line client: a thin layer over the D-Bus API.

mod arguments;
mod client;
mod failure;

use std::process::ExitCode;

use clap::Parser as _;
use proxyd::seed;

use arguments::{Arguments, Command, Preset, Provider};
use client::{Check, Client, Leftover};
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
        Command::Update(update) => {
            let spec = update.spec()?;
            write(Client::connect().await?.update(&update.name, spec).await?.as_bytes())
        }
        Command::Start { name } => Client::connect().await?.order(&name, "Start").await,
        Command::Stop { name } => Client::connect().await?.order(&name, "Stop").await,
        Command::Restart { name } => Client::connect().await?.order(&name, "Restart").await,
        Command::Rebuild(rebuild) => {
            Client::connect().await?.rebuild(&rebuild.name, rebuild.options()).await
        }
        Command::Probe { name } => match Client::connect().await?.probe(&name).await? {
            (true, found) => write(format!("{found}\n").as_bytes()),
            (false, found) => Err(Failure::other(found)),
        },
        Command::Provider(command) => provider(command).await,
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

async fn provider(command: Provider) -> Result<(), Failure> {
    let client = Client::connect().await?;
    match command {
        Provider::Check { entry } => {
            let rows = client.check(&entry).await?;
            let shown = |passed: bool| if passed { "ok  " } else { "FAIL" };
            let line = |(what, passed, message): &Check| {
                format!("{} {what:<10} {message}\n", shown(*passed))
            };
            write(rows.iter().map(line).collect::<String>().as_bytes())?;
            match rows.iter().find(|(_, passed, _)| !passed) {
                Some((what, ..)) => Err(Failure::other(format!("{entry} is not ready: {what}"))),
                None => Ok(()),
            }
        }
        Provider::Leftovers { entry } => {
            let line = |(proxy, domain, uuid, volumes): &Leftover| {
                let proof = if uuid.is_empty() { "only by name" } else { uuid };
                format!("{proxy} {domain} ({proof}) {}\n", volumes.join(" "))
            };
            let left = client.leftovers(&entry).await?;
            write(left.iter().map(line).collect::<String>().as_bytes())
        }
        Provider::RemoveLeftover { entry, domain } => client.remove_leftover(&entry, &domain).await,
        Provider::Adopt(adopt) => client.adopt(&adopt.entry, &adopt.name, adopt.spec()?).await,
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
