//! The commands about Proxies.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use comfy_table::Cell;
use serde_json::Value;
use zbus::OwnedObjectPath;

use crate::Form;
use crate::arguments::{Command, Create};
use crate::client::{Client, Kind, Object, check_size};
use crate::failure::Failure;
use crate::follow;
use crate::output::{plain, printable, state, time, write, write_json, write_table};
use crate::spec::{Definition, Rebuild};
use crate::value::{Properties, flag, number, text};

pub(crate) async fn run(client: &Client, command: Command, form: Form) -> Result<(), Failure> {
    match command {
        Command::List => list(client, form).await,
        Command::Show(of) => show(&client.proxy(&of.name).await?, form).await,
        Command::Create(command) => create(client, *command, form).await,
        Command::Plan(definition) => plan(client, &definition, form).await,
        Command::Update(update) => {
            let spec = update.spec()?;
            check_size(&spec)?;
            effects(client.proxy(&update.name).await?.call("Update", &spec).await?, form)
        }
        Command::Start(order) => {
            let proxy = client.proxy(&order.name).await?;
            proxy.call::<()>("Start", &()).await?;
            follow::proxy(&proxy, &order.wait, form).await
        }
        Command::Stop(of) => client.proxy(&of.name).await?.call("Stop", &()).await,
        Command::Restart(of) => client.proxy(&of.name).await?.call("Restart", &()).await,
        Command::Rebuild(command) => rebuild(client, &command).await,
        Command::Probe(of) => probe(&client.proxy(&of.name).await?, form).await,
        Command::Delete(of) => client.manager().await?.call("DeleteProxy", &of.name).await,
        Command::Evidence(of) => {
            let evidence: String = client.proxy(&of.name).await?.call("Evidence", &()).await?;
            write(format!("{evidence}\n").as_bytes())
        }
        Command::Console { name, bytes } => {
            let end: Vec<u8> = client.proxy(&name).await?.call("ConsoleLog", &bytes).await?;
            write(&end)
        }
        // Taken care of before there was a client.
        _ => Ok(()),
    }
}

async fn list(client: &Client, form: Form) -> Result<(), Failure> {
    let proxies = client.told_of(Kind::Proxy).await?;
    if form == Form::Json {
        return write_json(&proxies);
    }
    let row = |proxy: &Properties| {
        vec![
            plain(text(proxy, "name")),
            state(text(proxy, "phase")),
            state(yes(flag(proxy, "healthy"))),
            plain(text(proxy, "provider")),
            plain(text(proxy, "endpoint")),
            plain(text(proxy, "reason")),
        ]
    };
    let header = ["NAME", "PHASE", "HEALTHY", "PROVIDER", "ENDPOINT", "REASON"];
    let rows: Vec<Vec<Cell>> = proxies.iter().map(row).collect();
    let what = if rows.len() == 1 { "Proxy" } else { "Proxies" };
    write_table(&header, rows, what)
}

pub(crate) fn yes(holds: bool) -> &'static str {
    if holds { "yes" } else { "no" }
}

async fn show(proxy: &Object<'_>, form: Form) -> Result<(), Failure> {
    let of = proxy.properties().await?;
    if form == Form::Json {
        return write_json(&of);
    }
    let mut lines = vec![
        ("Phase", format!("{} ({})", text(&of, "phase"), text(&of, "reason"))),
        ("Healthy", yes(flag(&of, "healthy")).to_owned()),
        ("Message", text(&of, "message").to_owned()),
        ("Next attempt", time(number(&of, "nextAttempt"))),
        ("Endpoint", text(&of, "endpoint").to_owned()),
        ("Address", sourced(&of)),
        ("Provider", text(&of, "provider").to_owned()),
        ("Image", text(&of, "image").to_owned()),
        ("Image URL", text(&of, "imageUrl").to_owned()),
        ("Image sha256", text(&of, "imageDigest").to_owned()),
        ("Guest", guest(&of)),
        ("Health URL", text(&of, "healthUrl").to_owned()),
        ("Domain", text(&of, "domain").to_owned()),
        ("Origin", text(&of, "origin").to_owned()),
        ("Generation", generation(&of)),
        ("Created", time(number(&of, "createdAt"))),
    ];
    if flag(&of, "imageOutdated") {
        lines.insert(10, ("", "the configuration has another image: rebuild brings it".to_owned()));
    }
    let conditions = of.get("conditions").and_then(Value::as_array).into_iter().flatten();
    for (at, condition) in conditions.filter_map(Value::as_object).enumerate() {
        let holds = yes(flag(condition, "holds"));
        let (kind, why) = (text(condition, "kind"), text(condition, "reason"));
        let line = format!("{kind}: {holds} ({why}) {}", text(condition, "message"));
        lines.push((if at == 0 { "Conditions" } else { "" }, line.trim_end().to_owned()));
    }
    write(sheet(text(&of, "name"), &lines).as_bytes())
}

/// A heading and what is to be said, the empty left out.
pub(crate) fn sheet(heading: &str, lines: &[(&str, String)]) -> String {
    let mut sheet = format!("{heading}\n");
    for (name, value) in lines.iter().filter(|(_, value)| !value.is_empty()) {
        let colon = if name.is_empty() { ' ' } else { ':' };
        // Writing to a string does not fail.
        let _ = writeln!(sheet, "{name:>14}{colon} {}", printable(value));
    }
    sheet
}

fn sourced(of: &Properties) -> String {
    match (text(of, "address"), text(of, "addressSource")) {
        ("", _) => String::new(),
        (address, source) => format!("{address} (told by {source})"),
    }
}

fn guest(of: &Properties) -> String {
    let disk = match number(of, "diskGiB") {
        0 => "the image's disk".to_owned(),
        gib => format!("{gib} GiB of disk"),
    };
    format!(
        "{} vCPU, {} MiB, {disk}, port {}{}",
        number(of, "vcpus"),
        number(of, "memoryMiB"),
        number(of, "port"),
        if flag(of, "autostart") { ", started with its host" } else { "" }
    )
}

fn generation(of: &Properties) -> String {
    let (wanted, seen) = (number(of, "generation"), number(of, "observedGeneration"));
    if wanted == seen { wanted.to_string() } else { format!("{wanted}, and {seen} is described") }
}

async fn create(client: &Client, command: Create, form: Form) -> Result<(), Failure> {
    let Create { definition, wait } = command;
    let spec = definition.spec()?;
    check_size(&spec)?;
    let manager = client.manager().await?;
    let path: OwnedObjectPath = manager.call("CreateProxy", &(&definition.name, spec)).await?;
    follow::proxy(&client.object(Kind::Proxy, path).await?, &wait, form).await
}

async fn plan(client: &Client, definition: &Definition, form: Form) -> Result<(), Failure> {
    let spec = definition.spec()?;
    check_size(&spec)?;
    let planned: String =
        client.manager().await?.call("PlanProxy", &(&definition.name, spec)).await?;
    if form == Form::Json {
        return write(format!("{planned}\n").as_bytes());
    }
    let planned: Value = serde_json::from_str(&planned)
        .map_err(|error| Failure::other(format!("the plan can't be read: {error}")))?;
    let word = |pointer: &str| match planned.pointer(pointer) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(bytes)) => crate::output::size(bytes.as_u64().unwrap_or_default()),
        _ => String::new(),
    };
    let to_fetch = match planned.pointer("/base/bytesToFetch").and_then(Value::as_u64) {
        Some(0) => "nothing".to_owned(),
        Some(bytes) => crate::output::size(bytes),
        None => "not known".to_owned(),
    };
    let volume = |at: u8| {
        format!(
            "{} {}",
            word(&format!("/volumes/{at}/name")),
            word(&format!("/volumes/{at}/capacity"))
        )
    };
    let lines = [
        ("Action", word("/action")),
        ("Provider", word("/provider")),
        ("Base", word("/base/path")),
        ("", format!("{} {}", word("/base/state"), word("/base/message"))),
        ("URL", word("/base/url")),
        ("To fetch", to_fetch),
        ("Volumes", volume(0)),
        ("", volume(1)),
        ("Domain", format!("{} ({})", word("/domain/name"), word("/domain/firmware"))),
    ];
    let sheet = sheet(&definition.name, &lines);
    write(format!("{sheet}\n{}\n", word("/domain/xml").trim_end()).as_bytes())
}

fn effects(effects: BTreeMap<String, String>, form: Form) -> Result<(), Failure> {
    if form == Form::Json {
        return write_json(&effects);
    }
    let lines = effects.iter().map(|(key, effect)| format!("{key}: {effect}\n"));
    write(lines.collect::<String>().as_bytes())
}

async fn rebuild(client: &Client, command: &Rebuild) -> Result<(), Failure> {
    let proxy = client.proxy(&command.name).await?;
    proxy.call("RebuildWithOptions", &command.options()).await
}

async fn probe(proxy: &Object<'_>, form: Form) -> Result<(), Failure> {
    let (healthy, found): (bool, String) = proxy.call("Probe", &()).await?;
    if form == Form::Json {
        write_json(&serde_json::json!({ "healthy": healthy, "message": found }))?;
    }
    match (healthy, form) {
        (true, Form::Text) => write(format!("{found}\n").as_bytes()),
        (true, Form::Json) => Ok(()),
        (false, _) => Err(Failure::other(found)),
    }
}
