//! One file's data on this node: its cached units, the version and the writes that this node knows, the state of the kernel's cache, the
//! grants to programs, and the peer cache holders.
//!
//! Each part of the state is a separate object; one lock protects them all. Each part's module also has the methods of [`FileData`] that
//! use it.

mod access;
mod content;
mod faults;
mod fetch;
mod granted;
mod grants;
mod hints;
mod locations;
mod mark;
mod pages;
mod pass;
mod queue_entry;
mod streams;
mod unit;
mod units;
mod write_behind;

pub use access::Access;
pub use faults::ReportedFaults;
pub use granted::{FrameGranter, GrantKey};
pub use units::AtRest;

pub(super) use content::InlineContent;
pub(super) use fetch::{FetchInFlight, ReadPlan};
pub(super) use locations::{LocationPlan, LocationRequest};
pub(super) use queue_entry::QueueEntry;
pub(super) use unit::UnitFrame;
pub(super) use units::{Evicted, Served};
pub(super) use write_behind::Uncommitted;

use super::home::{FileVersion, Home};
use access::AccessTimes;
use content::ContentVersion;
use event_listener::Event;
use faults::WriteFaults;
use grants::FrameGrants;
use hints::HolderHints;
use locations::ExtentLocations;
use mark::Mark;
use pages::KernelPages;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use streams::Streams;
use tameike_core::{Generation, InodeId, Layout, MapEpoch, Timestamp};
use units::UnitCache;
use write_behind::WriteBehind;

/// State of one file's data.
#[derive(Default)]
struct FileState {
    /// Open handles.
    opens: u32,
    content: ContentVersion,
    kernel: KernelPages,
    units: UnitCache,
    writes: WriteBehind,
    faults: WriteFaults,
    streams: Streams,
    locations: ExtentLocations,
    hints: HolderHints,
    access: AccessTimes,
    grants: FrameGrants,
}

impl FileState {
    fn mark(&self) -> Mark {
        Mark { epoch: self.units.epoch(), writes: self.writes.count() }
    }

    fn wrote(&mut self, offset: u64, length: u64, time: Timestamp) {
        let end = offset + length;
        self.writes.add(end, time, offset > self.content.size());
        self.grow(end);
        self.changed_at(time);
    }

    fn changed_at(&mut self, time: Timestamp) {
        self.access.changed(time);
        self.revoke_for_access(time);
    }

    fn set_size(&mut self, size: u64) {
        if size < self.content.size() {
            self.grants.revoke();
            self.content.set_size(size);
        }
        self.grow(size);
    }

    /// Raises the size of the file to at least `size`.
    fn grow(&mut self, size: u64) {
        if size > self.content.size() {
            self.grants.withdraw_end();
            self.content.set_size(size);
        }
    }

    fn drop_clean(&mut self) {
        self.content.forget_inline();
        self.units.drop_clean();
    }

    /// Adopts the home's version unless this node knows a newer one, since answers may arrive out of order. The size keeps covering this
    /// node's uncommitted writes.
    fn adopt(&mut self, version: FileVersion) {
        if version.generation < self.content.generation() {
            return;
        }
        let is_first = self.units.epoch() == 0;
        if version.generation != self.content.generation() || is_first {
            self.drop_clean();
        }
        let size = version.size.max(self.writes.unknown().map_or(0, |unknown| unknown.end));
        self.content.adopt(version, is_first);
        self.set_size(size);
    }

    /// Ends a send of a unit, which may have lost its bytes. If the home's bytes are unknown, the kernel may have cached bytes of no
    /// version.
    fn end_send(&mut self, index: u64, is_lost: bool) {
        self.writes.end_send();
        let is_doubtful = self.units.get_mut(index).is_some_and(|unit| unit.sent(is_lost));
        if is_doubtful {
            self.units.dropped(index);
            self.kernel.forget();
        }
    }
}

/// One file's data on this node.
pub struct FileData {
    /// Inode of the file.
    pub inode: InodeId,
    /// Striping of the file's units.
    pub layout: Layout,
    /// The epoch of the home map when this node opened the file first.
    pub(super) opened_in: MapEpoch,
    home: Mutex<Home>,
    state: Mutex<FileState>,
    /// Notified when a send, a fetch or a request for locations has ended.
    changed: Event,
    /// Held during a flush, so that a flush acknowledges all earlier writes.
    flushing: async_lock::Mutex<()>,
    /// Held exclusively while the content of a file that is about to lose its last name moves out of the pool, and shared by reads and
    /// changes. So writes acknowledged before the move are moved, and later ones go to the new location.
    pub leaving: async_lock::RwLock<()>,
    /// Number of commits of this node's writes to the file's home.
    commits: AtomicU64,
}

impl FileData {
    pub(super) fn new(inode: InodeId, layout: Layout, home: Home, opened_in: MapEpoch) -> Self {
        Self {
            inode,
            layout,
            opened_in,
            home: Mutex::new(home),
            state: Mutex::default(),
            changed: Event::new(),
            flushing: async_lock::Mutex::new(()),
            leaving: async_lock::RwLock::new(()),
            commits: AtomicU64::new(0),
        }
    }

    pub(super) fn home(&self) -> Home {
        self.home.lock().clone()
    }

    pub(super) fn changed(&self) -> &Event {
        &self.changed
    }

    /// Excludes other flushes of the file, so that a flush acknowledges all earlier writes.
    pub(super) async fn begin_flush(&self) -> async_lock::MutexGuard<'_, ()> {
        self.flushing.lock().await
    }

    /// Records an open that found `version`. Returns true if the kernel's cached pages are still valid and the kernel opens the file.
    pub(super) fn opened(&self, home: Home, mut version: FileVersion, beside_kernel: bool) -> bool {
        *self.home.lock() = home;
        let mut state = self.state.lock();
        state.opens += 1;
        let kept = state.kernel.opened(version.generation, beside_kernel);
        let (generation, holders) = (version.generation, std::mem::take(&mut version.holders));
        state.adopt(version);
        state.learn_holders(generation, holders);
        kept
    }

    /// Closes one handle. The last close drops writes that it could not commit and whose failure it has reported. No later close would
    /// commit them, and only this node would see them, even in a later file with the same inode number.
    pub(super) fn closed(&self) {
        let mut state = self.state.lock();
        state.opens = state.opens.saturating_sub(1);
        if state.opens > 0 {
            return;
        }
        state.grants.close();
        state.locations = ExtentLocations::default();
        if state.writes.unknown().is_some() {
            state.writes.forget();
            state.kernel.forget_cached();
            state.drop_clean();
        }
    }

    /// Adopts a version that the home reported with another reply; drops cached bytes of an older version.
    pub fn refresh(&self, version: FileVersion) {
        self.state.lock().adopt(version);
    }

    /// Returns true if attributes of this version are complete until the next open on this node.
    pub fn is_settled(&self, generation: Generation) -> bool {
        let state = self.state.lock();
        let is_known = state.writes.unknown().is_none()
            && !state.access.has_access()
            && state.content.generation() <= generation;
        state.opens == 0 && is_known
    }

    /// Returns true if any handle of this node is open.
    pub fn is_open(&self) -> bool {
        self.state.lock().opens > 0
    }

    /// Returns true if the file has no open handle, nothing in memory, and nothing in flight.
    pub(super) fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.opens == 0 && state.units.is_empty() && !state.writes.is_sending()
    }

    pub(super) fn invalidate(&self) {
        self.state.lock().drop_clean();
    }

    /// Drops all bytes at and after `size`.
    pub(super) fn truncate(&self, size: u64) {
        let mut state = self.state.lock();
        state.units.truncate(size);
        state.content.truncate_inline(size);
    }

    pub(super) fn punch(&self, bytes: &Range<u64>) {
        self.state.lock().units.punch(bytes);
    }

    /// Records a generation that this node's own write created. Cached bytes stay valid if no other node wrote in between.
    pub(super) fn own_change(&self, generation: Generation, inline: bool) {
        let mut state = self.state.lock();
        let before = state.content.generation();
        if generation < before {
            return;
        }
        let is_alone = generation == before.next() || generation == before;
        if !is_alone {
            state.drop_clean();
        }
        state.kernel.own_change(before, generation, is_alone);
        state.content.own_change(generation, inline, is_alone);
    }

    /// Records a new size that the file has at its home.
    pub(super) fn resized(&self, size: u64) {
        let mut state = self.state.lock();
        state.set_size(size);
        state.writes.truncate(size);
        // The home may have moved the inline content to a unit, or zeroed part of it.
        state.content.forget_inline();
    }

    /// Raises the size to one that the home has reported.
    pub(super) fn grown(&self, size: u64) {
        self.state.lock().grow(size);
    }
}
