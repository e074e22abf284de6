//! The boundaries between the steps that a crash, or another process, can fall into.
//! Outside of tests passing one does nothing.

/// A boundary: what was done just before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Serialize, serde::Deserialize, PartialOrd, Ord))]
pub(super) enum Step {
    /// The image's lock was found taken.
    LockBusy,
    /// The image's lock was taken.
    Locked,
    /// The download is about to begin.
    Fetching,
    /// The first bytes were written.
    Writing,
    /// Another entry's base was copied.
    Copied,
    /// All bytes were written and hashed.
    Received,
    /// They are what they should be, and safe.
    Verified,
    /// They are on stable storage, under no name yet.
    Durable,
    /// The marker is on stable storage, under no name yet.
    MarkerDurable,
    /// The pool's fence was found taken.
    FenceBusy,
    /// The pool's fence was taken.
    Fenced,
    /// A marker that vouches for nothing was removed.
    OldMarkerRemoved,
    /// A base without a marker was removed.
    DebrisRemoved,
    /// A base was found to be what an overlay is to be made over.
    Unchanged,
    /// The base has its name.
    Linked,
    /// And durably so.
    LinkDurable,
    /// The marker has its name.
    MarkerLinked,
    /// And durably so: the base is published.
    Published,
    /// A base that is there was hashed.
    Hashed,
    /// A marker is about to be replaced, and its successor has a name beside it.
    MarkerStaged,
    /// A marker was replaced.
    MarkerReplaced,
    /// The marker of a base that is evicted was removed.
    EvictedMarker,
    /// And durably so.
    EvictedMarkerDurable,
    /// The base was removed, too.
    EvictedBase,
}

#[cfg(test)]
impl Step {
    /// All of them.
    pub(super) const ALL: [Self; 24] = [
        Self::LockBusy,
        Self::Locked,
        Self::Fetching,
        Self::Writing,
        Self::Copied,
        Self::Received,
        Self::Verified,
        Self::Durable,
        Self::MarkerDurable,
        Self::FenceBusy,
        Self::Fenced,
        Self::OldMarkerRemoved,
        Self::DebrisRemoved,
        Self::Unchanged,
        Self::Linked,
        Self::LinkDurable,
        Self::MarkerLinked,
        Self::Published,
        Self::Hashed,
        Self::MarkerStaged,
        Self::MarkerReplaced,
        Self::EvictedMarker,
        Self::EvictedMarkerDurable,
        Self::EvictedBase,
    ];
}

/// Passes a boundary.
#[cfg(not(test))]
pub(super) fn passed(_: Step) {}

#[cfg(test)]
pub(super) use super::tests::agent::passed;
