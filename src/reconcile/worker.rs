//! The task of one Proxy: turn after turn until it is gone, listening for orders
//! meanwhile. An order that makes the work under way pointless calls it off.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::Command;
use super::core::{Core, Next};

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
    loop {
        let (next, orders) = turn(&mut core, &mut commands, &stop).await;
        let ordered = !orders.is_empty();
        for order in orders {
            core.accept(order).await;
        }
        match next {
            Next::Gone => return Ended::Removed,
            _ if stop.is_cancelled() => return Ended::Stopped,
            _ if ordered => {}
            Next::Again => {}
            Next::Wait(delay) => pause(&mut core, &mut commands, &stop, Some(delay)).await,
            Next::Park => pause(&mut core, &mut commands, &stop, None).await,
        }
    }
}

/// One turn of the core. Orders that come in meanwhile are handed back, to be
/// carried out when the core is at rest.
async fn turn(
    core: &mut Core,
    commands: &mut mpsc::Receiver<Command>,
    stop: &CancellationToken,
) -> (Next, Vec<Command>) {
    let cancel = stop.child_token();
    let mut orders = Vec::new();
    let turn = core.turn(&cancel);
    tokio::pin!(turn);
    loop {
        tokio::select! {
            next = &mut turn => return (next, orders),
            Some(order) = commands.recv() => {
                if !matches!(order, Command::Nudge) {
                    cancel.cancel();
                }
                orders.push(order);
            }
        }
    }
}

/// Waits for an order, for `delay` if there is one, or for the end.
async fn pause(
    core: &mut Core,
    commands: &mut mpsc::Receiver<Command>,
    stop: &CancellationToken,
    delay: Option<Duration>,
) {
    let timer = async {
        match delay {
            Some(delay) => tokio::time::sleep(delay).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = timer => {}
        Some(order) = commands.recv() => core.accept(order).await,
    }
}
