use std::io::{Cursor, Read as _, Write as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fatfs::{FileSystem, FsOptions};
use proptest::prelude::*;

use super::*;
use crate::model::{SpecInput, UrlOrigin};

fn spec(user_data: Option<Vec<u8>>) -> ProxySpec {
    let input = SpecInput {
        provider: Some("home".into()),
        image: Some("debian-13".into()),
        user_data: user_data.map(Secret::new),
        ..SpecInput::default()
    };
    input.validate(UrlOrigin::Api, None).unwrap()
}

fn seed(spec: &ProxySpec, agent: bool, vendor_data: Option<&Secret>) -> Vec<u8> {
    let name = ProxyName::new("web").unwrap();
    let input = SeedInput {
        name: &name,
        uuid: Uuid::from_u128(7),
        seed_generation: 3,
        spec,
        install_guest_agent: agent,
        vendor_data,
    };
    render(&input).unwrap()
}

/// A file of a seed; nothing when there is none of the name.
fn file(seed: &[u8], name: &str) -> Option<Vec<u8>> {
    let system = FileSystem::new(Cursor::new(seed.to_vec()), FsOptions::new()).unwrap();
    assert_eq!(system.volume_label(), "CIDATA");
    let mut content = Vec::new();
    system.root_dir().open_file(name).ok()?.read_to_end(&mut content).unwrap();
    Some(content)
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    assert_eq!(seed(&spec(None), true, None), seed(&spec(None), true, None));
}

#[test]
fn meta_data_names_instance_and_host() {
    let seed = seed(&spec(None), true, None);
    let wanted = format!("instance-id: {}-3\nlocal-hostname: web\n", Uuid::from_u128(7));
    assert_eq!(file(&seed, "meta-data").unwrap(), wanted.as_bytes());
    assert_eq!(file(&seed, "network-config"), None);
}

#[test]
fn vendor_data_is_the_script_or_nothing() {
    let script = file(&seed(&spec(None), true, None), "vendor-data").unwrap();
    assert!(script.starts_with(b"#!/bin/sh"));
    assert_eq!(file(&seed(&spec(None), false, None), "vendor-data"), None);
}

#[test]
fn configured_vendor_data_travels_beside_the_script() {
    let own = Secret::new(b"#cloud-config\npackages: [x]".to_vec());
    let document = file(&seed(&spec(None), true, Some(&own)), "vendor-data").unwrap();
    let document = String::from_utf8(document).unwrap();
    let parts = parts(&document);
    assert!(parts[0].0.contains("text/x-shellscript") && parts[0].1.starts_with(b"#!/bin/sh"));
    assert!(parts[1].0.contains("text/plain"), "{document}");
    assert_eq!(parts[1].1, own.expose());
}

#[test]
fn gzip_is_unpacked_and_what_is_no_text_is_refused() {
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(b"#!/bin/sh\n").unwrap();
    let packed = Secret::new(packer.finish().unwrap());
    let document = file(&seed(&spec(None), true, Some(&packed)), "vendor-data").unwrap();
    assert_eq!(parts(std::str::from_utf8(&document).unwrap())[1].1, b"#!/bin/sh\n");
    let error = check_vendor_data(&Secret::new(vec![b'#', 0xff])).unwrap_err();
    assert!(error.contains("UTF-8") && error.contains("byte 1"), "{error}");
    assert!(check_vendor_data(&Secret::new(vec![0x1f, 0x8b, 0])).is_err());
}

#[test]
fn a_mime_archive_stays_a_part_of_its_own_kind() {
    let archive =
        "Content-Type: multipart/mixed; boundary=\"b\"\nMIME-Version: 1.0\n\n--b\n\nx\n--b--\n";
    let own = Secret::new(archive.as_bytes().to_vec());
    let document = file(&seed(&spec(None), true, Some(&own)), "vendor-data").unwrap();
    assert!(String::from_utf8(document).unwrap().contains(archive));
}

#[test]
fn the_preset_serves_the_listed_clients_on_the_port() {
    let clients = ["192.0.2.0/24".parse().unwrap()];
    let preset = preset(8080, &clients);
    assert!(preset.starts_with("#cloud-config\n"));
    for line in ["      http_port 8080\n", "      192.0.2.0/24\n", "      http_access deny all\n"] {
        assert!(preset.contains(line), "{preset}");
    }
}

#[test]
fn the_scripts_are_posix() {
    for script in ["bootstrap.sh", "preset.sh"] {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/seed").join(script);
        let status = std::process::Command::new("sh").arg("-n").arg(path).status().unwrap();
        assert!(status.success(), "{script}");
    }
}

/// The parts of a multipart, headers and decoded bodies, read independently of how
/// they are written.
fn parts(document: &str) -> Vec<(String, Vec<u8>)> {
    let boundary = document.split("boundary=\"").nth(1).unwrap().split('"').next().unwrap();
    let inner = document.split(&format!("--{boundary}--")).next().unwrap();
    let delimiter = format!("--{boundary}\r\n");
    let parts = inner.split(delimiter.as_str()).skip(1);
    parts
        .map(|part| {
            let (head, body) = part.split_once("\r\n\r\n").unwrap();
            let encoded: String = body.split_whitespace().collect();
            (head.to_owned(), STANDARD.decode(encoded).unwrap_or_default())
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn user_data_arrives_byte_for_byte(data in prop::collection::vec(any::<u8>(), 0..70_000)) {
        let seed = seed(&spec(Some(data.clone())), true, None);
        prop_assert_eq!(file(&seed, "user-data").unwrap(), data);
    }

    #[test]
    fn vendor_data_arrives_byte_for_byte(text in "(?s).{0,3000}") {
        prop_assume!(!text.to_lowercase().starts_with("mime-") && !text.to_lowercase().starts_with("content-"));
        let own = Secret::new(text.clone().into_bytes());
        let document = file(&seed(&spec(None), true, Some(&own)), "vendor-data").unwrap();
        prop_assert_eq!(&parts(std::str::from_utf8(&document).unwrap())[1].1, text.as_bytes());
    }
}
