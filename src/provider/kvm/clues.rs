//! What can be seen of a guest from its host: the domain, the agent's channel, the
//! DHCP lease, and the tails of its console and of QEMU's log.

use serde::Deserialize;
use virt::connect::Connect;
use virt::domain::Domain;
use virt::sys;

use super::connection::CallError;
use super::logs::{self, Logs};
use super::{address, domain, host};
use crate::config::{NetworkAttachment, ProviderSettings};
use crate::model::Guest;
use crate::provider::{AgentView, Clues, LeaseView};

/// The name of the guest agent's channel.
pub(super) const AGENT_CHANNEL: &str = "org.qemu.guest_agent.0";

/// Bytes read from the end of a log.
const TAIL: u64 = 256 << 10;

#[derive(Debug, Deserialize)]
struct DomainXml {
    #[serde(rename = "@type")]
    kind: String,
    devices: Devices,
}

#[derive(Debug, Deserialize)]
struct Devices {
    #[serde(default)]
    channel: Vec<Channel>,
}

#[derive(Debug, Deserialize)]
struct Channel {
    target: Option<Target>,
}

#[derive(Debug, Deserialize)]
struct Target {
    #[serde(rename = "@name")]
    name: Option<String>,
    #[serde(rename = "@state")]
    state: Option<String>,
}

/// Gathers them.
pub(super) fn gather(
    connection: &Connect,
    settings: &ProviderSettings,
    guest: &Guest,
    logs: &Logs,
) -> Result<Clues, CallError> {
    let found = domain::lookup(connection, guest)?;
    let mut clues = Clues {
        domain: match &found {
            Some(domain) => domain::state(domain)?,
            None => domain::view(connection, guest)?,
        },
        domain_type: String::new(),
        agent: AgentView::NoChannel,
        lease: LeaseView::NotKept,
        console: logs.tail(connection, logs::console_path(guest), TAIL),
        log: logs.tail(connection, logs::qemu_path(guest), TAIL),
    };
    if let Some(domain) = found {
        let xml: DomainXml = host::parse(&domain.xml_desc(0)?, "domain")?;
        clues.agent = agent(&xml);
        clues.domain_type = xml.kind;
        clues.lease = lease(connection, settings, &domain, &guest.mac())?;
    }
    Ok(clues)
}

fn agent(xml: &DomainXml) -> AgentView {
    let targets = xml.devices.channel.iter().filter_map(|channel| channel.target.as_ref());
    let ours = targets.into_iter().find(|target| target.name.as_deref() == Some(AGENT_CHANNEL));
    match ours.map(|target| target.state.as_deref()) {
        None => AgentView::NoChannel,
        Some(Some("connected")) => AgentView::Connected,
        Some(_) => AgentView::Disconnected,
    }
}

fn lease(
    connection: &Connect,
    settings: &ProviderSettings,
    domain: &Domain,
    mac: &str,
) -> Result<LeaseView, CallError> {
    let NetworkAttachment::Network(name) = &settings.network else {
        return Ok(LeaseView::NotKept);
    };
    if !host::serves_dhcp(connection, name)? {
        return Ok(LeaseView::NotKept);
    }
    // A domain that is off has no interface to ask about.
    let source = sys::VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_LEASE;
    let found = domain
        .interface_addresses(source, 0)
        .ok()
        .and_then(|interfaces| address::pick(&interfaces, mac));
    Ok(found.map_or(LeaseView::NotYet, |(ip, _)| LeaseView::Leased(ip)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agents_channel_is_read_from_the_live_xml() {
        let of = |channels: &str| {
            let xml = format!("<domain type='qemu'><devices>{channels}</devices></domain>");
            agent(&host::parse(&xml, "domain").map_err(|_| "unreadable").unwrap())
        };
        let channel = |state: &str| {
            format!(
                "<channel type='spicevmc'><target type='virtio' name='x'/></channel><channel \
                 type='unix'><source mode='bind'/><target type='virtio' name='{AGENT_CHANNEL}' \
                 {state}/><alias name='a'/></channel>"
            )
        };
        assert_eq!(of(&channel("state='connected'")), AgentView::Connected);
        assert_eq!(of(&channel("state='disconnected'")), AgentView::Disconnected);
        assert_eq!(of(&channel("")), AgentView::Disconnected);
        assert_eq!(of("<disk/>"), AgentView::NoChannel);
    }
}
