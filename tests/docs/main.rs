//! The reference of the D-Bus API is made from `dbus/*.xml`: docs/dbus.md below its
//! handwritten head, and a man page. With `BLESS=1` both are written anew.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

mod interface;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use interface::{Interface, Member, MemberKind};
use proxyd::config::ProviderType;
use proxyd::model::{ConditionKind, Phase};
use proxyd::reconcile::{ImageState, JobKind, JobState};

const MARK: &str = "<!-- From here on made from dbus/*.xml by tests/docs. -->\n";
const ORDER: [&str; 5] = ["Manager", "Proxy", "Provider", "Image", "Job"];

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn read(name: &str) -> String {
    std::fs::read_to_string(file(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn interfaces() -> Vec<Interface> {
    ORDER.map(|name| Interface::parse(&read(&format!("dbus/org.proxyd1.{name}.xml")))).into()
}

fn compare(name: &str, made: &str) {
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(file(name), made).unwrap();
    }
    assert!(read(name) == made, "{name} is not what dbus/*.xml makes: run with BLESS=1");
}

#[test]
fn the_reference_is_that_of_the_interfaces() {
    let present = read("docs/dbus.md");
    let (head, _) = present.split_once(MARK).expect("the mark under which it is made");
    let body: String = interfaces().iter().map(markdown).collect();
    compare("docs/dbus.md", &format!("{head}{MARK}{body}"));
}

fn markdown(interface: &Interface) -> String {
    let mut text = format!("\n## {}\n", interface.name);
    for (kind, title) in MemberKind::ALL {
        let members: Vec<_> = interface.members.iter().filter(|of| of.kind == kind).collect();
        if members.is_empty() {
            continue;
        }
        writeln!(text, "\n### {title} of {}", interface.name).unwrap();
        for member in members {
            writeln!(text, "\n`{}`\n\n{}", member.signature(), member.doc).unwrap();
            if let Some(note) = member.emits() {
                writeln!(text, "\n*{note}*").unwrap();
            }
        }
    }
    text
}

#[test]
fn the_man_page_is_that_of_the_interfaces() {
    let mut page = String::from(
        ".TH org.proxyd1 5 \"\" proxyd\n.SH NAME\norg.proxyd1 \\- the D\\-Bus interface of \
         proxyd\n.SH DESCRIPTION\nThe service org.proxyd1 on the system bus. Its root object is \
         /org/proxyd1.\n",
    );
    for interface in interfaces() {
        writeln!(page, ".SH {}", interface.name.to_uppercase()).unwrap();
        for member in &interface.members {
            writeln!(page, ".TP\n\\fB{}\\fR\n{}", roff(&member.signature()), roff(&member.doc))
                .unwrap();
        }
    }
    page.push_str(".SH SEE ALSO\n.BR proxyctl (1),\n.BR proxyd (8)\n");
    compare("docs/man/org.proxyd1.5", &page);
}

fn roff(text: &str) -> String {
    let escaped = text.replace('\\', "\\e").replace('-', "\\-");
    // A control character at the begin of a line would be a request.
    let line = |line: &str| match line.starts_with(['.', '\'']) {
        true => format!("\\&{line}"),
        false => line.to_owned(),
    };
    escaped.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Whoever reads a string from the bus finds what it can be.
#[test]
fn the_words_of_every_enumeration_are_documented() {
    let interfaces = interfaces();
    let documented = |interface: &str, member: &str, words: &[&str]| {
        let name = format!("org.proxyd1.{interface}");
        let interface = interfaces.iter().find(|of| of.name == name).unwrap();
        let doc = &interface.members.iter().find(|of| of.name == member).unwrap().doc;
        for word in words {
            assert!(doc.contains(word), "{name}.{member} does not name {word}: {doc}");
        }
    };
    documented("Image", "State", &ImageState::ALL.map(ImageState::as_str));
    documented("Job", "State", &JobState::ALL.map(JobState::as_str));
    documented("Job", "Kind", &JobKind::ALL.map(JobKind::as_str));
    documented("Manager", "JobRemoved", &["done", "canceled", "failed"]);
    documented("Proxy", "Phase", &Phase::ALL.map(Phase::as_str));
    documented("Proxy", "Conditions", &ConditionKind::ALL.map(ConditionKind::as_str));
    documented("Proxy", "AddressSource", &["agent", "lease", "arp"]);
    documented("Proxy", "Origin", &["api", "config"]);
    documented("Proxy", "Update", &["live", "next-start", "rebuild"]);
    documented("Provider", "State", &["connected", "connecting", "failed"]);
    documented("Provider", "Type", &ProviderType::ALL.map(ProviderType::as_str));
}

/// What is promised to exist, member by member.
#[test]
fn every_member_has_words() {
    for interface in interfaces() {
        for Member { name, doc, .. } in &interface.members {
            assert!(doc.len() > 10, "{}.{name} is not documented", interface.name);
        }
    }
}
