//! Clients that ask much, listen much, vanish, or send what they should not.

use std::collections::HashMap;
use std::time::Duration;

use proxyd::dbus::SpecValue;
use proxyd::model::MAX_PROXIES;
use zbus::fdo::ObjectManagerProxy;
use zbus::{Connection, MatchRule, MessageStream, Proxy};

use crate::bench::Bench;
use crate::config;

const NAME: &str = "org.proxyd1";
const ROOT: &str = "/org/proxyd1";

async fn connect(bench: &Bench) -> Connection {
    zbus::connection::Builder::address(bench.address.as_str()).build().await.unwrap()
}

async fn manager(connection: &Connection) -> Proxy<'static> {
    Proxy::new(connection, NAME, ROOT, "org.proxyd1.Manager").await.unwrap()
}

/// Asks for all objects `times` times, by some clients at once.
async fn ask(clients: &[Connection], times: usize) {
    let asked = clients.iter().map(|client| async move {
        let objects = ObjectManagerProxy::new(client, NAME, ROOT).await.unwrap();
        for _ in 0..times / clients.len() {
            objects.get_managed_objects().await.unwrap();
        }
    });
    futures_util::future::join_all(asked).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_calls_and_listeners_leave_memory_flat() {
    let bench = Bench::started(&config());
    for number in 0..20 {
        bench.create(&format!("p{number}"), "1 Image s debian-13").unwrap();
    }
    let mut listeners = Vec::new();
    for _ in 0..200 {
        let connection = connect(&bench).await;
        let rule = MatchRule::builder().path_namespace(ROOT).build().unwrap();
        listeners.push(MessageStream::for_match_rule(rule, &connection, None).await.unwrap());
    }
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(connect(&bench).await);
    }
    // What is allocated once is no leak.
    ask(&clients, 2000).await;
    let before = bench.memory();
    ask(&clients, 10_000).await;
    let after = bench.memory();
    assert!(after < before + (8 << 10), "{before} KiB have become {after} KiB");
    drop(listeners);
    assert!(bench.call("ListProxies").unwrap().starts_with("a(ssbsso) 20"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_vanishes_in_mid_call_harms_nothing() {
    let bench = Bench::started(&config());
    bench.create("web", "1 Image s debian-13").unwrap();
    let before = bench.memory();
    for _ in 0..200 {
        let connection = connect(&bench).await;
        let objects = ObjectManagerProxy::new(&connection, NAME, ROOT).await.unwrap();
        let call = tokio::time::timeout(Duration::from_micros(200), objects.get_managed_objects());
        // Answered or not, it goes.
        let _ = call.await;
        connection.close().await.unwrap();
    }
    assert!(bench.call("ListProxies").unwrap().starts_with("a(ssbsso) 1"));
    assert!(bench.memory() < before + (8 << 10));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_large_or_malformed_is_refused_by_name() {
    let bench = Bench::started(&config());
    let connection = connect(&bench).await;
    let manager = manager(&connection).await;
    let refused = |name: String, key: &'static str, value: SpecValue| {
        let manager = manager.clone();
        async move {
            let text = |text: &str| SpecValue::Text(text.into());
            let mut spec = HashMap::from([("Image", text("debian-13"))]);
            spec.insert(key, value);
            let answer = manager.call_method("CreateProxy", &(name, spec)).await;
            match answer.unwrap_err() {
                zbus::Error::MethodError(name, message, _) => {
                    assert_eq!(name.as_str(), "org.proxyd1.Error.InvalidArgument");
                    let message = message.unwrap();
                    assert!(message.len() < 1000, "{} characters", message.len());
                    message
                }
                other => panic!("{other}"),
            }
        }
    };
    let text = |text: &str| SpecValue::Text(text.into());
    let large = || SpecValue::Bytes(vec![b'#'; 60 << 20]);
    let rows = [
        ("x", "UserData", large(), "UserData: "),
        ("x", "NetworkConfig", large(), "NetworkConfig: "),
        ("x", "AllowedClients", SpecValue::Texts(vec!["10.0.0.0/8".into(); 100_000]), "Allowed"),
        ("x", "Provider", text("../home"), "Provider: "),
        ("x", "Image", text("a\nb"), "Image: "),
        ("x", "Image", text(&"a".repeat(1 << 20)), "Image: "),
        ("x", "ImageSha256", text("xyz"), "ImageSha256: "),
        ("x", "HealthUrl", text("file:///etc/shadow"), "HealthUrl: "),
        ("x", "Vcpus", SpecValue::U32(u32::MAX), "Vcpus: "),
        ("x", "MemoryMiB", SpecValue::U64(u64::MAX), "MemoryMiB: "),
        ("x", "DiskGiB", SpecValue::U64(u64::MAX), "DiskGiB: "),
        ("x", "Port", SpecValue::U16(0), "Port: "),
        ("x", "Autostart", SpecValue::U32(1), "Autostart: "),
        ("../x", "Port", SpecValue::U16(1), "proxy name"),
        ("x\u{7}", "Port", SpecValue::U16(1), "proxy name"),
        ("", "Port", SpecValue::U16(1), "proxy name"),
    ];
    for (name, key, value, words) in rows {
        let message = refused(name.into(), key, value).await;
        assert!(message.contains(words), "{key}: {message}");
    }
    let message = refused("z".repeat(1 << 20), "Port", SpecValue::U16(1)).await;
    assert!(message.contains("proxy name"), "{message}");
    // D-Bus itself has no room for more: the bus cuts the sender off, and nobody else.
    let mut spec = HashMap::from([("Image", text("debian-13"))]);
    spec.insert("UserData", SpecValue::Bytes(vec![b'#'; 64 << 20]));
    manager.call_method("CreateProxy", &("x", spec)).await.unwrap_err();
    assert_eq!(bench.call("ListProxies").unwrap(), "a(ssbsso) 0");
    assert_eq!(std::fs::read_dir(bench.home.path().join("state/proxies")).unwrap().count(), 0);
}

/// 10,000 are asked for: as many as one daemon keeps are made, the rest is refused by
/// name, and all that is told of them fits into a message of the system bus.
#[tokio::test(flavor = "multi_thread")]
async fn there_is_an_end_to_proxies() {
    use futures_util::StreamExt as _;
    let bench = Bench::started(&config());
    let connection = connect(&bench).await;
    let manager = &manager(&connection).await;
    let create = |number: usize| async move {
        let spec = HashMap::from([("Image", SpecValue::Text("debian-13".into()))]);
        manager.call_method("CreateProxy", &(format!("proxy-{number}"), spec)).await
    };
    let made = futures_util::stream::iter((0..10_000).map(create)).buffer_unordered(16);
    let refused: Vec<_> = made.filter_map(async |answer| answer.err()).collect().await;
    assert_eq!(refused.len(), 10_000 - MAX_PROXIES);
    let told = refused[0].to_string();
    assert!(told.contains("InvalidArgument") && told.contains("4096 Proxies"), "{told}");
    let all = manager_of_objects(&connection).await;
    assert!(all < 24 << 20, "{all} bytes tell of all objects");

    let mut declared = config();
    for number in 0..10_000 {
        declared["proxies"][format!("p{number}")] = serde_json::json!({ "image": "debian-13" });
    }
    bench.configure(&declared);
    let refused = bench.call("Reload").unwrap_err();
    assert!(refused.contains("/proxies: 10000 Proxies are too many"), "{refused}");
}

/// The bytes of the message that tells of all objects.
async fn manager_of_objects(connection: &Connection) -> usize {
    let interface = "org.freedesktop.DBus.ObjectManager";
    let objects = Proxy::new(connection, NAME, ROOT, interface).await.unwrap();
    objects.call_method("GetManagedObjects", &()).await.unwrap().body().len()
}
