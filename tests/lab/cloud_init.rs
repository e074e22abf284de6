//! Seeds as real cloud-init reads them, in the versions of Debian 12 and 13: what its
//! handlers are given is what went in.

use std::collections::BTreeMap;
use std::io::{Cursor, Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::GzEncoder;
use proxyd::model::{ProxyName, ProxySpec, Secret, SpecInput, UrlOrigin};
use proxyd::seed::{self, SeedInput, VendorData};
use serde_json::Value;
use uuid::Uuid;

use crate::host::lab;

/// The type and bytes of what a handler is given.
type Part = (&'static str, Vec<u8>);

/// Data of some format, and what cloud-init makes of it.
#[derive(Clone)]
struct Sample {
    name: &'static str,
    data: Vec<u8>,
    parts: Vec<Part>,
}

fn sample(name: &'static str, data: impl Into<Vec<u8>>, kind: &'static str) -> Sample {
    let data = data.into();
    Sample { name, parts: vec![(kind, data.clone())], data }
}

const CONFIG: &str = "text/cloud-config";
const SCRIPT: &str = "text/x-shellscript";
const JINJA: &str = "text/jinja2";
const BOOTHOOK: &str = "text/cloud-boothook";

/// One of every format that is delivered as it is.
fn formats() -> Vec<Sample> {
    let long = format!("#!/bin/sh\n: {}\nexit 0\n", "x".repeat(5000));
    vec![
        sample(
            "config",
            "#cloud-config\npackages: [their-package]\nruncmd: [[echo, theirs]]\n",
            CONFIG,
        ),
        sample("version", "#cloud-config\n# kept\nversion: 1.10\nzz: 1\naa: 2\n", CONFIG),
        sample("no-newline", "#cloud-config\nfinal_message: none", CONFIG),
        sample("unicode", "#cloud-config\nfinal_message: \"grüße ✓ 日本\"\n", CONFIG),
        sample("script", "#!/bin/sh\necho hello\n", SCRIPT),
        sample("long-lines", long, SCRIPT),
        sample("carriage", "#!/bin/sh\r\necho a\r\necho b\n", SCRIPT),
        sample("nul", "#!/bin/sh\nexit 0\n\0\0binary tail\0", SCRIPT),
        sample(
            "boundary",
            "#!/bin/sh\ncat <<E\n--==proxyd-00==\nContent-Type: text/plain\nE\n",
            SCRIPT,
        ),
        sample(
            "jinja",
            "## template: jinja\n#cloud-config\nfinal_message: {{ v1.local_hostname }}\n",
            JINJA,
        ),
        sample("boothook", "#cloud-boothook\n#!/bin/sh\ntrue\n", BOOTHOOK),
    ]
}

fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
    packer.write_all(plain).expect("memory takes it");
    packer.finish().expect("memory takes it")
}

/// Formats that hold others: what comes out is what is inside.
fn containers(include: &str) -> Vec<Sample> {
    let script = b"#!/bin/sh\necho inside\n".to_vec();
    let config = b"#cloud-config\nb: 2\n".to_vec();
    let archive = "#cloud-config-archive\n- type: text/cloud-config\n  content: |\n    #cloud-config\n    \
                   a: 1\n- type: text/x-shellscript\n  content: |\n    #!/bin/sh\n    true\n";
    let mime = format!(
        "Subject: an archive\nContent-Type: multipart/mixed; boundary=\"theirs\"\n\
         MIME-Version: 1.0\n\n--theirs\nContent-Type: text/x-shellscript; charset=\"utf-8\"\n\
         Content-Transfer-Encoding: base64\n\n{}\n--theirs\nContent-Type: text/cloud-config; \
         charset=\"utf-8\"\nContent-Transfer-Encoding: base64\n\n{}\n--theirs--\n",
        STANDARD.encode(&script),
        STANDARD.encode(&config)
    );
    vec![
        Sample { name: "gzip", data: gzip(&config), parts: vec![(CONFIG, config.clone())] },
        Sample {
            name: "gzip-two-members",
            data: [gzip(b"#!/bin/sh\n"), gzip(b"true\n")].concat(),
            parts: vec![(SCRIPT, b"#!/bin/sh\ntrue\n".to_vec())],
        },
        Sample {
            name: "archive",
            data: archive.into(),
            parts: vec![
                (CONFIG, b"#cloud-config\na: 1\n".to_vec()),
                (SCRIPT, b"#!/bin/sh\ntrue\n".to_vec()),
            ],
        },
        Sample {
            name: "mime",
            data: mime.into_bytes(),
            parts: vec![(SCRIPT, script.clone()), (CONFIG, config)],
        },
        Sample {
            name: "include",
            data: format!("#include\n{include}\n").into(),
            parts: vec![(SCRIPT, script)],
        },
    ]
}

/// What only vendor-data has to stand.
fn for_vendor_data() -> Vec<Sample> {
    let mail = "#!/bin/sh\nsendmail <<E\nMIME-Version: 1.0\nSubject: grüße\n\nE\n";
    vec![
        sample("mail", mail, SCRIPT),
        sample("bom", "\u{feff}#!/bin/sh\ntrue\n", "text/plain"),
        sample("plain", "nothing that cloud-init knows\n", "text/plain"),
    ]
}

/// What only user-data may be.
fn for_user_data() -> Vec<Sample> {
    vec![
        Sample { name: "empty", data: Vec::new(), parts: Vec::new() },
        Sample { name: "binary", data: (0..=255).collect(), parts: Vec::new() },
        Sample { name: "large", data: large(), parts: vec![(SCRIPT, large())] },
    ]
}

fn large() -> Vec<u8> {
    let mut script = b"#!/bin/sh\nexit 0\n".to_vec();
    (0..60_000).for_each(|number| script.extend(format!("{number} of a payload\n").bytes()));
    script
}

/// One seed, and what has to come of it.
struct Case {
    user: Option<Sample>,
    agent: bool,
    vendor: Option<Sample>,
}

impl Case {
    fn name(&self) -> String {
        let name = |sample: &Option<Sample>| sample.as_ref().map_or("none", |sample| sample.name);
        let agent = if self.agent { "agent" } else { "alone" };
        format!("{}_{agent}_{}", name(&self.user), name(&self.vendor))
    }
}

fn cases(include: &str) -> Vec<Case> {
    let known = || formats().into_iter().chain(containers(include));
    let user: Vec<_> = known().chain(for_user_data()).collect();
    let vendor: Vec<_> = known().chain(for_vendor_data()).collect();
    let mut cases = vec![
        Case { user: None, agent: true, vendor: None },
        Case { user: None, agent: false, vendor: None },
    ];
    // Every user-data with every kind of vendor-data beside it in turn, and each
    // vendor-data with and without the script.
    for (at, sample) in user.iter().enumerate() {
        let beside = vendor[at % vendor.len()].clone();
        cases.push(Case { user: Some(sample.clone()), agent: true, vendor: Some(beside) });
        cases.push(Case { user: Some(sample.clone()), agent: true, vendor: None });
    }
    for (at, sample) in vendor.iter().enumerate() {
        let user = user[(at + 5) % user.len()].clone();
        cases.push(Case { user: Some(user), agent: at % 2 == 0, vendor: Some(sample.clone()) });
        cases.push(Case { user: None, agent: at % 2 == 1, vendor: Some(sample.clone()) });
    }
    cases
}

fn spec(user_data: Option<Vec<u8>>) -> ProxySpec {
    let input = SpecInput {
        provider: Some("home".into()),
        image: Some("debian-13".into()),
        user_data: user_data.map(Secret::new),
        ..SpecInput::default()
    };
    input.validate(UrlOrigin::Api, None).expect("a good specification")
}

/// Lays the files of a seed volume into `directory`.
fn lay_out(case: &Case, directory: &Path) {
    let own = case.vendor.as_ref().map(|sample| {
        VendorData::new(&Secret::new(sample.data.clone()))
            .expect("vendor-data that can be delivered")
    });
    let volume = seed::render(&SeedInput {
        name: &ProxyName::new("web").expect("a good name"),
        uuid: Uuid::from_u128(7),
        seed_generation: 3,
        spec: &spec(case.user.as_ref().map(|sample| sample.data.clone())),
        install_guest_agent: case.agent,
        vendor_data: own.as_ref(),
    })
    .expect("a seed");
    let system = fatfs::FileSystem::new(Cursor::new(volume), fatfs::FsOptions::new()).expect("FAT");
    std::fs::create_dir_all(directory).expect("a directory");
    for entry in system.root_dir().iter() {
        let entry = entry.expect("an entry");
        let mut content = Vec::new();
        entry.to_file().read_to_end(&mut content).expect("a file");
        std::fs::write(directory.join(entry.file_name()), content).expect("a file");
    }
}

/// Serves a script to whoever asks, for `#include`.
fn serve() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/script", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let body = "#!/bin/sh\necho inside\n";
            let mut request = [0; 4096];
            let _ = stream.read(&mut request);
            let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length";
            let _ = write!(stream, "{head}: {}\r\n\r\n{body}", body.len());
        }
    });
    url
}

fn decoded(value: &Value) -> Vec<u8> {
    STANDARD.decode(value.as_str().unwrap_or_default()).expect("base64")
}

/// What the handlers were given, empty parts left out: that is how cloud-init shows
/// that there was nothing.
fn received(result: &Value, whose: &str) -> Vec<(String, Vec<u8>)> {
    let parts = result[whose].as_array().expect("a list");
    let parts = parts.iter().map(|part| {
        (part["type"].as_str().unwrap_or_default().to_owned(), decoded(&part["payload"]))
    });
    parts.filter(|(_, payload)| !payload.is_empty()).collect()
}

/// cloud-init gives parts to one kind of handler after the other.
fn sorted(mut parts: Vec<(String, Vec<u8>)>) -> Vec<(String, Vec<u8>)> {
    parts.sort();
    parts
}

fn wanted(sample: Option<&Sample>) -> Vec<(String, Vec<u8>)> {
    let parts = sample.map(|sample| sample.parts.clone()).unwrap_or_default();
    // There is no handler for what cloud-init does not know: it warns.
    let known = parts.into_iter().filter(|(kind, _)| *kind != "text/plain");
    known.map(|(kind, bytes)| (kind.to_owned(), bytes)).collect()
}

fn check(case: &Case, result: &Value) {
    let name = case.name();
    let told = format!("{name} with {}: {}", result["version"], result["warnings"]);
    assert!(result["error"].is_null(), "{told}\n{}", result["error"].as_str().unwrap_or_default());
    assert_eq!(result["instanceId"], format!("{}-3", Uuid::from_u128(7)), "{told}");
    assert_eq!(result["hostname"], "web", "{told}");
    if let Some(user) = &case.user {
        assert!(decoded(&result["userData"]) == user.data, "{told}");
        assert_eq!(sorted(received(result, "user")), sorted(wanted(Some(user))), "{told}");
    } else {
        preset_is_whole(result, &told);
    }
    let mut vendor = received(result, "vendor");
    if case.agent {
        let script = vendor.iter().position(|(_, bytes)| is_agent_script(bytes));
        let script = script.unwrap_or_else(|| panic!("the script did not arrive: {told}"));
        assert_eq!(vendor.remove(script).0, SCRIPT);
        let files = result["vendorScripts"].as_object().expect("files");
        assert!(files.values().any(|file| is_agent_script(&decoded(file))), "{told}");
    }
    assert_eq!(sorted(vendor), sorted(wanted(case.vendor.as_ref())), "{told}");
}

fn is_agent_script(bytes: &[u8]) -> bool {
    bytes.starts_with(b"#!/bin/sh") && bytes.windows(11).any(|at| at == b"topic=agent")
}

/// Without user-data the preset's files and command are what modules see.
fn preset_is_whole(result: &Value, told: &str) {
    let files = result["config"]["write_files"].as_array().unwrap_or_else(|| panic!("{told}"));
    let paths: Vec<_> =
        files.iter().map(|file| file["path"].as_str().unwrap_or_default()).collect();
    let wanted =
        ["/etc/squid/proxyd.conf", "/etc/squid/proxyd.clients", "/usr/local/sbin/proxyd-squid"];
    assert_eq!(paths, wanted, "{told}");
    let script = files[2]["content"].as_str().unwrap_or_default();
    assert!(script.starts_with("#!/bin/sh\n") && script.ends_with("bring_squid\n"), "{told}");
    assert!(result["config"]["runcmd"].to_string().contains("proxyd-squid"), "{told}");
}

#[test]
#[ignore = "needs the lab: make test"]
fn real_cloud_init_delivers_what_went_in() {
    let include = serve();
    let cases = cases(&include);
    assert!(cases.len() >= 30);
    let names: BTreeMap<_, _> = cases.iter().map(|case| (case.name(), case)).collect();
    for version in ["12", "13"] {
        let corpus = tempfile::tempdir().expect("a directory");
        for (name, case) in &names {
            lay_out(case, &corpus.path().join(name).join("seed"));
        }
        let output = lab(&["cloud-init", version, &corpus.path().to_string_lossy()]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        for (name, case) in &names {
            let path = corpus.path().join(name).join("result.json");
            let result = std::fs::read(path).unwrap_or_else(|error| panic!("{name}: {error}"));
            check(case, &serde_json::from_slice(&result).expect("JSON"));
        }
        merging_is_harmless(corpus.path());
    }
}

/// The user's lists are theirs, untouched, with the script beside them: merged into
/// them, one of the two would be lost.
fn merging_is_harmless(corpus: &Path) {
    let result = std::fs::read(corpus.join("config_agent_none/result.json")).expect("a result");
    let result: Value = serde_json::from_slice(&result).expect("JSON");
    assert_eq!(result["config"]["packages"], serde_json::json!(["their-package"]));
    assert_eq!(result["config"]["runcmd"], serde_json::json!([["echo", "theirs"]]));
    assert_eq!(result["vendorScripts"].as_object().expect("files").len(), 1);
}
