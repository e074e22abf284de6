use mailparse::{MailHeaderMap as _, ParsedMail, parse_mail};
use proptest::prelude::*;

use super::*;

const DATA: &str = "text/plain";

fn data(data: &[u8]) -> Part<'_> {
    Part::Data { content_type: DATA, filename: "name", data }
}

fn contents(message: &ParsedMail<'_>) -> Vec<Vec<u8>> {
    message.subparts.iter().map(|part| part.get_body_raw().unwrap()).collect()
}

#[test]
fn headers_are_as_cloud_init_wants_them() {
    let message = multipart(&[data(b"x"), data(b"y")]);
    assert!(is_message(&message));
    let parsed = parse_mail(message.as_bytes()).unwrap();
    assert_eq!(parsed.ctype.mimetype, "multipart/mixed");
    let part = &parsed.subparts[1];
    assert_eq!(part.ctype.mimetype, DATA);
    let disposition = part.headers.get_first_value("Content-Disposition");
    assert_eq!(disposition.as_deref(), Some("attachment; filename=\"name\""));
}

#[test]
fn a_message_is_spliced_in_as_a_part_of_its_own() {
    let inner = multipart(&[data(b"one"), data(b"two")]);
    let outer = multipart(&[data(b"script"), Part::Message(&inner)]);
    let parsed = parse_mail(outer.as_bytes()).unwrap();
    assert_eq!(parsed.subparts[1].ctype.mimetype, "multipart/mixed");
    assert_eq!(contents(&parsed.subparts[1]), [b"one", b"two"]);
}

#[test]
fn a_boundary_that_occurs_is_not_taken() {
    let first = boundary(&["text".to_owned()]);
    let clashing = vec!["text".to_owned(), first.clone()];
    assert_ne!(boundary(&clashing), first);
    assert!(!clashing.iter().any(|body| body.contains(&boundary(&clashing))));
}

#[test]
fn sniffing_follows_cloud_init() {
    for message in [
        "MIME-Version: 1.0\nContent-Type: text/plain\n\nx",
        "content-type: multipart/mixed; boundary=b\r\nmime-version: 1.0\r\n\r\n",
        "From me\nMIME-Version: 1.0\n\nx",
    ] {
        assert!(is_message(message), "{message:?}");
    }
    let late = format!("X: {}\nMIME-Version: 1.0\n\n", "x".repeat(SNIFF_LENGTH));
    for plain in [
        "",
        ":",
        "#cloud-config\n# MIME-Version: 1.0\n",
        "\nMIME-Version: 1.0\n\nx",
        "Content-Type: multipart/mixed; boundary=b\n\n--b--",
        &late,
    ] {
        assert!(!is_message(plain), "{plain:?}");
    }
}

proptest! {
    #[test]
    fn an_independent_parser_reads_the_input_back(
        first in proptest::collection::vec(any::<u8>(), 0..400),
        second in "(?s).{0,200}",
    ) {
        let message = multipart(&[data(&first), data(second.as_bytes())]);
        let parsed = parse_mail(message.as_bytes()).unwrap();
        prop_assert_eq!(contents(&parsed), vec![first, second.into_bytes()]);
    }

    #[test]
    fn no_line_is_longer_than_mail_allows(
        content in proptest::collection::vec(any::<u8>(), 0..2000),
    ) {
        prop_assert!(multipart(&[data(&content)]).lines().all(|line| line.len() <= 76));
    }
}
