//! What only a real host can prove: systemd, polkit, the system bus, libvirtd, QEMU,
//! cloud-init and squid. Run by `make test`; see README.md beside this file.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

mod cloud_init;
mod faults;
mod guest;
mod host;
mod images;
mod lifecycle;
mod main_job;
mod nixos;
mod operators;
mod remote;
