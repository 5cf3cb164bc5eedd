//! Which door has a file: the kernel's or the ring.
//!
//! The kernel keeps pages of files, and changes of mapped ones, that nobody else sees. So while it has a descriptor of a
//! file open, all goes through it: what the ring is asked of the file is declined. Before an open is told to the kernel,
//! what the ring does to the file has ended; from then on each request through the ring looks first.
//!
//! What the kernel has kept of a file that it has no more open may be older than what was written through the ring since.
//! Its pages it drops at its next open, as for any write past them ([`KernelPages::pages_passed`]). Attributes that it was told a
//! moment ago it is made to forget: those of a file when it opens it, those of a directory when names in it change through
//! the ring.
//!
//! [`KernelPages::pages_passed`]: tameike_client::vfs::KernelPages::pages_passed

mod gate;

pub(crate) use gate::{Gate, InFlight};

use crate::kernel_cache::KernelCache;
use crate::ring::ShownView;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tameike_client::vfs::{FileNumber, gives_rights};
use tameike_core::Result;
use tameike_core::limits::DIRECTORY_LIFETIME;
use tameike_io::Runtime;

/// Directories whose attributes the kernel may keep.
const TOLD_MAX: usize = 1 << 12;
/// How long after it was told attributes the kernel may still show them: the answer has its way to go.
const ATTRIBUTES_LINGER: Duration = DIRECTORY_LIFETIME.saturating_mul(2);
/// What names begin with by which files are handed over to the kernel.
const HANDOVER_PREFIX: &[u8] = b".tameike-";

#[derive(Default)]
struct State {
    /// Since when programs come through the ring.
    used: Option<Duration>,
    /// The files that either door has open, or the ring has written to a moment ago.
    gates: BTreeMap<FileNumber, Arc<Gate>>,
    /// Files that the ring has written to and closed, and when.
    lingering: VecDeque<(Duration, FileNumber)>,
    /// Directories of which the kernel was told attributes, and until when it may show them.
    told: BTreeMap<FileNumber, Duration>,
    /// Names by which the kernel may open files of the ring.
    handed: BTreeMap<Vec<u8>, FileNumber>,
}

/// Which door of a view has which file.
pub(crate) struct Custody {
    runtime: Runtime,
    /// Nothing of the view ever changes.
    is_unchanging: bool,
    kernel: KernelCache,
    state: Mutex<State>,
    /// Counts changes of names through the ring.
    changes: AtomicU64,
    /// Counts changes of directories themselves.
    directories: AtomicU64,
    /// Whom programs are told of these, where they walk by themselves.
    shown: OnceLock<Arc<ShownView>>,
}

impl State {
    /// Forgets a file that no door has, unless the kernel's attributes may be from before what was written.
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

impl Custody {
    pub(crate) fn new(runtime: Runtime) -> Arc<Self> {
        Self::with(runtime, false)
    }

    /// Of a view of which nothing ever changes.
    pub(crate) fn of_unchanging(runtime: Runtime) -> Arc<Self> {
        Self::with(runtime, true)
    }

    fn with(runtime: Runtime, is_unchanging: bool) -> Arc<Self> {
        Arc::new(Self {
            runtime,
            is_unchanging,
            kernel: KernelCache::default(),
            state: Mutex::default(),
            changes: AtomicU64::new(0),
            directories: AtomicU64::new(0),
            shown: OnceLock::new(),
        })
    }

    /// Whether what the kernel has of the view stays right.
    pub(crate) fn is_unchanging(&self) -> bool {
        self.is_unchanging
    }

    /// What the kernel has cached of the view.
    pub(crate) fn kernel(&self) -> &KernelCache {
        &self.kernel
    }

    fn now(&self) -> Duration {
        self.runtime.clock.monotonic()
    }

    /// The kernel is about to be told that a file is open: it has the file from now on, until [`Self::closed`]. Waits
    /// until what the ring does to it has ended.
    ///
    /// # Errors
    /// The kernel cannot be made to forget what is older.
    pub(crate) async fn admit(&self, file: FileNumber) -> Result<()> {
        let gate = {
            let mut state = self.state.lock();
            let gate = state.gates.entry(file).or_default().clone();
            gate.kernel_opens();
            gate
        };
        gate.until_over().await;
        let written = gate.written();
        if written.is_some() {
            // Pages, too: another open, which was told that it may keep them, may be answered first.
            if let Err(fault) = self.kernel.drop_all(file).await {
                self.closed(file);
                return Err(fault);
            }
            gate.is_true_again(written);
        }
        Ok(())
    }

    /// The kernel has closed a descriptor of a file for the last time.
    pub(crate) fn closed(&self, file: FileNumber) {
        let mut state = self.state.lock();
        if let Some(gate) = state.gates.get(&file) {
            gate.kernel_closes();
        }
        let now = self.now();
        state.drop_idle(file, now);
    }

    /// The ring is about to open a file; none while the kernel has it.
    pub(crate) fn open(&self, file: FileNumber) -> Option<Arc<Gate>> {
        let gate = self.hold(file);
        if gate.is_kernels() {
            self.release(file);
            return None;
        }
        Some(gate)
    }

    /// As [`Self::open`], for a file that the ring has just made: if the kernel has it by now, requests are declined.
    pub(crate) fn hold(&self, file: FileNumber) -> Arc<Gate> {
        let now = self.now();
        let mut state = self.state.lock();
        state.used.get_or_insert(now);
        let gate = state.gates.entry(file).or_default();
        gate.ring_opens();
        gate.clone()
    }

    /// The ring has closed a file.
    pub(crate) fn release(&self, file: FileNumber) {
        let now = self.now();
        let mut state = self.state.lock();
        if let Some(gate) = state.gates.get(&file) {
            gate.ring_closes();
        }
        state.drop_lingering(now);
        state.drop_idle(file, now);
    }

    /// A program is about to write to a file through the ring.
    pub(crate) fn writes(&self, gate: &Gate) {
        gate.writes(self.now());
    }

    /// Whether the kernel has a file open.
    pub(crate) fn is_kernels(&self, file: FileNumber) -> bool {
        self.state.lock().gates.get(&file).is_some_and(|gate| gate.is_kernels())
    }

    /// To be asked before attributes of a directory are had for the kernel; then [`Self::tell`].
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// The kernel is about to be told attributes of a directory that were had after `changes`; whether it may keep them.
    pub(crate) fn tell(&self, dir: FileNumber, changes: u64) -> bool {
        let now = self.now();
        let mut state = self.state.lock();
        if state.used.is_none() {
            return true;
        }
        if state.told.len() >= TOLD_MAX {
            state.told.retain(|_, until| *until > now);
        }
        if self.changes() != changes || state.told.len() >= TOLD_MAX {
            return false;
        }
        state.told.insert(dir, now + ATTRIBUTES_LINGER);
        true
    }

    /// The ring has changed names in a directory: the kernel forgets its attributes.
    pub(crate) async fn names_changed(&self, dir: FileNumber) {
        let now = self.now();
        let is_told = {
            let mut state = self.state.lock();
            self.changes.fetch_add(1, Ordering::AcqRel);
            // What the kernel was told before programs came this way, nobody has noted.
            let is_unknown = *state.used.get_or_insert(now) + ATTRIBUTES_LINGER > now;
            state.told.remove(&dir).is_some_and(|until| until > now) || is_unknown
        };
        if is_told && let Err(fault) = self.kernel.drop_attributes(dir).await {
            // The change itself is done: what is old ends with its time.
            log::warn!("{fault}");
        }
    }

    /// Counts what happens to directories that makes a walk through them another, and changes of who may do what.
    pub(crate) fn directories(&self) -> u64 {
        self.directories.load(Ordering::Acquire)
    }

    /// A directory was renamed or removed.
    pub(crate) fn directory_changed(&self) {
        let before = self.directories.fetch_add(1, Ordering::AcqRel);
        if let Some(shown) = self.shown.get() {
            shown.directories_changed(before + 1);
        }
    }

    /// Has programs that walk by themselves know of changes of directories, from now on.
    pub(crate) fn show_changes(&self, shown: Arc<ShownView>) {
        // A view is put behind the ring once.
        self.shown.get_or_init(|| shown).directories_changed(self.directories());
    }

    /// Who may use a file has changed, or what it gives to who runs it, if `mode` tells of one.
    pub(crate) fn access_changed(&self, file: FileNumber, mode: Option<u16>) {
        self.directory_changed();
        if mode.is_some_and(gives_rights) {
            self.set_gives_rights(file, true);
        }
    }

    /// A door has opened a file that gives rights if `known`: or if that may have changed since the count was `changes`.
    pub(crate) fn opened(&self, file: FileNumber, known: bool, changes: u64) {
        if known || self.directories() != changes {
            self.set_gives_rights(file, true);
        }
    }

    /// Whether a write may have to take away rights that a file gives to who runs it.
    pub(crate) fn gives_rights(&self, file: FileNumber) -> bool {
        self.state.lock().gates.get(&file).is_some_and(|gate| gate.gives_rights())
    }

    pub(crate) fn set_gives_rights(&self, file: FileNumber, gives: bool) {
        if let Some(gate) = self.state.lock().gates.get(&file) {
            gate.set_gives_rights(gives);
        }
    }

    /// A name in the root by which the kernel can open a file that the ring has open.
    pub(crate) fn hand_over(&self, file: FileNumber) -> Vec<u8> {
        let mut secret = [0; 16];
        self.runtime.random.fill(&mut secret);
        let mut name = HANDOVER_PREFIX.to_vec();
        name.extend(secret.iter().flat_map(|byte| format!("{byte:02x}").into_bytes()));
        self.state.lock().handed.insert(name.clone(), file);
        name
    }

    /// The file that has such a name.
    pub(crate) fn handed(&self, dir: FileNumber, name: &[u8]) -> Option<FileNumber> {
        let is_one = dir == FileNumber::ROOT && name.starts_with(HANDOVER_PREFIX);
        if is_one { self.state.lock().handed.get(name).copied() } else { None }
    }

    /// The name is no more.
    pub(crate) fn take_back(&self, name: &[u8]) {
        self.state.lock().handed.remove(name);
    }

    #[cfg(test)]
    fn known(&self) -> usize {
        self.state.lock().gates.len()
    }
}

#[cfg(test)]
mod tests;
