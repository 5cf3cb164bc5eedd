//! What each descriptor number stands for: a file of the ring, or whatever the kernel has there.
//!
//! A fixed array, all zeros at first, so that it takes no memory where it is not touched. Each entry is changed by atomic
//! operations on one word: a state, and how many calls are under way on the file. Nobody waits for calls under way, which
//! may be those that a signal handler has interrupted; waited for are only upgrades, during which signals are blocked.

use rustix::io::Errno;
use rustix::thread::futex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use tameike_ring::client::FileKey;

#[cfg(test)]
mod tests;

/// Numbers that can be the ring's; a file that gets a higher one is opened through the kernel.
pub const NUMBERS: usize = 1 << 16;

/// Nothing of the ring: the kernel's number.
const FREE: u32 = 0;
/// A file of the ring.
const OPEN: u32 = 1 << 28;
/// Becoming the kernel's; who comes waits.
const UPGRADING: u32 = 2 << 28;
/// The number is the kernel's, the last call under way on the file that was there gives its handle back.
const LEAVING: u32 = 3 << 28;
/// Being closed.
const CLOSING: u32 = 4 << 28;
/// A descriptor that the library keeps for itself.
const PRIVATE: u32 = 5 << 28;

const STATE: u32 = 0xf << 28;
const CALLS: u32 = !STATE;

/// The offset while and after the kernel has taken it over.
const TAKEN: u64 = u64::MAX;

/// What a number stands for; a cache line each, since threads work on neighbours.
#[repr(align(64))]
pub struct Entry {
    control: AtomicU32,
    flags: AtomicU32,
    view: AtomicU32,
    /// Whether something may have been changed through it.
    changed: AtomicBool,
    handle: AtomicU64,
    /// 0 for none.
    key: AtomicU64,
    offset: AtomicU64,
}

static TABLE: [Entry; NUMBERS] = [const { Entry::new() }; NUMBERS];
/// One more than the highest number that was ever in use here.
static END: AtomicU32 = AtomicU32::new(0);

/// What a call on a number meets.
#[derive(Debug)]
pub enum Met {
    /// The kernel's descriptor, or none.
    Kernel,
    /// A file of the ring.
    File(Hold),
    /// A number that is being closed, or one that the program does not know of.
    Nothing,
}

/// What a file of the ring was opened as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The ring's handle.
    pub handle: u64,
    /// By which what the agent lends of the file is found.
    pub key: Option<FileKey>,
    /// Flags of `open`.
    pub flags: i32,
    /// The view's index.
    pub view: usize,
}

/// How a number was taken away from the ring.
#[derive(Debug, PartialEq, Eq)]
pub enum Closed {
    /// It was not the ring's: the kernel is to be asked.
    Kernel,
    /// There is nothing to close.
    Nothing,
    /// This handle is to be closed, and then [`Entry::free`] called before the number is given back.
    Last(u64),
    /// The number is the kernel's from now on; calls under way will give this handle back.
    Left(u64),
}

/// The entry of `number`, when the ring can have it.
pub fn entry(number: i32) -> Option<&'static Entry> {
    TABLE.get(usize::try_from(number).ok()?)
}

/// The numbers below which all files of the ring are.
pub fn numbers() -> std::ops::Range<i32> {
    0..END.load(Ordering::SeqCst).cast_signed()
}

/// Forgets everything, in a child process that has only the calling thread.
pub fn reset() {
    for entry in TABLE.iter().take(numbers().len()) {
        entry.control.store(FREE, Ordering::SeqCst);
    }
}

impl Entry {
    const fn new() -> Self {
        Self {
            control: AtomicU32::new(FREE),
            flags: AtomicU32::new(0),
            view: AtomicU32::new(0),
            changed: AtomicBool::new(false),
            handle: AtomicU64::new(0),
            key: AtomicU64::new(0),
            offset: AtomicU64::new(0),
        }
    }

    /// Whether the number is nothing to the library: what every call on other descriptors costs.
    #[inline]
    pub fn is_free(&self) -> bool {
        self.control.load(Ordering::Acquire) == FREE
    }

    /// Whether a file of the ring is, or may be, here.
    pub fn is_ring(&self) -> bool {
        matches!(self.control.load(Ordering::SeqCst) & STATE, OPEN | UPGRADING)
    }

    /// Puts a file here; the caller owns the kernel's number, and has seen the entry free since.
    pub fn install(&self, number: i32, opened: Opened) {
        self.handle.store(opened.handle, Ordering::Relaxed);
        self.key.store(opened.key.map_or(0, FileKey::get), Ordering::Relaxed);
        self.flags.store(opened.flags.cast_unsigned(), Ordering::Relaxed);
        self.view.store(opened.view as u32, Ordering::Relaxed);
        self.changed.store(opened.flags & libc::O_TRUNC != 0, Ordering::Relaxed);
        self.offset.store(0, Ordering::Relaxed);
        END.fetch_max(number.cast_unsigned() + 1, Ordering::SeqCst);
        self.control.store(OPEN, Ordering::SeqCst);
    }

    /// Keeps the number for the library itself.
    pub fn reserve(&self) {
        self.control.store(PRIVATE, Ordering::SeqCst);
    }

    /// Whether the library keeps the number for itself.
    pub fn is_private(&self) -> bool {
        self.control.load(Ordering::SeqCst) == PRIVATE
    }

    /// The file here, held against its handle's end; waits for an upgrade that is under way.
    pub fn hold(&'static self) -> Met {
        let mut control = self.control.load(Ordering::Acquire);
        loop {
            match control & STATE {
                OPEN if control & CALLS < CALLS => {
                    match self.change(control, control + 1) {
                        Ok(()) => return Met::File(Hold { entry: self }),
                        Err(now) => control = now,
                    }
                    continue;
                }
                UPGRADING => self.wait(control),
                CLOSING | PRIVATE => return Met::Nothing,
                _ => return Met::Kernel,
            }
            control = self.control.load(Ordering::Acquire);
        }
    }

    /// Begins to close the number.
    pub fn begin_close(&self) -> Closed {
        let mut control = self.control.load(Ordering::Acquire);
        loop {
            match control & STATE {
                OPEN => {
                    let calls = control & CALLS;
                    let handle = self.handle.load(Ordering::Relaxed);
                    let next = if calls == 0 { CLOSING } else { LEAVING | calls };
                    match self.change(control, next) {
                        Ok(()) if calls == 0 => return Closed::Last(handle),
                        Ok(()) => return Closed::Left(handle),
                        Err(now) => control = now,
                    }
                    continue;
                }
                UPGRADING => self.wait(control),
                CLOSING | PRIVATE => return Closed::Nothing,
                _ => return Closed::Kernel,
            }
            control = self.control.load(Ordering::Acquire);
        }
    }

    /// Ends [`Closed::Last`].
    pub fn free(&self) {
        self.control.store(FREE, Ordering::SeqCst);
    }

    /// Begins an upgrade; `Ok(None)` when the number is the kernel's already. To be called with signals blocked.
    pub fn begin_upgrade(&self) -> Result<Option<Opened>, Errno> {
        let mut control = self.control.load(Ordering::Acquire);
        loop {
            match control & STATE {
                OPEN => {
                    match self.change(control, UPGRADING | (control & CALLS)) {
                        Ok(()) => return Ok(Some(self.opened())),
                        Err(now) => control = now,
                    }
                    continue;
                }
                UPGRADING => self.wait(control),
                CLOSING => return Err(Errno::BADF),
                _ => return Ok(None),
            }
            control = self.control.load(Ordering::Acquire);
        }
    }

    /// Takes the offset away from calls under way, for the kernel.
    pub fn take_offset(&self) -> u64 {
        self.offset.swap(TAKEN, Ordering::SeqCst)
    }

    /// Ends an upgrade that has happened; the handle, when no call under way will give it back.
    pub fn end_upgrade(&self) -> Option<u64> {
        let handle = self.handle.load(Ordering::Relaxed);
        let calls = self.leave_upgrading(|calls| if calls == 0 { FREE } else { LEAVING | calls });
        (calls == 0).then_some(handle)
    }

    /// Ends an upgrade that has failed.
    pub fn fail_upgrade(&self, offset: Option<u64>) {
        if let Some(offset) = offset {
            self.offset.store(offset, Ordering::SeqCst);
        }
        self.leave_upgrading(|calls| OPEN | calls);
    }

    /// Calls may end meanwhile, but none begins.
    fn leave_upgrading(&self, next: impl Fn(u32) -> u32) -> u32 {
        let mut control = self.control.load(Ordering::Acquire);
        while let Err(now) = self.change(control, next(control & CALLS)) {
            control = now;
        }
        let _ = futex::wake(&self.control, futex::Flags::PRIVATE, i32::MAX.cast_unsigned());
        control & CALLS
    }

    /// What the file was opened as; to be asked while it is held, or by who closes it.
    pub fn opened(&self) -> Opened {
        Opened {
            handle: self.handle.load(Ordering::Relaxed),
            key: FileKey::new(self.key.load(Ordering::Relaxed)),
            flags: self.flags.load(Ordering::Relaxed).cast_signed(),
            view: self.view.load(Ordering::Relaxed) as usize,
        }
    }

    /// Whether something may have been changed through the file, of which its close would tell; to be asked by who closes it.
    pub fn is_changed(&self) -> bool {
        self.changed.load(Ordering::Relaxed)
    }

    fn change(&self, from: u32, to: u32) -> Result<(), u32> {
        self.control.compare_exchange(from, to, Ordering::SeqCst, Ordering::Acquire).map(drop)
    }

    fn wait(&self, control: u32) {
        // Interrupted or changed meanwhile: the caller looks again.
        let _ = futex::wait(&self.control, futex::Flags::PRIVATE, control, None);
    }

    /// Ends a call; the handle, when this was the last one on a file whose number is the kernel's by now. In a child that was
    /// forked by a signal handler, calls may end that were forgotten.
    fn end_call(&self) -> Option<u64> {
        let mut control = self.control.load(Ordering::Acquire);
        loop {
            let handle = self.handle.load(Ordering::Relaxed);
            if control & CALLS == 0 {
                return None;
            }
            let last = control == LEAVING + 1;
            let next = if last { FREE } else { control - 1 };
            match self.change(control, next) {
                Ok(()) => return last.then_some(handle),
                Err(now) => control = now,
            }
        }
    }
}

/// A file of the ring during a call on it.
#[derive(Debug)]
pub struct Hold {
    entry: &'static Entry,
}

impl Hold {
    /// What it was opened as.
    pub fn opened(&self) -> Opened {
        self.entry.opened()
    }

    /// Whether it is the number's file still.
    pub fn is_current(&self) -> bool {
        self.entry.is_ring()
    }

    /// Something is about to be changed through it.
    pub fn changes(&self) {
        self.entry.changed.store(true, Ordering::Relaxed);
    }

    /// The offset, unless the kernel is taking over.
    pub fn offset(&self) -> Option<u64> {
        Some(self.entry.offset.load(Ordering::Acquire)).filter(|offset| *offset != TAKEN)
    }

    /// Moves the offset if it is still at `from`.
    pub fn move_offset(&self, from: u64, to: u64) -> bool {
        self.entry.offset.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Sets the offset, unless the kernel is taking over.
    pub fn set_offset(&self, to: u64) -> bool {
        let mut from = self.offset();
        while let Some(offset) = from {
            if self.move_offset(offset, to) {
                return true;
            }
            from = self.offset();
        }
        false
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(handle) = self.entry.end_call() {
            crate::connection::close_handle(handle);
        }
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry").field("control", &self.control).finish_non_exhaustive()
    }
}
