//! A distributed GlusterFS volume of this program's own: a brick in /dev/shm and a FUSE mount per node.
//!
//! GlusterFS's management daemon is asked once, on a port and in a directory of its own, to lay out the volume
//! just as it would for anybody; then it is stopped. Bricks and clients are started from its volume files by
//! this program, in the foreground, so that their processes are known and end with it. Nothing of a GlusterFS
//! that is already on the machine is used or changed.

use crate::coordinator::Limits;
use crate::outcome::{Context, Outcome};
use crate::servers::Servers;
use crate::wait;
use rustix::mount::{UnmountFlags, unmount};
use std::fs;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

const NAME: &str = "bench";
const READY_LIMIT: Duration = Duration::from_secs(30);
const INSTALL: &str = "(GlusterFS is Debian's glusterfs-server; it needs root)";

/// A volume that is mounted.
#[derive(Debug)]
pub struct Volume {
    nodes: u32,
    /// Bricks first, then clients.
    processes: Vec<Child>,
    mounts: Vec<PathBuf>,
    /// Bricks, volume files, logs and mount points; in memory.
    state: Option<TempDir>,
    root: PathBuf,
}

impl Volume {
    /// Starts a volume over `nodes` bricks, mounted once per node.
    pub fn start(nodes: u32, limits: &Limits) -> Outcome<Self> {
        let state = tempfile::Builder::new().prefix("tameike-bench-gluster-").tempdir_in("/dev/shm");
        let state = state.context(|| "make a directory in /dev/shm")?;
        let root = state.path().to_owned();
        let mut volume = Self { nodes, processes: Vec::new(), mounts: Vec::new(), state: Some(state), root };
        let host = own_address()?;
        volume.lay_out(&host, limits)?;
        let ports = volume.start_bricks(&host, limits)?;
        for node in 0..nodes {
            volume.mount(node, &ports, limits)?;
        }
        Ok(volume)
    }

    /// The mount of node `{node}`.
    pub fn mount_template(&self) -> String {
        self.path("mount-{node}").display().to_string()
    }

    /// Bricks and clients.
    pub fn servers(&self) -> Servers {
        Servers::new(self.processes.iter().map(Child::id).collect())
    }

    /// Unmounts, ends all processes and removes all files; a second call does nothing.
    pub fn stop(&mut self) -> Outcome<()> {
        let mut outcome = Ok(());
        for mount in self.mounts.drain(..) {
            let unmounted =
                unmount(&mount, UnmountFlags::DETACH).context(|| format!("unmount {}", mount.display()));
            outcome = outcome.and(unmounted);
        }
        // Clients before bricks: a client without its bricks waits for them.
        for mut process in self.processes.drain(..).rev() {
            end(&mut process);
        }
        match self.state.take() {
            Some(state) => outcome.and(state.close().context(|| "remove the bricks")),
            None => outcome,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn brick(&self, node: u32) -> PathBuf {
        self.path(&format!("brick-{node}"))
    }

    /// Has glusterd write the volume files.
    fn lay_out(&self, host: &str, limits: &Limits) -> Outcome<()> {
        for name in ["work", "run", "log"] {
            fs::create_dir(self.path(name)).context(|| format!("make {}", self.path(name).display()))?;
        }
        let (work, run, socket) = (self.path("work"), self.path("run"), self.path("run/socket"));
        let settings = format!(
            "volume management\n    type mgmt/glusterd\n    option working-directory {}\n    \
             option run-directory {}\n    option glusterd-sockfile {}\n    option transport-type socket\n    \
             option transport.address-family inet\n    option transport.socket.listen-port {}\nend-volume\n",
            work.display(),
            run.display(),
            socket.display(),
            free_ports(1)?[0],
        );
        fs::write(self.path("glusterd.vol"), settings).context(|| "write the settings of glusterd")?;
        let mut daemon =
            Daemon(self.spawn("glusterd", &["-f", &text(&self.path("glusterd.vol"))], "glusterd")?);
        let bricks: Vec<String> =
            (0..self.nodes).map(|node| format!("{host}:{}", self.brick(node).display())).collect();
        for node in 0..self.nodes {
            fs::create_dir(self.brick(node)).context(|| "make a brick")?;
        }
        let gluster = |words: &[&str]| {
            Command::new("gluster")
                .arg("--mode=script")
                .arg(format!("--glusterd-sock={}", socket.display()))
                .arg(format!("--log-file={}", self.path("log/cli").display()))
                .args(words)
                .stdin(Stdio::null())
                .output()
                .context(|| format!("start gluster {INSTALL}"))
        };
        wait::until("glusterd", READY_LIMIT, || {
            limits.interrupt.check()?;
            self.alive(&mut daemon.0, "glusterd")?;
            Ok(socket.exists() && gluster(&["pool", "list"])?.status.success())
        })?;
        let bricks: Vec<&str> = bricks.iter().map(String::as_str).collect();
        let created = gluster(&[&["volume", "create", NAME][..], &bricks, &["force"]].concat())?;
        match created.status.success() {
            true => Ok(()),
            false => Err(format!(
                "gluster volume create failed: {}",
                String::from_utf8_lossy(&created.stderr).trim()
            )),
        }
    }

    /// Starts a brick per node, and their ports once all of them listen.
    fn start_bricks(&mut self, host: &str, limits: &Limits) -> Outcome<Vec<u16>> {
        let ports = free_ports(self.nodes as usize)?;
        let info =
            fs::read_to_string(self.path("work/glusterd.info")).context(|| "read what glusterd wrote")?;
        let uuid = info.lines().find_map(|line| line.strip_prefix("UUID=")).unwrap_or_default();
        for (node, port) in (0..).zip(&ports) {
            let brick = self.brick(node).display().to_string();
            let file = format!("work/vols/{NAME}/{NAME}.{host}.{}.vol", brick[1..].replace('/', "-"));
            let listen = format!("{NAME}-server.listen-port={port}");
            let owner = format!("*-posix.glusterd-uuid={uuid}");
            let arguments =
                ["-f", &text(&self.path(&file)), "--xlator-option", &listen, "--xlator-option", &owner];
            let brick = ["--process-name", "brick", "--brick-name", &brick];
            let process =
                self.spawn("glusterfsd", &[&arguments[..], &brick].concat(), &format!("brick-{node}"))?;
            self.processes.push(process);
        }
        for (node, &port) in ports.iter().enumerate() {
            wait::until(&format!("brick {node}"), READY_LIMIT, || {
                limits.interrupt.check()?;
                self.all_alive()?;
                Ok(TcpStream::connect(("127.0.0.1", port)).is_ok())
            })?;
        }
        Ok(ports)
    }

    /// Mounts the volume for one node.
    fn mount(&mut self, node: u32, ports: &[u16], limits: &Limits) -> Outcome<()> {
        let mount = self.path(&format!("mount-{node}"));
        fs::create_dir(&mount).context(|| format!("make {}", mount.display()))?;
        let mut arguments =
            vec!["-f".to_owned(), text(&self.path(&format!("work/vols/{NAME}/trusted-{NAME}.tcp-fuse.vol")))];
        for (brick, port) in ports.iter().enumerate() {
            for setting in ["remote-host=127.0.0.1".to_owned(), format!("remote-port={port}")] {
                arguments.extend(["--xlator-option".to_owned(), format!("{NAME}-client-{brick}.{setting}")]);
            }
        }
        arguments.push(text(&mount));
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let process = self.spawn("glusterfs", &arguments, &format!("client-{node}"))?;
        self.processes.push(process);
        wait::until(&format!("the mount of node {node}"), READY_LIMIT, || {
            limits.interrupt.check()?;
            self.all_alive()?;
            let mounts = fs::read_to_string("/proc/self/mounts").context(|| "read the list of mounts")?;
            Ok(mounts.lines().any(|line| line.split(' ').nth(1).is_some_and(|at| Path::new(at) == mount)))
        })?;
        self.mounts.push(mount.clone());
        fs::metadata(&mount).context(|| format!("look at {}", mount.display()))?;
        Ok(())
    }

    /// Starts one of GlusterFS's programs in the foreground, safe from the terminal's Ctrl-C.
    fn spawn(&self, program: &str, arguments: &[&str], log: &str) -> Outcome<Child> {
        Command::new(program)
            .args(["--no-daemon", "--log-file", &text(&self.path(&format!("log/{log}")))])
            .args(arguments)
            .stdin(Stdio::null())
            .process_group(0)
            .spawn()
            .context(|| format!("start {program} {INSTALL}"))
    }

    fn all_alive(&mut self) -> Outcome<()> {
        let mut processes = std::mem::take(&mut self.processes);
        let outcome =
            processes.iter_mut().try_for_each(|process| self.alive(process, "a process of GlusterFS"));
        self.processes = processes;
        outcome
    }

    /// An error, with the end of the logs, when `process` has ended.
    fn alive(&self, process: &mut Child, what: &str) -> Outcome<()> {
        let Some(status) = process.try_wait().context(|| format!("watch {what}"))? else { return Ok(()) };
        let mut said = String::new();
        for entry in fs::read_dir(self.path("log")).context(|| "read the logs")?.flatten() {
            let log = fs::read_to_string(entry.path()).unwrap_or_default();
            let errors = log.lines().filter(|line| line.contains("] E ") || line.contains("] C "));
            said.extend(errors.map(|line| format!("\n  {line}")));
        }
        Err(format!("{what} ended ({status}) {INSTALL}:{said}"))
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        if let Err(message) = self.stop() {
            eprintln!("tameike-bench: {message}");
        }
    }
}

/// A process that ends with its scope.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        end(&mut self.0);
    }
}

/// Name and version of the GlusterFS on this machine.
pub fn version() -> Outcome<String> {
    super::version_of(Path::new("glusterfs"))
}

fn end(process: &mut Child) {
    // Both fail only for a process that has ended, which is what is wanted.
    process.kill().ok();
    process.wait().ok();
}

/// Ports that nobody listens on; all held at once while choosing, so that they differ.
fn free_ports(count: usize) -> Outcome<Vec<u16>> {
    let listeners: Result<Vec<TcpListener>, _> =
        (0..count).map(|_| TcpListener::bind(("127.0.0.1", 0))).collect();
    let ports = listeners.and_then(|all| all.iter().map(|one| Ok(one.local_addr()?.port())).collect());
    ports.context(|| "find a free port")
}

/// What GlusterFS is told to call this machine: it takes no loopback address, and the machine's name only
/// where that name is known to the resolver.
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

fn text(path: &Path) -> String {
    path.display().to_string()
}
