//! Prepares a node and starts its agent: directories, records, device, namespaces, mounts. All of it happens while the process
//! has one thread, because namespaces require that.

use super::cleanup::Belongings;
use super::start::NodeStart;
use super::{log_file, probe};
use crate::place::base::{self, Base, JobDir, JobDirUse};
use crate::place::janitor;
use crate::place::kept::KeptHere;
use crate::place::mount_points::MountPoint;
use crate::place::record::{DeviceOwner, NodeState, boot_id};
use crate::place::volume_store::{self, StoreLabel};
use crate::place::{orphans, stores};
use crate::settings::volume::OwnedVolume;
use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use tameike_agent::attach::Connection;
use tameike_agent::control::{
    AgentControl, AgentMode, AgentStart, DeviceStart, Isolation, NodeRecord, StartInput, ViewFrontend,
};
use tameike_core::{Errno, Fault, Result, View};
use tameike_io::os::process::ProcessId;
use tameike_io::os::{mount, namespace, owned};

/// A node whose agent has started.
pub struct PreparedNode<A> {
    pub agent: A,
    /// The record of its process.
    pub record: NodeRecord,
    /// Everything that must be cleaned up at the end.
    pub belongings: Belongings,
    /// What the node of a volume keeps for drivers.
    pub kept: Option<KeptHere>,
}

/// Prepares the node and starts the agent. Cleans up after a failure.
pub fn prepare<A: AgentControl>(node_start: &NodeStart) -> Result<PreparedNode<A>> {
    let base = Base::open(&node_start.start.base_dir)?;
    if !node_start.driver_is_here {
        // The driver of that job reports it to the user.
        janitor::sweep::<A>(&base, None)?.iter().for_each(|kept| log::info!("{}", kept.describe()));
        let roots = stores::roots(&base, std::slice::from_ref(&node_start.record.plan.device_root))?;
        orphans::sweep::<A>(&roots).iter().for_each(|message| log::info!("{message}"));
    }
    let job_dir = JobDir::open(&base, &node_start.start.job, JobDirUse::Join)?;
    let mut belongings = Belongings::new(base, job_dir, node_start);
    match start_in::<A>(node_start, &mut belongings) {
        Ok((agent, record, kept)) => Ok(PreparedNode { agent, record, belongings, kept }),
        Err(fault) => {
            belongings.clean_up_unused(node_start.is_new_store);
            Err(fault)
        }
    }
}

fn start_in<A: AgentControl>(
    node_start: &NodeStart,
    belongings: &mut Belongings,
) -> Result<(A, NodeRecord, Option<KeptHere>)> {
    let mut start = node_start.start.clone();
    let job_dir = belongings.job_dir().to_owned();
    let node_dir = base::node_dir(&job_dir, start.node.0);
    base::make_private_dir(&node_dir.join("commands"))?;
    let process = ProcessId::own()?;
    let is_volume = start.mode == AgentMode::Volume;
    let before =
        if start.mode == AgentMode::Recover { NodeState::read(&job_dir, start.node.0)? } else { None };
    if let Some(before) = &before {
        start.damage.extend(before.lost_device()?);
    }
    let mut state = NodeState {
        record: NodeRecord {
            node: start.node,
            pid: process.pid,
            pid_start: process.start,
            isolation: Isolation::None,
            mounts: Vec::new(),
            volume: None,
        },
        node_count: node_start.record.plan.nodes.len() as u32,
        // The store of a volume is none of the job's leftovers.
        device_dir: start.device.as_ref().filter(|_| !is_volume).map(|device| device.dir.clone()),
        device_used: before.is_some_and(|before| before.device_used),
        boot_id: boot_id(),
    };
    state.write(&job_dir)?;
    node_start.record.write(&node_dir)?;
    log_file::open(&node_dir.join("agent.log"), &node_start.log_level)?;
    if let Some(device) = start.device.as_ref().filter(|_| is_volume) {
        start.capacity = volume_capacity(node_start, device, belongings)?;
    } else if let Some(device) = &start.device {
        make_device_dir(device, start.mode)?;
        belongings.add_device();
        let (record, driver_is_here) = (&node_start.record, node_start.driver_is_here);
        DeviceOwner::new(belongings.base(), start.node, record, driver_is_here)?.write(&device.dir)?;
        let free = free_space(device)? / u64::from(node_start.sharers.max(1));
        start.capacity = node_start.record.plan.capacity.resolve(free, start.shared_dir.is_some());
        if start.mode == AgentMode::Serve {
            check_space(&start, device, free)?;
        }
    }
    let store = start.device.as_ref().map(|device| device.dir.clone());
    let kept = is_volume.then(|| KeptHere::open(start.node, store)).transpose()?;
    let is_ram = start.device.as_ref().is_some_and(|device| device.ram);
    let region_memory = || region_memory(is_ram, node_start.sharers);
    start.region_memory = node_start.record.plan.region_memory.unwrap_or_else(region_memory);
    let mut frontends = Vec::new();
    if start.mode == AgentMode::Serve {
        check_shared(start.shared_dir.as_deref())?;
        let attached = node_start.record.plan.attached.as_ref();
        let mounts = Mounts::make(&start, &job_dir, attached, belongings)?;
        frontends = mounts.frontends;
        (state.record.isolation, state.record.volume) = (mounts.isolation, mounts.volume);
        state.record.mounts =
            frontends.iter().map(|frontend| (frontend.view, frontend.path.clone())).collect();
        state.write(&job_dir)?;
    }
    let offers_ring = start.mode == AgentMode::Serve && !node_start.record.plan.no_ring;
    if node_start.record.plan.no_ring {
        log::info!("programs reach this agent through FUSE only, because of --no-ring");
    }
    let ring = offers_ring.then(|| base::ring_socket(&node_dir));
    let agent = A::start(StartInput { start, frontends, ring })?;
    state.device_used = state.device_dir.is_some();
    state.write(&job_dir)?;
    Ok((agent, state.record, kept))
}

/// Creates the device directory. For a new job it must not exist, because it would have data of another one. For a recovery it
/// must belong to the user, because its data goes to the shared directory.
fn make_device_dir(device: &DeviceStart, mode: AgentMode) -> Result<()> {
    let doing = || format!("creating the device directory {}", device.dir.display());
    match DirBuilder::new().mode(0o700).create(&device.dir) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists && mode == AgentMode::Recover => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let message = format!(
                "{}: it exists already, of another job of this name (with another TMPDIR) or of another user; \
                 choose another --job or --device, or remove it if it is a leftover",
                doing()
            );
            return Err(Fault::new(Errno::EEXIST, message));
        }
        Err(error) => return Err(Fault::from_os(doing(), &error)),
    }
    owned::is_own_dir(&device.dir).map(drop).map_err(|fault| fault.context(doing()))
}

/// Creates or checks the store of a volume, and returns the capacities of its views. A store keeps those that it was created with.
fn volume_capacity(
    node_start: &NodeStart,
    device: &DeviceStart,
    belongings: &mut Belongings,
) -> Result<[u64; 3]> {
    let NodeStart { start, record, sharers, .. } = node_start;
    let none = || Fault::new(Errno::EPROTO, "the start of a volume's agent names no volume");
    let volume = record.plan.volume.as_ref().ok_or_else(none)?;
    if node_start.is_new_store {
        volume_store::create(&device.dir)?;
        belongings.add_volume_store(device.dir.clone(), volume.number.clone());
        let free = free_space(device)? / u64::from((*sharers).max(1));
        let capacity = [0, record.plan.capacity.total.unwrap_or(free), 0];
        check_space(&AgentStart { capacity, ..start.clone() }, device, free)?;
        let (volume, node) = (volume.number.clone(), start.node.0);
        StoreLabel { volume, node, capacity }.write(&device.dir)?;
        return Ok(capacity);
    }
    let label = StoreLabel::read(&device.dir, &volume.number, start.node.0)?;
    belongings.add_volume_store(device.dir.clone(), volume.number.clone());
    Ok(label.capacity)
}

/// Returns the default capacity in bytes: half of the free memory, or 4/5 of the free disk space.
fn free_space(device: &DeviceStart) -> Result<u64> {
    let found = rustix::fs::statvfs(&device.dir).map_err(|error| {
        Fault::from_os(format_args!("reading the free space of {}", device.dir.display()), &error.into())
    })?;
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    if !device.ram {
        return Ok(free / 5 * 4);
    }
    Ok(free.min(free_memory()) / 2)
}

/// Returns the free memory in bytes, without limit if the kernel does not report it.
fn free_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.map_or(u64::MAX, |kib| kib << 10)
}

/// Returns the default memory for regions in bytes: half of the free memory, or half of what a device in memory leaves.
fn region_memory(device_is_memory: bool, sharers: u32) -> u64 {
    let part = if device_is_memory { 4 } else { 2 };
    free_memory() / part / u64::from(sharers.max(1))
}

/// Refuses a capacity that exceeds the free space, so that a job cannot fill the disk below its limit.
fn check_space(start: &AgentStart, device: &DeviceStart, free: u64) -> Result<()> {
    let wanted = start.capacity.iter().fold(0_u64, |sum, size| sum.saturating_add(*size));
    let there = if device.ram { free.saturating_mul(2) } else { free / 4 * 5 };
    if wanted <= there {
        return Ok(());
    }
    let show = crate::settings::size::show;
    let message = format!(
        "--capacity requests {} on each node, but {} has {} free; request less, or choose another --device",
        show(wanted),
        device.dir.parent().unwrap_or(&device.dir).display(),
        show(there)
    );
    Err(Fault::new(Errno::ENOSPC, message))
}

/// Checks that the shared directory exists on this node.
fn check_shared(dir: Option<&Path>) -> Result<()> {
    let Some(dir) = dir else { return Ok(()) };
    std::fs::read_dir(dir).map(drop).map_err(|error| {
        Fault::from_os(format_args!("reading the shared directory {}", dir.display()), &error)
    })
}

/// The mounts of a node.
struct Mounts {
    isolation: Isolation,
    /// Why namespaces are not available, if they are not.
    why: String,
    frontends: Vec<ViewFrontend>,
    volume: Option<PathBuf>,
}

impl Mounts {
    /// Mounts the views, in new namespaces if possible, and a volume.
    fn make(
        start: &AgentStart,
        job_dir: &Path,
        attached: Option<&OwnedVolume>,
        belongings: &mut Belongings,
    ) -> Result<Self> {
        let probed = probe::in_child()?;
        // In a user namespace, the owner of the volume may have no number.
        let connect = |volume: &OwnedVolume| Connection::open(&volume.for_agent(), start.node.0 as usize);
        let connection = attached.map(connect).transpose()?;
        let (isolation, why) = match probed.usable() {
            Ok(_) => (probe::isolation_of(namespace::isolate()?), String::new()),
            Err(why) => {
                log::info!("namespaces are not available, mounting with {}: {why}", mount::FUSE_HELPER);
                (Isolation::None, why)
            }
        };
        let mut mounts = Self { isolation, why, frontends: Vec::new(), volume: None };
        let apart = (isolation == Isolation::None).then_some(start.node.0);
        for view in View::ALL.into_iter().filter(|&view| view != View::Cache || start.shared_dir.is_some()) {
            let path = base::mount_point(job_dir, view, apart);
            let source = format!("tameike:{}:{}", start.job, view.as_str());
            let memory = is_in_memory(start, view).then_some(start.capacity[view.index()]);
            let fuse = mounts.mount(&source, &path, memory, belongings)?;
            mounts.frontends.push(ViewFrontend { view, fuse, path });
        }
        if let (Some(volume), Some(connection)) = (attached, connection) {
            let path = base::volume_mount_point(job_dir, apart);
            if let Some(fuse) = mounts.mount(&volume.source(), &path, None, belongings)? {
                connection.attach(fuse)?;
            }
            mounts.volume = Some(path);
        }
        Ok(mounts)
    }

    /// Mounts FUSE, or a file system of `memory` bytes if namespaces hide it.
    fn mount(
        &self,
        source: &str,
        path: &Path,
        memory: Option<u64>,
        belongings: &mut Belongings,
    ) -> Result<Option<OwnedFd>> {
        let is_apart = self.isolation == Isolation::None;
        let mount_point = {
            let _lock = belongings.base().lock()?;
            MountPoint::make(path, !is_apart)?
        };
        let fuse = match (is_apart, memory) {
            (true, _) => Some(mount::mount_fuse_by_helper(source, path, false).map_err(|fault| {
                let why = &self.why;
                let message = format!("{fault}, and namespaces are not available either ({why})");
                Fault::new(fault.errno, format!("{message}; `tameike doctor` prints how to fix it"))
            })?),
            (false, Some(size)) => {
                mount::mount_memory(source, path, size)?;
                None
            }
            (false, None) => Some(mount::mount_fuse(source, path, false)?),
        };
        belongings.add_mount(self.isolation, path.to_owned(), mount_point);
        Ok(fuse)
    }
}

/// Returns true if a view has its files only in this node's memory.
fn is_in_memory(start: &AgentStart, view: View) -> bool {
    view == View::NodeLocal && start.device.as_ref().is_some_and(|device| device.ram)
}
