//! A guest's address: asked of the guest agent, then of the DHCP leases, then of the
//! host's neighbour table.

use std::net::IpAddr;

use virt::domain::{Domain, Interface};
use virt::error::ErrorNumber;
use virt::sys;

use super::connection::{CallError, is};
use crate::model::{Address, AddressSource, is_link_local};
use crate::provider::AddressView;

const SOURCES: [(AddressSource, sys::virDomainInterfaceAddressesSource); 3] = [
    (AddressSource::Agent, sys::VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_AGENT),
    (AddressSource::Lease, sys::VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_LEASE),
    (AddressSource::Arp, sys::VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_ARP),
];

/// Asks each source in turn. A lease alone does not tell that the guest is up, since
/// leases outlive domains: with `agent_only` the other sources are only reported.
pub(super) fn find(domain: &Domain, mac: &str, agent_only: bool) -> Result<AddressView, CallError> {
    let (mut answers, mut agent) = (Vec::new(), false);
    for (source, raw) in SOURCES {
        let found = match domain.interface_addresses(raw, 0) {
            Ok(interfaces) => {
                agent |= source == AddressSource::Agent;
                pick(&interfaces, mac)
            }
            Err(error) => {
                answers.push(silence(source, mac, Some(&error)));
                continue;
            }
        };
        match found {
            Some((ip, prefix)) if source == AddressSource::Agent || !agent_only => {
                return Ok(AddressView::Known(Address { ip, prefix, source }));
            }
            Some((ip, _)) => answers.push(format!("{} has {ip} for {mac}", shown(source))),
            None => answers.push(silence(source, mac, None)),
        }
    }
    Ok(AddressView::Unknown { answers: answers.join("; "), agent })
}

fn shown(source: AddressSource) -> &'static str {
    match source {
        AddressSource::Agent => "the guest agent",
        AddressSource::Lease => "the DHCP server",
        AddressSource::Arp => "the neighbour table",
    }
}

fn silence(source: AddressSource, mac: &str, error: Option<&virt::error::Error>) -> String {
    match (source, error) {
        (AddressSource::Agent, Some(error)) if is(error, ErrorNumber::AgentUnresponsive) => {
            "the guest agent is not connected".into()
        }
        (AddressSource::Agent, None) => format!("the guest agent knows no address of {mac}"),
        (AddressSource::Lease, None) => format!("no DHCP lease for {mac}"),
        (AddressSource::Arp, None) => format!("{mac} is not in the neighbour table"),
        (source, Some(error)) => format!("{}: {}", shown(source), error.message()),
    }
}

/// The first usable address, with the bits of its network's prefix, of the interface with `mac`, IPv4 before IPv6.
pub(super) fn pick(interfaces: &[Interface], mac: &str) -> Option<(IpAddr, u8)> {
    let ours = interfaces.iter().filter(|interface| {
        interface.hwaddr.as_deref().is_some_and(|found| found.eq_ignore_ascii_case(mac))
    });
    let mut usable: Vec<(IpAddr, u8)> = ours
        .flat_map(|interface| &interface.addrs)
        .filter_map(|found| {
            let address: IpAddr = found.addr.parse().ok()?;
            let host = if address.is_ipv6() { 128 } else { 32 };
            // A lease without a prefix tells of the one address.
            let prefix = u8::try_from(found.prefix).ok().filter(|bits| (1..=host).contains(bits));
            Some((address, prefix.unwrap_or(host)))
        })
        .filter(|(address, _)| is_usable(address))
        .collect();
    usable.sort_by_key(|(address, _)| address.is_ipv6());
    usable.first().copied()
}

fn is_usable(address: &IpAddr) -> bool {
    !(is_link_local(address)
        || address.is_loopback()
        || address.is_unspecified()
        || address.is_multicast())
}

#[cfg(test)]
mod tests {
    use virt::domain::IPAddress;

    use super::*;

    fn interface(mac: Option<&str>, addresses: &[&str]) -> Interface {
        let addrs = addresses.iter().map(|addr| {
            let addr = (*addr).to_owned();
            IPAddress { typed: 0, addr, prefix: 24 }
        });
        let addrs: Vec<_> = addrs.collect();
        let hwaddr = mac.map(str::to_owned);
        Interface { name: "eth0".into(), hwaddr, naddrs: addrs.len() as u64, addrs }
    }

    #[test]
    fn the_interface_is_matched_by_mac_and_local_addresses_are_passed_over() {
        let interfaces = [
            interface(None, &["192.0.2.1"]),
            interface(Some("52:54:00:00:00:01"), &["192.0.2.2"]),
            interface(Some("52:54:00:AA:BB:CC"), &["fe80::1", "169.254.0.9", "127.0.0.1"]),
            interface(Some("52:54:00:aa:bb:cc"), &["2001:db8::7", "192.0.2.7"]),
        ];
        assert_eq!(
            pick(&interfaces, "52:54:00:aa:bb:cc"),
            Some(("192.0.2.7".parse().unwrap(), 24))
        );
        assert_eq!(pick(&interfaces[..3], "52:54:00:aa:bb:cc"), None);
    }
}
