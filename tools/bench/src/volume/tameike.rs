//! A Tameike volume over the hosts, created and started on the first one, and mounted on each.

use super::hosts::{COUNT, Hosts};
use crate::clock::Stopwatch;
use crate::outcome::{Context, Outcome, output_of};
use crate::place::Limits;
use crate::wait;
use serde_json::Value;
use std::cell::Cell;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Where the volume is mounted on each host.
pub const MOUNT: &str = "tameike";
/// Its processes, for their processor time.
pub const PROGRAMS: &[&str] = &["tameike"];

const NAME: &str = "bench";
/// In place of ssh: enters the namespaces of a host.
const SSH: &str = r#"#!/bin/sh
set -eu
host=$1
shift
case $host in @CASES@ *) echo "no host $host" >&2; exit 255;; esac
exec nsenter --target $holder --mount --net --uts -- env -i PATH="$PATH" HOME="$HOME" TMPDIR="@TMP@" sh -c "$*"
"#;

/// Arguments: the mount, and the disk.
const LOSE: &str = "umount --lazy \"$0\"; rm -r \"$1\"/tameike-volume-*";
/// Time for the copies of a host, at most.
const REPAIR_LIMIT: Duration = Duration::from_secs(1800);

/// Starts a volume of `program` with so many copies of each file, and so much memory for each agent.
pub fn start(hosts: &Hosts, program: &Path, replicas: u32, memory_mib: u64) -> Outcome<()> {
    let volume = Volume::new(hosts, program)?;
    hosts.make("records")?;
    hosts.make(MOUNT)?;
    let holders = (0..COUNT).map(|host| format!("{}) holder={};; ", Hosts::name(host), hosts.holder(host)));
    let ssh = SSH.replace("@CASES@", &holders.collect::<String>()).replace("@TMP@", &hosts.text("tmp"));
    write(&hosts.path("ssh"), &ssh)?;
    fs::set_permissions(hosts.path("ssh"), Permissions::from_mode(0o755)).context(|| "permit to run ssh")?;
    let lines = (0..COUNT).map(|host| format!("{} address={}\n", Hosts::name(host), Hosts::address(host)));
    write(&hosts.path("hosts"), &lines.collect::<String>())?;
    let (hostfile, disk) = (hosts.text("hosts"), hosts.text("disk"));
    let (replicas, memory) = (replicas.to_string(), format!("{memory_mib}MiB"));
    let places = ["--hostfile", &hostfile, "--device", &disk];
    let sizes = ["--replicas", &replicas, "--memory", &memory];
    volume.call(0, &[&["create", NAME], &places[..], &sizes].concat())?;
    volume.call(0, &["start", NAME])?;
    (0..COUNT).try_for_each(|host| volume.mount(host))
}

/// Kills the agent of the last host, and removes its store. Returns the seconds until the other hosts have copies of all that was there, from the first
/// copy on. The host then gets a new store.
pub fn repair(hosts: &Hosts, program: &Path, limits: &Limits) -> Outcome<f64> {
    let (volume, lost) = (Volume::new(hosts, program)?, COUNT - 1);
    for agent in hosts.processes(lost, "tameike")? {
        hosts.shell(lost, "kill -KILL \"$0\"", &[&agent.to_string()])?;
    }
    hosts.shell(lost, LOSE, &[&hosts.text(MOUNT), &hosts.text("disk")])?;
    let wait = |what: &str, is_so: &dyn Fn(&Value) -> bool| {
        wait::until(what, REPAIR_LIMIT, || {
            limits.interrupt.check()?;
            Ok(is_so(&volume.replicas()?))
        })
    };
    let is_whole = |replicas: &Value| {
        replicas["excluded"] != Value::Array(Vec::new()) && replicas["homes_with_one_copy"] == 0
    };
    // Of the last status before the first copy.
    let begun = Cell::new(Stopwatch::start());
    wait("the first copy of lost data", &|replicas| {
        let copies = replicas["homes_being_copied"] != 0 || is_whole(replicas);
        if !copies {
            begun.set(Stopwatch::start());
        }
        copies
    })?;
    wait("copies of lost data", &is_whole)?;
    let seconds = begun.get().elapsed().as_secs_f64();
    volume.call(0, &["restart", NAME, "--nodes", &lost.to_string(), "--new-store"])?;
    wait("the new store", &|replicas| {
        replicas["excluded"] == Value::Array(Vec::new()) && replicas["homes_being_copied"] == 0
    })?;
    volume.mount(lost)?;
    Ok(seconds)
}

/// The volume, as the program operates it.
struct Volume<'a> {
    hosts: &'a Hosts,
    program: String,
}

impl<'a> Volume<'a> {
    fn new(hosts: &'a Hosts, program: &Path) -> Outcome<Self> {
        let program = fs::canonicalize(which(program)?).context(|| "find the program tameike")?;
        Ok(Self { hosts, program: program.display().to_string() })
    }

    /// `tameike volume WORDS` on a host.
    fn call(&self, host: usize, words: &[&str]) -> Outcome<String> {
        let hosts = self.hosts;
        let mut command: Command = hosts.command(host, &self.program);
        command.args(["volume"]).args(words);
        command.env("TAMEIKE_SSH", hosts.path("ssh")).env("XDG_DATA_HOME", hosts.path("records"));
        output_of(&mut command, "")
    }

    fn mount(&self, host: usize) -> Outcome<()> {
        self.call(host, &["mount", NAME, &self.hosts.text(MOUNT)]).map(drop)
    }

    /// The state of the copies.
    fn replicas(&self) -> Outcome<Value> {
        let text = self.call(0, &["status", NAME, "--json"])?;
        let status: Value = serde_json::from_str(&text).context(|| "understand the status of a volume")?;
        match &status[0]["agents"]["replicas"] {
            Value::Null => Err(format!("the status of the volume has no replicas: {text}")),
            replicas => Ok(replicas.clone()),
        }
    }
}

/// The path of a program that may be named without one.
fn which(program: &Path) -> Outcome<std::path::PathBuf> {
    if program.components().count() > 1 {
        return Ok(program.to_owned());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|directory| directory.join(program)).find(|at| at.exists());
    found.ok_or_else(|| format!("there is no {} in PATH", program.display()))
}

fn write(path: &Path, text: &str) -> Outcome<()> {
    fs::write(path, text).context(|| format!("write {}", path.display()))
}
