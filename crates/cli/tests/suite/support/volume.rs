//! A volume that tests start, use by mounts, and disturb.

use super::jobs::{Background, signal, wait_for};
use super::{Run, Site, binary, err, is_root, json, out, shown, utf8};
use serde_json::Value;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Writes files, one after another, and renames each when it is synced, until the file `end` is there. Checks all of them then. Notes the
/// longest time that one took in milliseconds. `$V` is the volume.
const WRITER: &str = r#"
    mkdir mnt; tameike volume mount $V mnt; made=mnt/made-$(basename $PWD); mkdir $made
    number=0; longest=0; before=$(date +%s%3N)
    until [ -e end ]; do
        number=$((number + 1))
        head -c $((number * 7919 % 60000)) /dev/urandom > content
        cp content $made/new; sync $made/new; mv $made/new $made/$number
        echo "$(sha256sum < content | cut -d' ' -f1)  $made/$number" >> sums
        now=$(date +%s%3N); took=$((now - before)); before=$now
        [ $took -le $longest ] || longest=$took
    done
    sha256sum --check --quiet sums; umount mnt; echo $longest > longest"#;

/// A program that writes files through a mount.
pub struct Writer {
    directory: PathBuf,
    process: Background,
}

impl Writer {
    /// Starts it in a directory, with the command that runs its script there.
    pub fn start(directory: PathBuf, command: impl FnOnce(&str) -> Command) -> Self {
        let process = Background::start(&mut command(WRITER));
        let mut writer = Self { directory, process };
        writer.await_more();
        writer
    }

    fn count(&self) -> usize {
        fs::read_to_string(self.directory.join("sums")).map_or(0, |text| text.lines().count())
    }

    /// Waits until it has written more files.
    pub fn await_more(&mut self) {
        let before = self.count();
        wait_for("the writer", || (self.count() > before + 10 || !self.process.runs()).then_some(()));
        assert!(self.process.runs(), "the writer has failed");
    }

    /// Returns the longest time that a file took, in milliseconds.
    pub fn end(self) -> u64 {
        fs::write(self.directory.join("end"), "").expect("written");
        let output = self.process.output();
        assert!(output.status.success(), "{}", shown(&output));
        let longest = fs::read_to_string(self.directory.join("longest")).expect("written");
        longest.trim().parse().expect("a number")
    }
}

/// A volume of one node or several, which runs.
pub struct Volume {
    pub site: Site,
    /// Its name, unique on the host, as its socket has it.
    pub name: String,
}

impl Drop for Volume {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.site.kill_processes();
        }
    }
}

impl Volume {
    /// Starts the volume, if this process is root, and can mount in a namespace of its own.
    pub fn start(name: &str, nodes: &str, replicas: &str) -> Option<Self> {
        if !is_root() {
            eprintln!("not root: cannot act as another user");
            return None;
        }
        // Agents of all tests that run on this host have sockets with names of volumes.
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let volume = Self { site: Site::new(), name: format!("{name}-{}-{number}", std::process::id()) };
        // The other user finds the program and the mount point.
        fs::set_permissions(volume.directory(), Permissions::from_mode(0o755)).expect("ours");
        let copied = Command::new("cp").arg(binary()).arg(volume.directory().join("tameike")).status();
        assert!(copied.expect("cp").success());
        let disk = utf8(volume.site.disk()).to_owned();
        let options = ["--device", &disk, "--capacity", "64M", "--replicas", replicas];
        volume.act("create", &[&["--local", nodes], &options[..]].concat());
        volume.act("start", &[]);
        Some(volume)
    }

    /// The directory of the test.
    pub fn directory(&self) -> PathBuf {
        self.site.base().parent().expect("a directory of the test").to_owned()
    }

    /// `tameike volume ACTION`.
    pub fn tameike(&self, action: &str, options: &[&str]) -> Command {
        let mut command = self.site.tameike(&[&["volume", action, &self.name], options].concat());
        command.env("XDG_DATA_HOME", self.site.plain());
        command
    }

    /// Carries out `tameike volume ACTION`.
    pub fn act(&self, action: &str, options: &[&str]) {
        self.tameike(action, options).exits(0);
    }

    /// `tameike volume start`, as on a host with another data directory, which has the record that the volume has now.
    pub fn start_elsewhere(&self) -> Command {
        let elsewhere = self.directory().join("elsewhere");
        let record = format!("tameike/volumes/{}.json", self.name);
        let copy = elsewhere.join(&record);
        fs::create_dir_all(copy.parent().expect("a parent")).expect("made");
        fs::copy(self.site.plain().join(&record), copy).expect("copied");
        let mut command = self.tameike("start", &[]);
        command.env("XDG_DATA_HOME", elsewhere);
        command
    }

    /// Compares all copies, which must be equal.
    pub fn check_copies(&self) {
        let job = format!("volume-{}", self.name);
        self.site.tameike(&["check", "--replicas", "--job", &job]).exits(0);
    }

    /// The process of its driver.
    pub fn driver(&self) -> u32 {
        self.processes().0
    }

    /// Runs a script of root in a mount namespace of its own, which other processes of the host do not copy, in the test's directory.
    /// `$V` is the name of the volume.
    pub fn script(&self, script: &str) -> Output {
        self.command(script).output().expect("unshare is installed")
    }

    /// The command of [`Self::script`].
    pub fn command(&self, script: &str) -> Command {
        let mut command = Command::new("timeout");
        command.args(["100", "unshare", "--mount", "--propagation", "private", "sh", "-euc", script]);
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", self.directory().display()));
        command.env("TMPDIR", self.site.base()).env("XDG_DATA_HOME", self.site.plain());
        command.env("V", &self.name).env_remove("TAMEIKE_JOB").current_dir(self.directory());
        command
    }

    /// As [`Self::script`], which must succeed. Returns its output.
    pub fn says(&self, script: &str) -> String {
        let output = self.script(script);
        assert!(output.status.success(), "{}{}", out(&output), err(&output));
        out(&output)
    }

    /// Starts a program that writes files through a mount.
    pub fn writer(&self) -> Writer {
        Writer::start(self.directory(), |script| self.command(script))
    }

    /// The processes of the volume: its driver, and its agents by node.
    pub fn processes(&self) -> (u32, Vec<(u64, u32)>) {
        let record = json(&self.site.base().join(format!("tameike-0/volume-{}/job.json", self.name)));
        let number = |value: &Value| value.as_u64().expect("a number");
        let nodes = record["nodes"].as_array().expect("nodes").iter();
        let agents = nodes.map(|node| (number(&node["node"]), number(&node["pid"]) as u32)).collect();
        (number(&record["driver_pid"]) as u32, agents)
    }

    /// Kills all processes of the volume at once.
    pub fn kill(&self) {
        let (driver, agents) = self.processes();
        // The driver must not act when it misses its agents.
        assert!(signal(driver, "STOP"));
        assert!(agents.iter().all(|(_, agent)| signal(*agent, "KILL")));
        assert!(signal(driver, "KILL"));
        self.site.await_processes();
    }

    /// Kills the agent of a node.
    pub fn kill_agent(&self, node: u64) {
        let (_, agents) = self.processes();
        let of_node = agents.iter().find(|(number, _)| *number == node);
        assert!(signal(of_node.expect("it runs").1, "KILL"));
    }

    /// The store of a node.
    pub fn store(&self, node: u32) -> PathBuf {
        self.site.disk().join(format!("tameike-volume-0-{}-{node}", self.name))
    }

    /// Checks the stores of the stopped volume: nothing is wrong in them.
    pub fn check_stores(&self) {
        let stores = fs::read_dir(self.site.disk()).expect("it can be read");
        for store in stores.map(|entry| entry.expect("it can be read").path()) {
            self.site.tameike(&["check", utf8(&store)]).exits(0);
        }
    }

    /// Stops and removes the volume.
    pub fn end(self) {
        self.act("stop", &[]);
        self.act("remove", &[]);
        self.site.await_processes();
    }
}
