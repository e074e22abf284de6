//! proxyd runs HTTP forward proxies as libvirt guests: one `Proxy`, one domain,
//! one D-Bus object. See docs/architecture.md for the path of one create.

pub mod config;
mod files;
pub mod config {
    //! Settings.
    mod settings;
    pub use settings::*;
}
pub mod image;
pub mod model;
mod tasks;
