//! Starts a distributed GlusterFS volume: a brick and a FUSE mount per node. It has each file on one brick or on two.
//!
//! The management daemon runs with a separate port and directory, only to write the volume files. This program starts bricks and clients
//! from these.

use super::peer::{Peer, READY_LIMIT};
use crate::outcome::{Context, Outcome};
use crate::place::Limits;
use crate::wait;
use std::fs;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};

const NAME: &str = "bench";
const INSTALL: &str = "(GlusterFS is Debian's glusterfs-server; it needs root)";

/// Options of the volume with each file on two bricks.
const REPLICATED: &[&str] = &["replica", "2"];

/// Starts a volume over `nodes` bricks, mounted once per node.
pub fn start(nodes: u32, store: &Path, limits: &Limits) -> Outcome<Peer> {
    start_with(&[], nodes, store, limits)
}

/// Starts the same with each file on two bricks.
pub fn start_replicated(nodes: u32, store: &Path, limits: &Limits) -> Outcome<Peer> {
    start_with(REPLICATED, nodes, store, limits)
}

fn start_with(volume: &[&str], nodes: u32, store: &Path, limits: &Limits) -> Outcome<Peer> {
    let mut peer = Peer::new("gluster", INSTALL, store)?;
    let host = own_address()?;
    lay_out(&peer, volume, nodes, &host, limits)?;
    let ports = start_bricks(&mut peer, nodes, &host, limits)?;
    for node in 0..nodes {
        mount(&mut peer, node, &ports, limits)?;
    }
    Ok(peer)
}

/// Name and version of the GlusterFS on this machine.
pub fn version() -> Outcome<String> {
    super::version_of(Path::new("glusterfs"))
}

/// Has glusterd write the volume files, with these options of the volume.
fn lay_out(peer: &Peer, volume: &[&str], nodes: u32, host: &str, limits: &Limits) -> Outcome<()> {
    peer.make("work")?;
    peer.make("run")?;
    let socket = peer.path("run/socket");
    let settings = format!(
        "volume management\n    type mgmt/glusterd\n    option working-directory {}\n    \
         option run-directory {}\n    option glusterd-sockfile {}\n    option transport-type socket\n    \
         option transport.address-family inet\n    option transport.socket.listen-port {}\nend-volume\n",
        peer.text("work"),
        peer.text("run"),
        socket.display(),
        free_ports(1)?[0],
    );
    peer.write("glusterd.vol", &settings)?;
    let mut glusterd = program(peer, "glusterd", "glusterd");
    let mut daemon = peer.start_for_now(glusterd.args(["-f", &peer.text("glusterd.vol")]), "glusterd")?;
    let gluster = |words: &[&str]| {
        let mut command = Command::new("gluster");
        command.arg("--mode=script").arg(format!("--glusterd-sock={}", socket.display()));
        command.arg(format!("--log-file={}", peer.text("log/cli"))).args(words).stdin(Stdio::null());
        command
    };
    wait::until("glusterd", READY_LIMIT, || {
        limits.interrupt.check()?;
        if daemon.status()?.is_some() {
            return Err(format!("glusterd ended {INSTALL}:{}", peer.log_tail()));
        }
        let listed = || gluster(&["pool", "list"]).output().context(|| format!("start gluster {INSTALL}"));
        Ok(socket.exists() && listed()?.status.success())
    })?;
    let words = [&["volume", "create", NAME], volume].concat();
    let mut words: Vec<String> = words.into_iter().map(str::to_owned).collect();
    for node in 0..nodes {
        peer.make(&format!("brick-{node}"))?;
        words.push(format!("{host}:{}", peer.text(&format!("brick-{node}"))));
    }
    words.push("force".to_owned());
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    peer.call(&mut gluster(&words))
}

/// Starts a brick per node, waits until all listen, and returns their ports.
fn start_bricks(peer: &mut Peer, nodes: u32, host: &str, limits: &Limits) -> Outcome<Vec<u16>> {
    let ports = free_ports(nodes as usize)?;
    let info = fs::read_to_string(peer.path("work/glusterd.info")).context(|| "read what glusterd wrote")?;
    let uuid = info.lines().find_map(|line| line.strip_prefix("UUID=")).unwrap_or_default();
    for (node, port) in (0..).zip(&ports) {
        let brick = peer.text(&format!("brick-{node}"));
        let file = format!("work/vols/{NAME}/{NAME}.{host}.{}.vol", brick[1..].replace('/', "-"));
        let mut command = program(peer, "glusterfsd", &format!("brick-{node}"));
        command.args(["-f", &peer.text(&file)]);
        command.args(["--xlator-option", &format!("{NAME}-server.listen-port={port}")]);
        command.args(["--xlator-option", &format!("*-posix.glusterd-uuid={uuid}")]);
        command.args(["--process-name", "brick", "--brick-name", &brick]);
        peer.start(&mut command, &format!("brick-{node}"))?;
    }
    for (node, &port) in ports.iter().enumerate() {
        peer.wait(&format!("brick {node}"), limits, || Ok(TcpStream::connect(("127.0.0.1", port)).is_ok()))?;
    }
    Ok(ports)
}

/// Mounts the volume for one node.
fn mount(peer: &mut Peer, node: u32, ports: &[u16], limits: &Limits) -> Outcome<()> {
    let mut command = program(peer, "glusterfs", &format!("client-{node}"));
    command.args(["-f", &peer.text(&format!("work/vols/{NAME}/trusted-{NAME}.tcp-fuse.vol"))]);
    for (brick, port) in ports.iter().enumerate() {
        for setting in ["remote-host=127.0.0.1".to_owned(), format!("remote-port={port}")] {
            command.args(["--xlator-option", &format!("{NAME}-client-{brick}.{setting}")]);
        }
    }
    peer.mount(node, &mut command, limits)
}

/// One of GlusterFS's programs, in the foreground.
fn program(peer: &Peer, name: &str, log: &str) -> Command {
    let mut command = Command::new(name);
    command.args(["--no-daemon", "--log-file", &peer.text(&format!("log/{log}"))]);
    command
}

/// Finds free ports. It holds all of them while it chooses, so that they differ.
fn free_ports(count: usize) -> Outcome<Vec<u16>> {
    let listeners: Result<Vec<TcpListener>, _> =
        (0..count).map(|_| TcpListener::bind(("127.0.0.1", 0))).collect();
    let ports = listeners.and_then(|all| all.iter().map(|one| Ok(one.local_addr()?.port())).collect());
    ports.context(|| "find a free port")
}

/// The host name for GlusterFS, which takes no loopback address, and the host's name only if the resolver knows it.
fn own_address() -> Outcome<String> {
    // Choosing a route sends nothing; the destination is an address reserved for documentation.
    let routed = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        socket.connect("192.0.2.1:9")?;
        socket.local_addr()
    });
    match routed.map(|address| address.ip()) {
        Ok(address) if !address.is_loopback() && !address.is_unspecified() => Ok(address.to_string()),
        _ => {
            let name =
                fs::read_to_string("/proc/sys/kernel/hostname").context(|| "read the name of this host")?;
            Ok(name.trim().to_owned())
        }
    }
}
