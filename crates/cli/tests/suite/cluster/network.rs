//! Hosts of a cluster: network namespaces joined by a bridge, each with a `/dev/shm` and a directory for jobs of
//! its own, reached by a stub for ssh. Jobs are started on the first host, or beside it as from a login node.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::support::{Site, binary, files_below, processes_naming, succeed};

/// What stands for ssh. As with ssh, it does not matter from inside which node it is called, and of the environment
/// only a few variables arrive. The host where jobs are started goes by the machine's own name, the others have
/// names of their own.
const SSH: &str = r#"#!/bin/sh
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

/// Hosts on a network, and what they share.
pub struct Cluster {
    name: String,
    hosts: u32,
    site: Site,
}

impl Cluster {
    /// Makes hosts of which the first is where jobs are started. `words` are those of each host's line in the
    /// hostfile, beside its address.
    pub fn new(words: &[&str]) -> Self {
        Self::started(words, "localhost")
    }

    /// Makes hosts on none of which jobs are started.
    pub fn from_login_node(words: &[&str]) -> Self {
        Self::started(words, "")
    }

    fn started(words: &[&str], first: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let root = fs::metadata("/proc/self").expect("/proc").uid() == 0;
        assert!(root, "run the tests of clusters as root: they make network namespaces");
        // Names of links have 15 characters at most.
        let name = format!("t{}n{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let cluster = Self { name, hosts: words.len() as u32, site: Site::new() };
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
        fs::write(cluster.path("hostfile"), hostfile).expect("a hostfile");
        fs::write(cluster.path("ssh"), cluster.ssh()).expect("a script");
        fs::set_permissions(cluster.path("ssh"), fs::Permissions::from_mode(0o755)).expect("a mode");
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

    fn ssh(&self) -> String {
        let here = fs::read_to_string("/proc/sys/kernel/hostname").expect("a name");
        let shown = |path: PathBuf| path.to_str().expect("plain path").to_owned();
        SSH.replace("@HERE@", here.trim())
            .replace("@TEST@", &std::process::id().to_string())
            .replace("@FIRST@", &self.host(0))
            .replace("@BASE@", &shown(self.site.base()))
            .replace("@HOSTS@", &shown(self.hosts_dir()))
            .replace("@MEMORY@", &shown(self.memory_dir()))
            .replace("@REMEMBERED@", &shown(self.remembered_dir()))
            .replace("@SHARED@", &shown(self.shared()))
    }

    fn host(&self, host: u32) -> String {
        format!("{}h{host}", self.name)
    }

    fn port(&self, host: u32) -> String {
        format!("{}p{host}", self.name)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.site.shared().with_file_name(name)
    }

    /// The hosts' directories for jobs.
    fn hosts_dir(&self) -> PathBuf {
        self.path("hosts")
    }

    /// The hosts' memory.
    fn memory_dir(&self) -> PathBuf {
        Path::new("/dev/shm").join(&self.name)
    }

    /// Where the shared directory is seen by hosts whose mount remembers what it has seen.
    fn remembered_dir(&self) -> PathBuf {
        self.path("remembered")
    }

    /// Has all hosts but the first see the shared directory by a mount that remembers names and attributes for so many seconds, as those
    /// of NFS and of FUSE file systems do. Numbers of files are not used again there.
    pub fn remember(&self, seconds: u32) {
        let (shared, remembered) = (self.shared(), self.plain_dir("remembered"));
        succeed(Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(&shared));
        let times = ["entry", "negative_entry", "attr"].map(|what| format!("cache.{what}={seconds}"));
        let options = format!("use_ino,inodecalc=passthrough,func.getattr=ff,{}", times.join(","));
        succeed(Command::new("mergerfs").args(["-o", &options]).arg(&shared).arg(&remembered));
    }

    /// A plain directory that all hosts see, made when it is not there.
    pub fn plain_dir(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(&path).expect("a directory");
        path
    }

    /// The shared directory.
    pub fn shared(&self) -> PathBuf {
        self.site.shared()
    }

    /// The name of the cluster's jobs, of which there is one at a time.
    pub fn job_name(&self) -> &str {
        &self.name
    }

    /// Cuts a host off from all others.
    pub fn cut(&self, host: u32) {
        ip(&format!("link set {} down", self.port(host)));
    }

    /// Joins it again.
    pub fn heal(&self, host: u32) {
        ip(&format!("link set {} up", self.port(host)));
    }

    /// `tameike` with these arguments, on the first host.
    pub fn tameike(&self, arguments: &[&str]) -> Command {
        let plain = self.site.tameike(arguments);
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.host(0)]).arg(plain.get_program()).args(plain.get_args());
        let directory = Path::new(binary()).parent().expect("the binary lies in a directory");
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", directory.display()));
        command.env("TMPDIR", self.site.base()).env_remove("TAMEIKE_JOB");
        command.env("TAMEIKE_SSH", self.path("ssh"));
        command
    }

    /// `tameike run` over all hosts, with a script on the first.
    pub fn job(&self, options: &[&str], script: &str) -> Command {
        let (hostfile, shared) = (self.path("hostfile"), self.shared());
        let (hostfile, shared) =
            (hostfile.to_str().expect("plain path"), shared.to_str().expect("plain path"));
        let arguments =
            ["run", "--hostfile", hostfile, "--shared", shared, "--capacity", "2G", "--job", &self.name];
        self.tameike(&[&arguments[..], options, &["--", "sh", "-euc", script]].concat())
    }

    /// Runs a job that must succeed; its standard output.
    pub fn run(&self, script: &str) -> String {
        succeed(&mut self.job(&[], script))
    }

    /// Panics if a job has left a mount, a process or a file on any host.
    pub fn assert_clean(&self) {
        self.site.assert_clean();
        for place in [self.hosts_dir(), self.memory_dir()] {
            let mut left = files_below(&place);
            left.retain(|path| path.is_file() && !path.ends_with("lock"));
            assert!(left.is_empty(), "files left: {left:#?}");
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // After a failed test agents may still be about to end: they see that their driver is gone, and need
        // the network no more. A namespace goes with its last process.
        for host in 0..self.hosts {
            let _ = quiet(&format!("link del {}", self.port(host)));
            let _ = quiet(&format!("netns del {}", self.host(host)));
        }
        let _ = quiet(&format!("link del {}", self.name));
        let base = self.site.base();
        let base = base.to_str().expect("plain path");
        for _ in 0..100 {
            if processes_naming(base).is_empty() {
                break;
            }
            let _ = Command::new("sleep").arg("0.2").status();
        }
        let _ = fs::remove_dir_all(self.memory_dir());
        if self.remembered_dir().exists() {
            for place in [self.remembered_dir(), self.shared()] {
                let _ = Command::new("umount").arg("--lazy").arg(place).status();
            }
        }
        // The device of the host where jobs are started is in the machine's own memory.
        let _ = fs::remove_dir_all(format!("/dev/shm/tameike-0-{}-0", self.name));
    }
}

fn ip(arguments: &str) {
    succeed(Command::new("ip").args(arguments.split(' ')));
}

fn quiet(arguments: &str) -> std::io::Result<std::process::ExitStatus> {
    Command::new("ip").args(arguments.split(' ')).stderr(Stdio::null()).status()
}
