//! Writing behind: a thread, or whoever asks for it, writes a block while the next one is filled.

#[cfg(test)]
mod tests;

use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::Arc;
use std::thread::JoinHandle;
use tameike_core::Result;
use tameike_io::os::process::start_thread;
use tameike_io::shared::SharedFile;

/// Writes to one file. A block that could not be written is kept, and tried again.
pub struct Behind {
    shared: Arc<Shared>,
    /// Where there is none, who has the block as [`Given`] writes it.
    thread: Option<JoinHandle<()>>,
}

/// A block that was given to who has this, and is to be written by [`Given::write`]: the writer of the lane waits for that.
#[must_use]
pub struct Given(Arc<Shared>);

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
    /// The thread is not needed any more.
    has_ended: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum SlotState {
    /// Nothing is to be written.
    #[default]
    Free,
    /// The thread, or who has the [`Given`], is to write it, or does.
    Given,
    /// It could not be written.
    Failed,
}

impl Behind {
    /// A thread that writes to `file`.
    ///
    /// # Errors
    /// The user may not have another thread.
    pub fn new(file: Arc<dyn SharedFile>) -> Result<Self> {
        let mut behind = Self::without_thread(file);
        let own = behind.shared.clone();
        behind.thread = Some(start_thread("tameike-behind", move || own.work())?);
        Ok(behind)
    }

    /// Nobody writes to `file` but who takes what was given.
    pub fn without_thread(file: Arc<dyn SharedFile>) -> Self {
        Self {
            shared: Arc::new(Shared { file, slot: Mutex::default(), changed: Condvar::new() }),
            thread: None,
        }
    }

    /// Whether a thread writes.
    pub fn has_thread(&self) -> bool {
        self.thread.is_some()
    }

    /// Has these bytes written by the thread, or by the caller where there is none, and leaves room for others in their place. Waits for those
    /// that were given before.
    ///
    /// # Errors
    /// As [`Self::settle`]: then these bytes are left where they are.
    pub fn give(&self, bytes: &mut Vec<u8>, offset: u64) -> Result<Option<Given>> {
        let mut slot = self.settled()?;
        slot.bytes.clear();
        std::mem::swap(&mut slot.bytes, bytes);
        (slot.state, slot.offset) = (SlotState::Given, offset);
        self.shared.changed.notify_all();
        Ok(self.thread.is_none().then(|| Given(self.shared.clone())))
    }

    /// Waits until all that was given is written.
    ///
    /// # Errors
    /// What the file system says of it, now that it was tried again.
    pub fn settle(&self) -> Result<()> {
        self.settled().map(drop)
    }

    /// Whether nothing is on its way.
    pub fn is_free(&self) -> bool {
        self.shared.slot.lock().state == SlotState::Free
    }

    fn settled(&self) -> Result<MutexGuard<'_, Slot>> {
        let mut slot = self.shared.slot.lock();
        while slot.state == SlotState::Given {
            self.shared.changed.wait(&mut slot);
        }
        if slot.state == SlotState::Failed {
            self.shared.file.write_at(&slot.bytes, slot.offset)?;
            slot.state = SlotState::Free;
        }
        Ok(slot)
    }
}

impl Given {
    /// Writes it. What the file system says is told by [`Behind::settle`].
    pub fn write(self) {
        self.0.write(&mut self.0.slot.lock());
    }
}

impl Drop for Given {
    /// What was not written is, by the next who waits for it.
    fn drop(&mut self) {
        let mut slot = self.0.slot.lock();
        if slot.state == SlotState::Given {
            slot.state = SlotState::Failed;
            self.0.changed.notify_all();
        }
    }
}

impl Shared {
    fn work(&self) {
        let mut slot = self.slot.lock();
        loop {
            if slot.state == SlotState::Given {
                self.write(&mut slot);
                MutexGuard::unlocked(&mut slot, || self.file.start_write_back());
            } else if slot.has_ended {
                return;
            } else {
                self.changed.wait(&mut slot);
            }
        }
    }

    /// Writes what was given.
    fn write(&self, slot: &mut MutexGuard<'_, Slot>) {
        let (bytes, offset) = (std::mem::take(&mut slot.bytes), slot.offset);
        let written = MutexGuard::unlocked(slot, || self.file.write_at(&bytes, offset));
        slot.bytes = bytes;
        slot.state = if written.is_ok() { SlotState::Free } else { SlotState::Failed };
        self.changed.notify_all();
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        self.shared.slot.lock().has_ended = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // It does nothing that could panic.
            let _ = thread.join();
        }
    }
}
