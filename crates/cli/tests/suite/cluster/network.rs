//! Hosts of a cluster: network namespaces on a bridge, each with its own `/dev/shm` and directory for jobs, reached by a stub
//! for ssh. Jobs start on the first host, or outside as from a login node.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::support::jobs::signal;
use crate::support::{
    Site, assert_no_files, binary, is_root, json, processes_naming, succeed, utf8, wrapped,
};

/// Runs a command on a host, in a shell, and passes only a few variables. The host where jobs start has the machine's name; other hosts have
/// names of the test.
const ON: &str = r#"#!/bin/sh
set -eu
host=$1
shift
outside="nsenter --mount=/proc/@TEST@/ns/mnt --"
for_all='env -i PATH="$PATH" HOME="$HOME" STARTED_FOR="@BASE@" sh -c "$*"'
if [ "$host" = "@HERE@" ]; then
    exec $outside ip netns exec "@FIRST@" sh -euc "exec $for_all" sh "$@"
fi
exec $outside ip netns exec "$host" unshare --mount --uts sh -euc '
    hostname "$1"
    mount --bind "@HOSTS@/$1" "@BASE@"
    mount --bind "@MEMORY@/$1" /dev/shm
    [ ! -d "@REMEMBERED@" ] || mount --bind "@REMEMBERED@" "@SHARED@"
    shift
    exec '"$for_all" sh "$host" "$@"
"#;

/// The stub for ssh. Like ssh, it works from inside every node, and connects to no host that is isolated, nor from there.
const SSH: &str = r#"#!/bin/sh
set -eu
from=$(hostname)
to=$1
[ "$from" != "@HERE@" ] || from=@FIRST@
[ "$to" != "@HERE@" ] || to=@FIRST@
tries=0
while [ -e "@ISOLATED@$from" ] || [ -e "@ISOLATED@$to" ]; do
    tries=$((tries + 1))
    [ $tries -le 150 ] || exit 255
    sleep 0.2
done
exec @RELAY@ @ON@ "$@"
"#;

/// Runs a command like ssh, and can be stopped.
const RELAY: &str = include_str!("relay.py");

/// A hardware address that no host has.
const NOWHERE: &str = "02:00:00:00:00:01";

/// Hosts on a network, and their shared directories.
pub struct Cluster {
    name: String,
    hosts: u32,
    site: Site,
    /// Whether [`Self::isolate`] is possible.
    has_relays: bool,
}

impl Cluster {
    /// Creates hosts; jobs start on the first. `words` are the attributes of each host's line in the hostfile.
    pub fn new(words: &[&str]) -> Self {
        Self::started(words, "localhost", false)
    }

    /// The same, with connections of ssh that can fail too.
    pub fn with_relays(words: &[&str]) -> Self {
        Self::started(words, "localhost", true)
    }

    /// Creates hosts for jobs that start outside of them.
    pub fn from_login_node(words: &[&str]) -> Self {
        Self::started(words, "", false)
    }

    fn started(words: &[&str], first: &str, has_relays: bool) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        assert!(is_root(), "run the tests of clusters as root: they create network namespaces");
        // Names of links have at most 15 characters.
        let name = format!("t{}n{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let cluster = Self { name, hosts: words.len() as u32, site: Site::new(), has_relays };
        cluster.connect();
        let mut hostfile = String::new();
        for (host, words) in (0..).zip(words) {
            let here = host == 0 && !first.is_empty();
            let name = if here { first.to_owned() } else { cluster.host(host) };
            hostfile += &format!("{name} address=10.213.0.{} {words}\n", host + 1);
            for place in [cluster.hosts_dir(), cluster.memory_dir()] {
                fs::create_dir_all(place.join(cluster.host(host))).expect("a directory");
            }
        }
        fs::write(cluster.hostfile(), hostfile).expect("a hostfile");
        fs::write(cluster.path("relay.py"), RELAY).expect("a program");
        for (name, script) in [("on", ON), ("ssh", SSH)] {
            fs::write(cluster.path(name), cluster.filled(script)).expect("a script");
            fs::set_permissions(cluster.path(name), fs::Permissions::from_mode(0o755)).expect("a mode");
        }
        cluster
    }

    fn connect(&self) {
        let bridge = &self.name;
        ip(&format!("link add {bridge} type bridge"));
        ip(&format!("link set {bridge} up"));
        for host in 0..self.hosts {
            let (namespace, port) = (self.host(host), self.port(host));
            ip(&format!("netns add {namespace}"));
            ip(&format!("link add {port} type veth peer name eth0 netns {namespace}"));
            ip(&format!("link set {port} master {bridge} up"));
            ip(&format!("-n {namespace} addr add 10.213.0.{}/24 dev eth0", host + 1));
            ip(&format!("-n {namespace} link set eth0 up"));
            ip(&format!("-n {namespace} link set lo up"));
        }
    }

    /// A script with the places of this cluster.
    fn filled(&self, script: &str) -> String {
        script
            .replace("@HERE@", &machine())
            .replace("@TEST@", &std::process::id().to_string())
            .replace("@FIRST@", &self.host(0))
            .replace("@BASE@", utf8(self.site.base()))
            .replace("@HOSTS@", utf8(&self.hosts_dir()))
            .replace("@MEMORY@", utf8(&self.memory_dir()))
            .replace("@RELAY@", &self.relay())
            .replace("@ISOLATED@", utf8(&self.path("isolated-")))
            .replace("@ON@", utf8(&self.path("on")))
            .replace("@REMEMBERED@", utf8(&self.remembered_dir()))
            .replace("@SHARED@", utf8(self.shared()))
    }

    /// The start of a command line of ssh, which knows the hosts as `$from` and `$to`.
    fn relay(&self) -> String {
        let [relay, pids] = ["relay.py", "relays-"].map(|name| self.path(name).display().to_string());
        if self.has_relays { format!("python3 {relay} {pids}$from-$to") } else { String::new() }
    }

    fn host(&self, host: u32) -> String {
        format!("{}h{host}", self.name)
    }

    /// The name that programs on a host see.
    pub fn host_name(&self, host: u32) -> String {
        if host == 0 { machine() } else { self.host(host) }
    }

    fn port(&self, host: u32) -> String {
        format!("{}p{host}", self.name)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.site.shared().with_file_name(name)
    }

    /// Parent of the hosts' directories for jobs.
    fn hosts_dir(&self) -> PathBuf {
        self.path("hosts")
    }

    /// Parent of the hosts' `/dev/shm`.
    fn memory_dir(&self) -> PathBuf {
        Path::new("/dev/shm").join(&self.name)
    }

    /// Mount point of the shared directory with cached names and attributes.
    fn remembered_dir(&self) -> PathBuf {
        self.path("remembered")
    }

    /// Mounts the shared directory on all hosts but the first with caching of names and attributes for `seconds`, like mounts of
    /// NFS and FUSE file systems. Inode numbers are not reused there.
    pub fn remember(&self, seconds: u32) {
        let (shared, remembered) = (self.shared(), self.plain_dir("remembered"));
        succeed(Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(shared));
        let times = ["entry", "negative_entry", "attr"].map(|what| format!("cache.{what}={seconds}"));
        let options = format!("use_ino,inodecalc=passthrough,func.getattr=ff,{}", times.join(","));
        succeed(Command::new("mergerfs").args(["-o", &options]).arg(shared).arg(&remembered));
    }

    /// A plain directory that all hosts see; created if missing.
    pub fn plain_dir(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(&path).expect("a directory");
        path
    }

    pub fn shared(&self) -> &Path {
        self.site.shared()
    }

    /// Stores a Python program; returns the command line that runs it on all hosts.
    pub fn python(&self, program: &str) -> String {
        self.site.python(program)
    }

    /// The name of the cluster's only job.
    pub fn job_name(&self) -> &str {
        &self.name
    }

    /// Disconnects a host.
    pub fn cut(&self, host: u32) {
        ip(&format!("link set {} down", self.port(host)));
    }

    /// Reconnects it.
    pub fn heal(&self, host: u32) {
        ip(&format!("link set {} up", self.port(host)));
    }

    /// Disconnects a host, also from ssh: nothing reaches it, nor leaves it, and no connection is closed.
    pub fn isolate(&self, host: u32) {
        self.cut(host);
        fs::write(self.path(&format!("isolated-{}", self.host(host))), "").expect("written");
        self.signal_relays(host, "STOP");
    }

    /// Reconnects it.
    pub fn rejoin(&self, host: u32) {
        self.heal(host);
        fs::remove_file(self.path(&format!("isolated-{}", self.host(host)))).expect("it is isolated");
        self.signal_relays(host, "CONT");
    }

    fn signal_relays(&self, host: u32, name: &str) {
        assert!(self.has_relays);
        let others = (0..self.hosts).filter(|other| *other != host);
        let both = others.flat_map(|other| [(host, other), (other, host)]);
        let pids = both.filter_map(|(from, to)| {
            fs::read_to_string(self.path(&format!("relays-{}-{}", self.host(from), self.host(to)))).ok()
        });
        let pids: String = pids.collect();
        // Those of earlier commands have ended.
        let stopped = pids.lines().filter(|pid| signal(pid.parse().expect("a number"), name));
        assert!(stopped.count() > 0, "no relay of {host} runs");
    }

    /// Loses all that other hosts send to this one.
    pub fn deafen(&self, host: u32) {
        (0..self.hosts).filter(|other| *other != host).for_each(|other| self.lose(other, host));
    }

    /// Loses all that this host sends to others.
    pub fn mute(&self, host: u32) {
        (0..self.hosts).filter(|other| *other != host).for_each(|other| self.lose(host, other));
    }

    /// Loses what one host sends to another one.
    fn lose(&self, from: u32, to: u32) {
        let namespace = self.host(from);
        ip(&format!(
            "-n {namespace} neigh replace 10.213.0.{} lladdr {NOWHERE} dev eth0 nud permanent",
            to + 1
        ));
    }

    /// Ends all such losses.
    pub fn lose_nothing(&self) {
        for host in 0..self.hosts {
            for line in succeed(Command::new("ip").args(["-n", &self.host(host), "neigh", "show"])).lines() {
                let address = line.split_whitespace().next().expect("an address");
                if line.contains(NOWHERE) {
                    ip(&format!("-n {} neigh del {address} dev eth0", self.host(host)));
                }
            }
        }
    }

    /// The process of the agent of a host that is not the first.
    pub fn agent(&self, host: u32) -> u32 {
        let job = format!("tameike-0/{}/node-{host}/node.json", self.name);
        let state = json(&self.hosts_dir().join(self.host(host)).join(job));
        state["record"]["pid"].as_u64().and_then(|pid| pid.try_into().ok()).expect("an agent")
    }

    /// `tameike` with these arguments, on the first host.
    pub fn tameike(&self, arguments: &[&str]) -> Command {
        let mut command = wrapped("ip", &["netns", "exec", &self.host(0)], &self.site.tameike(arguments));
        command.env("PATH", path_of_binary()).env("TAMEIKE_SSH", self.path("ssh"));
        command
    }

    /// A script on a host, without ssh, which no isolation stops.
    pub fn script(&self, host: u32, script: &str) -> Command {
        let mut command = Command::new(self.path("on"));
        let set_up = format!("set -eu; export TMPDIR={}; {script}", utf8(self.site.base()));
        command.arg(self.host_name(host)).arg(set_up).env("PATH", path_of_binary());
        command
    }

    /// The file with the hosts.
    pub fn hostfile(&self) -> PathBuf {
        self.path("hostfile")
    }

    /// The directories of the test.
    pub fn site(&self) -> &Site {
        &self.site
    }

    /// `tameike run` over all hosts, with a script on the first.
    pub fn job(&self, options: &[&str], script: &str) -> Command {
        let hostfile = self.hostfile();
        let (hostfile, shared) = (utf8(&hostfile), utf8(self.shared()));
        let arguments =
            ["run", "--hostfile", hostfile, "--shared", shared, "--capacity", "2G", "--job", &self.name];
        self.tameike(&[&arguments[..], options, &["--", "sh", "-euc", script]].concat())
    }

    /// Runs a job that must succeed; returns its standard output.
    pub fn run(&self, script: &str) -> String {
        succeed(&mut self.job(&[], script))
    }

    /// Panics if a job has left a mount, a process or a file on any host.
    pub fn assert_clean(&self) {
        self.site.assert_clean();
        for place in [self.hosts_dir(), self.memory_dir()] {
            assert_no_files(&place);
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // After a failed test agents may still be exiting: they see that their driver has exited, and need no network. A
        // namespace ends with its last process.
        for host in 0..self.hosts {
            let _ = quiet(&format!("link del {}", self.port(host)));
            let _ = quiet(&format!("netns del {}", self.host(host)));
        }
        let _ = quiet(&format!("link del {}", self.name));
        let base = utf8(self.site.base());
        for _ in 0..100 {
            if processes_naming(base).is_empty() {
                break;
            }
            let _ = Command::new("sleep").arg("0.2").status();
        }
        let _ = fs::remove_dir_all(self.memory_dir());
        if self.remembered_dir().exists() {
            for place in [self.remembered_dir().as_path(), self.shared()] {
                let _ = Command::new("umount").arg("--lazy").arg(place).status();
            }
        }
        // The device of the host where jobs start is in the machine's `/dev/shm`.
        let _ = fs::remove_dir_all(format!("/dev/shm/tameike-0-{}-0", self.name));
    }
}

/// The name of this machine.
fn machine() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").expect("a name").trim().to_owned()
}

/// The variable `PATH` with the directory of the binary.
fn path_of_binary() -> String {
    let directory = Path::new(binary()).parent().expect("the binary has a parent");
    format!("{}:{}", directory.display(), std::env::var("PATH").unwrap_or_default())
}

fn ip(arguments: &str) {
    succeed(Command::new("ip").args(arguments.split(' ')));
}

fn quiet(arguments: &str) -> std::io::Result<std::process::ExitStatus> {
    Command::new("ip").args(arguments.split(' ')).stderr(Stdio::null()).status()
}
