//! Write-behind: a thread, or the caller of [`HandedOverBlock::write`], writes one block while the next one is filled.

#[cfg(test)]
mod tests;

use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::Arc;
use std::thread::JoinHandle;
use tameike_core::Result;
use tameike_io::os::process::start_thread;
use tameike_io::shared::SharedFile;

/// Write-behind for one file. A block that could not be written is kept for a retry.
pub struct WriteBehind {
    shared: Arc<Shared>,
    /// Without a thread, the holder of [`HandedOverBlock`] writes.
    thread: Option<JoinHandle<()>>,
}

/// A block to be written by [`HandedOverBlock::write`]. The lane's next write waits for that.
#[must_use]
pub struct HandedOverBlock(Arc<Shared>);

struct Shared {
    file: Arc<dyn SharedFile>,
    slot: Mutex<Slot>,
    changed: Condvar,
}

#[derive(Default)]
struct Slot {
    state: SlotState,
    bytes: Vec<u8>,
    offset: u64,
    /// The thread is to exit.
    has_ended: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum SlotState {
    /// No block.
    #[default]
    Free,
    /// A block that the thread, or the holder of [`HandedOverBlock`], writes.
    HandedOverBlock,
    /// A block whose write failed.
    Failed,
}

impl WriteBehind {
    /// Starts a thread that writes to `file`.
    pub fn new(file: Arc<dyn SharedFile>) -> Result<Self> {
        let mut behind = Self::without_thread(file);
        let own = behind.shared.clone();
        behind.thread = Some(start_thread("tameike-behind", move || own.work())?);
        Ok(behind)
    }

    /// Write-behind without a thread: callers write what [`Self::give`] returns.
    pub fn without_thread(file: Arc<dyn SharedFile>) -> Self {
        Self {
            shared: Arc::new(Shared { file, slot: Mutex::default(), changed: Condvar::new() }),
            thread: None,
        }
    }

    /// Returns true if a thread writes.
    pub fn has_thread(&self) -> bool {
        self.thread.is_some()
    }

    /// Hands over a block to the thread, or to the caller if there is no thread, and leaves an empty buffer in `bytes`. Waits for the block
    /// before. If that fails, `bytes` stays as it is.
    pub fn give(&self, bytes: &mut Vec<u8>, offset: u64) -> Result<Option<HandedOverBlock>> {
        let mut slot = self.settled()?;
        slot.bytes.clear();
        std::mem::swap(&mut slot.bytes, bytes);
        (slot.state, slot.offset) = (SlotState::HandedOverBlock, offset);
        self.shared.changed.notify_all();
        Ok(self.thread.is_none().then(|| HandedOverBlock(self.shared.clone())))
    }

    /// Waits until the block is written. A failed write is retried once.
    pub fn settle(&self) -> Result<()> {
        self.settled().map(drop)
    }

    /// Returns true if no block is in flight.
    pub fn is_free(&self) -> bool {
        self.shared.slot.lock().state == SlotState::Free
    }

    fn settled(&self) -> Result<MutexGuard<'_, Slot>> {
        let mut slot = self.shared.slot.lock();
        while slot.state == SlotState::HandedOverBlock {
            self.shared.changed.wait(&mut slot);
        }
        if slot.state == SlotState::Failed {
            self.shared.file.write_at(&slot.bytes, slot.offset)?;
            slot.state = SlotState::Free;
        }
        Ok(slot)
    }
}

impl HandedOverBlock {
    /// Writes the block. An error is returned by [`WriteBehind::settle`].
    pub fn write(self) {
        self.0.write(&mut self.0.slot.lock());
    }
}

impl Drop for HandedOverBlock {
    /// A block that was not written is retried by the next call that waits for it.
    fn drop(&mut self) {
        let mut slot = self.0.slot.lock();
        if slot.state == SlotState::HandedOverBlock {
            slot.state = SlotState::Failed;
            self.0.changed.notify_all();
        }
    }
}

impl Shared {
    fn work(&self) {
        let mut slot = self.slot.lock();
        loop {
            if slot.state == SlotState::HandedOverBlock {
                self.write(&mut slot);
                MutexGuard::unlocked(&mut slot, || self.file.start_write_back());
            } else if slot.has_ended {
                return;
            } else {
                self.changed.wait(&mut slot);
            }
        }
    }

    /// Writes the block.
    fn write(&self, slot: &mut MutexGuard<'_, Slot>) {
        let (bytes, offset) = (std::mem::take(&mut slot.bytes), slot.offset);
        let written = MutexGuard::unlocked(slot, || self.file.write_at(&bytes, offset));
        slot.bytes = bytes;
        slot.state = if written.is_ok() { SlotState::Free } else { SlotState::Failed };
        self.changed.notify_all();
    }
}

impl Drop for WriteBehind {
    fn drop(&mut self) {
        self.shared.slot.lock().has_ended = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // The thread does not panic.
            let _ = thread.join();
        }
    }
}
