//! Chooses the address at which each node listens.

use crate::settings::hostfile::HostSpec;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use tameike_core::{Errno, Fault, Result};

/// Port for route lookups, which send no packet.
const DISCARD_PORT: u16 = 9;

/// Returns the listen addresses of the nodes, in order. If all nodes are on this host, they use the loopback.
pub fn listen_addresses(nodes: &[HostSpec]) -> Result<Vec<IpAddr>> {
    let all_here = nodes.iter().all(|node| node.is_here() && node.address.is_none());
    if all_here {
        return Ok(vec![Ipv4Addr::LOCALHOST.into(); nodes.len()]);
    }
    let (mut resolved, mut unknown) = (Vec::with_capacity(nodes.len()), Vec::new());
    for node in nodes {
        match resolve(node) {
            Ok(address) => resolved.push(address),
            Err(fault) => unknown.push(fault.to_string()),
        }
    }
    unknown.dedup();
    if !unknown.is_empty() {
        return Err(Fault::new(Errno::EHOSTDOWN, unknown.join("; ")));
    }
    let other = resolved.iter().find(|address| !address.is_loopback()).copied();
    let reachable = |(node, address): (&HostSpec, &IpAddr)| match other {
        Some(other) if address.is_loopback() && node.is_here() => own_address_towards(other),
        _ => Ok(*address),
    };
    nodes.iter().zip(&resolved).map(reachable).collect()
}

fn resolve(node: &HostSpec) -> Result<IpAddr> {
    let name = node.address.as_deref().unwrap_or(&node.host);
    let name = name.rsplit_once('@').map_or(name, |(_, host)| host);
    let unknown = |why: &dyn std::fmt::Display| {
        let message =
            format!("finding the address of host {name}: {why}; give it in the hostfile as address=ADDRESS");
        Fault::new(Errno::EHOSTDOWN, message)
    };
    let found: Vec<_> =
        (name, DISCARD_PORT).to_socket_addrs().map_err(|error| unknown(&error))?.map(|a| a.ip()).collect();
    let first = found.iter().find(|address| address.is_ipv4()).or(found.first());
    first.copied().ok_or_else(|| unknown(&"no address"))
}

/// Returns this host's address on the route to `other`.
fn own_address_towards(other: IpAddr) -> Result<IpAddr> {
    let any = if other.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    UdpSocket::bind(any)
        .and_then(|socket| socket.connect(SocketAddr::new(other, DISCARD_PORT)).and(socket.local_addr()))
        .map(|address| address.ip())
        .map_err(|error| Fault::from_os(format_args!("finding this host's address towards {other}"), &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_of_one_host_use_the_loopback() {
        let here = vec![HostSpec::new("localhost"); 2];
        assert_eq!(listen_addresses(&here).expect("known"), [IpAddr::from(Ipv4Addr::LOCALHOST); 2]);
    }

    #[test]
    fn given_addresses_are_taken() {
        let node =
            |address: &str| HostSpec { address: Some(address.into()), ..HostSpec::new("no-such.invalid") };
        let found = listen_addresses(&[node("10.9.0.1"), node("fd00::2")]).expect("given");
        assert_eq!(found, ["10.9.0.1".parse::<IpAddr>().expect("one"), "fd00::2".parse().expect("one")]);
        let fault = listen_addresses(&[HostSpec::new("no-such.invalid")]).expect_err("unknown");
        assert!(fault.to_string().contains("address=ADDRESS"), "{fault}");
    }
}
