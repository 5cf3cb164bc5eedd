//! Table of descriptor numbers: each is a ring file or belongs to the kernel.
//!
//! The table is a fixed array, initially zero, so that untouched parts take no memory. Atomic operations on one word change an entry: a
//! state, and the number of calls in flight on the file. No call waits for calls in flight, as a signal handler may have interrupted
//! these. Calls wait only for upgrades, during which signals are blocked.

use rustix::io::Errno;
use rustix::thread::futex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use tameike_ring::client::FileKey;

#[cfg(test)]
mod tests;

/// Numbers that can be ring files; a file that gets a higher one is opened through the kernel.
pub const NUMBERS: usize = 1 << 16;

/// The number belongs to the kernel.
const FREE: u32 = 0;
const OPEN: u32 = 1 << 28;
/// The descriptor is being upgraded; other calls wait.
const UPGRADING: u32 = 2 << 28;
/// The number belongs to the kernel; the last call in flight on the former ring file closes its handle.
const DETACHED: u32 = 3 << 28;
const CLOSING: u32 = 4 << 28;
/// A descriptor of the library itself.
const PRIVATE: u32 = 5 << 28;

const STATE: u32 = 0xf << 28;
const CALLS: u32 = !STATE;

/// Value of the offset from its takeover by the kernel on.
const TAKEN_OVER: u64 = u64::MAX;

/// Entry of a number. Aligned to a cache line, as threads use adjacent numbers.
#[repr(align(64))]
#[derive(Debug)]
pub struct Entry {
    control: AtomicU32,
    flags: AtomicU32,
    view: AtomicU32,
    /// The file may have been modified through this descriptor.
    changed: AtomicBool,
    handle: AtomicU64,
    /// 0 for none.
    key: AtomicU64,
    offset: AtomicU64,
}

static TABLE: [Entry; NUMBERS] = [const { Entry::new() }; NUMBERS];
/// One more than the highest number that was ever a ring file.
static END: AtomicU32 = AtomicU32::new(0);

/// What a number refers to.
#[derive(Debug)]
pub enum Resolved {
    /// A kernel descriptor, or none.
    Kernel,
    File(Hold),
    /// A number that is being closed, or a descriptor of the library.
    Invalid,
}

/// Parameters of an open ring file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    pub handle: u64,
    /// Key of the agent's grants for the file.
    pub key: Option<FileKey>,
    pub flags: i32,
    /// Number of the view in this library.
    pub view: usize,
}

/// Result of closing a number.
#[derive(Debug, PartialEq, Eq)]
pub enum Closed {
    /// It belongs to the kernel.
    Kernel,
    /// It is not open.
    Invalid,
    /// The caller closes this handle, and calls [`Entry::free`] before it closes the number.
    Last(u64),
    /// The number now belongs to the kernel; calls in flight will close this handle.
    Deferred(u64),
}

/// Returns the entry of `number`, if it can be a ring file.
pub fn entry(number: i32) -> Option<&'static Entry> {
    TABLE.get(usize::try_from(number).ok()?)
}

/// Returns whether `number` belongs to the kernel. This is the library's cost for calls on other descriptors.
#[inline]
pub fn is_kernel(number: i32) -> bool {
    entry(number).is_none_or(Entry::is_free)
}

/// Returns a range that contains all ring files.
pub fn numbers() -> std::ops::Range<i32> {
    0..END.load(Ordering::SeqCst).cast_signed()
}

/// Frees all entries, in a child process that has only the calling thread.
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

    #[inline]
    pub fn is_free(&self) -> bool {
        self.control.load(Ordering::Acquire) == FREE
    }

    /// Returns whether the number is a ring file, or one that is being upgraded.
    pub fn is_ring(&self) -> bool {
        matches!(self.control.load(Ordering::SeqCst) & STATE, OPEN | UPGRADING)
    }

    /// Installs a ring file. The caller owns the number in the kernel, and has since seen the entry free.
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

    pub fn reserve(&self) {
        self.control.store(PRIVATE, Ordering::SeqCst);
    }

    pub fn is_private(&self) -> bool {
        self.control.load(Ordering::SeqCst) == PRIVATE
    }

    /// Holds the file, which keeps its handle open. Waits for an upgrade in progress.
    pub fn hold(&'static self) -> Resolved {
        match self.change_open(|calls| (calls < CALLS).then_some(OPEN | (calls + 1))) {
            Ok(_) => Resolved::File(Hold { entry: self }),
            Err(CLOSING | PRIVATE) => Resolved::Invalid,
            Err(_) => Resolved::Kernel,
        }
    }

    /// Begins to close the number. Waits for an upgrade in progress.
    pub fn begin_close(&self) -> Closed {
        match self.change_open(|calls| Some(if calls == 0 { CLOSING } else { DETACHED | calls })) {
            Ok((0, handle)) => Closed::Last(handle),
            Ok((_, handle)) => Closed::Deferred(handle),
            Err(CLOSING | PRIVATE) => Closed::Invalid,
            Err(_) => Closed::Kernel,
        }
    }

    /// Completes [`Closed::Last`].
    pub fn free(&self) {
        self.control.store(FREE, Ordering::SeqCst);
    }

    /// Begins an upgrade; `Ok(None)` if the number already belongs to the kernel. Call it with signals blocked.
    pub fn begin_upgrade(&self) -> Result<Option<Opened>, Errno> {
        match self.change_open(|calls| Some(UPGRADING | calls)) {
            Ok(_) => Ok(Some(self.opened())),
            Err(CLOSING) => Err(Errno::BADF),
            Err(_) => Ok(None),
        }
    }

    /// Changes the control word of an open file to `next` of the number of calls in flight. Waits for an upgrade in progress. Returns that
    /// number and the handle, or else the state of a number that is not open, or for which `next` returns `None`.
    fn change_open(&self, next: impl Fn(u32) -> Option<u32>) -> Result<(u32, u64), u32> {
        let mut control = self.control.load(Ordering::Acquire);
        loop {
            let calls = control & CALLS;
            match control & STATE {
                UPGRADING => {
                    self.wait(control);
                    control = self.control.load(Ordering::Acquire);
                }
                OPEN => {
                    let handle = self.handle.load(Ordering::Relaxed);
                    match self.change(control, next(calls).ok_or(OPEN)?) {
                        Ok(()) => return Ok((calls, handle)),
                        Err(now) => control = now,
                    }
                }
                state => return Err(state),
            }
        }
    }

    /// Takes the offset from calls in flight, for the kernel.
    pub fn take_offset(&self) -> u64 {
        self.offset.swap(TAKEN_OVER, Ordering::SeqCst)
    }

    /// Completes an upgrade. Returns the handle if no call in flight will close it.
    pub fn end_upgrade(&self) -> Option<u64> {
        let handle = self.handle.load(Ordering::Relaxed);
        let calls = self.finish_upgrade(|calls| if calls == 0 { FREE } else { DETACHED | calls });
        (calls == 0).then_some(handle)
    }

    /// Undoes an upgrade that has failed.
    pub fn fail_upgrade(&self, offset: Option<u64>) {
        if let Some(offset) = offset {
            self.offset.store(offset, Ordering::SeqCst);
        }
        self.finish_upgrade(|calls| OPEN | calls);
    }

    /// Leaves the upgrading state. Calls may end concurrently, but none begins.
    fn finish_upgrade(&self, next: impl Fn(u32) -> u32) -> u32 {
        let mut control = self.control.load(Ordering::Acquire);
        while let Err(now) = self.change(control, next(control & CALLS)) {
            control = now;
        }
        let _ = futex::wake(&self.control, futex::Flags::PRIVATE, i32::MAX.cast_unsigned());
        control & CALLS
    }

    /// Returns the file's parameters. The caller holds the file, or closes it.
    pub fn opened(&self) -> Opened {
        Opened {
            handle: self.handle.load(Ordering::Relaxed),
            key: FileKey::new(self.key.load(Ordering::Relaxed)),
            flags: self.flags.load(Ordering::Relaxed).cast_signed(),
            view: self.view.load(Ordering::Relaxed) as usize,
        }
    }

    /// Returns whether the file may have been modified, so that its close can report errors. Only the closing thread calls it.
    pub fn is_changed(&self) -> bool {
        self.changed.load(Ordering::Relaxed)
    }

    fn change(&self, from: u32, to: u32) -> Result<(), u32> {
        self.control.compare_exchange(from, to, Ordering::SeqCst, Ordering::Acquire).map(drop)
    }

    fn wait(&self, control: u32) {
        // Also returns if interrupted or changed: the caller checks again.
        let _ = futex::wait(&self.control, futex::Flags::PRIVATE, control, None);
    }

    /// Ends a call. Returns the handle after the last call on a file whose number now belongs to the kernel. In a child that a signal
    /// handler forked, a call may end that [`reset`] has removed.
    fn end_call(&self) -> Option<u64> {
        let mut control = self.control.load(Ordering::Acquire);
        loop {
            let handle = self.handle.load(Ordering::Relaxed);
            if control & CALLS == 0 {
                return None;
            }
            let last = control == DETACHED + 1;
            let next = if last { FREE } else { control - 1 };
            match self.change(control, next) {
                Ok(()) => return last.then_some(handle),
                Err(now) => control = now,
            }
        }
    }
}

/// A ring file during a call; keeps its handle open.
#[derive(Debug)]
pub struct Hold {
    entry: &'static Entry,
}

impl Hold {
    /// Returns the file's parameters.
    pub fn opened(&self) -> Opened {
        self.entry.opened()
    }

    /// Returns whether the number is still a ring file.
    pub fn is_current(&self) -> bool {
        self.entry.is_ring()
    }

    /// Records a modification, before it begins.
    pub fn changes(&self) {
        self.entry.changed.store(true, Ordering::Relaxed);
    }

    /// Returns the offset, unless the kernel is taking over.
    pub fn offset(&self) -> Option<u64> {
        Some(self.entry.offset.load(Ordering::Acquire)).filter(|offset| *offset != TAKEN_OVER)
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
