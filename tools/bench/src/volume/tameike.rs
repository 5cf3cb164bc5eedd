//! A Tameike volume over the hosts, created and started on the first one, and mounted on each.

use super::hosts::{COUNT, Hosts};
use crate::outcome::{Context, Outcome, output_of};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

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

/// Starts a volume of `program` with so many copies of each file, and so much memory for each agent.
pub fn start(hosts: &Hosts, program: &Path, replicas: u32, memory_mib: u64) -> Outcome<()> {
    let program = fs::canonicalize(which(program)?).context(|| "find the program tameike")?;
    let program = program.display().to_string();
    hosts.make("records")?;
    hosts.make(MOUNT)?;
    let holders = (0..COUNT).map(|host| format!("{}) holder={};; ", Hosts::name(host), hosts.holder(host)));
    let ssh = SSH.replace("@CASES@", &holders.collect::<String>()).replace("@TMP@", &hosts.text("tmp"));
    write(&hosts.path("ssh"), &ssh)?;
    fs::set_permissions(hosts.path("ssh"), Permissions::from_mode(0o755)).context(|| "permit to run ssh")?;
    let lines = (0..COUNT).map(|host| format!("{} address={}\n", Hosts::name(host), Hosts::address(host)));
    write(&hosts.path("hosts"), &lines.collect::<String>())?;
    let call = |host: usize, words: &[&str]| {
        let mut command: Command = hosts.command(host, &program);
        command.args(["volume"]).args(words);
        command.env("TAMEIKE_SSH", hosts.path("ssh")).env("XDG_DATA_HOME", hosts.path("records"));
        output_of(&mut command, "").map(drop)
    };
    let (hostfile, disk) = (hosts.text("hosts"), hosts.text("disk"));
    let (replicas, memory) = (replicas.to_string(), format!("{memory_mib}MiB"));
    let places = ["--hostfile", &hostfile, "--device", &disk];
    let sizes = ["--replicas", &replicas, "--memory", &memory];
    call(0, &[&["create", NAME], &places[..], &sizes].concat())?;
    call(0, &["start", NAME])?;
    (0..COUNT).try_for_each(|host| call(host, &["mount", NAME, &hosts.text(MOUNT)]))
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
