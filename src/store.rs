//! One durable record per Proxy under the state directory: what it shall be, and
//! which parts of it exist. The records are the only truth that survives a restart;
//! everything else is observed anew.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::config::OnRemoval;
use crate::files;
use crate::model::{
    EntryName, Fault, FaultKind, Firmware, Guest, ImageFormat, Origin, ProxyName, ProxySpec,
    Sha256Digest, Slot, Timestamp,
};

/// The record version that this program writes.
const VERSION: u32 = 2;
/// The versions that it reads: the first knew no slots, no orders and no successors.
const READABLE: std::ops::RangeInclusive<u32> = 1..=VERSION;

/// How far a file of a Proxy has come. The intention is recorded before the file is
/// made, so that after a crash a half-made file is known to be ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Artifact {
    /// Never attempted: a file of that name isn't ours.
    #[default]
    None,
    /// Being made: a file of that name may be incomplete and is remade.
    Intended,
    /// Complete.
    Made,
}

/// The base that a Proxy's overlay was made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BaseRef {
    /// File name in the pool.
    pub file: String,
    /// Path as the hypervisor's host sees it.
    pub path: PathBuf,
    /// sha256 of the downloaded image.
    pub digest: Sha256Digest,
    /// Its format.
    pub format: ImageFormat,
    /// Size of the disk it presents, in bytes.
    pub virtual_size: u64,
}

/// The guest that has been made, or is being made, for a specification.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Build {
    /// The specification it is made for.
    pub spec: ProxySpec,
    /// sha256 of the URL that its image came from, which may hold credentials.
    #[serde(default)]
    pub source: Option<Sha256Digest>,
    /// What boots it, as the configuration had it then: the image may leave it later.
    #[serde(default)]
    pub firmware: Option<Firmware>,
    /// The base its overlay backs onto.
    pub base: Option<BaseRef>,
    /// The qcow2 overlay.
    pub overlay: Artifact,
    /// The NoCloud seed.
    pub seed: Artifact,
    /// Whether the domain was ever started: before that, NVRAM of its name is another's.
    #[serde(default)]
    pub started: bool,
    /// Where it stands.
    #[serde(default)]
    pub slot: Slot,
    /// Counts the guests made for the Proxy: cloud-init runs again when this changes.
    /// 0 in records of the first version, where the record's own count holds.
    #[serde(default)]
    pub number: u64,
}

impl Build {
    /// A guest that nothing has been made of yet.
    pub fn new(spec: ProxySpec, slot: Slot, number: u64) -> Self {
        let (overlay, seed) = (Artifact::None, Artifact::None);
        Self {
            spec,
            source: None,
            firmware: None,
            base: None,
            overlay,
            seed,
            started: false,
            slot,
            number,
        }
    }
}

/// Whether a guest shall run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Power {
    /// It shall.
    #[default]
    On,
    /// It was ordered to be off.
    Off,
}

/// How a guest is to be made anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rebuild {
    /// The old one is removed first.
    Plain,
    /// The new one comes up beside the old, and takes over when it answers.
    Overlap {
        /// How long it may take, in seconds.
        patience: u64,
    },
}

/// Everything that is kept of one Proxy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    version: u32,
    /// Its name.
    pub name: ProxyName,
    /// The UUID of its domain, and the mark of everything that is made for it.
    pub uuid: Uuid,
    /// Counts the specifications it has had, from 1.
    pub generation: u64,
    /// What it shall be.
    pub spec: ProxySpec,
    /// Who declared it.
    pub origin: Origin,
    /// What becomes of it when it leaves the configuration.
    pub on_removal: OnRemoval,
    /// When it was declared.
    pub created_at: Timestamp,
    /// Whether it is on its way out.
    pub deleting: bool,
    /// How often a guest was made for it.
    pub builds: u64,
    /// The present guest.
    pub build: Option<Build>,
    /// The guest that shall take over.
    #[serde(default)]
    pub next: Option<Build>,
    /// A guest that is to be removed: one that was replaced, or that never took over.
    #[serde(default)]
    pub retired: Option<Build>,
    /// Whether the guest shall run.
    #[serde(default)]
    pub power: Power,
    /// Whether the guest is to be shut down and started once.
    #[serde(default)]
    pub restart: bool,
    /// Whether, and how, the guest is to be made anew.
    #[serde(default)]
    pub rebuild: Option<Rebuild>,
}

impl Record {
    /// A new record, generation 1, with a random UUID.
    pub fn new(name: ProxyName, spec: ProxySpec, origin: Origin, on_removal: OnRemoval) -> Self {
        Self {
            version: VERSION,
            name,
            uuid: Uuid::new_v4(),
            generation: 1,
            spec,
            origin,
            on_removal,
            created_at: Timestamp::now(),
            deleting: false,
            builds: 0,
            build: None,
            next: None,
            retired: None,
            power: Power::On,
            restart: false,
            rebuild: None,
        }
    }

    /// The provider entry that holds the guest's parts: the one it was built with,
    /// which after a change of specification may not be the one it shall have.
    pub fn entry(&self) -> &EntryName {
        self.build.as_ref().map_or(&self.spec.provider, |build| &build.spec.provider)
    }

    /// The identity of the guest in `slot`.
    pub fn guest(&self, slot: Slot) -> Guest {
        Guest { name: self.name.clone(), uuid: self.uuid, slot }
    }

    /// The present guest's place, or the one it will have.
    pub fn slot(&self) -> Slot {
        self.build.as_ref().map(|build| build.slot).unwrap_or_default()
    }

    /// Every guest that there may be parts of.
    pub fn all_builds(&self) -> impl Iterator<Item = &Build> {
        [&self.build, &self.next, &self.retired].into_iter().flatten()
    }
}

/// A record that could not be read, and where it was put.
#[derive(Debug)]
pub struct SetAside {
    /// Where the file is now.
    pub path: PathBuf,
    /// What was wrong with it.
    pub error: String,
}

/// The records on disk. Holding one means that no other process uses the same state
/// directory.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    _lock: Flock<File>,
}

impl Store {
    /// Opens `state` (made if need be) and locks it.
    ///
    /// # Errors
    /// `Busy` when another process holds it; `StateFailed` when it can't be used.
    pub fn open(state: &Path) -> Result<Self, Fault> {
        let directory = state.join("proxies");
        let failed = |error: &dyn std::fmt::Display| {
            Fault::new(
                FaultKind::StateFailed,
                format!("the state directory {} can't be used: {error}", state.display()),
            )
        };
        std::fs::create_dir_all(&directory).map_err(|error| failed(&error))?;
        let lock_path = state.join("lock");
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&lock_path)
            .map_err(|error| failed(&error))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Self { directory, _lock: lock }),
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => Err(Fault::new(
                FaultKind::Busy,
                format!(
                    "the state directory {} is used by another proxyd: stop that one, or give \
                     this one a directory of its own",
                    state.display()
                ),
            )),
            Err((_, error)) => Err(failed(&error)),
        }
    }

    /// Reads every record. One that is torn or foreign is set aside under another
    /// name, and the others go on.
    pub fn load(&self) -> Result<(Vec<Record>, Vec<SetAside>), Fault> {
        let entries = std::fs::read_dir(&self.directory)
            .and_then(Iterator::collect::<io::Result<Vec<_>>>)
            .map_err(|error| self.failed("read", &self.directory, &error))?;
        let (mut records, mut aside) = (Vec::new(), Vec::new());
        for path in entries.into_iter().map(|entry| entry.path()) {
            if path.extension().is_some_and(|extension| extension == "json") {
                match read_record(&path) {
                    Ok(record) => records.push(record),
                    Err(error) => aside.push(self.set_aside(&path, error)?),
                }
            }
        }
        records.sort_by(|a, b| a.name.cmp(&b.name));
        Ok((records, aside))
    }

    /// Writes `record` durably.
    pub fn save(&self, record: &Record) -> Result<(), Fault> {
        let path = self.path(&record.name);
        let bytes =
            serde_json::to_vec(record).map_err(|error| self.failed("write", &path, &error))?;
        files::write_atomic(&path, &bytes).map_err(|error| self.failed("write", &path, &error))
    }

    /// Forgets the Proxy `name` durably.
    pub fn remove(&self, name: &ProxyName) -> Result<(), Fault> {
        let path = self.path(name);
        files::remove_durably(&path).map_err(|error| self.failed("remove", &path, &error))
    }

    fn path(&self, name: &ProxyName) -> PathBuf {
        self.directory.join(format!("{name}.json"))
    }

    fn set_aside(&self, path: &Path, error: String) -> Result<SetAside, Fault> {
        let now = Timestamp::now().as_micros();
        let aside = path.with_extension(format!("unreadable-{now}"));
        std::fs::rename(path, &aside)
            .map_err(|failure| self.failed("set aside", path, &failure))?;
        Ok(SetAside { path: aside, error })
    }

    fn failed(&self, what: &str, path: &Path, error: &dyn std::fmt::Display) -> Fault {
        let kind = FaultKind::StateFailed;
        Fault::new(kind, format!("the record {} can't be {what}: {error}", path.display()))
    }
}

fn read_record(path: &Path) -> Result<Record, String> {
    let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
    // The error of a parser may quote what it read, and that may be user-data: only
    // the place is kept.
    let mut record: Record = serde_json::from_slice(&bytes).map_err(|error| {
        format!("it is not a record (line {}, column {})", error.line(), error.column())
    })?;
    if !READABLE.contains(&record.version) {
        let newest = READABLE.end();
        return Err(format!("its version is {}, and {newest} is the newest known", record.version));
    }
    record.version = VERSION;
    if let Some(build) = record.build.as_mut().filter(|build| build.number == 0) {
        build.number = record.builds;
    }
    let stem = path.file_stem().and_then(|stem| stem.to_str());
    if stem != Some(record.name.as_str()) {
        return Err(format!("it is the record of Proxy {:?}", record.name.as_str()));
    }
    Ok(record)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Secret, SpecInput, UrlOrigin};

    fn record(name: &str) -> Record {
        let input = SpecInput {
            provider: Some("home".into()),
            image: Some("http://h/x.qcow2".into()),
            user_data: Some(Secret::new(vec![0, 255, 7])),
            ..SpecInput::default()
        };
        let spec = input.validate(UrlOrigin::Api, None).unwrap();
        Record::new(ProxyName::new(name).unwrap(), spec, Origin::Api, OnRemoval::Delete)
    }

    #[test]
    fn a_record_comes_back_whole_and_is_private() {
        use std::os::unix::fs::PermissionsExt as _;
        let state = tempfile::tempdir().unwrap();
        let store = Store::open(state.path()).unwrap();
        let written = record("a");
        store.save(&written).unwrap();
        assert_eq!(store.load().unwrap().0, [written]);
        let mode = store.path(&record("a").name).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn torn_and_foreign_records_are_set_aside_and_the_others_go_on() {
        let state = tempfile::tempdir().unwrap();
        let store = Store::open(state.path()).unwrap();
        store.save(&record("good")).unwrap();
        store.save(&record("other")).unwrap();
        let directory = state.path().join("proxies");
        std::fs::rename(directory.join("other.json"), directory.join("moved.json")).unwrap();
        std::fs::write(directory.join("torn.json"), "{\"version\":1,\"na").unwrap();
        let (records, aside) = store.load().unwrap();
        assert_eq!(records.len(), 1);
        assert_eq!(aside.len(), 2, "{aside:?}");
        assert!(aside.iter().all(|aside| aside.path.exists()));
        assert_eq!(store.load().unwrap().1.len(), 0);
    }

    #[test]
    fn a_record_of_the_first_version_is_read() {
        let state = tempfile::tempdir().unwrap();
        let store = Store::open(state.path()).unwrap();
        let mut record = record("old");
        record.builds = 3;
        record.build = Some(Build::new(record.spec.clone(), Slot::A, 3));
        store.save(&record).unwrap();
        let path = store.path(&record.name);
        let mut json: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        json["version"] = 1.into();
        for key in ["next", "retired", "power", "restart", "rebuild"] {
            json.as_object_mut().unwrap().remove(key);
        }
        for key in ["slot", "number", "source", "firmware", "started"] {
            json["build"].as_object_mut().unwrap().remove(key);
        }
        std::fs::write(&path, json.to_string()).unwrap();
        assert_eq!(store.load().unwrap().0, [record]);
        json["version"] = 3.into();
        std::fs::write(&path, json.to_string()).unwrap();
        let (none, aside) = store.load().unwrap();
        assert!(none.is_empty() && aside[0].error.contains("its version is 3"), "{aside:?}");
    }

    #[test]
    fn one_process_at_a_time() {
        let state = tempfile::tempdir().unwrap();
        let first = Store::open(state.path()).unwrap();
        assert_eq!(Store::open(state.path()).unwrap_err().kind, FaultKind::Busy);
        drop(first);
        Store::open(state.path()).unwrap();
    }

    #[test]
    fn removing_twice_is_fine() {
        let state = tempfile::tempdir().unwrap();
        let store = Store::open(state.path()).unwrap();
        store.save(&record("a")).unwrap();
        store.remove(&record("a").name).unwrap();
        store.remove(&record("a").name).unwrap();
        assert!(store.load().unwrap().0.is_empty());
    }
}
