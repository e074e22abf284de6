use std::io::{Cursor, Read as _};

use fatfs::{FileSystem, FsOptions};

use super::*;
use crate::model::{EntryName, ImageChoice, ImageKey};

fn spec(user_data: Option<&[u8]>, network_config: Option<&[u8]>) -> ProxySpec {
    let secret = |data: &[u8]| Secret::new(data.to_vec());
    ProxySpec {
        provider: EntryName::new("local").unwrap(),
        image: ImageChoice::Key(ImageKey::new("debian-13").unwrap()),
        user_data: user_data.map(secret),
        network_config: network_config.map(secret),
        allowed_clients: vec!["10.0.0.0/8".parse().unwrap()],
        vcpus: 1,
        memory_mib: 512,
        disk_gib: None,
        port: 3128,
        health_url: None,
        autostart: false,
    }
}

fn rendered(spec: &ProxySpec, name: &str, seed_generation: u64, agent: bool) -> Vec<u8> {
    let name = ProxyName::new(name).unwrap();
    let input = SeedInput {
        name: &name,
        uuid: Uuid::from_u128(0x1234_5678_9abc_def0_1234_5678_9abc_def0),
        seed_generation,
        spec,
        install_guest_agent: agent,
        vendor_data: None,
    };
    render(&input).unwrap().expose().to_vec()
}

fn file(image: &[u8], name: &str) -> Option<Vec<u8>> {
    let volume = FileSystem::new(Cursor::new(image.to_vec()), FsOptions::new()).unwrap();
    let mut content = Vec::new();
    volume.root_dir().open_file(name).ok()?.read_to_end(&mut content).unwrap();
    Some(content)
}

#[test]
fn user_data_and_network_config_arrive_byte_for_byte() {
    let binary: Vec<u8> = (0..=255).cycle().take(70_000).collect();
    for data in [&b""[..], b"#!/bin/sh\r\n", b"\x1f\x8b\xff\0", &binary] {
        let image = rendered(&spec(Some(data), Some(data)), "p", 1, true);
        assert_eq!(file(&image, "user-data").unwrap(), data);
        assert_eq!(file(&image, "network-config").unwrap(), data);
    }
}

#[test]
fn without_user_data_there_is_the_preset() {
    let spec = spec(None, None);
    let image = rendered(&spec, "p", 1, false);
    let expected = preset(3128, &spec.allowed_clients);
    assert_eq!(file(&image, "user-data").unwrap(), expected.into_bytes());
}

#[test]
fn optional_files_are_there_only_when_there_is_something_in_them() {
    let image = rendered(&spec(Some(b"x"), None), "p", 1, false);
    assert_eq!(file(&image, "vendor-data"), None);
    assert_eq!(file(&image, "network-config"), None);
    assert!(file(&rendered(&spec(Some(b"x"), None), "p", 1, true), "vendor-data").is_some());
}

#[test]
fn the_instance_changes_with_the_generation_alone() {
    let meta_data = |name, generation| {
        let image = rendered(&spec(Some(b"x"), None), name, generation, false);
        String::from_utf8(file(&image, "meta-data").unwrap()).unwrap()
    };
    assert_eq!(
        meta_data("1e3", 7),
        "instance-id: \"12345678-9abc-def0-1234-56789abcdef0-7\"\nlocal-hostname: \"1e3\"\n"
    );
    assert_ne!(meta_data("p", 1), meta_data("p", 2));
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    let spec = spec(None, None);
    assert_eq!(rendered(&spec, "p", 1, true), rendered(&spec, "p", 1, true));
}

#[test]
fn unusable_vendor_data_is_a_configuration_fault() {
    let (name, spec) = (ProxyName::new("p").unwrap(), spec(None, None));
    let vendor_data = Secret::new(b"secret \xff".to_vec());
    let input = SeedInput {
        name: &name,
        uuid: Uuid::nil(),
        seed_generation: 1,
        spec: &spec,
        install_guest_agent: true,
        vendor_data: Some(&vendor_data),
    };
    let fault = render(&input).unwrap_err();
    assert_eq!(fault.kind, FaultKind::InvalidConfig);
    assert!(!fault.message.contains("secret"), "{}", fault.message);
}
