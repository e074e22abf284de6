//! Blocking work away from the async threads.

use crate::model::{Fault, FaultKind};

/// Runs `work`, which may block, on a thread kept for such work.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        // Only a panic or the end of the runtime gets here; neither may take the
        // caller's worker with it.
        Err(error) => Err(Fault::new(FaultKind::Canceled, format!("the work broke off: {error}"))),
    }
}
