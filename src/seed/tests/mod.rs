//! What is in a seed, read back by parsers that did not write it.

mod scripts;

use std::io::{Cursor, Read as _, Write as _};

use fatfs::{FileSystem, FsOptions};
use mailparse::{MailHeaderMap as _, ParsedMail};
use proptest::prelude::*;

use super::mime::{Part, multipart};
use super::*;
use crate::model::{Secret, SpecInput, UrlOrigin};

fn spec(user_data: Option<Vec<u8>>) -> ProxySpec {
    let input = SpecInput {
        provider: Some("home".into()),
        image: Some("debian-13".into()),
        user_data: user_data.map(Secret::new),
        ..SpecInput::default()
    };
    input.validate(UrlOrigin::Api, None).unwrap()
}

fn own(data: impl Into<Vec<u8>>) -> VendorData {
    VendorData::new(&Secret::new(data.into())).unwrap()
}

fn seed_of(name: &str, spec: &ProxySpec, agent: bool, own: Option<&VendorData>) -> Vec<u8> {
    let name = ProxyName::new(name).unwrap();
    let input = SeedInput {
        name: &name,
        uuid: Uuid::from_u128(7),
        seed_generation: 3,
        spec,
        install_guest_agent: agent,
        vendor_data: own,
    };
    render(&input).unwrap()
}

fn seed(spec: &ProxySpec, agent: bool, own: Option<&VendorData>) -> Vec<u8> {
    seed_of("web", spec, agent, own)
}

/// A file of a seed; nothing when there is none of the name.
fn file(seed: &[u8], name: &str) -> Option<Vec<u8>> {
    let system = FileSystem::new(Cursor::new(seed.to_vec()), FsOptions::new()).unwrap();
    assert_eq!(system.volume_label(), "CIDATA");
    let mut content = Vec::new();
    system.root_dir().open_file(name).ok()?.read_to_end(&mut content).unwrap();
    Some(content)
}

fn vendor_data(agent: bool, own: Option<&VendorData>) -> Option<String> {
    file(&seed(&spec(None), agent, own), "vendor-data").map(|data| String::from_utf8(data).unwrap())
}

fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(plain).unwrap();
    packer.finish().unwrap()
}

/// The kind and the decoded body of every part that is no container.
fn leaves(document: &[u8]) -> Vec<(String, Vec<u8>)> {
    fn walk(part: &ParsedMail<'_>, found: &mut Vec<(String, Vec<u8>)>) {
        if part.subparts.is_empty() {
            found.push((part.ctype.mimetype.clone(), part.get_body_raw().unwrap()));
        }
        part.subparts.iter().for_each(|inner| walk(inner, found));
    }
    let mut found = Vec::new();
    walk(&mailparse::parse_mail(document).unwrap(), &mut found);
    found
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    assert_eq!(seed(&spec(None), true, None), seed(&spec(None), true, None));
}

#[test]
fn meta_data_names_instance_and_host() {
    let seed = seed(&spec(None), true, None);
    let wanted = format!("instance-id: \"{}-3\"\nlocal-hostname: \"web\"\n", Uuid::from_u128(7));
    assert_eq!(file(&seed, "meta-data").unwrap(), wanted.as_bytes());
    assert_eq!(file(&seed, "network-config"), None);
}

#[test]
fn a_hostname_stays_text() {
    for name in ["123", "null", "1e3", "yes", "0x10"] {
        let meta = file(&seed_of(name, &spec(None), true, None), "meta-data").unwrap();
        let line = format!("local-hostname: \"{name}\"\n");
        assert!(String::from_utf8(meta).unwrap().ends_with(&line), "{name}");
    }
}

#[test]
fn network_config_is_passed_through() {
    let config = b"version: 1.10  # as it stands\n\tx: [\n".to_vec();
    let spec = ProxySpec { network_config: Some(Secret::new(config.clone())), ..spec(None) };
    assert_eq!(file(&seed(&spec, true, None), "network-config").unwrap(), config);
}

#[test]
fn vendor_data_is_the_script_or_nothing() {
    let script = vendor_data(true, None).unwrap();
    assert!(script.starts_with("#!/bin/sh"));
    assert_eq!(script.matches("#!/bin/sh").count(), 1);
    assert_eq!(vendor_data(false, None), None);
}

#[test]
fn configured_vendor_data_travels_beside_the_script() {
    let text = "#cloud-config\npackages: [x]";
    let document = vendor_data(true, Some(&own(text))).unwrap();
    let parts = leaves(document.as_bytes());
    assert_eq!(parts[0].0, "text/x-shellscript");
    assert_eq!(parts[0].1, script::agent().as_bytes());
    assert_eq!(parts[1], ("text/plain".to_owned(), text.as_bytes().to_vec()));
    let parsed = mailparse::parse_mail(document.as_bytes()).unwrap();
    for part in &parsed.subparts {
        let encoding = part.headers.get_first_value("Content-Transfer-Encoding");
        assert_eq!(encoding.as_deref(), Some("base64"));
    }
}

#[test]
fn gzip_is_unpacked_member_by_member() {
    let packed = [gzip(b"#!/bin/sh\n"), gzip(b"exit 0\n")].concat();
    let document = vendor_data(true, Some(&own(packed))).unwrap();
    assert_eq!(leaves(document.as_bytes())[1].1, b"#!/bin/sh\nexit 0\n");
}

#[test]
fn what_cloud_init_would_stop_at_is_refused_with_the_reason() {
    let refusal = |data: &[u8]| VendorData::new(&Secret::new(data.to_vec())).unwrap_err();
    let error = refusal(&[b'#', 0xff]);
    assert!(error.contains("UTF-8") && error.contains("byte 1"), "{error}");
    assert!(refusal(&gzip(&[b'#', b'!', 0xff])).contains("byte 2"));
    assert!(refusal(&[0x1f, 0x8b, 0]).contains("can't be decompressed"));
    let archive = ARCHIVE.replace("text/cloud-config", "application/gzip");
    assert!(refusal(archive.as_bytes()).contains("part 1 of its MIME archive"));
    assert!(refusal(&gzip(&vec![b'#'; (32 << 20) + 1])).contains("more than"));
}

const ARCHIVE: &str = "Subject: first\nContent-Type: multipart/mixed; boundary=\"b\"\n\
    MIME-Version: 1.0\n\n--b\nContent-Type: text/cloud-config\n\na: 1\n--b--\n";

#[test]
fn a_mime_archive_stays_a_part_of_its_own_kind() {
    let document = vendor_data(true, Some(&own(ARCHIVE))).unwrap();
    let parts = leaves(document.as_bytes());
    assert_eq!(parts[1].0, "text/cloud-config");
    assert_eq!(parts[1].1.trim_ascii_end(), b"a: 1");
}

/// cloud-init takes whatever has these words near its begin for MIME.
#[test]
fn a_script_that_sends_mail_is_no_mime_archive() {
    let script = "#!/bin/sh\nsendmail <<E\nMIME-Version: 1.0\nE\n";
    for agent in [true, false] {
        let document = vendor_data(agent, Some(&own(script))).unwrap();
        let last = leaves(document.as_bytes()).pop().unwrap();
        assert_eq!(last, ("text/plain".to_owned(), script.as_bytes().to_vec()));
    }
}

#[test]
fn without_the_script_the_operators_data_stands_alone() {
    for text in ["#cloud-config\na: 1\n", ARCHIVE, "## template: jinja\n#cloud-config\n"] {
        assert_eq!(vendor_data(false, Some(&own(text))).unwrap(), text);
    }
}

#[test]
fn nothing_of_vendor_data_is_shown() {
    assert_eq!(format!("{:?}", own("#s3cret")), "VendorData(7 bytes)");
}

#[test]
fn the_largest_user_data_fits() {
    let data: Vec<u8> = (0..32 << 20_u32).map(|at| (at ^ at >> 8) as u8).collect();
    let seed = seed(&spec(Some(data.clone())), true, None);
    assert!(file(&seed, "user-data").unwrap() == data);
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn user_data_arrives_byte_for_byte(data in prop::collection::vec(any::<u8>(), 0..70_000)) {
        let seed = seed(&spec(Some(data.clone())), true, None);
        prop_assert_eq!(file(&seed, "user-data").unwrap(), data);
    }

    #[test]
    fn vendor_data_arrives_byte_for_byte(text in "(?s).{0,3000}") {
        let own = own(text.clone());
        prop_assume!(!mime::is_document(&text));
        let document = vendor_data(true, Some(&own)).unwrap();
        prop_assert_eq!(&leaves(document.as_bytes())[1].1, text.as_bytes());
    }

    /// Whatever stands in the parts, boundaries of MIME included, a parser finds the
    /// same parts.
    #[test]
    fn a_multipart_parses_back_to_its_parts(
        texts in prop::collection::vec("(?s)(--==proxyd-[0-9a-f]{4}|\r\n|\n|\0|.{0,40}){0,20}", 1..5),
    ) {
        let parts: Vec<_> = texts
            .iter()
            .map(|text| Part::Text { kind: "text/plain", name: "x", text })
            .collect();
        let document = multipart(&parts);
        prop_assert_eq!(&document, &multipart(&parts));
        let found: Vec<_> = leaves(document.as_bytes()).into_iter().map(|leaf| leaf.1).collect();
        let wanted: Vec<_> = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
        prop_assert_eq!(found, wanted);
    }
}
