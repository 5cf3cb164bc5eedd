//! A Gfarm of this program's own: a metadata server, one I/O server, and a FUSE mount per node.
//!
//! A Gfarm client reads the spool of an I/O server on its host directly. So the servers live in a network namespace that the clients
//! reach through a pair of virtual interfaces. Gfarm takes host names and keys from `/etc/hosts` and the users' homes only. The set-up
//! mounts files over `/etc/hosts` and `/etc/passwd`, and so needs the mount namespace of `tameike-bench slow-server`.

use super::peer::Peer;
use crate::outcome::{Context, Outcome};
use crate::place::Limits;
use crate::slow_server;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const INSTALL: &str = "(Gfarm is Debian's gfmd, gfsd, gfarm2fs and gfarm-client; it needs root)";
/// These addresses are reserved for documentation, so they stand for no host.
const SERVER: &str = "192.0.2.1";
const CLIENT: &str = "192.0.2.2";
const PORT: &str = "601";
const IO_PORT: &str = "600";

/// Connects the namespaces, and writes the settings and keys. The arguments are the process that holds the server's namespace, and the directory.
const PREPARE: &str = r#"
set -e
ip link add client type veth peer name server netns $0
ip address add $CLIENT/24 dev client
ip link set client up
nsenter --net=/proc/$0/ns/net -- sh -c "ip link set lo up && ip address add $SERVER/24 dev server && ip link set server up"
printf '127.0.0.1 localhost\n%s server\n%s client\n' $SERVER $CLIENT >$1/hosts
mount --bind $1/hosts /etc/hosts
config-gfarm --prefix $1 -N -b none -h server -A root -a sharedsecret -m $PORT
mkdir -p $1/var/gfarm-metadata/journal
awk -F: -v OFS=: -v at=$1 '$1 == "root" || $1 == "_gfarmfs" { $6 = at "/home-" $1 } { print }' /etc/passwd >$1/passwd
mount --bind $1/passwd /etc/passwd
gfkey -f -p 864000
install -m 600 -o _gfarmfs $1/home-root/.gfarm_shared_key $1/home-_gfarmfs
chown _gfarmfs $1/home-_gfarmfs $1/spool
printf '%s\n' "metadb_server_host server" "metadb_server_port $PORT" "auth enable sharedsecret *" "spool $1/spool" \
    "spool_server_listen_address $SERVER" "spool_server_cred_type host" >$1/etc/gfsd.conf
# Clients let go of files some time after they close them.
echo "max_open_files 65536" >>$1/etc/gfmd.conf
"#;
/// Registers the I/O server's user and host. The argument is the directory.
const REGISTER: &str =
    "gfuser -c _gfarmfs _gfarmfs $0/home-_gfarmfs '' && gfhost -c -a x86_64-linux -n 1 -p $IO_PORT server";

/// Starts the servers, mounted once per node.
pub fn start(nodes: u32, store: &Path, limits: &Limits) -> Outcome<Peer> {
    if std::env::var_os(slow_server::INSIDE).is_none() {
        return Err("Gfarm changes /etc/hosts: run it in `tameike-bench slow-server -- ...`".to_owned());
    }
    let mut peer = Peer::new("gfarm", INSTALL, store)?;
    // The I/O server runs as another user.
    let root: PathBuf = peer.path("").components().collect();
    fs::set_permissions(&root, Permissions::from_mode(0o755))
        .context(|| format!("open {}", root.display()))?;
    for directory in ["spool", "home-root", "home-_gfarmfs"] {
        peer.make(directory)?;
    }
    let holder = peer.start(Command::new("unshare").args(["--net", "sleep", "infinity"]), "namespace")?;
    let (held, own) = (format!("/proc/{holder}/ns/net"), fs::read_link("/proc/self/ns/net"));
    let own = own.context(|| "read the network namespace")?;
    peer.wait("a network namespace", limits, || Ok(fs::read_link(&held).is_ok_and(|held| held != own)))?;
    let configuration = peer.text("etc/gfarm2.conf");
    let program = |name: &str| {
        let mut command = Command::new(name);
        command.envs([("SERVER", SERVER), ("CLIENT", CLIENT), ("PORT", PORT), ("IO_PORT", IO_PORT)]);
        command.env("GFARM_CONFIG_FILE", &configuration);
        command
    };
    let server = |name: &str| {
        let mut command = program("nsenter");
        command.arg(format!("--net={held}")).args(["--", name]);
        command
    };
    peer.call(program("sh").args(["-c", PREPARE, &holder.to_string(), &root.display().to_string()]))?;
    peer.start(server("gfmd").args(["-f", &peer.text("etc/gfmd.conf"), "-d"]), "gfmd")?;
    peer.wait("gfmd", limits, || {
        Ok(program("gfls").arg("/").output().is_ok_and(|done| done.status.success()))
    })?;
    peer.call(program("sh").args(["-c", REGISTER, &root.display().to_string()]))?;
    let (settings, spool) = (peer.text("etc/gfsd.conf"), peer.text("spool"));
    peer.start(server("gfsd").args(["-f", &settings, "-h", "server", "-r", &spool, "-d"]), "gfsd")?;
    peer.wait("gfsd", limits, || {
        let listed = program("gfhost").arg("-l").output().context(|| "start gfhost")?;
        Ok(String::from_utf8_lossy(&listed.stdout).contains(SERVER))
    })?;
    for node in 0..nodes {
        peer.mount(node, program("gfarm2fs").arg("-f"), limits)?;
    }
    Ok(peer)
}

/// Name and version of the Gfarm on this machine.
pub fn version() -> Outcome<String> {
    let output = Command::new("dpkg-query").args(["--show", "--showformat=${Version}", "gfsd"]).output();
    let output = output.context(|| format!("start dpkg-query {INSTALL}"))?;
    Ok(format!("Gfarm {}", String::from_utf8_lossy(&output.stdout)))
}
