//! The commands about provider entries.

use serde_json::json;
use zbus::OwnedObjectPath;

use crate::Form;
use crate::arguments::Provider;
use crate::client::{Client, Kind};
use crate::failure::Failure;
use crate::output::{plain, state, write_json, write_table};
use crate::value::{Properties, text};

/// A row of a host's preflight.
type Check = (String, bool, String);
/// What is left of a guest: Proxy, domain, UUID, volumes.
type Leftover = (String, String, String, Vec<String>);

pub(crate) async fn run(client: &Client, command: Provider, form: Form) -> Result<(), Failure> {
    match command {
        Provider::List => list(client, form).await,
        Provider::Check { entry } => check(client, &entry, form).await,
        Provider::Leftovers { entry } => leftovers(client, &entry, form).await,
        Provider::RemoveLeftover { entry, domain } => {
            client.provider(&entry).await?.call("RemoveLeftover", &domain).await
        }
        Provider::Adopt(adopt) => {
            let provider = client.provider(&adopt.entry).await?;
            let spec = adopt.spec()?;
            provider.call::<OwnedObjectPath>("Adopt", &(&adopt.name, spec)).await.map(drop)
        }
    }
}

async fn list(client: &Client, form: Form) -> Result<(), Failure> {
    let entries = client.told_of(Kind::Provider).await?;
    if form == Form::Json {
        return write_json(&entries);
    }
    let row = |entry: &Properties| {
        vec![
            plain(text(entry, "name")),
            plain(text(entry, "type")),
            state(text(entry, "state")),
            plain(text(entry, "libvirtVersion")),
            plain(text(entry, "pool")),
            plain(text(entry, "uri")),
            plain(text(entry, "message")),
        ]
    };
    let header = ["NAME", "TYPE", "STATE", "LIBVIRT", "POOL", "URI", "MESSAGE"];
    write_table(&header, entries.iter().map(row).collect(), "provider entries")
}

async fn check(client: &Client, entry: &str, form: Form) -> Result<(), Failure> {
    let rows: Vec<Check> = client.provider(entry).await?.call("Check", &()).await?;
    if form == Form::Json {
        let row = |(what, passed, message): &Check| json!({ "what": what, "passed": passed, "message": message });
        write_json(&rows.iter().map(row).collect::<Vec<_>>())?;
    } else {
        let row = |(what, passed, message): &Check| {
            vec![plain(what), state(if *passed { "ok" } else { "FAIL" }), plain(message)]
        };
        write_table(&["CHECK", "RESULT", "FOUND"], rows.iter().map(row).collect(), "checks")?;
    }
    match rows.iter().find(|(_, passed, _)| !passed) {
        Some((what, ..)) => Err(Failure::other(format!("{entry} is not ready: {what}"))),
        None => Ok(()),
    }
}

async fn leftovers(client: &Client, entry: &str, form: Form) -> Result<(), Failure> {
    let rows: Vec<Leftover> = client.provider(entry).await?.call("ListLeftovers", &()).await?;
    if form == Form::Json {
        let row = |(proxy, domain, uuid, volumes): &Leftover| json!({ "proxy": proxy, "domain": domain, "uuid": uuid, "volumes": volumes });
        return write_json(&rows.iter().map(row).collect::<Vec<_>>());
    }
    let row = |(proxy, domain, uuid, volumes): &Leftover| {
        let proof = if uuid.is_empty() { "only by name" } else { uuid };
        vec![plain(proxy), plain(domain), plain(proof), plain(&volumes.join(" "))]
    };
    let header = ["PROXY", "DOMAIN", "PROVEN BY", "VOLUMES"];
    write_table(&header, rows.iter().map(row).collect(), "leftovers")
}
