//! How what happens on a host reaches the worker of the guest that it concerns:
//! ringing is cheap, may be done from any thread, and many rings are heard as one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;
use uuid::Uuid;

use crate::model::EntryName;

/// The bells of all workers, by the UUIDs of their domains. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Bells(Arc<Mutex<HashMap<Uuid, Bell>>>);

#[derive(Debug, Clone)]
struct Bell {
    entry: EntryName,
    notify: Arc<Notify>,
}

impl Bells {
    /// Has `notify` woken when something happens to one of `domains` of `entry`, in
    /// place of what was hung up for them before.
    pub fn hang(&self, entry: &EntryName, domains: &[Uuid], notify: &Arc<Notify>) {
        let mut bells = self.lock();
        for domain in domains {
            bells.insert(*domain, Bell { entry: entry.clone(), notify: notify.clone() });
        }
    }

    /// Takes down the bells of `domains`.
    pub fn take_down(&self, domains: &[Uuid]) {
        let mut bells = self.lock();
        domains.iter().for_each(|domain| drop(bells.remove(domain)));
    }

    /// Something happened to `domain`.
    pub fn ring(&self, domain: Uuid) {
        if let Some(bell) = self.lock().get(&domain) {
            bell.notify.notify_one();
        }
    }

    /// Something happened to the connection of `entry`.
    pub fn ring_all(&self, entry: &EntryName) {
        let bells = self.lock();
        bells.values().filter(|bell| bell.entry == *entry).for_each(|b| b.notify.notify_one());
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Uuid, Bell>> {
        // The map is whole after every statement, so a panic elsewhere can't spoil it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(notify: &Notify) -> bool {
        use futures_util::FutureExt as _;
        notify.notified().now_or_never().is_some()
    }

    #[test]
    fn only_whom_it_concerns_is_woken() {
        let bells = Bells::default();
        let [home, away] = ["home", "away"].map(|name| EntryName::new(name).unwrap());
        let [first, second] = [(); 2].map(|()| Arc::new(Notify::new()));
        let [a, b, c] = [1, 2, 3].map(Uuid::from_u128);
        bells.hang(&home, &[a, b], &first);
        bells.hang(&away, &[c], &second);
        bells.ring(b);
        bells.ring(b);
        assert_eq!([heard(&first), heard(&first), heard(&second)], [true, false, false]);
        bells.ring_all(&away);
        assert_eq!([heard(&first), heard(&second)], [false, true]);
        bells.take_down(&[a, b]);
        bells.ring(a);
        assert!(!heard(&first));
    }
}
