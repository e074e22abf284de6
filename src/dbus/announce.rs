//! PropertiesChanged for what differs from one look at an object to the next. The
//! object's own getters serve the signals, so the two can't differ.

use std::collections::HashMap;

use zbus::names::InterfaceName;
use zbus::object_server::{Interface, SignalEmitter};
use zbus::{Connection, OwnedObjectPath, OwnedVariant};

type Properties = HashMap<String, OwnedVariant>;

/// Knows what was last told of an object.
pub(super) struct Announcer {
    connection: Connection,
    path: OwnedObjectPath,
    known: Properties,
}

impl Announcer {
    /// One for the interface `I` at `path`, whose present properties count as told.
    pub(super) async fn new<I: Interface>(
        connection: &Connection,
        path: &OwnedObjectPath,
    ) -> zbus::Result<Self> {
        let known = properties::<I>(connection, path).await?;
        Ok(Self { connection: connection.clone(), path: path.clone(), known })
    }

    /// Tells what has changed, in one signal, if anything has.
    ///
    /// # Errors
    /// When the object or the bus has gone.
    pub(super) async fn tell<I: Interface>(&mut self) -> zbus::Result<()> {
        let current = properties::<I>(&self.connection, &self.path).await?;
        let changed: HashMap<&str, zbus::Variant<'_>> = current
            .iter()
            .filter(|(name, value)| self.known.get(*name) != Some(value))
            .map(|(name, value)| Ok((name.as_str(), value.try_clone()?.into())))
            .collect::<zbus::Result<_>>()?;
        if changed.is_empty() {
            return Ok(());
        }
        let emitter = SignalEmitter::new(&self.connection, &self.path)?;
        let interface: InterfaceName<'_> = I::name();
        zbus::fdo::Properties::properties_changed(&emitter, interface, changed, (&[]).into())
            .await?;
        self.known = current;
        Ok(())
    }
}

async fn properties<I: Interface>(
    connection: &Connection,
    path: &OwnedObjectPath,
) -> zbus::Result<Properties> {
    let server = connection.object_server();
    let object = server.interface::<_, I>(path).await?;
    let emitter = object.signal_emitter().clone();
    let shown = object.get().await;
    Ok(shown.get_all(server, connection, None, &emitter).await?)
}
