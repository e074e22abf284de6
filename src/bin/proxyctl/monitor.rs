//! Telling what happens, signal by signal.

use std::time::SystemTime;

use futures_util::StreamExt as _;
use serde_json::{Value, json};
use zbus::fdo::DBusProxy;
use zbus::message::{Message, Type};
use zbus::names::OwnedUniqueName;
use zbus::{MatchRule, MessageStream, Structure};

use crate::Form;
use crate::client::{Client, NAME};
use crate::failure::Failure;
use crate::output::{printable, write};
use crate::path::{name, object};
use crate::value::{camel, json as value};

/// Tells until it is interrupted or the bus has gone.
pub(crate) async fn run(client: &Client, form: Form) -> Result<(), Failure> {
    let connection = client.connection();
    let rule =
        MatchRule::builder().msg_type(Type::Signal).path_namespace("/org/proxyd1").build()?;
    let mut signals = MessageStream::for_match_rule(rule, connection, None).await?;
    let bus = DBusProxy::new(connection).await?;
    let mut daemon = owner(&bus).await;
    if daemon.is_none() {
        eprintln!("proxyctl: proxyd does not run yet: waiting for it");
    }
    let mut owners = bus.receive_name_owner_changed_with_args(&[(0, NAME)]).await?;
    loop {
        let signal = tokio::select! {
            signal = signals.next() => signal,
            Some(_) = owners.next() => {
                let now = owner(&bus).await;
                if now != daemon {
                    eprintln!("proxyctl: proxyd has {}", if now.is_some() { "come" } else { "gone" });
                }
                daemon = now;
                continue;
            }
        };
        let Some(signal) = signal else { break };
        let signal = signal?;
        let header = signal.header();
        let sender = header.sender().map(|sender| sender.to_owned());
        // Anybody may send a signal with such a path.
        if sender.as_ref() != daemon.as_deref() {
            daemon = owner(&bus).await;
            if sender.as_ref() != daemon.as_deref() {
                continue;
            }
        }
        tell(&signal, form)?;
    }
    Err(Failure::other("the bus has gone".into()))
}

async fn owner(bus: &DBusProxy<'_>) -> Option<OwnedUniqueName> {
    bus.get_name_owner(NAME.try_into().ok()?).await.ok()
}

fn tell(signal: &Message, form: Form) -> Result<(), Failure> {
    let header = signal.header();
    let member = header.member().map(|member| member.to_string()).unwrap_or_default();
    let path = header.path().map(|path| path.to_string()).unwrap_or_default();
    let body = signal.body();
    let arguments: Structure<'_> = match body.deserialize() {
        Ok(arguments) => arguments,
        Err(_) => return Ok(()),
    };
    let arguments: Vec<Value> = arguments.fields().iter().map(value).collect();
    let now = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
    if form == Form::Json {
        let line = json!({ "time": now, "path": path, "signal": member, "arguments": arguments });
        return write(format!("{line}\n").as_bytes());
    }
    let time = now.get(11..19).unwrap_or_default();
    for what in words(&member, &path, &arguments) {
        write(format!("{time} {}\n", printable(&what)).as_bytes())?;
    }
    Ok(())
}

/// What a signal tells, in lines for people.
fn words(member: &str, path: &str, arguments: &[Value]) -> Vec<String> {
    let text = |at: usize| arguments.get(at).and_then(Value::as_str).unwrap_or_default();
    let last = |path: &str| name(path).unwrap_or_default();
    match member {
        "ProxyNew" => vec![format!("proxy {}: new", text(0))],
        "ProxyRemoved" => vec![format!("proxy {}: gone", text(0))],
        "JobNew" => vec![format!("job {}: new", last(text(0)))],
        "JobRemoved" => vec![format!("job {}: {}", last(text(0)), text(1))],
        "PropertiesChanged" => {
            let object = object(path);
            let changed = arguments.get(1).and_then(Value::as_object).into_iter().flatten();
            changed
                .filter(|(name, _)| name.as_str() != "Conditions")
                .map(|(name, value)| format!("{object}: {} {}", camel(name), shown(value)))
                .collect()
        }
        _ => Vec::new(),
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) if text.is_empty() => "-".into(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_told_in_words() {
        let path = "/org/proxyd1/image/home/debian_2d13";
        let changed = [json!("org.proxyd1.Image"), json!({"State": "ready", "Size": 5}), json!([])];
        let told = words("PropertiesChanged", path, &changed);
        assert_eq!(told, ["image home debian-13: size 5", "image home debian-13: state ready"]);
        let ended = [json!("/org/proxyd1/job/7"), json!("done")];
        assert_eq!(words("JobRemoved", "/org/proxyd1", &ended), ["job 7: done"]);
    }
}
