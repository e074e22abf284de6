//! An interface as its introspection document tells it, comments included.

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

/// What a member is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberKind {
    Method,
    Signal,
    Property,
}

impl MemberKind {
    pub const ALL: [(Self, &'static str); 3] =
        [(Self::Method, "Methods"), (Self::Property, "Properties"), (Self::Signal, "Signals")];
}

/// A method, signal or property.
#[derive(Debug)]
pub struct Member {
    pub kind: MemberKind,
    pub name: String,
    pub doc: String,
    /// Direction, type and name of each argument.
    arguments: Vec<(String, String, String)>,
    /// Of a property.
    kind_of_value: String,
    /// The value of the annotation EmitsChangedSignal.
    emits: Option<String>,
}

impl Member {
    /// As `busctl` shows it, with names.
    pub fn signature(&self) -> String {
        let of = |direction: &str| {
            let wanted = self.arguments.iter().filter(|(given, ..)| given == direction);
            let shown =
                wanted.map(|(_, kind, name)| format!("{kind} {name}").trim_end().to_owned());
            shown.collect::<Vec<_>>().join(", ")
        };
        match self.kind {
            MemberKind::Property => format!("{} {}", self.kind_of_value, self.name),
            MemberKind::Signal => format!("{}({})", self.name, of("")),
            MemberKind::Method => match of("out") {
                out if out.is_empty() => format!("{}({})", self.name, of("in")),
                out => format!("{}({}) → {out}", self.name, of("in")),
            },
        }
    }

    /// How changes are told, where that is not by the value in PropertiesChanged.
    pub fn emits(&self) -> Option<&'static str> {
        self.emits.as_deref().map(|value| match value {
            "const" => "Never changes.",
            "false" => "Changes are not signalled.",
            other => panic!("{}: EmitsChangedSignal is {other}", self.name),
        })
    }
}

/// An interface.
#[derive(Debug, Default)]
pub struct Interface {
    pub name: String,
    pub members: Vec<Member>,
}

impl Interface {
    pub fn parse(xml: &str) -> Self {
        let (mut interface, mut doc) = (Self::default(), String::new());
        let mut reader = Reader::from_str(xml);
        loop {
            match reader.read_event().unwrap() {
                Event::Eof => return interface,
                Event::Comment(text) => {
                    let text = text.xml10_content().into_owned();
                    let lines: Vec<_> = text.lines().map(str::trim).collect();
                    doc = lines.join("\n").trim().to_owned();
                }
                Event::Start(tag) | Event::Empty(tag) => interface.take(&tag, &mut doc),
                _ => {}
            }
        }
    }

    fn take(&mut self, tag: &BytesStart<'_>, doc: &mut String) {
        let of = |name: &str| {
            let found = tag.try_get_attribute(name).unwrap();
            found
                .map(|found| {
                    found.normalized_value(quick_xml::XmlVersion::Implicit1_0).unwrap().into_owned()
                })
                .unwrap_or_default()
        };
        let kind = match tag.name().as_ref() {
            "interface" => {
                self.name = of("name");
                return;
            }
            "method" => MemberKind::Method,
            "signal" => MemberKind::Signal,
            "property" => MemberKind::Property,
            "arg" => {
                let member = self.members.last_mut().expect("an argument has a member");
                member.arguments.push((of("direction"), of("type"), of("name")));
                return;
            }
            "annotation" => {
                if of("name").ends_with("EmitsChangedSignal") {
                    self.members.last_mut().expect("a property").emits = Some(of("value"));
                }
                return;
            }
            _ => return,
        };
        self.members.push(Member {
            kind,
            name: of("name"),
            doc: std::mem::take(doc),
            arguments: Vec::new(),
            kind_of_value: of("type"),
            emits: None,
        });
    }
}
