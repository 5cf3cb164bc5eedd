//! Search for stores of nodes in memory and in device directories, whatever TMPDIR their jobs had.
//!
//! The owner's record in a store identifies it, and has everything that recovery needs. With it, a job whose directory is
//! missing gets a new one.

use super::base::{Base, BaseLock, JobDir, make_private_dir, node_dir};
use super::record::{DeviceOwner, JobRecord, JobState, NodeState, OWNER_FILE, boot_id};
use super::tree;
use crate::arguments::DeviceChoice;
use crate::report::plural;
use crate::settings::{JobPlan, RAM_DIR, config, device_prefix};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tameike_agent::control::{Isolation, NodeRecord};
use tameike_core::{Errno, Fault, JobId, NodeId, Result};
use tameike_io::os::owned;

/// Variable with the path of a configuration file.
const CONFIG_VARIABLE: &str = "TAMEIKE_CONFIG";

/// The store of a node.
#[derive(Clone, Debug)]
pub struct Store {
    /// Its directory.
    pub dir: PathBuf,
    /// Its owner.
    pub owner: DeviceOwner,
}

impl Store {
    /// Returns true if its agent has exited, and the node's directory is not visible here.
    pub fn is_orphaned(&self) -> bool {
        !self.owner.is_alive() && !self.owner.node_dir.exists()
    }

    /// Returns true if nothing was written to it yet, as far as it is readable.
    pub fn is_unused(&self) -> bool {
        tree::is_empty_but_for(&self.dir, OWNER_FILE).unwrap_or(false)
    }

    /// Returns the directory for jobs and the directory of its job.
    fn places(&self) -> Option<(&Path, &Path)> {
        let job_dir = self.owner.node_dir.parent()?;
        Some((job_dir.parent()?, job_dir))
    }
}

/// Returns the directories to search: the given ones, and the device directory of the configuration.
pub fn search_dirs(given: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut dirs = given.to_vec();
    if let Some(path) = std::env::var_os(CONFIG_VARIABLE).filter(|path| !path.is_empty())
        && let Some(DeviceChoice::Directory(dir)) = config::read(Path::new(&path))?.device()
    {
        dirs.push(dir.clone());
    }
    let absolute = |dir: PathBuf| {
        let failed = |error| Fault::from_os(format_args!("reading {}", dir.display()), &error);
        dir.read_dir().and_then(|_| std::path::absolute(&dir)).map_err(failed)
    };
    dirs.into_iter().map(absolute).collect()
}

/// Returns the directories that may contain stores: memory, the directories `dirs`, and the device directories of known
/// jobs.
pub fn roots(base: &Base, dirs: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut roots = vec![PathBuf::from(RAM_DIR)];
    roots.extend(dirs.iter().cloned());
    // `janitor::sweep` reports an unreadable record.
    let records =
        base.jobs()?.into_iter().filter_map(|job| JobRecord::read_anywhere(&base.job_path(&job)).ok()?);
    roots.extend(records.map(|record| record.plan.device_root));
    roots.sort();
    roots.dedup();
    Ok(roots)
}

/// Returns the stores of this user in these directories. It skips directories of other users, stores without a readable owner,
/// and missing directories.
pub fn find(roots: &[PathBuf]) -> Vec<Store> {
    let prefix = device_prefix();
    let entries = roots.iter().flat_map(|root| root.read_dir().into_iter().flatten().flatten());
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(&prefix)) && owned::is_own_dir(path) == Ok(true)
    };
    let dirs = entries.map(|entry| entry.path()).filter(is_ours);
    let owned = dirs.filter_map(|dir| Some(Store { owner: DeviceOwner::read(&dir).ok()??, dir }));
    let mut stores: Vec<_> = owned.collect();
    stores.sort_by(|one, other| one.dir.cmp(&other.dir));
    stores
}

/// Returns the current directory for jobs, and those in which jobs of the stores have their directories.
pub fn bases(today: &Base, stores: &[Store]) -> Vec<Base> {
    let mut paths: Vec<_> = stores
        .iter()
        .filter_map(Store::places)
        .filter(|(base, job_dir)| *base != today.path() && job_dir.is_dir())
        .map(|(base, _)| base.to_owned())
        .collect();
    paths.sort();
    paths.dedup();
    let mut bases = vec![today.clone()];
    for path in paths.iter().filter(|path| owned::is_own_dir(path) == Ok(true)) {
        match Base::open(path) {
            Ok(base) => bases.push(base),
            Err(fault) => log::warn!("{fault}"),
        }
    }
    bases
}

/// Returns the stores whose jobs have no directory that is visible here, by job.
pub fn orphaned(stores: &[Store]) -> BTreeMap<JobId, Vec<&Store>> {
    let mut jobs = BTreeMap::<_, Vec<_>>::new();
    for store in stores.iter().filter(|store| store.is_orphaned()) {
        jobs.entry(store.owner.job.clone()).or_default().push(store);
    }
    jobs
}

/// Creates a new directory for a job whose directory is missing, from the records of its stores. Then it is like any
/// interrupted job. Fails with `EBUSY` if another job has its name or its driver runs.
pub fn adopt(today: &Base, lock: &BaseLock, stores: &[&Store]) -> Result<()> {
    let Some(owner) = stores.first().map(|store| &store.owner) else { return Ok(()) };
    let base = match stores[0].places() {
        Some((base, job_dir)) if base != today.path() && job_dir.is_dir() => &Base::open(base)?,
        _ => today,
    };
    let dir = base.job_path(&owner.job);
    let _dir = take_or_make(base, lock, owner)?;
    let mut record = owner.record.clone();
    (record.state, record.nodes) = (JobState::Interrupted, Vec::new());
    record.plan = JobPlan { base_dir: base.path().to_owned(), ..record.plan };
    record.unknown = unknown_nodes(&record, &dir, stores);
    for store in stores {
        let place = node_dir(&dir, store.owner.node()?);
        make_private_dir(&place)?;
        node_state(store)?.write(&dir)?;
        record.write(&place)?;
    }
    // On other hosts, the driver has the record.
    if owner.driver_is_here { record.write(&dir) } else { Ok(()) }
}

/// Locks the existing directory of the job of a store, or a new one.
fn take_or_make(base: &Base, lock: &BaseLock, owner: &DeviceOwner) -> Result<JobDir> {
    let (job, dir) = (&owner.job, base.job_path(&owner.job));
    let refused = |why: &str| {
        Fault::new(Errno::EBUSY, format!("{why}; its store of {} is not changed", owner.node_dir.display()))
    };
    if owner.driver_is_here && owner.record.driver_is_alive() {
        return Err(refused(&format!("the driver of job {job} still runs")));
    }
    if dir.exists() {
        let known = JobRecord::read_anywhere(&dir)?;
        if known.is_some_and(|known| known.started != owner.record.started) {
            return Err(refused(&format!("another job has the name {job} here: recover or end it first")));
        }
    } else {
        make_private_dir(&dir)?;
    }
    JobDir::lock_ended(base, lock, job)?.ok_or_else(|| refused(&format!("job {job} still runs")))
}

fn node_state(store: &Store) -> Result<NodeState> {
    let owner = &store.owner;
    Ok(NodeState {
        record: NodeRecord {
            node: NodeId(owner.node()?),
            pid: owner.pid,
            pid_start: owner.pid_start,
            isolation: Isolation::None,
            mounts: Vec::new(),
            volume: None,
        },
        node_count: owner.record.plan.nodes.len() as u32,
        device_dir: Some(store.dir.clone()),
        device_used: true,
        boot_id: boot_id(),
    })
}

/// Returns the message on nodes of this host without a store: without the job's directory, it is unknown if they had data.
fn unknown_nodes(record: &JobRecord, dir: &Path, stores: &[&Store]) -> Vec<String> {
    let has_store = |node: u32| stores.iter().any(|store| store.owner.node() == Ok(node));
    let lacks = |node: &u32| !has_store(*node) && !node_dir(dir, *node).exists();
    let here = record.plan.nodes.iter().zip(0_u32..).filter(|(spec, _)| spec.device && spec.is_here());
    let nodes: Vec<_> = here.map(|(_, node)| node).filter(lacks).map(|node| node.to_string()).collect();
    if nodes.is_empty() || record.plan.shared_dir.is_none() {
        return Vec::new();
    }
    vec![format!(
        "the job's directory is missing, and there is no store of {} {} in {}: it is unknown if data is lost",
        plural(nodes.len(), "node"),
        nodes.join(", "),
        record.plan.device_root.display()
    )]
}
