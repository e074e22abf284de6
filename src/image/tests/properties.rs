//! Nothing that a server, a header, a list or a marker can hold makes a panic.

use std::io::Write as _;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::image::inspect::tests::{image, overlay};

fn file(bytes: &[u8]) -> std::fs::File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

/// A header with some of its bytes, or its end, replaced.
fn header() -> impl Strategy<Value = Vec<u8>> {
    let change = (0..160_usize, prop_oneof![any::<u8>(), Just(0xff), Just(0x80), Just(0)]);
    (any::<bool>(), vec(change, 0..12), prop::option::of(any::<Index>())).prop_map(
        |(backed, changes, cut)| {
            let mut bytes = if backed { overlay("/etc/shadow") } else { image() };
            for (offset, byte) in changes {
                bytes[offset] = byte;
            }
            if let Some(cut) = cut {
                bytes.truncate(cut.index(600));
            }
            bytes
        },
    )
}

proptest! {
    #[test]
    fn any_header_is_judged(bytes in header()) {
        let file = file(&bytes);
        for format in [ImageFormat::Qcow2, ImageFormat::Raw] {
            // What is accepted presents a disk of a plausible size.
            if let Ok(size) = inspect::virtual_size(&file, format) {
                prop_assert!((1 << 20..=64 << 40).contains(&size));
            }
        }
        let accepted = inspect::virtual_size(&file, ImageFormat::Qcow2).is_ok();
        let backing = inspect::backing_file(&file);
        // And never one that reads another file.
        prop_assert!(!accepted || backing == Ok(None), "{backing:?}");
    }

    #[test]
    fn any_header_in_a_pool_is_followed(bytes in header()) {
        let home = home();
        std::fs::write(home.path().join(BASE), image()).unwrap();
        std::fs::write(home.path().join("theirs"), &bytes).unwrap();
        let pool = DirectoryPool::open(home.path()).unwrap();
        if let Ok(usage) = pool::Usage::survey(&pool, &[]) {
            prop_assert!(usage.of("base-other.qcow2").is_empty());
        }
    }

    #[test]
    fn any_marker_is_read(changes in vec((any::<Index>(), any::<u8>()), 1..6)) {
        let digest = Sha256Digest::of(b"x");
        let digests = marker::Digests { downloaded: digest, content: digest };
        let good = Marker::new(&source("http://h/x"), digests, 1, 1 << 20, Validators::default());
        let sealed = good.render().unwrap();
        let mut bytes = sealed.clone();
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        let same = bytes == sealed;
        let valid = matches!(Marker::parse(&bytes), MarkerState::Valid(_));
        // Space around it changes nothing.
        prop_assert!(!valid || same || bytes.trim_ascii() == sealed.trim_ascii());
    }

    #[test]
    fn any_bytes_are_no_marker(bytes in vec(any::<u8>(), 0..200)) {
        prop_assert_eq!(Marker::parse(&bytes), MarkerState::Garbage);
    }
}
