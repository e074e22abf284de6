//! Orders to a worker: each is recorded before it is acknowledged.

use super::core::Core;
use super::succession::PATIENCE;
use super::{Change, Command, Order};
use crate::journal;
use crate::model::{Effect, Fault, FaultKind, Phase, ProxySpec, Reason};
use crate::store::{Power, Rebuild, Record};

impl Core {
    /// Carries out an order, and acknowledges it once it is recorded.
    pub(super) async fn accept(&mut self, command: Command) {
        let (order, ack) = match command {
            Command::Nudge => {
                self.agenda.look_now();
                return;
            }
            Command::Order { order, ack } => (order, ack),
        };
        let outcome = self.carry_out(*order).await;
        // Whoever asked may have gone away meanwhile.
        let _ = ack.send(outcome);
    }

    async fn carry_out(&mut self, order: Order) -> Result<Vec<Change>, Fault> {
        let mut record = self.record.clone();
        let changes = apply(&mut record, order)?;
        if record == self.record {
            return Ok(changes);
        }
        let said = told(&self.record, &record, &changes);
        self.save(record).await?;
        (self.attempts, self.held, self.setback) = (0, None, None);
        self.agenda.look_now();
        if let Some(said) = said {
            tracing::info!(
                message_id = journal::ORDERED,
                proxyd_proxy = %self.record.name,
                proxyd_provider = %self.record.entry(),
                "Proxy {}: {said}", self.record.name
            );
        }
        self.publisher.update(&self.record, |status| {
            if self.record.deleting {
                status.doing(Phase::Deleting, Reason::Removing, "removing its parts");
            } else if status.phase == Phase::Failed {
                status.doing(Phase::Provisioning, Reason::Queued, "trying again");
            }
        });
        Ok(changes)
    }
}

/// What `order` makes of `record`.
fn apply(record: &mut Record, order: Order) -> Result<Vec<Change>, Fault> {
    if record.deleting && !matches!(order, Order::Delete) {
        let message = format!("Proxy {} is being removed", record.name);
        return Err(Fault::new(FaultKind::Busy, message));
    }
    match order {
        Order::Delete => record.deleting = true,
        Order::Declare { spec, origin, on_removal } => {
            (record.origin, record.on_removal) = (origin, on_removal);
            let changes = respec(record, *spec);
            // The file is the authority: nobody else will ask for the guest that it
            // describes.
            if changes.iter().any(|change| change.effect == Effect::Rebuild) {
                record.rebuild = record.build.is_some().then_some(Rebuild::Plain);
            }
            return Ok(changes);
        }
        Order::Update(spec) => return Ok(respec(record, *spec)),
        Order::Start => record.power = Power::On,
        Order::Stop => {
            (record.power, record.restart) = (Power::Off, false);
            record.rebuild = record.rebuild.filter(|how| *how == Rebuild::Plain);
        }
        Order::Restart if record.power == Power::Off => {
            let message = format!("Proxy {} is stopped: start it instead", record.name);
            return Err(Fault::new(FaultKind::InvalidArgument, message));
        }
        Order::Restart => record.restart = record.build.is_some(),
        Order::Rebuild { overlap: None } => {
            record.rebuild = record.build.is_some().then_some(Rebuild::Plain);
        }
        Order::Rebuild { overlap: Some(patience) } => {
            if record.power == Power::Off {
                let message = format!(
                    "Proxy {} is stopped, so there is nothing to keep up meanwhile: start it, or \
                     rebuild it without overlap",
                    record.name
                );
                return Err(Fault::new(FaultKind::InvalidArgument, message));
            }
            let patience = patience.unwrap_or(PATIENCE).as_secs();
            let served = record.build.as_ref().is_some_and(|build| build.started);
            let how = if served { Rebuild::Overlap { patience } } else { Rebuild::Plain };
            record.rebuild = record.build.is_some().then_some(how);
        }
    }
    Ok(Vec::new())
}

fn respec(record: &mut Record, spec: ProxySpec) -> Vec<Change> {
    let changes = spec.changes(&record.spec).into_iter();
    let changes: Vec<_> = changes.map(|(key, effect)| Change { key, effect }).collect();
    if record.spec != spec {
        record.generation += 1;
        record.spec = spec;
    }
    changes
}

/// An order in words, for the journal.
fn told(before: &Record, after: &Record, changes: &[Change]) -> Option<String> {
    let list = |effect: Effect| {
        let keys = changes.iter().filter(|change| change.effect == effect);
        keys.map(|change| change.key).collect::<Vec<_>>().join(", ")
    };
    if !changes.is_empty() {
        let parts = [
            (list(Effect::Live), "at once"),
            (list(Effect::NextStart), "at the next start"),
            (list(Effect::Rebuild), "in a guest that is made anew"),
        ];
        let parts = parts.into_iter().filter(|(keys, _)| !keys.is_empty());
        let parts: Vec<_> = parts.map(|(keys, when)| format!("{keys} {when}")).collect();
        let generation = after.generation;
        return Some(format!("specification {generation}: {}", parts.join("; ")));
    }
    let said = if after.deleting {
        "ordered to go"
    } else if before.power != after.power {
        if after.power == Power::On { "ordered to start" } else { "ordered to stop" }
    } else if before.restart != after.restart {
        "ordered to restart"
    } else if before.rebuild != after.rebuild {
        match after.rebuild {
            Some(Rebuild::Overlap { .. }) => "ordered to be made anew beside the present guest",
            _ => "ordered to be made anew",
        }
    } else {
        return None;
    };
    Some(said.to_owned())
}
