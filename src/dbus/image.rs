//! `org.proxyd1.Image`: one object per image of a provider entry.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;
use zbus::{Connection, OwnedObjectPath, interface};

use super::announce::Announcer;
use super::path;
use crate::model::ImageId;
use crate::reconcile::{ImageView, Images};

/// One image on the bus.
pub(super) struct Image {
    id: ImageId,
    images: watch::Receiver<Arc<Images>>,
}

impl Image {
    /// What `get` takes from the latest snapshot; nothing of an image that has just
    /// gone.
    fn read<T: Default>(&self, get: impl FnOnce(&ImageView) -> T) -> T {
        self.images.borrow().get(&self.id).map(get).unwrap_or_default()
    }
}

/// An image of a provider entry: one that the configuration offers there, one that a
/// Proxy names by its URL, or one whose base is still in the entry's pool.
#[interface(name = "org.proxyd1.Image")]
impl Image {
    /// The provider entry.
    #[zbus(property(emits_changed_signal = "const"))]
    fn entry(&self) -> String {
        self.id.entry.to_string()
    }

    /// The key under which the entry offers it; for one that is given as a URL, the
    /// first 8 bytes of the URL's sha256 in hex.
    #[zbus(property(emits_changed_signal = "const"))]
    fn key(&self) -> String {
        self.id.key.to_string()
    }

    /// Where it comes from, without credentials and query.
    #[zbus(property)]
    fn url(&self) -> String {
        self.read(|image| image.url.clone())
    }

    /// Where its base is in the pool, or would be; empty while that isn't known.
    #[zbus(property)]
    fn path(&self) -> String {
        self.read(|image| image.path.clone())
    }

    /// absent: it is not in the pool. fetching: it is being fetched, or hashed before
    /// it is used. ready: it is there, verified. conflict: what is there contradicts
    /// its marker or the configuration, and is not touched. debris: what is there has
    /// no valid marker. What others do in the pool is seen within a minute.
    #[zbus(property)]
    fn state(&self) -> String {
        self.read(|image| image.state.as_str().to_owned())
    }

    /// Why the state is what it is and the way out, where that needs words; else empty.
    #[zbus(property)]
    fn message(&self) -> String {
        self.read(|image| image.message.clone())
    }

    /// sha256 of the file that was downloaded, in hex; empty without a verified base.
    #[zbus(property)]
    fn digest(&self) -> String {
        self.read(|image| image.digest.map(|digest| digest.to_string()).unwrap_or_default())
    }

    /// The sha256 that is configured, in hex; empty when none is, or when it stands in
    /// a list that is asked for only when the image is fetched.
    #[zbus(property)]
    fn expected_digest(&self) -> String {
        self.read(|image| image.expected.map(|digest| digest.to_string()).unwrap_or_default())
    }

    /// Size of the base in bytes; 0 without one.
    #[zbus(property)]
    fn size(&self) -> u64 {
        self.read(|image| image.size)
    }

    /// Size of the disk that it presents to a guest, in bytes; 0 without a base.
    #[zbus(property)]
    fn virtual_size(&self) -> u64 {
        self.read(|image| image.virtual_size)
    }

    /// When it was fetched, in microseconds since the epoch; 0 without a base.
    #[zbus(property)]
    fn fetched_at(&self) -> u64 {
        self.read(|image| image.fetched_at.map_or(0, |at| at.as_micros()))
    }

    /// The Proxies whose guests are made from it, or will be.
    #[zbus(property)]
    fn used_by(&self) -> Vec<OwnedObjectPath> {
        self.read(|image| image.used_by.iter().map(path::proxy).collect())
    }
}

/// The images that are on the bus.
pub(super) struct Gallery {
    connection: Connection,
    images: watch::Receiver<Arc<Images>>,
    presented: BTreeMap<ImageId, (ImageView, Announcer)>,
}

impl Gallery {
    pub(super) fn new(connection: Connection, images: watch::Receiver<Arc<Images>>) -> Self {
        Self { connection, images, presented: BTreeMap::new() }
    }

    /// Presents the images as they come, change and go, until there is nobody to tell.
    pub(super) async fn follow(mut self) {
        while self.images.changed().await.is_ok() {
            if let Err(error) = self.present().await {
                tracing::error!("the bus does not take the images: {error}");
            }
        }
    }

    /// Makes the objects those of the latest snapshot.
    pub(super) async fn present(&mut self) -> zbus::Result<()> {
        let images = self.images.borrow_and_update().clone();
        let server = self.connection.object_server();
        let gone: Vec<_> =
            self.presented.keys().filter(|id| !images.contains_key(id)).cloned().collect();
        for id in gone {
            self.presented.remove(&id);
            server.remove::<Image, _>(path::image(&id)).await?;
        }
        for (id, view) in images.iter() {
            match self.presented.get_mut(id) {
                Some((known, _)) if known == view => {}
                Some((known, announcer)) => {
                    announcer.tell::<Image>().await?;
                    *known = view.clone();
                }
                None => {
                    let path = path::image(id);
                    let image = Image { id: id.clone(), images: self.images.clone() };
                    server.at(&path, image).await?;
                    let announcer = Announcer::new::<Image>(&self.connection, &path).await?;
                    self.presented.insert(id.clone(), (view.clone(), announcer));
                }
            }
        }
        Ok(())
    }
}
