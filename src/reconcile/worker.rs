//! The task of one Proxy: turn after turn until it is gone, listening for orders and
//! events meanwhile. An order that makes the work under way pointless calls it off.

use std::sync::Arc;

use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use super::Command;
use super::agenda::Due;
use super::core::Core;

/// How a worker ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// The Proxy and its record are gone.
    Removed,
    /// The daemon stops; everything is as recorded.
    Stopped,
}

/// Works until the Proxy is gone or `stop` is cancelled.
pub(super) async fn run(
    mut core: Core,
    mut commands: mpsc::Receiver<Command>,
    stop: CancellationToken,
) -> Ended {
    let bell = core.bell();
    loop {
        let (due, orders) = turn(&mut core, &mut commands, &stop).await;
        let Some(due) = due else { return Ended::Removed };
        for order in orders {
            core.accept(order).await;
        }
        if stop.is_cancelled() {
            return Ended::Stopped;
        }
        pause(&mut core, &mut commands, &bell, &stop, due).await;
    }
}

/// One turn of the core. Orders that come in meanwhile are handed back, to be
/// carried out when the core is at rest.
async fn turn(
    core: &mut Core,
    commands: &mut mpsc::Receiver<Command>,
    stop: &CancellationToken,
) -> (Option<Due>, Vec<Command>) {
    let cancel = stop.child_token();
    let mut orders = Vec::new();
    let turn = core.turn(&cancel);
    tokio::pin!(turn);
    loop {
        tokio::select! {
            due = &mut turn => return (due, orders),
            Some(order) = commands.recv() => {
                if !matches!(order, Command::Nudge) {
                    cancel.cancel();
                }
                orders.push(order);
            }
        }
    }
}

/// Waits for an order, for an event, for what is due next, or for the end.
async fn pause(
    core: &mut Core,
    commands: &mut mpsc::Receiver<Command>,
    bell: &Arc<Notify>,
    stop: &CancellationToken,
    due: Due,
) {
    if core.agenda.is_due() {
        return;
    }
    let timer = async {
        match due {
            Due::At(at) => tokio::time::sleep_until(at.into()).await,
            Due::Ordered => std::future::pending().await,
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = timer => {}
        () = bell.notified() => core.rung(),
        Some(order) = commands.recv() => core.accept(order).await,
    }
}
