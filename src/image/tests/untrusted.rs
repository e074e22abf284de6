//! Images that nobody vouches for, all the way through the cache: none of these may
//! ever have a name in the pool.

use super::agent::{Image, Orders};
use super::server::Server;
use super::*;
use crate::image::inspect::tests::{image, overlay};

/// A valid image with some bytes of it changed.
fn changed(changes: &[(usize, &[u8])]) -> Vec<u8> {
    let mut bytes = image();
    for (offset, new) in changes {
        bytes[*offset..offset + new.len()].copy_from_slice(new);
    }
    bytes
}

/// The header extension `kind` with `content`.
fn extended(kind: u32, content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len()).unwrap();
    changed(&[(104, &kind.to_be_bytes()), (108, &length.to_be_bytes()), (112, content)])
}

fn padded(begin: &[u8], at: usize) -> Vec<u8> {
    let mut bytes = vec![0; 2 << 20];
    bytes[at..at + begin.len()].copy_from_slice(begin);
    bytes
}

#[test]
fn no_such_qcow2_gets_a_name() {
    let home = home();
    let fifo = home.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let rows: [(&str, Vec<u8>, &str); 19] = [
        ("absolute", overlay("/etc/shadow"), "backing file"),
        (
            "json",
            overlay("json:{\"driver\":\"file\",\"filename\":\"/etc/shadow\"}"),
            "backing file",
        ),
        ("nbd", overlay("nbd://127.0.0.1/x"), "backing file"),
        ("fifo", overlay(fifo.to_str().unwrap()), "backing file"),
        ("backing of no length", changed(&[(8, &512_u64.to_be_bytes())]), "backing file"),
        ("data file bit", changed(&[(79, &[4])]), "incompatible"),
        ("data file extension", extended(0x4441_5441, b"/etc/shadow"), "another file"),
        ("AES", changed(&[(35, &[1])]), "encrypted"),
        ("LUKS", changed(&[(35, &[2])]), "encrypted"),
        ("encryption header", extended(0x0537_be77, &[0; 16]), "encrypted"),
        ("unknown bit", changed(&[(78, &[1])]), "incompatible"),
        ("corrupt", changed(&[(79, &[2])]), "incompatible"),
        ("huge disk", changed(&[(24, &(1_u64 << 62).to_be_bytes())]), "does not fit"),
        ("no disk", changed(&[(24, &0_u64.to_be_bytes())]), "not plausible"),
        ("huge L1", changed(&[(36, &u32::MAX.to_be_bytes())]), "does not fit"),
        ("L1 beyond the end", changed(&[(40, &(1_u64 << 40).to_be_bytes())]), "does not fit"),
        ("raw", padded(b"\xeb\x63\x90", 0), "not a qcow2"),
        ("VMDK", padded(b"KDMV", 0), "not a qcow2"),
        ("VHDX", padded(b"vhdxfile", 0), "not a qcow2"),
    ];
    for (name, bytes, words) in rows {
        let server = Server::of(&bytes);
        // A digest that fits makes it no better.
        for image in [Image::at(&server.url), Image::at(&server.url).pinned(&bytes)] {
            let finished = Orders::new(home.path(), image.ensure()).run();
            let (kind, message) = finished.fault();
            assert_eq!((kind, finished.is_permanent()), ("ImageRejected", true), "{name}");
            assert!(message.contains(words) && message.contains(&server.url), "{name}: {message}");
            assert_eq!(listing(home.path()), [LOCK, "fifo"], "{name}");
        }
    }
}

#[test]
fn no_such_raw_image_gets_a_name() {
    let rows = [
        ("qcow2", image()),
        ("VMDK", padded(b"KDMV", 0)),
        ("VHDX", padded(b"vhdxfile", 0)),
        ("LUKS", padded(b"LUKS\xba\xbe", 0)),
        ("VDI", padded(b"\x7f\x10\xda\xbe", 64)),
    ];
    for (name, bytes) in rows {
        let (home, server) = (home(), Server::of(&bytes));
        let finished = Orders::new(home.path(), Image::at(&server.url).raw().ensure()).run();
        let (kind, message) = finished.fault();
        assert_eq!(kind, "ImageRejected", "{name}");
        assert!(message.contains(name), "{message}");
        assert_eq!(listing(home.path()), ["base-a-b-c.raw.lock"]);
    }
    let bytes = padded(b"\xeb\x63\x90", 0);
    let (home, server) = (home(), Server::of(&bytes));
    Orders::new(home.path(), Image::at(&server.url).raw().ensure()).run().done();
}

/// What is inside of a compressed file is looked at just the same.
#[test]
fn compression_hides_nothing() {
    let packed = zstd::encode_all(&*overlay("/etc/shadow"), 1).unwrap();
    let (home, server) = (home(), Server::of(&packed));
    let image = Image::at(&server.at("/x.qcow2.zst")).pinned(&packed);
    let finished = Orders::new(home.path(), image.ensure()).run();
    assert_eq!(finished.fault().0, "ImageRejected");
    assert_eq!(listing(home.path()), [LOCK]);
}

/// The base without a marker under an overlay is inspected before it is adopted, too.
#[test]
fn what_is_adopted_is_inspected() {
    let home = home();
    std::fs::write(home.path().join(BASE), overlay("/etc/shadow")).unwrap();
    std::fs::write(home.path().join("theirs"), overlay(BASE)).unwrap();
    let image = Image::at("http://127.0.0.1:9/x").pinned(&overlay("/etc/shadow"));
    let finished = Orders::new(home.path(), image.ensure()).run();
    assert_eq!(finished.fault().0, "ImageRejected");
    assert!(!home.path().join(MARKER).exists());
}
