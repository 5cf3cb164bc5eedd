//! A private MooseFS: a master, a chunk server in /dev/shm and a FUSE mount per node.
//!
//! MooseFS refuses chunk servers on loopback addresses. So all of its processes run in a private network namespace, with an
//! address reserved for documentation; the namespace ends with the last process. There is one copy of all data, and removed files
//! are freed at once, as on the other targets.

use super::peer::Peer;
use crate::coordinator::Limits;
use crate::outcome::{Context, Outcome};
use std::fs;
use std::path::Path;
use std::process::Command;

const INSTALL: &str =
    "(MooseFS is Debian's moosefs-master, moosefs-chunkserver and moosefs-client; it needs root)";
/// Reserved for documentation, so it denotes no host.
const ADDRESS: &str = "192.0.2.1";
/// The default ports of the master, since the namespace has no other processes.
const MASTER_PORT_FOR_CLIENTS: u16 = 9421;
const FIRST_CHUNK_PORT: u16 = 9500;
/// The metadata of a new master.
const EMPTY_METADATA: &str = "MFSM NEW";
/// Settings for daemons started by hand: no change of user, and no priority over the ranks.
const AS_STARTED: &str = "WORKING_USER = root\nWORKING_GROUP = root\nNICE_LEVEL = 0\n";
/// Frees chunks of removed files as fast as possible, because of the memory that they occupy.
const REMOVE_SOON: &str =
    "CHUNKS_LOOP_MIN_TIME = 60\nCHUNKS_SOFT_DEL_LIMIT = 1000\nCHUNKS_HARD_DEL_LIMIT = 1000\n";
const LISTENING: &str = "0A";

/// Starts a master and `nodes` chunk servers, mounted once per node.
pub fn start(nodes: u32, limits: &Limits) -> Outcome<Peer> {
    let mut peer = Peer::new("moosefs", INSTALL)?;
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
    peer.wait("the space of all chunk servers", limits, || has_space_of(&mount, nodes))?;
    for (tool, figure) in [("mfssetgoal", "1"), ("mfssettrashtime", "0")] {
        peer.call(namespace.program(tool).arg(figure).arg(&mount))?;
    }
    Ok(peer)
}

pub fn version() -> Outcome<String> {
    let output =
        Command::new("mfsmaster").arg("-v").output().context(|| format!("start mfsmaster {INSTALL}"))?;
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    Ok(format!("MooseFS {}", text.lines().next().unwrap_or("unknown").trim_start_matches("version: ")))
}

/// A network namespace, by the number of its process.
struct Namespace(u32);

impl Namespace {
    /// A command in the namespace.
    fn program(&self, name: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.0)).arg("--").arg(name);
        command
    }

    /// True if a process in the namespace listens on `port`.
    fn listens(&self, port: u16) -> Outcome<bool> {
        let path = format!("/proc/{}/net/tcp", self.0);
        let sockets = fs::read_to_string(&path).context(|| format!("read {path}"))?;
        Ok(is_listening(&sockets, port))
    }
}

/// True if a list in the format of `/proc/net/tcp` has a listening socket with `port`.
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

/// True if `mount` has the space of all `nodes` chunk servers. Each has slightly less than that of /dev/shm, so more than the
/// space of all but one suffices.
fn has_space_of(mount: &Path, nodes: u32) -> Outcome<bool> {
    let bytes = |path: &Path| {
        let found = rustix::fs::statvfs(path).context(|| format!("get the space of {}", path.display()))?;
        Ok::<_, String>(u128::from(found.f_blocks) * u128::from(found.f_frsize))
    };
    Ok(bytes(mount)? > u128::from(nodes - 1) * bytes(Path::new("/dev/shm"))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listening_sockets_differ_from_connected_ones() {
        let sockets = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n   \
                       0: 00000000:24CD 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0\n   \
                       1: 010200C0:9C40 010200C0:24CC 01 00000000:00000000 00:00000000 00000000     0\n";
        assert_eq!([9421, 9420, 0x9C40].map(|port| is_listening(sockets, port)), [true, false, false]);
    }
}
