//! Starts MooseFS: a master, and a chunk server and a FUSE mount per node.
//!
//! MooseFS refuses chunk servers on loopback addresses. So its processes run in a network namespace with an address that is reserved for
//! documentation. The volume keeps one copy and no trash, as the other targets do.

use super::peer::Peer;
use crate::outcome::{Context, Outcome};
use crate::place::Limits;
use std::fs;
use std::path::Path;
use std::process::Command;

const INSTALL: &str =
    "(MooseFS is Debian's moosefs-master, moosefs-chunkserver and moosefs-client; it needs root)";
/// Reserved for documentation, so it stands for no host.
const ADDRESS: &str = "192.0.2.1";
/// The usual port of the master: no other process is in the namespace.
const MASTER_PORT_FOR_CLIENTS: u16 = 9421;
const FIRST_CHUNK_PORT: u16 = 9500;
/// The metadata of a new master.
const EMPTY_METADATA: &str = "MFSM NEW";
/// The daemons run as root, and with the priority of the ranks.
const AS_STARTED: &str = "WORKING_USER = root\nWORKING_GROUP = root\nNICE_LEVEL = 0\n";
/// Frees the chunks of removed files as fast as possible.
const REMOVE_SOON: &str =
    "CHUNKS_LOOP_MIN_TIME = 60\nCHUNKS_SOFT_DEL_LIMIT = 1000\nCHUNKS_HARD_DEL_LIMIT = 1000\n";
const LISTENING: &str = "0A";

/// Starts a master and `nodes` chunk servers, mounted once per node.
pub fn start(nodes: u32, store: &Path, limits: &Limits) -> Outcome<Peer> {
    let mut peer = Peer::new("moosefs", INSTALL, store)?;
    let namespace = make_namespace(&mut peer, limits)?;
    start_master(&mut peer, &namespace, limits)?;
    for node in 0..nodes {
        start_chunk_server(&mut peer, node, &namespace, limits)?;
    }
    for node in 0..nodes {
        let mut client = namespace.program("mfsmount");
        client.args(["-f", "-H", ADDRESS, "-o", "mfsnice=0"]);
        peer.mount(node, &mut client, limits)?;
    }
    let mount = peer.path("mount-0");
    peer.wait("the space of all chunk servers", limits, || has_space_of(&mount, store, nodes))?;
    for (tool, figure) in [("mfssetgoal", "1"), ("mfssettrashtime", "0")] {
        peer.call(namespace.program(tool).arg(figure).arg(&mount))?;
    }
    Ok(peer)
}

/// Name and version of the MooseFS on this machine.
pub fn version() -> Outcome<String> {
    let output =
        Command::new("mfsmaster").arg("-v").output().context(|| format!("start mfsmaster {INSTALL}"))?;
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    Ok(format!("MooseFS {}", said.lines().next().unwrap_or("unknown").trim_start_matches("version: ")))
}

/// A network namespace, named by a process in it.
struct Namespace(u32);

impl Namespace {
    /// A command that runs a program in it.
    fn program(&self, name: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.0)).arg("--").arg(name);
        command
    }

    /// Returns true if a process in it listens on `port`.
    fn listens(&self, port: u16) -> Outcome<bool> {
        let path = format!("/proc/{}/net/tcp", self.0);
        let sockets = fs::read_to_string(&path).context(|| format!("read {path}"))?;
        Ok(is_listening(&sockets, port))
    }
}

/// Returns true if a list like `/proc/net/tcp` has a socket that listens on `port`.
fn is_listening(sockets: &str, port: u16) -> bool {
    let end = format!(":{port:04X}");
    sockets.lines().any(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        fields.next().is_some_and(|local| local.ends_with(&end)) && fields.nth(1) == Some(LISTENING)
    })
}

fn make_namespace(peer: &mut Peer, limits: &Limits) -> Outcome<Namespace> {
    let script = format!(
        "ip link set lo up && ip address add {ADDRESS}/32 dev lo && touch \"$0\" && exec sleep infinity"
    );
    let ready = peer.path("namespace");
    let mut holder = Command::new("unshare");
    let holder = peer.start(holder.args(["--net", "sh", "-c", &script]).arg(&ready), "namespace")?;
    peer.wait("a network namespace", limits, || Ok(ready.exists()))?;
    Ok(Namespace(holder))
}

fn start_master(peer: &mut Peer, namespace: &Namespace, limits: &Limits) -> Outcome<()> {
    peer.make("master")?;
    peer.write("master/metadata.mfs", EMPTY_METADATA)?;
    peer.write("exports.cfg", "* / rw,alldirs,admin,maproot=0:0\n")?;
    peer.write("topology.cfg", "")?;
    let (data, exports, topology) =
        (peer.text("master"), peer.text("exports.cfg"), peer.text("topology.cfg"));
    let settings = format!(
        "{AS_STARTED}{REMOVE_SOON}DATA_PATH = {data}\nEXPORTS_FILENAME = {exports}\n\
         TOPOLOGY_FILENAME = {topology}\n"
    );
    peer.write("master.cfg", &settings)?;
    let mut master = namespace.program("mfsmaster");
    peer.start(master.args(["-f", "-c", &peer.text("master.cfg"), "start"]), "master")?;
    peer.wait("the master", limits, || namespace.listens(MASTER_PORT_FOR_CLIENTS))
}

fn start_chunk_server(peer: &mut Peer, node: u32, namespace: &Namespace, limits: &Limits) -> Outcome<()> {
    let port = u16::try_from(node).ok().and_then(|node| FIRST_CHUNK_PORT.checked_add(node));
    let port = port.ok_or_else(|| format!("there is no port for chunk server {node}"))?;
    let (name, disks, settings) =
        (format!("server-{node}"), format!("disks-{node}"), format!("server-{node}.cfg"));
    peer.make(&name)?;
    peer.make(&format!("chunks-{node}"))?;
    peer.write(&disks, &format!("{}\n", peer.text(&format!("chunks-{node}"))))?;
    let text = format!(
        "{AS_STARTED}DATA_PATH = {}\nHDD_CONF_FILENAME = {}\nMASTER_HOST = {ADDRESS}\n\
         MASTER_RECONNECTION_DELAY = 1\nCSSERV_LISTEN_PORT = {port}\n",
        peer.text(&name),
        peer.text(&disks),
    );
    peer.write(&settings, &text)?;
    let mut server = namespace.program("mfschunkserver");
    peer.start(server.args(["-f", "-c", &peer.text(&settings), "start"]), &name)?;
    peer.wait(&format!("chunk server {node}"), limits, || namespace.listens(port))
}

/// Returns true if `mount` offers the space of all `nodes` chunk servers: each has that of `store`, less what it leaves
/// free, so more than those of all but one is that of all.
fn has_space_of(mount: &Path, store: &Path, nodes: u32) -> Outcome<bool> {
    let bytes = |path: &Path| {
        let found =
            rustix::fs::statvfs(path).context(|| format!("ask for the space of {}", path.display()))?;
        Ok::<_, String>(u128::from(found.f_blocks) * u128::from(found.f_frsize))
    };
    Ok(bytes(mount)? > u128::from(nodes - 1) * bytes(store)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listening_sockets_are_distinguished_from_connected_ones() {
        let sockets = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n   \
                       0: 00000000:24CD 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0\n   \
                       1: 010200C0:9C40 010200C0:24CC 01 00000000:00000000 00:00000000 00000000     0\n";
        assert_eq!([9421, 9420, 0x9C40].map(|port| is_listening(sockets, port)), [true, false, false]);
    }
}
