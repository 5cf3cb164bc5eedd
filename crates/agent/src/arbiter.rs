//! Arbitrates access to each file of a view between the kernel's page cache (FUSE) and the ring.
//!
//! The kernel caches pages of files and changes through mappings, which the ring does not see. While the kernel has a descriptor
//! of a file open, the ring therefore declines requests on the file, and programs use the kernel. Before the FUSE frontend replies
//! to an open, ring requests in flight on the file end; each later ring request checks the file's gate first.
//!
//! What the kernel has cached of a file that it has closed may be older than writes through the ring since. The kernel drops such
//! pages at its next open, as after any write past them ([`KernelPages::mark_pages_stale`]). The agent invalidates recent attributes: those of
//! a file when the kernel opens it, those of a directory when the ring changes names in it.
//!
//! [`KernelPages::mark_pages_stale`]: tameike_client::vfs::KernelPages::mark_pages_stale

mod gate;
mod mounts;

pub(crate) use gate::{Gate, InFlight};
pub(crate) use mounts::{Mounts, OneMount};

use crate::kernel_cache::KernelCache;
use crate::ring::ShownView;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tameike_client::vfs::{FileNumber, has_setid};
use tameike_core::Result;
use tameike_core::limits::DIRECTORY_LIFETIME;
use tameike_io::Runtime;

/// Directories whose attributes the kernel may cache at a time.
const CACHED_MAX: usize = 1 << 12;
/// Time after a reply during which the kernel may show its attributes: their lifetime, and as much for the reply in flight.
pub(crate) const ATTRIBUTES_LINGER: Duration = DIRECTORY_LIFETIME.saturating_mul(2);
/// Prefix of names by which the ring hands files over to the kernel.
const HANDOVER_PREFIX: &[u8] = b".tameike-";

#[derive(Default)]
struct State {
    /// Time of the first request through the ring.
    used: Option<Duration>,
    /// Files that the kernel or the ring has open, or that the ring wrote recently.
    gates: BTreeMap<FileNumber, Arc<Gate>>,
    /// Times of the last ring write of files that the ring has closed.
    lingering: VecDeque<(Duration, FileNumber)>,
    /// Directories whose attributes the kernel may show, and until when.
    cached: BTreeMap<FileNumber, Duration>,
    /// Names by which the kernel may open files of the ring.
    handed_over: BTreeMap<Vec<u8>, FileNumber>,
}

pub(crate) struct Arbiter {
    runtime: Runtime,
    is_unchanging: bool,
    /// The mount, if there may be several of the view on this node.
    mount: Option<Arc<OneMount>>,
    kernel: KernelCache,
    state: Mutex<State>,
    /// Counts changes of names through the ring.
    changes: AtomicU64,
    /// Counts renames, removals and permission changes of directories.
    directories: AtomicU64,
    /// Shares `directories` with programs that walk paths themselves.
    shown: OnceLock<Arc<ShownView>>,
}

impl State {
    /// Drops the gate of an unused file, unless the kernel's attributes may be older than the last write.
    fn drop_idle(&mut self, file: FileNumber, now: Duration) {
        let Some(gate) = self.gates.get(&file).filter(|gate| gate.is_idle()) else { return };
        match gate.written() {
            Some(time) if now < time + ATTRIBUTES_LINGER => self.lingering.push_back((time, file)),
            _ => drop(self.gates.remove(&file)),
        }
    }

    fn drop_lingering(&mut self, now: Duration) {
        while let Some((time, file)) = self.lingering.front().copied()
            && now >= time + ATTRIBUTES_LINGER
        {
            self.lingering.pop_front();
            self.drop_idle(file, now);
        }
    }
}

impl Arbiter {
    /// Creates the arbiter of a view, which never changes if it `is_unchanging`.
    pub(crate) fn new(runtime: Runtime, is_unchanging: bool) -> Arc<Self> {
        Arc::new(Self::with_mount(runtime, is_unchanging, None))
    }

    /// Creates the arbiter of one of several mounts of a view. No ring serves the view.
    pub(crate) fn of_one_mount(runtime: Runtime, mount: Arc<OneMount>) -> Arc<Self> {
        Arc::new(Self::with_mount(runtime, false, Some(mount)))
    }

    fn with_mount(runtime: Runtime, is_unchanging: bool, mount: Option<Arc<OneMount>>) -> Self {
        Self {
            runtime,
            is_unchanging,
            mount,
            kernel: KernelCache::default(),
            state: Mutex::default(),
            changes: AtomicU64::new(0),
            directories: AtomicU64::new(0),
            shown: OnceLock::new(),
        }
    }

    pub(crate) fn is_unchanging(&self) -> bool {
        self.is_unchanging
    }

    pub(crate) fn kernel(&self) -> &KernelCache {
        &self.kernel
    }

    fn now(&self) -> Duration {
        self.runtime.clock.monotonic()
    }

    /// Gives a file to the kernel before the reply to its open, until [`Self::kernel_closed`]. Waits for ring requests in flight.
    pub(crate) async fn kernel_opens(&self, file: FileNumber) -> Result<()> {
        let gate = {
            let mut state = self.state.lock();
            let gate = state.gates.entry(file).or_default().clone();
            gate.kernel_opens();
            gate
        };
        gate.until_idle().await;
        let written = gate.written();
        if written.is_some() {
            // Pages, too: the kernel may have received a concurrent open's reply that allows it to keep them.
            if let Err(fault) = self.kernel.drop_all(file).await {
                self.kernel_closed(file);
                return Err(fault);
            }
            gate.clear_written(written);
        }
        Ok(())
    }

    /// Ends an open of the kernel.
    pub(crate) fn kernel_closed(&self, file: FileNumber) {
        let mut state = self.state.lock();
        if let Some(gate) = state.gates.get(&file) {
            gate.kernel_closes();
        }
        let now = self.now();
        state.drop_idle(file, now);
    }

    /// Opens a file for the ring. Returns `None` while the kernel has it open.
    pub(crate) fn open(&self, file: FileNumber) -> Option<Arc<Gate>> {
        let gate = self.hold(file);
        if gate.is_open_in_kernel() {
            self.release(file);
            return None;
        }
        Some(gate)
    }

    /// As [`Self::open`], for a file that the ring has just created. If the kernel has opened it since, its requests are declined.
    pub(crate) fn hold(&self, file: FileNumber) -> Arc<Gate> {
        let now = self.now();
        let mut state = self.state.lock();
        state.used.get_or_insert(now);
        let gate = state.gates.entry(file).or_default();
        gate.ring_opens();
        gate.clone()
    }

    /// Ends an open of the ring.
    pub(crate) fn release(&self, file: FileNumber) {
        let now = self.now();
        let mut state = self.state.lock();
        if let Some(gate) = state.gates.get(&file) {
            gate.ring_closes();
        }
        state.drop_lingering(now);
        state.drop_idle(file, now);
    }

    /// Records a write through the ring, before it begins.
    pub(crate) fn writes(&self, gate: &Gate) {
        gate.writes(self.now());
    }

    pub(crate) fn is_open_in_kernel(&self, file: FileNumber) -> bool {
        self.state.lock().gates.get(&file).is_some_and(|gate| gate.is_open_in_kernel())
    }

    /// Count of name changes through the ring or other mounts. Read it before reading a directory for the kernel; see
    /// [`Self::may_cache_name`] and [`Self::may_cache_attributes`].
    pub(crate) fn changes(&self) -> u64 {
        match &self.mount {
            Some(mount) => mount.changes(),
            None => self.changes.load(Ordering::Acquire),
        }
    }

    /// Returns whether the kernel may cache the name of a directory that was read when the count of changes was `changes`.
    pub(crate) fn may_cache_name(&self, dir: FileNumber, changes: u64) -> bool {
        self.mount.as_ref().is_none_or(|mount| mount.may_cache(dir, changes))
    }

    /// Returns whether the kernel may cache attributes of a directory that were read when the count of changes was `changes`.
    pub(crate) fn may_cache_attributes(&self, dir: FileNumber, changes: u64) -> bool {
        if let Some(mount) = &self.mount {
            return mount.may_cache(dir, changes);
        }
        let now = self.now();
        let mut state = self.state.lock();
        if state.used.is_none() {
            return true;
        }
        if state.cached.len() >= CACHED_MAX {
            state.cached.retain(|_, until| *until > now);
        }
        if self.changes() != changes || state.cached.len() >= CACHED_MAX {
            return false;
        }
        state.cached.insert(dir, now + ATTRIBUTES_LINGER);
        true
    }

    /// Invalidates the kernel's attributes of a directory in which the ring has changed names.
    pub(crate) async fn names_changed(&self, dir: FileNumber) {
        let now = self.now();
        let is_cached = {
            let mut state = self.state.lock();
            self.changes.fetch_add(1, Ordering::AcqRel);
            // Replies before the first request through the ring were not recorded.
            let is_unknown = *state.used.get_or_insert(now) + ATTRIBUTES_LINGER > now;
            state.cached.remove(&dir).is_some_and(|until| until > now) || is_unknown
        };
        if is_cached && let Err(fault) = self.kernel.drop_attributes(dir).await {
            // The change itself has succeeded, and old attributes expire.
            log::warn!("{fault}");
        }
    }

    /// Count of changes that may alter path walks: renames and removals of directories, and permission changes.
    pub(crate) fn directories(&self) -> u64 {
        self.directories.load(Ordering::Acquire)
    }

    /// Records a rename or removal of a directory.
    pub(crate) fn directory_changed(&self) {
        let before = self.directories.fetch_add(1, Ordering::AcqRel);
        if let Some(shown) = self.shown.get() {
            shown.directories_changed(before + 1);
        }
    }

    /// Publishes changes of directories to programs that walk paths themselves.
    pub(crate) fn show_changes(&self, shown: Arc<ShownView>) {
        self.shown.get_or_init(|| shown).directories_changed(self.directories());
    }

    /// Records a change of a file's owner or mode; `mode` may set set-ID bits.
    pub(crate) fn access_changed(&self, file: FileNumber, mode: Option<u16>) {
        self.directory_changed();
        if mode.is_some_and(has_setid) {
            self.set_has_setid(file, true);
        }
    }

    /// Records an open of a file. Assumes set-ID bits if they are `known`, or may have been set since the count was `changes`.
    pub(crate) fn opened(&self, file: FileNumber, known: bool, changes: u64) {
        if known || self.directories() != changes {
            self.set_has_setid(file, true);
        }
    }

    pub(crate) fn has_setid(&self, file: FileNumber) -> bool {
        self.state.lock().gates.get(&file).is_some_and(|gate| gate.has_setid())
    }

    pub(crate) fn set_has_setid(&self, file: FileNumber, has_setid: bool) {
        if let Some(gate) = self.state.lock().gates.get(&file) {
            gate.set_has_setid(has_setid);
        }
    }

    /// Returns a name in the root directory by which the kernel can open a file of the ring.
    pub(crate) fn hand_over(&self, file: FileNumber) -> Vec<u8> {
        let mut secret = [0; 16];
        self.runtime.random.fill(&mut secret);
        let mut name = HANDOVER_PREFIX.to_vec();
        name.extend(secret.iter().flat_map(|byte| format!("{byte:02x}").into_bytes()));
        self.state.lock().handed_over.insert(name.clone(), file);
        name
    }

    pub(crate) fn handed_over(&self, dir: FileNumber, name: &[u8]) -> Option<FileNumber> {
        let is_one = dir == FileNumber::ROOT && name.starts_with(HANDOVER_PREFIX);
        if is_one { self.state.lock().handed_over.get(name).copied() } else { None }
    }

    pub(crate) fn end_handover(&self, name: &[u8]) {
        self.state.lock().handed_over.remove(name);
    }

    #[cfg(test)]
    fn known(&self) -> usize {
        self.state.lock().gates.len()
    }
}

#[cfg(test)]
mod tests;
