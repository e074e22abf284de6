//! Logging: to the journal with the fields that operators search by, or to standard
//! error when a person runs the daemon by hand. The message ids are explained by
//! `systemd/proxyd.catalog`, for `journalctl -x`.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// A Proxy was recorded.
pub const PROXY_NEW: &str = "a8cb9e13c8f0435bbd20185045a522d9";
/// A Proxy and its parts are gone.
pub const PROXY_REMOVED: &str = "ca1b82b8a0024b46922af6001ee0207b";
/// A Proxy entered another phase.
pub const PHASE_CHANGED: &str = "30b6e5027891408aadbbcf90625b271e";
/// A step failed and is tried again.
pub const STEP_DELAYED: &str = "60afe0237046411a8fc1c9fcd2c763d9";
/// A step failed for good.
pub const STEP_FAILED: &str = "e9680c2e5c6d4527a3c5aab1738ecec1";
/// The health URL answers through the proxy.
pub const HEALTHY: &str = "6ebc4e0f9f524e318899dec13507de3e";
/// The health URL no longer answers through the proxy.
pub const UNHEALTHY: &str = "f5b10d6cf8364d278b4553401b2aee6a";
/// A Proxy was given another specification, or an order.
pub const ORDERED: &str = "349a706d5200495d995c940d6d9fb942";
/// A guest went down, or was paused, without an order.
pub const GUEST_STOPPED: &str = "e092a058aabb4118800b9f3618bf6a8d";
/// Something was taken from a guest or changed by another hand.
pub const DRIFT: &str = "b4b10283af334dd18b0e11603dc112ca";
/// A new guest took the place of the old one.
pub const REBUILT: &str = "4d32c749c5304b458b433b116e3b6be7";
/// A new guest did not come up, and the old one stays.
pub const REBUILD_FAILED: &str = "073fe3e2d422412eafd61075c8802366";
/// A proxy serves clients that it should not.
pub const EXPOSED: &str = "5d9ac989e1884b01a9a36b8f68b289f1";
/// libvirt of a provider entry is connected.
pub const PROVIDER_CONNECTED: &str = "5e80ea2f5ebb43aba9187ae0b0e59481";
/// libvirt of a provider entry can't be reached.
pub const PROVIDER_LOST: &str = "35986bd3ba424cb49cbb3de41003181e";
/// A base image is in the pool, verified.
pub const IMAGE_READY: &str = "4def6f5d728f43ab8b7d8b77c684c868";
/// A base image, or what was left of one, was removed from its pool.
pub const IMAGE_REMOVED: &str = "dd01f5b5ee174166b382b5fb16e05192";
/// A job has ended, done or called off.
pub const JOB_ENDED: &str = "3bdaef15f0154669af591a9af2a95edd";
/// A job could not do what it was for.
pub const JOB_FAILED: &str = "f33c040fc6b849efbd3f17d02ffac844";
/// The configuration was read again.
pub const RELOADED: &str = "0c7f5012ce1048c2bec7e6dfba466f77";
/// The configuration was refused, and the old one stays.
pub const RELOAD_REFUSED: &str = "2538267c1e8e47eeb51a57384eb7ef4b";
/// A record could not be read and was set aside.
pub const RECORD_SET_ASIDE: &str = "747248033fac4f2b85f403e072ec4ea5";

/// Every message id, for the test that compares them with the catalog.
pub const ALL_IDS: [&str; 22] = [
    PROXY_NEW,
    PROXY_REMOVED,
    PHASE_CHANGED,
    STEP_DELAYED,
    STEP_FAILED,
    HEALTHY,
    UNHEALTHY,
    ORDERED,
    GUEST_STOPPED,
    DRIFT,
    REBUILT,
    REBUILD_FAILED,
    EXPOSED,
    PROVIDER_CONNECTED,
    PROVIDER_LOST,
    IMAGE_READY,
    IMAGE_REMOVED,
    JOB_ENDED,
    JOB_FAILED,
    RELOADED,
    RELOAD_REFUSED,
    RECORD_SET_ASIDE,
];

/// Sets up logging for the whole process. `PROXYD_LOG` filters it, in the syntax of
/// tracing's `EnvFilter`; the default is `info`.
pub fn init() {
    let filter = EnvFilter::try_from_env("PROXYD_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let registry = tracing_subscriber::registry().with(filter);
    match journal() {
        Some(journal) => registry.with(journal).init(),
        None => {
            let stderr = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
            registry.with(stderr.with_target(false)).init();
        }
    }
}

/// The journal, when systemd connected us to it. Without a prefix the fields bear
/// the names that they are searched by.
fn journal() -> Option<tracing_journald::Layer> {
    std::env::var_os("JOURNAL_STREAM")?;
    tracing_journald::layer().ok().map(|layer| layer.with_field_prefix(None))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// docs/operations.md tells what to do about each Reason, hop and metric.
    #[test]
    fn every_reason_is_documented() {
        let sources = [
            include_str!("model/status.rs"),
            include_str!("model/fault.rs"),
            include_str!("health/mod.rs"),
        ];
        // What a call can fail with, and no Proxy can be held up by.
        let calls = ["AlreadyExists", "NoSuchProxy", "ImageInUse", "NotAuthorized"];
        let documented = include_str!("../docs/operations.md");
        let names = sources.iter().flat_map(|source| source.lines()).filter_map(|line| {
            line.trim().strip_prefix("Self::")?.split_once(" => \"")?.1.strip_suffix("\",")
        });
        let named: Vec<_> = names.filter(|name| !calls.contains(name)).collect();
        assert!(named.len() > 60, "{named:?}");
        let missing = |name: &&&str| {
            !documented.contains(&format!("`{name}"))
                && name.chars().next().is_some_and(char::is_uppercase)
        };
        let missing: Vec<_> = named.iter().filter(missing).collect();
        assert!(missing.is_empty(), "not in docs/operations.md: {missing:?}");
    }

    #[test]
    fn every_message_id_has_a_catalog_entry_and_the_other_way_round() {
        let catalog = include_str!("../systemd/proxyd.catalog");
        let documented: Vec<_> =
            catalog.lines().filter_map(|line| line.strip_prefix("-- ")).collect();
        assert_eq!(documented, ALL_IDS);
    }
}
