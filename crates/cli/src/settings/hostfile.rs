//! Parsing of the nodes of a job: `--hosts a,b,c`, or a file with one host per line.
//!
//! A hostfile may have one line per slot, like `$PBS_NODEFILE`: each host gets one node. `slots=N` and `max_slots=N` of MPI
//! launchers are ignored. A host that `--hosts` lists twice gets two nodes.

use serde::{Deserialize, Serialize};
use std::path::Path;
use tameike_core::{Errno, Fault, Result};
use tameike_io::os::process::host_name;

/// One node as the user lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostSpec {
    /// Name of the host, for ssh and for people.
    pub host: String,
    /// Address at which other nodes reach it, if its name does not resolve to it.
    pub address: Option<String>,
    /// True if the node has a device.
    pub device: bool,
    /// Nodes of a group share the group's devices.
    pub group: u32,
}

impl HostSpec {
    /// Returns a node on `host` with a device, in group 0.
    pub fn new(host: &str) -> Self {
        Self { host: host.to_owned(), address: None, device: true, group: 0 }
    }

    /// Returns true if the host is this one.
    pub fn is_here(&self) -> bool {
        let here = host_name();
        matches!(self.host.as_str(), "localhost" | "127.0.0.1" | "::1") || is_same_host(&self.host, &here)
    }
}

/// Returns true if two names denote one host. A name without a domain matches one with any domain.
fn is_same_host(one: &str, other: &str) -> bool {
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_ascii_lowercase();
    let both_full = one.contains('.') && other.contains('.');
    if both_full { one.eq_ignore_ascii_case(other) } else { short(one) == short(other) }
}

/// Parses `a,b,c`.
///
/// # Errors
/// `EINVAL`: no host, or an invalid name.
pub fn parse_list(text: &str) -> Result<Vec<HostSpec>> {
    let names: Vec<_> = text.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    if names.is_empty() {
        return Err(Fault::new(Errno::EINVAL, "--hosts lists no host; write it like --hosts a,b,c"));
    }
    names.into_iter().map(|name| check_name(name).map(|()| HostSpec::new(name))).collect()
}

/// Reads a hostfile.
///
/// # Errors
/// The file cannot be read, lists no host, or has an invalid line, which the fault names.
pub fn read(path: &Path) -> Result<Vec<HostSpec>> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Fault::from_os(format_args!("reading hostfile {}", path.display()), &error))?;
    let hosts = parse(&text).map_err(|fault| fault.context(format_args!("hostfile {}", path.display())))?;
    if hosts.is_empty() {
        return Err(Fault::new(Errno::EINVAL, format!("hostfile {} lists no host", path.display())));
    }
    Ok(hosts)
}

/// Parses the text of a hostfile.
///
/// # Errors
/// A line is invalid; the fault names the line.
pub fn parse(text: &str) -> Result<Vec<HostSpec>> {
    let mut hosts = Vec::new();
    for (place, line) in text.lines().enumerate() {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(name) = words.next() else { continue };
        let at_line = |fault: Fault| fault.context(format_args!("line {}", place + 1));
        check_name(name).map_err(at_line)?;
        let mut host = HostSpec::new(name);
        for word in words {
            apply(&mut host, word).map_err(at_line)?;
        }
        add(&mut hosts, host).map_err(at_line)?;
    }
    Ok(hosts)
}

/// Adds a host, unless it is listed already.
fn add(hosts: &mut Vec<HostSpec>, host: HostSpec) -> Result<()> {
    match hosts.iter().find(|known| is_same_host(&known.host, &host.host)) {
        None => hosts.push(host),
        Some(known) if HostSpec { host: known.host.clone(), ..host.clone() } == *known => {}
        Some(known) => {
            let message =
                format!("{} has other attributes than {} above: a host gets one node", host.host, known.host);
            return Err(Fault::new(Errno::EINVAL, message));
        }
    }
    Ok(())
}

/// Applies one `key=value` word of a line.
fn apply(host: &mut HostSpec, word: &str) -> Result<()> {
    match word.split_once('=') {
        Some(("device", "yes")) => host.device = true,
        Some(("device", "no")) => host.device = false,
        Some(("address", address)) if !address.is_empty() => host.address = Some(address.to_owned()),
        Some(("group", number)) => {
            let wrong = || Fault::new(Errno::EINVAL, format!("{word:?}: a group must be a number"));
            host.group = number.parse().map_err(|_| wrong())?;
        }
        Some(("slots" | "max_slots" | "max-slots", _)) => {}
        _ => {
            let known = "device=yes|no, group=NUMBER, address=ADDRESS and slots=NUMBER";
            return Err(Fault::new(Errno::EINVAL, format!("{word:?} is not one of {known}")));
        }
    }
    Ok(())
}

/// Refuses names that ssh would parse as options, and invalid host names.
fn check_name(name: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._:@[]%".contains(c);
    if name.is_empty() || name.starts_with('-') || !name.chars().all(plain) {
        return Err(Fault::new(Errno::EINVAL, format!("{name:?} is not a host name")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostfiles_of_launchers_are_parsed() {
        let text =
            "# nodes\n\na slots=4\nb device=no group=2 # no disk\n c.example max_slots=8 address=10.0.0.3\n";
        let hosts = parse(text).expect("a good file");
        assert_eq!(hosts.iter().map(|host| host.host.as_str()).collect::<Vec<_>>(), ["a", "b", "c.example"]);
        assert_eq!((hosts[1].device, hosts[1].group), (false, 2));
        assert_eq!(hosts[2].address.as_deref(), Some("10.0.0.3"));
    }

    /// `$PBS_NODEFILE` has a line per slot, and each line became a node.
    #[test]
    fn a_host_with_a_line_per_slot_gets_one_node() {
        let hosts = parse("b.example\nb.example\na\nb slots=2\na.example\n").expect("a good file");
        assert_eq!(hosts, [HostSpec::new("b.example"), HostSpec::new("a")]);
        let message = parse("a device=no\nb\na\n").expect_err("which of the two?").to_string();
        assert!(message.contains("line 3") && message.contains("one node"), "{message}");
        assert_eq!(parse_list("a,a").expect("two nodes").len(), 2);
    }

    #[test]
    fn bad_lines_are_named() {
        for (text, part) in [
            ("a\n-oProxyCommand=x", "line 2"),
            ("a disk=no", "device=yes|no"),
            ("a group=x", "a group must be a number"),
            ("a b", "\"b\""),
            ("a;rm", "not a host name"),
        ] {
            let message = parse(text).expect_err(text).to_string();
            assert!(message.contains(part), "{message}");
        }
        assert!(parse_list(" , ").is_err());
        assert_eq!(parse_list("a, b").expect("two hosts").len(), 2);
    }

    #[test]
    fn names_of_this_host_are_recognized() {
        assert!(HostSpec::new("localhost").is_here());
        assert!(HostSpec::new(&host_name()).is_here());
        assert!(!HostSpec::new("no-such-host.invalid").is_here());
        assert!(is_same_host("N1", "n1.a.example") && is_same_host("n1.a.example", "n1.A.example"));
        assert!(!is_same_host("n1.b.example", "n1.a.example") && !is_same_host("n2", "n1.a.example"));
    }
}
