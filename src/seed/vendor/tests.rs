use mailparse::parse_mail;

use super::super::gunzip::gzip;
use super::*;

const CONFIG: &[u8] = b"#cloud-config\npackages: [caf\xc3\xa9]\r\n";

fn rendered(install_guest_agent: bool, configured: Option<&[u8]>) -> Option<Vec<u8>> {
    let configured = configured.map(|data| Secret::new(data.to_vec()));
    vendor_data(install_guest_agent, configured.as_ref()).unwrap()
}

/// Type and content of each part of a multipart.
fn parts(message: &[u8]) -> Vec<(String, Vec<u8>)> {
    let parsed = parse_mail(message).unwrap();
    let part = |part: &mailparse::ParsedMail<'_>| {
        (part.ctype.mimetype.clone(), part.get_body_raw().unwrap())
    };
    parsed.subparts.iter().map(part).collect()
}

#[test]
fn with_neither_there_is_none() {
    assert_eq!(rendered(false, None), None);
    assert_eq!(rendered(false, Some(b"")), None);
}

#[test]
fn the_script_alone_is_not_wrapped() {
    let script = rendered(true, None).unwrap();
    assert_eq!(script, BOOTSTRAP.as_bytes());
    assert_eq!(rendered(true, Some(b"")).unwrap(), script);
    assert!(script.starts_with(b"#!/bin/sh\n"));
    assert!(!mime::is_message(BOOTSTRAP));
}

#[test]
fn configured_data_alone_is_left_as_it_is() {
    let zipped = gzip(CONFIG);
    for data in [CONFIG, &zipped] {
        assert_eq!(rendered(false, Some(data)).unwrap(), data);
    }
}

#[test]
fn both_travel_in_a_multipart() {
    let expected = [
        ("text/x-shellscript".to_owned(), BOOTSTRAP.as_bytes().to_vec()),
        ("text/plain".to_owned(), CONFIG.to_vec()),
    ];
    for data in [CONFIG.to_vec(), gzip(CONFIG)] {
        assert_eq!(parts(&rendered(true, Some(&data)).unwrap()), expected);
    }
}

#[test]
fn an_archive_becomes_a_real_part() {
    let archive = b"MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=inner\n\n\
        --inner\nContent-Type: text/cloud-config\n\npackages: []\n--inner--\n";
    let message = rendered(true, Some(archive)).unwrap();
    let parsed = parse_mail(&message).unwrap();
    let inner = &parsed.subparts[1];
    assert_eq!(inner.ctype.mimetype, "multipart/mixed");
    assert_eq!(inner.subparts[0].ctype.mimetype, "text/cloud-config");
}

#[test]
fn what_would_stop_cloud_init_is_refused_without_repeating_it() {
    let check = |data: &[u8]| check_vendor_data(&Secret::new(data.to_vec()));
    assert_eq!(check(CONFIG), Ok(()));
    assert_eq!(check(&gzip(CONFIG)), Ok(()));
    let reason = check(b"secret\xff").unwrap_err();
    assert!(reason.contains("not UTF-8 text (byte 6)"), "{reason}");
    assert!(!reason.contains("secret"), "{reason}");
    let reason = check(&gzip(b"secret\xff")).unwrap_err();
    assert!(reason.contains("after decompression"), "{reason}");
    assert!(check(&gzip(&gzip(CONFIG))).is_err());
    assert!(check(b"\x1f\x8bgarbage").is_err());
}

#[test]
fn what_check_refuses_is_never_rendered() {
    let bad = Secret::new(b"\xff".to_vec());
    assert!(vendor_data(true, Some(&bad)).is_err());
    assert!(vendor_data(false, Some(&bad)).is_err());
}
