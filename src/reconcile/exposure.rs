//! Whether a proxy serves whom it should not: it is asked from an address of this host
//! that its allowed clients don't include, and has to refuse.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use ipnet::IpNet;

use super::agenda::Asked;
use super::core::Core;
use crate::health::{Prober, Target, Verdict};
use crate::model::{Address, ConditionKind, ProxySpec, Reason, is_link_local};

/// How often it is asked.
const INTERVAL: Duration = Duration::from_secs(300);

impl Core {
    /// Asks, when it is time to.
    pub(super) async fn guard(&mut self, address: Address) {
        let generation = self.record.generation;
        let recent = self.asked.is_some_and(|asked| {
            asked.at.elapsed() < INTERVAL
                && asked.generation == generation
                && asked.address == address.ip
        });
        if recent {
            return;
        }
        self.asked = Some(Asked { at: Instant::now(), generation, address: address.ip });
        let spec = self.build(super::plan::Role::Present).map(|build| build.spec.clone());
        let Some(allowed) = spec.as_ref().and_then(|spec| allowed(spec, address)) else {
            let why = "the user-data is your own, and no AllowedClients are listed";
            return self.not_asked(why);
        };
        let Some(source) = stranger(&own_addresses(), &allowed, address.ip) else {
            return self.not_asked("this host has no address outside the allowed clients");
        };
        let target = Target { source: Some(source), ..self.target(address) };
        let served = Prober::default().probe(&target).await;
        self.publisher.exposed(&self.record, source, matches!(served, Verdict::Healthy { .. }));
    }

    fn not_asked(&self, why: &str) {
        self.publisher.update(&self.record, |status| {
            status.set(ConditionKind::Exposed, false, Reason::NotChecked, why);
        });
    }
}

/// Whom the proxy shall serve; nothing when that isn't known.
fn allowed(spec: &ProxySpec, address: Address) -> Option<Vec<IpNet>> {
    if !spec.allowed_clients.is_empty() {
        return Some(spec.allowed_clients.clone());
    }
    // The preset serves the networks of the guest's own interface.
    let own = IpNet::new(address.ip, address.prefix).ok()?;
    spec.user_data.is_none().then(|| vec![own.trunc()])
}

/// An address to ask from.
fn stranger(own: &[IpAddr], allowed: &[IpNet], guest: IpAddr) -> Option<IpAddr> {
    let is_stranger = |address: &&IpAddr| {
        address.is_ipv4() == guest.is_ipv4()
            && !address.is_loopback()
            && !is_link_local(address)
            && !allowed.iter().any(|network| network.contains(*address))
    };
    own.iter().find(is_stranger).copied()
}

/// The addresses of this host.
fn own_addresses() -> Vec<IpAddr> {
    let Ok(interfaces) = nix::ifaddrs::getifaddrs() else { return Vec::new() };
    let address = |interface: nix::ifaddrs::InterfaceAddress| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|found| IpAddr::V4(found.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|found| IpAddr::V6(found.ip())))
    };
    interfaces.filter_map(address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{AddressSource, SpecInput, UrlOrigin};

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn spec(clients: &[&str], own_data: bool) -> ProxySpec {
        let input = SpecInput {
            provider: Some("home".into()),
            image: Some("a".into()),
            allowed_clients: Some(clients.iter().map(|&text| text.into()).collect()),
            user_data: own_data.then(|| crate::model::Secret::new(b"#!".to_vec())),
            ..SpecInput::default()
        };
        input.validate(UrlOrigin::Api, None).unwrap()
    }

    #[test]
    fn whom_a_proxy_shall_serve() {
        let source = AddressSource::Agent;
        let address = Address { ip: ip("192.0.2.7"), prefix: 24, source };
        let own: IpNet = "192.0.2.0/24".parse().unwrap();
        assert_eq!(allowed(&spec(&[], false), address), Some(vec![own]));
        let listed = "198.51.100.0/24".parse().unwrap();
        assert_eq!(allowed(&spec(&["198.51.100.0/24"], true), address), Some(vec![listed]));
        assert_eq!(allowed(&spec(&[], true), address), None);
    }

    #[test]
    fn a_stranger_is_neither_allowed_nor_local() {
        let allowed = ["192.0.2.0/24".parse().unwrap()];
        let own = ["127.0.0.1", "169.254.1.1", "192.0.2.1", "2001:db8::1", "203.0.113.5"].map(ip);
        assert_eq!(stranger(&own, &allowed, ip("192.0.2.7")), Some(ip("203.0.113.5")));
        assert_eq!(stranger(&own[..4], &allowed, ip("192.0.2.7")), None);
        assert_eq!(stranger(&own, &allowed, ip("2001:db8::7")), Some(ip("2001:db8::1")));
    }
}
