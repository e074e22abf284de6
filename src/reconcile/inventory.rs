//! The images of all entries: what is configured, what Proxies use, and what stands in
//! the pools. One task looks, everybody else reads its snapshots, so that no reader
//! waits for a host.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use super::desk::Desk;
use super::{Configured, Handle, Supervisor, View, source};
use crate::image::{ImageSource, Sighting, Standing};
use crate::model::{EntryName, Fault, ImageId, ProxyName, Sha256Digest, Timestamp};
use crate::provider::LinkState;

/// How often the pools are looked at, for what others do there.
const INTERVAL: Duration = Duration::from_secs(60);
/// Changes that come so close together are taken note of once.
const GATHER: Duration = Duration::from_millis(20);

/// What an image is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageState {
    /// It is not in the pool.
    Absent,
    /// It is being fetched, or hashed before it is used.
    Fetching,
    /// It is in the pool, verified.
    Ready,
    /// What is in the pool contradicts its marker or the configuration.
    Conflict,
    /// What is in the pool has no valid marker.
    Debris,
}

impl ImageState {
    /// All there are.
    pub const ALL: [Self; 5] =
        [Self::Absent, Self::Fetching, Self::Ready, Self::Conflict, Self::Debris];

    /// The word for it on D-Bus.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Fetching => "fetching",
            Self::Ready => "ready",
            Self::Conflict => "conflict",
            Self::Debris => "debris",
        }
    }
}

impl From<Standing> for ImageState {
    fn from(standing: Standing) -> Self {
        match standing {
            Standing::Absent => Self::Absent,
            Standing::Ready => Self::Ready,
            Standing::Conflict => Self::Conflict,
            Standing::Debris => Self::Debris,
        }
    }
}

/// An image as it was last seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageView {
    /// Where it comes from, without credentials.
    pub url: String,
    /// Where its base is, or would be; empty while that isn't known.
    pub path: String,
    /// What it is.
    pub state: ImageState,
    /// sha256 of the download, as its marker says.
    pub digest: Option<Sha256Digest>,
    /// The sha256 that is configured.
    pub expected: Option<Sha256Digest>,
    /// Size of the base in bytes; 0 without one.
    pub size: u64,
    /// Size of the disk it presents, in bytes; 0 when that isn't known.
    pub virtual_size: u64,
    /// When it was fetched.
    pub fetched_at: Option<Timestamp>,
    /// The Proxies whose guests are, or will be, made from it.
    pub used_by: Vec<ProxyName>,
    /// Why it is not as it should be, and the way out.
    pub message: String,
}

/// All images.
pub type Images = BTreeMap<ImageId, ImageView>;

/// What was seen in the pool of an entry.
#[derive(Default)]
struct Survey {
    /// What was looked for.
    wanted: Vec<ImageSource>,
    sightings: Vec<Sighting>,
    /// Why the last look failed; what was seen before it stays.
    trouble: Option<String>,
}

type Looked = (EntryName, Vec<ImageSource>, Result<Vec<Sighting>, Fault>);
type Waiting = Vec<oneshot::Sender<()>>;

struct Keeper {
    supervisor: Arc<Supervisor>,
    desk: Arc<Desk>,
    surveys: BTreeMap<EntryName, Survey>,
    /// Entries that are to be looked at.
    stale: BTreeMap<EntryName, Waiting>,
    /// Entries that are being looked at.
    looking: BTreeMap<EntryName, Waiting>,
    /// Who waits for what was seen to be told.
    seen: Waiting,
    looks: JoinSet<Looked>,
    links: JoinSet<EntryName>,
    images: watch::Sender<Arc<Images>>,
}

/// Takes stock, and gives what keeps the inventory until the supervisor stops.
pub(super) fn keep(
    supervisor: Arc<Supervisor>,
    desk: Arc<Desk>,
    images: watch::Sender<Arc<Images>>,
) -> impl Future<Output = ()> + Send + 'static {
    let mut keeper = Keeper {
        supervisor,
        desk,
        surveys: BTreeMap::new(),
        stale: BTreeMap::new(),
        looking: BTreeMap::new(),
        seen: Waiting::new(),
        looks: JoinSet::new(),
        links: JoinSet::new(),
        images,
    };
    keeper.reconfigured();
    keeper.turn();
    keeper.run()
}

impl Keeper {
    async fn run(mut self) {
        let keeper = &mut self;
        let stop = keeper.supervisor.stopping();
        let mut configured = keeper.supervisor.watch_configured();
        let mut tick = tokio::time::interval(INTERVAL);
        loop {
            keeper.turn();
            tokio::select! {
                () = stop.cancelled() => return,
                () = keeper.desk.rung() => tokio::time::sleep(GATHER).await,
                changed = configured.changed() => match changed {
                    Ok(()) => keeper.reconfigured(),
                    Err(_) => return,
                },
                _ = tick.tick() => keeper.all_stale(),
                Some(looked) = keeper.looks.join_next() => keeper.take(looked),
                Some(back) = keeper.links.join_next() => {
                    if let Ok(entry) = back {
                        keeper.stale.entry(entry.clone()).or_default();
                        keeper.await_link(&entry);
                    }
                }
            }
        }
    }

    /// Sends out for what is to be looked at, and tells what is known.
    fn turn(&mut self) {
        for (entry, waiting) in self.desk.take_stale() {
            self.stale.entry(entry).or_default().extend(waiting);
        }
        let configured = self.supervisor.configured();
        let users = users(&self.supervisor.list(), &configured);
        let mut images = Images::new();
        for entry in configured.settings.providers.keys() {
            let wanted = wanted(&configured, entry, &users);
            if self.surveys.get(entry).is_none_or(|survey| survey.wanted != wanted) {
                self.stale.entry(entry.clone()).or_default();
            }
            self.add(&mut images, entry, &wanted);
            self.look(&configured, entry, wanted);
        }
        // Nobody is to wait for an entry that has gone.
        self.stale.retain(|entry, _| configured.settings.providers.contains_key(entry));
        note_uses(&mut images, &users);
        for id in self.desk.fetching() {
            if let Some(image) = images.get_mut(&id) {
                (image.state, image.message) = (ImageState::Fetching, String::new());
            }
        }
        self.images.send_if_modified(|known| {
            let changed = **known != images;
            if changed {
                *known = Arc::new(images);
            }
            changed
        });
        for waiting in self.seen.drain(..) {
            // It may have stopped waiting.
            let _ = waiting.send(());
        }
    }

    fn look(&mut self, configured: &Configured, entry: &EntryName, wanted: Vec<ImageSource>) {
        if self.looking.contains_key(entry) {
            return;
        }
        let Some(waiting) = self.stale.remove(entry) else { return };
        let Ok(provider) = configured.providers.get(entry) else { return };
        self.looking.insert(entry.clone(), waiting);
        let entry = entry.clone();
        self.looks.spawn(async move {
            let seen = provider.survey_images(wanted.clone()).await;
            (entry, wanted, seen)
        });
    }

    fn take(&mut self, looked: Result<Looked, tokio::task::JoinError>) {
        // A panic in there is reported by the runtime; the next tick looks again.
        let Ok((entry, wanted, seen)) = looked else {
            self.looking.clear();
            return;
        };
        let survey = self.surveys.entry(entry.clone()).or_default();
        survey.wanted = wanted;
        match seen {
            Ok(sightings) => (survey.sightings, survey.trouble) = (sightings, None),
            Err(fault) => survey.trouble = Some(fault.message),
        }
        self.seen.extend(self.looking.remove(&entry).into_iter().flatten());
    }

    fn reconfigured(&mut self) {
        let providers = self.supervisor.configured().settings.providers.clone();
        self.surveys.retain(|entry, _| providers.contains_key(entry));
        self.links.abort_all();
        for entry in providers.keys() {
            self.await_link(entry);
        }
        self.all_stale();
    }

    fn all_stale(&mut self) {
        let providers = self.supervisor.configured().settings;
        for entry in providers.providers.keys() {
            self.stale.entry(entry.clone()).or_default();
        }
    }

    /// A host that is back is looked at.
    fn await_link(&mut self, entry: &EntryName) {
        let Ok(provider) = self.supervisor.configured().providers.get(entry) else { return };
        let entry = entry.clone();
        self.links.spawn(async move {
            let mut state = provider.state();
            let connected = |state: &LinkState| matches!(state, LinkState::Connected { .. });
            state.mark_unchanged();
            while state.changed().await.is_ok() {
                if connected(&state.borrow_and_update()) {
                    return entry;
                }
            }
            std::future::pending().await
        });
    }

    /// The images of `entry`: those that are wanted, and others that are there.
    fn add(&self, images: &mut Images, entry: &EntryName, wanted: &[ImageSource]) {
        let survey = self.surveys.get(entry);
        let sightings = survey.map(|survey| survey.sightings.as_slice()).unwrap_or_default();
        let trouble = survey.and_then(|survey| survey.trouble.as_deref());
        for source in wanted {
            let seen = sightings.iter().find(|sighting| sighting.key == source.key);
            images.insert(source.id(), shown(Some(source), seen, trouble));
        }
        for sighting in sightings {
            let id = ImageId { entry: entry.clone(), key: sighting.key.clone() };
            let other = sighting.standing != Standing::Absent;
            if other && !images.contains_key(&id) {
                images.insert(id, shown(None, Some(sighting), trouble));
            }
        }
    }
}

/// A Proxy, what its guests are made from, and what they will be made from.
pub(super) struct User {
    name: ProxyName,
    view: Arc<View>,
    source: Option<ImageSource>,
}

/// The Proxies as users of images.
pub(super) fn users(handles: &[Handle], configured: &Configured) -> Vec<User> {
    let user = |handle: &Handle| {
        let view = handle.view();
        let source = source::resolve(&configured.settings, &view.spec).ok();
        User { name: handle.name().clone(), view, source: source.map(|(source, _)| source) }
    };
    handles.iter().map(user).collect()
}

/// The images of `entry` that are configured, or used by their URLs.
pub(super) fn wanted(
    configured: &Configured,
    entry: &EntryName,
    users: &[User],
) -> Vec<ImageSource> {
    let used = users.iter().filter_map(|user| user.source.as_ref());
    let used = used.filter(|source| source.entry == *entry).cloned();
    let offered = configured.offered(entry);
    // What is offered goes before what a URL says under the same key.
    let all = used.chain(offered).map(|source| (source.id(), source));
    all.collect::<BTreeMap<_, _>>().into_values().collect()
}

fn shown(
    source: Option<&ImageSource>,
    seen: Option<&Sighting>,
    trouble: Option<&str>,
) -> ImageView {
    let standing = seen.map_or(Standing::Absent, |seen| seen.standing);
    let marker = seen.and_then(|seen| seen.seen.as_ref());
    let url = source.map(|source| source.url.to_string());
    let trouble = trouble.map(|trouble| format!("the pool can't be looked at: {trouble}"));
    let unseen = || "the pool has not been looked at yet".to_owned();
    ImageView {
        url: url.or_else(|| seen.and_then(|seen| seen.url.clone())).unwrap_or_default(),
        path: seen.map(|seen| seen.path.to_string_lossy().into_owned()).unwrap_or_default(),
        state: standing.into(),
        digest: marker.map(|marker| marker.digest),
        expected: source.and_then(|source| source.pin.digest()),
        size: marker.map_or(0, |marker| marker.size),
        virtual_size: marker.map_or(0, |marker| marker.virtual_size),
        fetched_at: marker.and_then(|marker| marker.fetched_at),
        used_by: Vec::new(),
        message: trouble.or_else(|| seen.map(|seen| seen.message.clone())).unwrap_or_else(unseen),
    }
}

/// Names at each image the Proxies whose guests are made from it, or will be.
fn note_uses(images: &mut Images, users: &[User]) {
    let mut uses: BTreeMap<ImageId, BTreeSet<ProxyName>> = BTreeMap::new();
    let mut files: BTreeMap<(EntryName, String), ImageId> = BTreeMap::new();
    for (id, image) in images.iter() {
        if let Some(file) = std::path::Path::new(&image.path).file_name() {
            let file = file.to_string_lossy().into_owned();
            files.insert((id.entry.clone(), file), id.clone());
        }
    }
    for User { name, view, source } in users {
        let bases = view.bases.iter();
        let used = bases.filter_map(|base| files.get(&(base.entry.clone(), base.file.clone())));
        for id in used.cloned().chain(source.as_ref().map(ImageSource::id)) {
            uses.entry(id).or_default().insert(name.clone());
        }
    }
    for (id, names) in uses {
        if let Some(image) = images.get_mut(&id) {
            image.used_by = names.into_iter().collect();
        }
    }
}
