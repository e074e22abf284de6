//! `org.proxyd1.Job`: one object per job.

use std::sync::Arc;
use std::time::Duration;

use zbus::message::Header;
use zbus::object_server::SignalEmitter;
use zbus::{Connection, interface};

use super::announce::Announcer;
use super::error::CallError;
use super::manager::Manager;
use super::{ROOT_PATH, Services, path};
use crate::reconcile;

/// How often the progress of a job is told.
const INTERVAL: Duration = Duration::from_millis(500);

/// One job on the bus.
pub(super) struct Job {
    job: Arc<reconcile::Job>,
    services: Services,
}

/// Work that takes long. A job that has ended can be read for 10 seconds more.
#[interface(name = "org.proxyd1.Job")]
impl Job {
    /// Calls the job off. Returns at once; JobRemoved tells when that was heeded.
    async fn cancel(
        &self,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] call: Header<'_>,
    ) -> Result<(), CallError> {
        self.services.manages_images(connection, &call).await?;
        self.job.cancel();
        Ok(())
    }

    /// fetch: has an image in its pool. verify: hashes a base that is there.
    #[zbus(property(emits_changed_signal = "const"))]
    fn kind(&self) -> String {
        self.job.kind.as_str().to_owned()
    }

    /// The provider entry of the image.
    #[zbus(property(emits_changed_signal = "const"))]
    fn entry(&self) -> String {
        self.job.image.entry.to_string()
    }

    /// The key of the image.
    #[zbus(property(emits_changed_signal = "const"))]
    fn key(&self) -> String {
        self.job.image.key.to_string()
    }

    /// running, done, canceled or failed.
    #[zbus(property)]
    fn state(&self) -> String {
        self.job.state().as_str().to_owned()
    }

    /// How much of the present stage is done, from 0 to 1; 0 while its size isn't
    /// known, 1 when the job is done.
    #[zbus(property)]
    fn progress(&self) -> f64 {
        self.job.fraction()
    }

    /// Bytes done in the present stage, or in the last one that counted bytes.
    #[zbus(property)]
    fn bytes_done(&self) -> u64 {
        self.job.bytes().0
    }

    /// All bytes of that stage; 0 when that isn't known.
    #[zbus(property)]
    fn bytes_total(&self) -> u64 {
        self.job.bytes().1
    }

    /// What the job is at, or how it ended.
    #[zbus(property)]
    fn message(&self) -> String {
        self.job.message()
    }

    /// The name of the error with which the job failed, such as
    /// org.proxyd1.Error.DigestMismatch, or org.proxyd1.Error.Canceled of one that was
    /// called off; else empty.
    #[zbus(property)]
    fn error(&self) -> String {
        self.job.error().map(super::error::name).unwrap_or_default()
    }
}

/// Presents a job, and tells how it goes on and how it ended.
pub(super) async fn add(
    connection: &Connection,
    job: Arc<reconcile::Job>,
    services: &Services,
) -> zbus::Result<()> {
    let path = path::job(job.id);
    let object = Job { job: job.clone(), services: services.clone() };
    connection.object_server().at(&path, object).await?;
    let announcer = Announcer::new::<Job>(connection, &path).await?;
    let emitter = SignalEmitter::new(connection, ROOT_PATH)?.into_owned();
    Manager::job_new(&emitter, path.as_ref()).await?;
    tokio::spawn(async move {
        // The bus is checked by the daemon as a whole.
        if let Err(error) = follow(job, announcer, emitter).await {
            tracing::debug!("a job can't be told of: {error}");
        }
    });
    Ok(())
}

async fn follow(
    job: Arc<reconcile::Job>,
    mut announcer: Announcer,
    emitter: SignalEmitter<'static>,
) -> zbus::Result<()> {
    while tokio::time::timeout(INTERVAL, job.ended()).await.is_err() {
        announcer.tell::<Job>().await?;
    }
    announcer.tell::<Job>().await?;
    Manager::job_removed(&emitter, path::job(job.id).as_ref(), job.state().as_str()).await
}

/// Removes a job's object.
pub(super) async fn remove(connection: &Connection, id: u64) -> zbus::Result<()> {
    connection.object_server().remove::<Job, _>(path::job(id)).await.map(drop)
}
