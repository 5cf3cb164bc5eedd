//! Targets: a directory to measure, and the command that starts a process where it is mounted.
//!
//! A target that this program sets up ends when it is dropped, also after a failure.

mod gfarm;
mod gluster;
mod job;
mod moosefs;
mod peer;

use crate::options::{BuiltIn, RunOptions};
use crate::outcome::{Context, Outcome, output_of};
use crate::place::{Limits, Place};
use crate::servers::Servers;
use crate::workload::Workload;
use serde::Serialize;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// The job-shared view, to a rank.
const SHARED: &str = "$TAMEIKE_SHARED";
/// The cache view, to a rank.
const CACHE: &str = "$TAMEIKE_CACHE";
/// Options of `exec` for ranks that are preloaded.
const PRELOADED: &[&str] = &["--preload"];
/// Options of `up` for a job with replicas.
const REPLICATED: &[&str] = &["--replicas", "2"];

/// The name of a target in reports.
#[derive(Clone, Debug, Serialize)]
pub struct Label {
    pub name: String,
    /// Program and version, or the type of the file system.
    pub version: String,
}

/// A place to measure, ready for ranks.
#[derive(Debug)]
pub struct Target {
    pub label: Label,
    pub place: Place,
    backing: Backing,
}

/// The processes and files that end with the target.
#[derive(Debug)]
enum Backing {
    Given,
    Directory(TempDir),
    Peer(peer::Peer),
    Job(job::Job),
}

impl Target {
    /// Returns true for a peer file system, whose failures do not end a run.
    pub fn is_peer(&self) -> bool {
        matches!(self.backing, Backing::Peer(_))
    }

    /// Returns true if its ranks can do `workload`.
    pub fn can_run(&self, workload: Workload) -> bool {
        !self.place.in_container || workload == Workload::Containers
    }

    /// Persists what ranks wrote: a job whose files outlive it ends.
    pub fn persist(&mut self) -> Outcome<()> {
        match &mut self.backing {
            Backing::Job(job) if self.place.directory == CACHE => job.down(),
            _ => self.place.settle(),
        }
    }

    /// Starts again what [`Self::persist`] ended.
    pub fn resume(&mut self) -> Outcome<()> {
        if let Backing::Job(job) = &mut self.backing {
            job.up()?;
            self.place.servers = job.servers();
        }
        Ok(())
    }

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

/// All targets of a run. They are taken down from the last to the first: a later one may lie on an earlier one.
#[derive(Debug, Default)]
pub struct Targets(Vec<Target>);

impl Targets {
    /// Takes them down, and returns the first failure.
    pub fn stop(mut self) -> Outcome<()> {
        while let Some(target) = self.0.pop() {
            target.stop()?;
        }
        Ok(())
    }
}

impl Drop for Targets {
    fn drop(&mut self) {
        while self.0.pop().is_some() {}
    }
}

impl std::ops::Deref for Targets {
    type Target = Vec<Target>;

    fn deref(&self) -> &Vec<Target> {
        &self.0
    }
}

impl std::ops::DerefMut for Targets {
    fn deref_mut(&mut self) -> &mut Vec<Target> {
        &mut self.0
    }
}

/// All targets that `options` ask for, ready.
pub fn start_all(options: &RunOptions, limits: &Limits) -> Outcome<Targets> {
    let mut targets = Targets::default();
    for &kind in &options.targets {
        limits.interrupt.check()?;
        let shared = targets.iter().find(|target| target.label.name == options.shared);
        let shared = shared.map_or(&options.shared, |target| &target.place.directory).replace("{node}", "0");
        let started = start(kind, options, Path::new(&shared), limits)?;
        targets.push(started);
    }
    for also in &options.also {
        let (name, directory) =
            also.split_once('=').ok_or_else(|| format!("--also {also}: not NAME=DIRECTORY"))?;
        let version = if directory.starts_with('$') { directory.to_owned() } else { kind_of(directory) };
        targets.push(target(name, version, directory.to_owned(), options.nodes, Backing::Given));
    }
    set_commands(&mut targets, "--launcher", &options.launchers, |place| &mut place.launcher)?;
    set_commands(&mut targets, "--settle", &options.settles, |place| &mut place.settle)?;
    for target in targets.iter_mut() {
        target.place.drop_caches = options.drop_caches;
    }
    match targets.is_empty() {
        true => Err("nothing to measure: give --targets or --also".to_owned()),
        false => Ok(targets),
    }
}

/// Sets the commands that `values` of `option` have for targets, as NAME=COMMAND.
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

fn start(kind: BuiltIn, options: &RunOptions, shared: &Path, limits: &Limits) -> Outcome<Target> {
    let program = &options.report.tameike;
    let own = |name: &str, view: &str, nodes, exec: &[&str], up: &[&str]| {
        job(name, view, nodes, job::Job::start(program, name, nodes, shared, up)?, exec)
    };
    match kind {
        BuiltIn::Disk => directory("disk", &options.disk, options.nodes),
        BuiltIn::Tmpfs => directory("tmpfs", Path::new("/dev/shm"), options.nodes),
        BuiltIn::Glusterfs => peer("glusterfs", gluster::start, gluster::version, options, limits),
        BuiltIn::GlusterfsReplicas => {
            peer("glusterfs-replicas", gluster::start_replicated, gluster::version, options, limits)
        }
        BuiltIn::Moosefs => peer("moosefs", moosefs::start, moosefs::version, options, limits),
        BuiltIn::Gfarm => peer("gfarm", gfarm::start, gfarm::version, options, limits),
        BuiltIn::Tameike => own("tameike", SHARED, options.nodes, &[], &[]),
        BuiltIn::TameikeOne => own("tameike-1", SHARED, 1, &[], &[]),
        BuiltIn::TameikePreload => own("tameike-preload", SHARED, options.nodes, PRELOADED, &[]),
        BuiltIn::TameikeOnePreload => own("tameike-1-preload", SHARED, 1, PRELOADED, &[]),
        BuiltIn::TameikeReplicas => own("tameike-replicas", SHARED, options.nodes, &[], REPLICATED),
        BuiltIn::TameikeReplicasPreload => {
            own("tameike-replicas-preload", SHARED, options.nodes, PRELOADED, REPLICATED)
        }
        BuiltIn::TameikeCache => own("tameike-cache", CACHE, options.nodes, &[], &[]),
        BuiltIn::TameikeAggregate => own("tameike-aggregate", CACHE, options.nodes, &[], &["--aggregate"]),
        BuiltIn::TameikeAggregateOnly => {
            let mut target = directory("tameike-aggregate-only", shared, 1)?;
            // Each turn has a container; the ranks share a spool.
            let container = format!("{}/{{run}}", target.place.directory);
            let program = program.display().to_string();
            let words = [&program, "run", "--aggregate-only", &container, "--"];
            target.place.launcher = words.map(str::to_owned).into();
            target.place.directory = container;
            Ok(target)
        }
        BuiltIn::TameikeLibrary => {
            let mut target = directory("tameike-library", shared, 1)?;
            target.place.in_container = true;
            Ok(target)
        }
    }
}

/// The job-shared view of a job of `nodes` agents of `program`, ready; its ranks are preloaded or not.
pub fn own_job(name: &str, program: &Path, nodes: u32, preload: bool) -> Outcome<Target> {
    let started = job::Job::start(program, name, nodes, Path::new("/dev/shm"), &[])?;
    job(name, SHARED, nodes, started, if preload { PRELOADED } else { &[] })
}

/// A job whose ranks are started with these options of `exec`.
fn job(name: &str, view: &str, nodes: u32, job: job::Job, exec: &[&str]) -> Outcome<Target> {
    let plural = if nodes == 1 { "" } else { "s" };
    let version = format!("{}, {view}, {nodes} agent{plural}, {}", job.version()?, kind_of(job.shared()));
    let launcher = job.launcher(exec);
    let mut target = target(name, version, view.to_owned(), nodes, Backing::Job(job));
    target.place.launcher = launcher;
    Ok(target)
}

fn peer(
    name: &str,
    start: impl Fn(u32, &Path, &Limits) -> Outcome<peer::Peer>,
    version: impl Fn() -> Outcome<String>,
    options: &RunOptions,
    limits: &Limits,
) -> Outcome<Target> {
    let peer = start(options.nodes, &options.store, limits)?;
    Ok(target(name, version()?, peer.mount_template(), options.nodes, Backing::Peer(peer)))
}

fn directory(name: &str, parent: &Path, nodes: u32) -> Outcome<Target> {
    let doing = || format!("make a directory in {}", parent.display());
    let own = tempfile::Builder::new().prefix("tameike-bench-").tempdir_in(parent).context(doing)?;
    let path = own.path().display().to_string();
    Ok(target(name, kind_of(&path), path, nodes, Backing::Directory(own)))
}

fn target(name: &str, version: String, directory: String, nodes: u32, backing: Backing) -> Target {
    let servers = match &backing {
        Backing::Given | Backing::Directory(_) => Servers::default(),
        Backing::Peer(peer) => peer.servers(),
        Backing::Job(job) => job.servers(),
    };
    let (launcher, settle) = (Vec::new(), Vec::new());
    let place =
        Place { launcher, directory, nodes, servers, settle, drop_caches: false, in_container: false };
    Target { label: Label { name: name.to_owned(), version }, place, backing }
}

/// The type of the file system that holds `directory`, by its name in the kernel.
fn kind_of(directory: &str) -> String {
    let path = std::fs::canonicalize(directory).unwrap_or_else(|_| directory.into());
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let holder = |line: &&str| line.split(' ').nth(1).is_some_and(|at| path.starts_with(at));
    let longest = mounts.lines().filter(holder).max_by_key(|line| line.split(' ').nth(1).map(str::len));
    longest.and_then(|line| line.split(' ').nth(2)).unwrap_or("unknown").to_owned()
}

/// The first line that `program --version` prints.
pub fn version_of(program: &Path) -> Outcome<String> {
    let output = output_of(Command::new(program).arg("--version"), "")?;
    Ok(output.lines().next().unwrap_or("unknown").to_owned())
}
