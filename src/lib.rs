//! proxyd runs HTTP forward proxies as libvirt guests: one `Proxy`, one domain,
//! one D-Bus object. See docs/architecture.md for the path of one create.

pub mod config;
pub mod daemon;
pub mod dbus;
pub mod evidence;
mod files;
pub mod health;
pub mod image;
pub mod journal;
pub mod metrics;
pub mod model;
pub mod provider;
pub mod reconcile;
pub mod seed;
pub mod store;
mod tasks;
