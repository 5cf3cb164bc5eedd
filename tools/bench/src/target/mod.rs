//! Targets: directories to measure, and how to start processes where they are mounted.
//!
//! The drop of a target that this program has set up removes it, also after a failure.

mod gluster;
mod job;
mod moosefs;
mod peer;

use crate::coordinator::{Limits, Place};
use crate::options::{BuiltIn, RunOptions};
use crate::outcome::{Context, Outcome};
use crate::servers::Servers;
use serde::Serialize;
use std::path::Path;
use tempfile::TempDir;

/// The path of the job-shared view, for a rank.
const SHARED: &str = "$TAMEIKE_SHARED";
/// Options of `exec` for preloaded ranks.
const PRELOADED: &[&str] = &["--preload"];

/// Identifies a target in reports.
#[derive(Clone, Debug, Serialize)]
pub struct Label {
    pub name: String,
    /// Program and version, or the type of the file system.
    pub version: String,
}

/// A target, ready for ranks.
#[derive(Debug)]
pub struct Target {
    pub label: Label,
    /// Where ranks run.
    pub place: Place,
    backing: Backing,
}

/// Resources to remove at the end.
#[derive(Debug)]
enum Backing {
    Given,
    Directory(TempDir),
    Peer(peer::Peer),
    Job(job::Job),
}

impl Target {
    /// True for a third-party file system, whose failures do not end the run.
    pub fn is_peer(&self) -> bool {
        matches!(self.backing, Backing::Peer(_))
    }

    /// Removes the target, and returns an error if that fails.
    pub fn stop(self) -> Outcome<()> {
        match self.backing {
            Backing::Given => Ok(()),
            Backing::Directory(directory) => {
                directory.close().context(|| format!("remove {}", self.place.directory))
            }
            Backing::Peer(mut peer) => peer.stop(),
            Backing::Job(mut job) => job.stop(),
        }
    }
}

/// Sets up all targets of `options`.
pub fn start_all(options: &RunOptions, limits: &Limits) -> Outcome<Vec<Target>> {
    let mut targets = Vec::new();
    for &kind in &options.targets {
        limits.interrupt.check()?;
        targets.push(start(kind, options, limits)?);
    }
    for also in &options.also {
        let (name, directory) =
            also.split_once('=').ok_or_else(|| format!("--also {also}: not NAME=DIRECTORY"))?;
        let version = if directory.starts_with('$') { directory.to_owned() } else { kind_of(directory) };
        targets.push(target(name, version, directory.to_owned(), options.nodes, Backing::Given));
    }
    set_commands(&mut targets, "--launcher", &options.launchers, |place| &mut place.launcher)?;
    set_commands(&mut targets, "--settle", &options.settles, |place| &mut place.settle)?;
    match targets.is_empty() {
        true => Err("nothing to measure: give --targets or --also".to_owned()),
        false => Ok(targets),
    }
}

/// Sets a command of the targets that are named in `values` of `option`, as NAME=COMMAND.
fn set_commands(
    targets: &mut [Target],
    option: &str,
    values: &[String],
    which: impl Fn(&mut Place) -> &mut Vec<String>,
) -> Outcome<()> {
    for value in values {
        let (name, command) =
            value.split_once('=').ok_or_else(|| format!("{option} {value}: not NAME=COMMAND"))?;
        let target = targets.iter_mut().find(|target| target.label.name == name);
        let target = target.ok_or_else(|| format!("{option} {value}: there is no target {name}"))?;
        *which(&mut target.place) = command.split_whitespace().map(str::to_owned).collect();
    }
    Ok(())
}

fn start(kind: BuiltIn, options: &RunOptions, limits: &Limits) -> Outcome<Target> {
    let own = |name: &str, view: &str, nodes, exec: &[&str]| job(name, view, nodes, &options.tameike, exec);
    match kind {
        BuiltIn::Disk => directory("disk", &options.disk, options),
        BuiltIn::Tmpfs => directory("tmpfs", Path::new("/dev/shm"), options),
        BuiltIn::Glusterfs => {
            let volume = gluster::start(options.nodes, limits)?;
            Ok(peer("glusterfs", gluster::version()?, volume, options))
        }
        BuiltIn::Moosefs => {
            let peers = moosefs::start(options.nodes, limits)?;
            Ok(peer("moosefs", moosefs::version()?, peers, options))
        }
        BuiltIn::Tameike => own("tameike", SHARED, options.nodes, &[]),
        BuiltIn::TameikeOne => own("tameike-1", SHARED, 1, &[]),
        BuiltIn::TameikePreload => own("tameike-preload", SHARED, options.nodes, PRELOADED),
        BuiltIn::TameikeOnePreload => own("tameike-1-preload", SHARED, 1, PRELOADED),
        BuiltIn::TameikeCache => own("tameike-cache", "$TAMEIKE_CACHE", options.nodes, &[]),
    }
}

/// The job-shared view of a new job with `nodes` agents; ranks are preloaded if `preload`.
pub fn own_job(name: &str, program: &Path, nodes: u32, preload: bool) -> Outcome<Target> {
    job(name, SHARED, nodes, program, if preload { PRELOADED } else { &[] })
}

/// A new job with `nodes` agents; ranks are started with these options of `exec`.
fn job(name: &str, view: &str, nodes: u32, program: &Path, exec: &[&str]) -> Outcome<Target> {
    let job = job::Job::start(program, name, nodes)?;
    let plural = if nodes == 1 { "" } else { "s" };
    let version = format!("{}, {view}, {nodes} agent{plural}", job::version(program)?);
    let launcher = job.launcher(exec);
    let mut target = target(name, version, view.to_owned(), nodes, Backing::Job(job));
    target.place.launcher = launcher;
    Ok(target)
}

fn peer(name: &str, version: String, peer: peer::Peer, options: &RunOptions) -> Target {
    target(name, version, peer.mount_template(), options.nodes, Backing::Peer(peer))
}

fn directory(name: &str, parent: &Path, options: &RunOptions) -> Outcome<Target> {
    let doing = || format!("make a directory in {}", parent.display());
    let own = tempfile::Builder::new().prefix("tameike-bench-").tempdir_in(parent).context(doing)?;
    let path = own.path().display().to_string();
    Ok(target(name, kind_of(&path), path, options.nodes, Backing::Directory(own)))
}

fn target(name: &str, version: String, directory: String, nodes: u32, backing: Backing) -> Target {
    let servers = match &backing {
        Backing::Given | Backing::Directory(_) => Servers::default(),
        Backing::Peer(peer) => peer.servers(),
        Backing::Job(job) => job.servers(),
    };
    let place = Place { launcher: Vec::new(), directory, nodes, servers, settle: Vec::new() };
    Target { label: Label { name: name.to_owned(), version }, place, backing }
}

/// The type of the file system that contains `directory`.
fn kind_of(directory: &str) -> String {
    let path = std::fs::canonicalize(directory).unwrap_or_else(|_| directory.into());
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let holder = |line: &&str| line.split(' ').nth(1).is_some_and(|at| path.starts_with(at));
    let longest = mounts.lines().filter(holder).max_by_key(|line| line.split(' ').nth(1).map(str::len));
    longest.and_then(|line| line.split(' ').nth(2)).unwrap_or("unknown").to_owned()
}

/// The first line of `program --version`.
fn version_of(program: &Path) -> Outcome<String> {
    let output = std::process::Command::new(program)
        .arg("--version")
        .output()
        .context(|| format!("start {} --version", program.display()))?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or("unknown").to_owned())
}
