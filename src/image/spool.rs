//! The spool: verified images that go on to pools by way of libvirt. One download is
//! enough for any number of hosts.
//!
//! It is a cache like that of a pool, with an entry of its own. An image of a known
//! sha256 goes by that, whatever its URL and its key; another goes by its URL, and is
//! taken for the present one for a while only.

use std::collections::HashSet;
use std::fs::{File, FileTimes};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tokio_util::sync::CancellationToken;

use super::cache::Cache;
use super::marker::{Marker, MarkerState};
use super::name::lock_file_name;
use super::pool::{DirectoryPool, unusable};
use super::{BaseUsers, DomainDisk, Fetcher, ImageSource, Progress};
use crate::model::{EntryName, Fault, FaultKind, ImageKey, Pin, Sha256Digest};
use crate::tasks;

/// The most that it holds, the image that was asked for last aside.
const MOST_BYTES: u64 = 16 << 30;
/// How long an image that nothing but its URL tells is taken for the present one.
const FRESH: Duration = Duration::from_secs(3600);

/// Where downloads wait that libvirt then takes.
#[derive(Debug, Clone)]
pub struct Spool {
    directory: PathBuf,
    most: u64,
    /// The publications that are under way in this process.
    alive: Arc<Mutex<HashSet<String>>>,
    /// The daemon's name, once somebody has asked for it.
    writer: Arc<Mutex<Option<String>>>,
}

/// An image in the spool, open: it stays readable even if the spool lets go of it.
pub struct Spooled {
    file: File,
    marker: Marker,
}

/// A publication that is under way, for as long as this is held.
pub struct Alive {
    nonce: String,
    alive: Arc<Mutex<HashSet<String>>>,
}

impl Alive {
    /// Keeps it for alive for a while: what it has asked for may be done yet, though the
    /// answer can't come any more.
    pub fn linger(self, time: Duration) {
        std::thread::spawn(move || {
            std::thread::sleep(time);
            drop(self);
        });
    }
}

/// Nothing backs onto what is in the spool, and who reads it has it open.
struct Nobody;

impl BaseUsers for Nobody {
    fn disks(&self) -> Result<Vec<DomainDisk>, Fault> {
        Ok(Vec::new())
    }
}

impl Spooled {
    /// Reads at `offset` as much as there is and fits.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<usize> {
        self.file.read_at(buffer, offset)
    }

    /// sha256 of the file, which differs from that of a compressed download.
    pub fn content(&self) -> Sha256Digest {
        self.marker.content()
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.marker.size
    }

    /// The marker of a base of `source` with these bytes.
    pub fn marker(&self, source: &ImageSource) -> Marker {
        self.marker.for_another(source)
    }
}

impl Spool {
    /// A spool in `directory`, which is made when first needed.
    pub fn new(directory: PathBuf) -> Self {
        Self { directory, most: MOST_BYTES, alive: Arc::default(), writer: Arc::default() }
    }

    /// A name for this daemon that outlives it, by which it knows its own unfinished
    /// publications again.
    ///
    /// # Errors
    /// `StateFailed`.
    pub fn writer(&self) -> Result<String, Fault> {
        let path = self.directory.join("writer");
        self.named(&path).map_err(|error| {
            let text = format!("{} can't be used: {error}", path.display());
            Fault::new(FaultKind::StateFailed, text)
        })
    }

    /// The name in the file at `path`, made if there is none. Whoever asks gets the same
    /// one, even if all ask for the first time at once.
    fn named(&self, path: &Path) -> std::io::Result<String> {
        let mut known = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(name) = &*known {
            return Ok(name.clone());
        }
        std::fs::create_dir_all(&self.directory)?;
        if name_in(path)?.is_none() {
            crate::files::remove_durably(path)?;
            crate::files::create_durably(path, uuid::Uuid::new_v4().to_string().as_bytes())?;
        }
        let name = name_in(path)?.ok_or(std::io::ErrorKind::InvalidData)?;
        *known = Some(name.clone());
        Ok(name)
    }

    /// Takes note that a publication is under way in this process.
    pub fn begin(&self, nonce: &str) -> Alive {
        self.alive().insert(nonce.to_owned());
        Alive { nonce: nonce.to_owned(), alive: self.alive.clone() }
    }

    /// Whether a publication is under way in this process.
    pub fn is_alive(&self, nonce: &str) -> bool {
        self.alive().contains(nonce)
    }

    fn alive(&self) -> std::sync::MutexGuard<'_, HashSet<String>> {
        self.alive.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the image of `source`, verified: downloaded by whoever comes first, for all.
    ///
    /// # Errors
    /// As [`Cache::ensure`].
    pub async fn fetch(
        &self,
        source: &ImageSource,
        progress: &Progress,
        cancel: &CancellationToken,
    ) -> Result<Spooled, Fault> {
        let source = Fetcher::default().resolve(source, progress, cancel).await?;
        let held = held(source);
        let cache = self.cache().await?;
        self.let_go_of_old(&cache, &held).await?;
        let base = match cache.ensure(&held, progress, cancel).await {
            Err(fault) if fault.kind == FaultKind::NoSpace => {
                self.trim(&cache, &held, 0).await?;
                cache.ensure(&held, progress, cancel).await?
            }
            ensured => ensured?,
        };
        let spooled = Spooled { file: base.open()?, marker: base.marker().clone() };
        self.note_use(&held);
        self.trim(&cache, &held, self.most.saturating_sub(spooled.size())).await?;
        Ok(spooled)
    }

    /// Lets go of an image that turned out to be damaged here.
    ///
    /// # Errors
    /// As [`Cache::evict`].
    pub async fn discard(&self, source: &ImageSource, spooled: &Spooled) -> Result<(), Fault> {
        let pinned = ImageSource { pin: Pin::Digest(spooled.marker.sha256), ..source.clone() };
        let cache = self.cache().await?;
        for held in [held(pinned), held(ImageSource { pin: Pin::None, ..source.clone() })] {
            forget(&cache, &held.key).await?;
        }
        Ok(())
    }

    async fn cache(&self) -> Result<Cache, Fault> {
        let directory = self.directory.clone();
        let pool = tasks::blocking(move || {
            std::fs::create_dir_all(&directory).map_err(|error| unusable(&directory, &error))?;
            DirectoryPool::open(&directory)
        });
        Ok(Cache::new(pool.await?, Arc::new(Nobody)))
    }

    /// What only its URL tells may be another image by now.
    async fn let_go_of_old(&self, cache: &Cache, held: &ImageSource) -> Result<(), Fault> {
        if held.pin != Pin::None {
            return Ok(());
        }
        let path = self.directory.join(held.base_name());
        let age =
            std::fs::metadata(path).ok().and_then(|found| found.modified().ok()?.elapsed().ok());
        match age {
            Some(age) if age > FRESH => forget(cache, &held.key).await,
            _ => Ok(()),
        }
    }

    /// The lock's file tells when its image was last of use.
    fn note_use(&self, held: &ImageSource) {
        let lock = self.directory.join(lock_file_name(&held.base_name()));
        let now = FileTimes::new().set_modified(SystemTime::now());
        // Without it the image only goes sooner.
        let _ = File::options().write(true).open(lock).and_then(|file| file.set_times(now));
    }

    /// Lets go of what was of no use for the longest, until what is not `kept` has no
    /// more than `most` bytes.
    async fn trim(&self, cache: &Cache, kept: &ImageSource, most: u64) -> Result<(), Fault> {
        let directory = self.directory.clone();
        let mut others = tasks::blocking(move || images(&directory)).await?;
        others.retain(|image| image.key != kept.key);
        others.sort_by_key(|image| std::cmp::Reverse(image.used));
        let mut room = most;
        for Image { key, bytes, .. } in others {
            match room.checked_sub(bytes) {
                Some(left) => room = left,
                None => forget(cache, &key).await?,
            }
        }
        Ok(())
    }
}

/// The name in a file, if there is one.
fn name_in(path: &Path) -> std::io::Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => {
            Ok(Some(text.trim().to_owned()).filter(|name| uuid::Uuid::parse_str(name).is_ok()))
        }
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidData) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.alive.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.nonce);
    }
}

/// An image that is there.
struct Image {
    key: ImageKey,
    bytes: u64,
    used: SystemTime,
}

fn images(directory: &std::path::Path) -> Result<Vec<Image>, Fault> {
    let pool = DirectoryPool::open(directory)?;
    let mut found = Vec::new();
    for name in pool.base_names()? {
        let Ok(MarkerState::Valid(marker)) = pool.marker(&name) else { continue };
        let Ok(base) = directory.join(&name).metadata() else { continue };
        let used =
            directory.join(lock_file_name(&name)).metadata().and_then(|lock| lock.modified());
        let used = used.unwrap_or(SystemTime::UNIX_EPOCH);
        found.push(Image { key: marker.key, bytes: base.size(), used });
    }
    Ok(found)
}

/// Removes an image; who works on it, or has removed it, is not in the way.
async fn forget(cache: &Cache, key: &ImageKey) -> Result<(), Fault> {
    match cache.evict(&EntryName::spool(), key).await {
        Err(fault) if !matches!(fault.kind, FaultKind::Busy | FaultKind::NoSuchImage) => Err(fault),
        _ => Ok(()),
    }
}

/// The image as the spool holds it.
fn held(source: ImageSource) -> ImageSource {
    let key = match &source.pin {
        Pin::Digest(digest) => ImageKey::of_digest(digest),
        Pin::None | Pin::Listed(_) => ImageKey::of_url(&source.url),
    };
    ImageSource { entry: EntryName::spool(), key, ..source }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::model::{ImageFormat, ResourceUrl, UrlOrigin};

    /// The least that is taken for a disk.
    const SIZE: usize = 1 << 20;

    struct Place {
        home: TempDir,
        spool: Spool,
    }

    fn place() -> Place {
        let home = tempfile::tempdir_in("/var/tmp").unwrap();
        let spool = Spool::new(home.path().join("spool"));
        Place { home, spool }
    }

    impl Place {
        /// A file of bytes that `seed` makes its own, and its image for `entry`.
        fn image(&self, name: &str, seed: u8, entry: &str, pinned: bool) -> ImageSource {
            let path = self.home.path().join(name);
            let bytes = vec![seed; SIZE];
            std::fs::write(&path, &bytes).unwrap();
            let url = format!("file://{}", path.display());
            let pin = if pinned { Pin::Digest(Sha256Digest::of(&bytes)) } else { Pin::None };
            ImageSource {
                entry: EntryName::new(entry).unwrap(),
                key: ImageKey::new(name).unwrap(),
                url: ResourceUrl::parse(&url, UrlOrigin::Configuration).unwrap(),
                pin,
                format: ImageFormat::Raw,
            }
        }

        async fn fetch(&self, source: &ImageSource) -> Result<Spooled, Fault> {
            self.spool.fetch(source, &Progress::default(), &CancellationToken::new()).await
        }

        fn names(&self) -> Vec<String> {
            let names = std::fs::read_dir(self.home.path().join("spool")).unwrap();
            let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let mut bases: Vec<_> = names.filter(|name| name.ends_with(".raw")).collect();
            bases.sort();
            bases
        }
    }

    #[test]
    fn all_that_ask_for_the_writers_name_at_once_get_the_same() {
        let home = tempfile::tempdir().unwrap();
        for round in 0..50 {
            let directory = home.path().join(format!("spool-{round}"));
            // As one daemon, and as two that share the directory.
            let spools = [Spool::new(directory.clone()), Spool::new(directory)];
            let start = std::sync::Barrier::new(16);
            let names = std::thread::scope(|scope| {
                let asking: Vec<_> = (0..16)
                    .map(|number| {
                        let (spool, start) = (&spools[number % 2], &start);
                        scope.spawn(move || {
                            start.wait();
                            spool.writer().unwrap()
                        })
                    })
                    .collect();
                let names = asking.into_iter().map(|asking| asking.join().unwrap());
                names.collect::<std::collections::BTreeSet<_>>()
            });
            assert_eq!(names.len(), 1, "{names:?}");
        }
    }

    #[test]
    fn a_writers_name_outlives_the_daemon_and_damage_is_mended() {
        let home = tempfile::tempdir().unwrap();
        let name = || Spool::new(home.path().to_owned()).writer().unwrap();
        let first = name();
        assert_eq!(name(), first);
        for damage in [&b"nobody"[..], b"\xff", b""] {
            std::fs::write(home.path().join("writer"), damage).unwrap();
            let mended = name();
            assert_ne!(mended, first);
            assert_eq!(name(), mended);
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_same_bytes_are_there_once_whoever_wants_them() {
        let place = place();
        let first = place.image("a", 1, "one", true);
        let got = place.fetch(&first).await.unwrap();
        // Gone where it came from: whoever comes later needs no more than the spool.
        std::fs::remove_file(place.home.path().join("a")).unwrap();
        let other = ImageSource { entry: EntryName::new("two").unwrap(), ..first.clone() };
        let again = place.fetch(&other).await.unwrap();
        assert_eq!((again.content(), again.size()), (got.content(), SIZE as u64));
        assert_eq!(place.names().len(), 1);
        let marker = again.marker(&other);
        assert!(marker.is_of(&other) && !marker.is_of(&first) && marker.is_from(&first.url));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn without_a_digest_it_is_the_present_one_for_a_while_only() {
        let place = place();
        let source = place.image("a", 1, "one", false);
        let first = place.fetch(&source).await.unwrap().content();
        place.image("a", 2, "one", false);
        assert_eq!(place.fetch(&source).await.unwrap().content(), first);
        let base = place.home.path().join("spool").join(&place.names()[0]);
        let old = SystemTime::now() - FRESH - Duration::from_secs(1);
        File::open(&base).unwrap().set_times(FileTimes::new().set_modified(old)).unwrap();
        assert_ne!(place.fetch(&source).await.unwrap().content(), first);
    }

    #[test]
    fn what_may_still_be_done_counts_as_under_way_for_a_while() {
        let place = place();
        let (alive, at_once) = (place.spool.begin("n"), place.spool.begin("m"));
        drop(at_once);
        alive.linger(Duration::from_millis(300));
        assert!(place.spool.is_alive("n") && !place.spool.is_alive("m"));
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while place.spool.is_alive("n") {
            assert!(std::time::Instant::now() < deadline, "for good");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn it_lets_go_of_what_was_of_no_use_for_the_longest() {
        let mut place = place();
        place.spool.most = 2 * SIZE as u64;
        let images: Vec<_> =
            (1..=3).map(|seed| place.image(&format!("i{seed}"), seed, "one", true)).collect();
        for image in &images[..2] {
            place.fetch(image).await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // The first is of use again, so the second goes.
        let held = place.fetch(&images[0]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        place.fetch(&images[2]).await.unwrap();
        let there = |image: &ImageSource| {
            let name = super::held(image.clone()).base_name();
            place.names().contains(&name)
        };
        assert_eq!(images.iter().map(there).collect::<Vec<_>>(), [true, false, true]);
        // Who has one open goes on to read it.
        place.spool.discard(&images[0], &held).await.unwrap();
        assert!(!there(&images[0]));
        let mut buffer = [0; 4];
        assert_eq!(held.read_at(&mut buffer, SIZE as u64 - 4).unwrap(), 4);
        assert_eq!(buffer, [1; 4]);
    }
}
