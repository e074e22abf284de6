//! The D-Bus face of the daemon: `org.proxyd1` on the system bus. Calls return at
//! once; getters read snapshots, so they neither fail nor block.

mod auth;
mod error;
mod manager;
mod objects;
mod proxy;
mod spec;

use std::sync::Arc;

use tokio::sync::mpsc;
use zbus::Connection;
use zbus::connection::Builder;

use crate::reconcile::{Event, Supervisor};

pub use auth::{Action, Authorizer, Polkit};
pub use manager::Reloader;

/// The well-known name.
pub const BUS_NAME: &str = "org.proxyd1";
/// The path of the manager and of the object manager.
pub const ROOT_PATH: &str = "/org/proxyd1";

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

/// Serves the manager on the bus that `builder` names, without the well-known name
/// yet: that is taken by [`claim`] once the Proxies' objects are there.
pub async fn serve(builder: Builder<'_>, services: Services) -> zbus::Result<Connection> {
    let connection = builder.build().await?;
    let server = connection.object_server();
    server.at(ROOT_PATH, zbus::fdo::ObjectManager).await?;
    server.at(ROOT_PATH, manager::Manager::new(services)).await?;
    Ok(connection)
}

/// Presents Proxies as they come and go, until the supervisor is gone.
pub async fn present(connection: Connection, services: Services, events: mpsc::Receiver<Event>) {
    objects::Objects::new(connection, services).follow(events).await;
}

/// Takes the well-known name.
pub async fn claim(connection: &Connection) -> zbus::Result<()> {
    connection.request_name(BUS_NAME).await
}
