//! The command-line client against a real daemon.

use serde_json::Value;

use crate::bench::Bench;
use crate::config;

/// user-data of a file arrives in the record byte for byte, and nowhere else.
#[test]
fn user_data_from_a_file_is_kept_whole_and_to_itself() {
    use base64::Engine as _;
    use std::os::unix::fs::PermissionsExt as _;
    let bench = Bench::started(&config());
    let file = bench.home.path().join("user-data");
    let secret = [b"\x1f\x8b\0\r\n\xffs3cret".as_slice(), &[0xa5; 8 << 20]].concat();
    std::fs::write(&file, &secret).unwrap();
    let created = bench.proxyctl(&[
        "create",
        "whole",
        "--image=debian-13",
        "--user-data",
        file.to_str().unwrap(),
        "--allow=192.0.2.0/24",
    ]);
    assert!(created.status.success(), "{created:?}");
    let path = bench.home.path().join("state/proxies/whole.json");
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let record: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let kept = record["spec"]["userData"].as_str().unwrap();
    assert!(base64::engine::general_purpose::STANDARD.decode(kept).unwrap() == secret);
    let shown = bench.busctl(
        "call org.proxyd1 /org/proxyd1 org.freedesktop.DBus.ObjectManager GetManagedObjects",
    );
    let seen = [shown.stdout, bench.log().into_bytes()].concat();
    assert!(!String::from_utf8_lossy(&seen).contains("s3cret"));
}

#[test]
fn proxyctl_says_what_is_wrong_and_exits_as_sysexits_says() {
    let bench = Bench::started(&config());
    let refused = |arguments: &[&str], code: i32, words: &str| {
        let output = bench.proxyctl(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(words), "{arguments:?}: {said}");
    };
    refused(&["create", "x", "--image=debian-13", "--vcpus=0"], 65, "Vcpus: 0 is out of range");
    refused(&["create", "x", "--image=a", "--user-data=/nowhere"], 66, "/nowhere: No such file");
    refused(&["evidence", "nobody"], 1, "there is no Proxy nobody");
    refused(&["create", "x"], 2, "--image");
    refused(&["image", "show", "home", "nothing"], 1, "there is no image home nothing");
    refused(&["job", "cancel", "99"], 1, "there is no job 99");
    refused(&["provider", "check", "nowhere"], 1, "there is no provider nowhere");
    refused(&["image", "show", "Home", "x"], 65, "provider entry \"Home\"");
    let large = bench.home.path().join("large");
    std::fs::File::create(&large).unwrap().set_len(33 << 20).unwrap();
    let large = format!("--user-data={}", large.display());
    refused(&["create", "x", "--image=debian-13", &large], 65, "the system bus takes no message");
}

#[test]
fn proxyctl_without_a_daemon_says_how_to_start_it_and_still_shows_the_preset() {
    let bench = Bench::new();
    let output = bench.proxyctl(&["delete", "x"]);
    assert_eq!(output.status.code(), Some(69));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("systemctl start proxyd"), "{said}");
    let shown = bench.proxyctl(&["preset", "show", "--port=8080", "--allow=192.0.2.0/24"]);
    let preset = proxyd::seed::preset(8080, &["192.0.2.0/24".parse().unwrap()]);
    assert_eq!(String::from_utf8(shown.stdout).unwrap(), preset);
    bench.configure(&config());
    let path = bench.config_path().display().to_string();
    let checked = bench.proxyctl(&["config", "check", &path]);
    assert!(checked.status.success(), "{checked:?}");
    std::fs::write(bench.config_path(), r#"{"providers": {"home": {"pol": "x"}}}"#).unwrap();
    let checked = bench.proxyctl(&["config", "check", &path]);
    assert_eq!(checked.status.code(), Some(78));
    let said = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert!(said.contains("/providers/home/pol"), "{said}");
    assert_eq!(bench.proxyctl(&["config", "check", "/nowhere"]).status.code(), Some(66));
}

/// The right to manage proxies is needed, and root has it on this bus.
#[test]
fn evidence_is_given_by_proxyctl() {
    let bench = Bench::started(&config());
    assert!(bench.proxyctl(&["create", "web", "--image=debian-13"]).status.success());
    let output = bench.proxyctl(&["evidence", "web"]);
    assert!(output.status.success(), "{output:?}");
    let evidence: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(evidence["proxy"], "web");
    assert!(evidence["guest"]["console"]["error"].is_string(), "{evidence:#}");
}

/// What programs read has every property of the interface, and nothing else.
#[test]
fn json_has_the_properties_of_the_interface() {
    let bench = Bench::started(&config());
    bench.create("web", "1 Image s debian-13").unwrap();
    let rows: [(&str, &[&str]); 3] = [
        ("Proxy", &["--json", "list"]),
        ("Image", &["--json", "image", "list"]),
        ("Provider", &["--json", "provider", "list"]),
    ];
    for (interface, arguments) in rows {
        let listed: Value = serde_json::from_slice(&bench.proxyctl(arguments).stdout).unwrap();
        let shown: Vec<&String> = listed[0].as_object().unwrap().keys().collect();
        let file = format!("{}/dbus/org.proxyd1.{interface}.xml", env!("CARGO_MANIFEST_DIR"));
        let xml = std::fs::read_to_string(file).unwrap();
        let properties = xml.lines().filter(|line| line.contains("<property "));
        let names = properties.map(|line| line.split('"').nth(1).unwrap());
        let mut names: Vec<String> =
            names.map(|name| name[..1].to_lowercase() + &name[1..]).collect();
        names.sort();
        assert_eq!(shown, names.iter().collect::<Vec<_>>(), "{interface}");
    }
}
