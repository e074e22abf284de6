//! The scripts that run in the guest. Both install packages in the same way, and
//! each travels on its own.

/// Installs a package on the common distributions.
const PACKAGES: &str = include_str!("packages.sh");

/// Installs and starts the guest agent.
pub(super) fn agent() -> String {
    [PACKAGES, include_str!("agent.sh")].concat()
}

/// Installs squid where it is missing, and starts it with our configuration.
pub(super) fn squid() -> String {
    [PACKAGES, include_str!("squid.sh")].concat()
}
