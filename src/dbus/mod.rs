//! The D-Bus face of the daemon: `org.proxyd1` on the system bus. Calls return at
//! once; getters read snapshots, so they neither fail nor block.

mod announce;
mod auth;
mod error;
mod image;
mod job;
mod manager;
mod objects;
mod path;
mod provider;
mod proxy;
mod spec;
mod value;

use std::sync::Arc;

use tokio::sync::mpsc;
use zbus::connection::Builder;
use zbus::message::Header;
use zbus::{Connection, OwnedObjectPath};

use self::error::CallError;
use crate::model::{EntryName, ImageId, ImageKey, InvalidIdentifier};
use crate::reconcile::{Event, Supervisor};

pub use auth::{Action, Authorizer, Polkit};
pub use manager::Reloader;
pub use value::SpecValue;

/// The well-known name.
pub const BUS_NAME: &str = "org.proxyd1";
/// The path of the manager and of the object manager.
pub const ROOT_PATH: &str = "/org/proxyd1";

/// The object path of a provider entry.
///
/// # Errors
/// That `entry` is no identifier.
pub fn provider_path(entry: &str) -> Result<OwnedObjectPath, InvalidIdentifier> {
    Ok(path::provider(&EntryName::new(entry)?))
}

/// The object path of image `key` of a provider entry.
///
/// # Errors
/// That one of them is no identifier.
pub fn image_path(entry: &str, key: &str) -> Result<OwnedObjectPath, InvalidIdentifier> {
    let (entry, key) = (EntryName::new(entry)?, ImageKey::new(key)?);
    Ok(path::image(&ImageId { entry, key }))
}

/// What the interfaces need of the daemon.
#[derive(Clone)]
pub struct Services {
    /// Proxies.
    pub supervisor: Arc<Supervisor>,
    /// Who may do what.
    pub authorizer: Arc<dyn Authorizer>,
    /// Reads the configuration again.
    pub reloader: Reloader,
}

impl Services {
    /// Nothing when the caller may change Proxies.
    async fn manages_proxies(
        &self,
        connection: &Connection,
        call: &Header<'_>,
    ) -> Result<(), CallError> {
        Ok(self.authorizer.check(connection, call, Action::ManageProxies).await?)
    }

    /// Nothing when the caller may change images.
    async fn manages_images(
        &self,
        connection: &Connection,
        call: &Header<'_>,
    ) -> Result<(), CallError> {
        Ok(self.authorizer.check(connection, call, Action::ManageImages).await?)
    }
}

/// The connection to the bus. The well-known name is taken by [`Bus::claim`], once the
/// Proxies' objects are there.
#[derive(Clone)]
pub struct Bus {
    connection: Connection,
}

impl Bus {
    /// Serves the manager on the bus at `address`; on the system bus when there is none.
    pub async fn serve(address: Option<&str>, services: Services) -> zbus::Result<Self> {
        let builder = address.map_or_else(Builder::system, Builder::address);
        let connection = builder.build().await?;
        let server = connection.object_server();
        server.at(ROOT_PATH, zbus::fdo::ObjectManager).await?;
        server.at(ROOT_PATH, manager::Manager::new(services)).await?;
        Ok(Self { connection })
    }

    /// Presents the provider entries, and from then on entries, Proxies and jobs as they
    /// come and go, until the supervisor is gone.
    pub async fn present(&self, services: Services, events: mpsc::Receiver<Event>) {
        let mut objects = objects::Objects::new(self.connection.clone(), services);
        objects.entries().await;
        tokio::spawn(objects.follow(events));
    }

    /// Presents the images, and from then on as they come, change and go.
    pub async fn present_images(&self, supervisor: &Supervisor) -> zbus::Result<()> {
        let mut gallery = image::Gallery::new(self.connection.clone(), supervisor.watch_images());
        gallery.present().await?;
        tokio::spawn(gallery.follow());
        Ok(())
    }

    /// Takes the well-known name.
    pub async fn claim(&self) -> zbus::Result<()> {
        self.connection.request_name(BUS_NAME).await
    }

    /// Gives the well-known name back.
    pub async fn release(&self) -> zbus::Result<()> {
        self.connection.release_name(BUS_NAME).await.map(drop)
    }

    /// Makes sure that the bus still answers.
    pub async fn check(&self) -> zbus::Result<()> {
        zbus::fdo::DBusProxy::new(&self.connection).await?.get_id().await?;
        Ok(())
    }
}
