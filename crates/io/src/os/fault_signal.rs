//! SIGBUS and SIGSEGV of chosen address ranges, served by this process; all others go to the handlers that were there before.
//!
//! All functions that run in the signal handler are async-signal-safe: they use atomics only.

use parking_lot::Mutex;
use std::io::Error;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Maximum number of watched ranges of a process.
pub const RANGES_MAX: usize = 64;

/// A fault in a watched range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageFault {
    /// The accessed address.
    pub address: usize,
    /// Whether the access was a write.
    pub write: bool,
}

/// Serves faults of a range.
pub trait FaultHandler: Send + Sync {
    /// Serves a fault in the faulting thread, inside a signal handler: must be async-signal-safe. Returns true if the access is to
    /// be repeated, false if it has failed: the process then gets the signal.
    fn serve(&self, fault: PageFault) -> bool;

    /// Makes a part of the range accessible to system calls, as far as it can. As async-signal-safe as [`Self::serve`].
    fn bring(&self, addresses: Range<usize>, write: bool);
}

/// A watched range. Its words change in the order: handler last, when added; handler first, when removed.
struct Entry {
    start: AtomicUsize,
    end: AtomicUsize,
    /// Null if the entry is free.
    handler: AtomicPtr<Arc<dyn FaultHandler>>,
    /// Threads that use the handler.
    users: AtomicUsize,
}

static ENTRIES: [Entry; RANGES_MAX] = [const {
    Entry {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        handler: AtomicPtr::new(std::ptr::null_mut()),
        users: AtomicUsize::new(0),
    }
}; RANGES_MAX];
/// Serializes additions and removals.
static CHANGES: Mutex<()> = Mutex::new(());
/// Actions of a signal that were there before. Never freed, as a handler may be using them.
struct Before {
    /// Before the first installation. It gets signals that a program sends: a handler that was installed later and ends the process often
    /// restores the action before it, which is that of this library, and sends the signal again.
    first: AtomicPtr<libc::sigaction>,
    /// Before the last installation. It gets signals of accesses.
    last: AtomicPtr<libc::sigaction>,
}

/// Those of SIGBUS and of SIGSEGV.
static BEFORE: [Before; 2] = [const {
    Before { first: AtomicPtr::new(std::ptr::null_mut()), last: AtomicPtr::new(std::ptr::null_mut()) }
}; 2];
const SIGNALS: [libc::c_int; 2] = [libc::SIGBUS, libc::SIGSEGV];

/// A watched range of addresses, until dropped.
#[derive(Debug)]
pub struct Watched(usize);

/// Watches a range: `handler` serves its faults.
///
/// # Errors
/// `ENOMEM` if [`RANGES_MAX`] ranges are watched; the errors of sigaction(2).
pub fn watch(range: Range<usize>, handler: Arc<dyn FaultHandler>) -> std::io::Result<Watched> {
    let _changes = CHANGES.lock();
    install()?;
    let free = |entry: &Entry| entry.handler.load(Ordering::Acquire).is_null();
    let number = ENTRIES.iter().position(free).ok_or_else(|| Error::from_raw_os_error(libc::ENOMEM))?;
    let entry = &ENTRIES[number];
    entry.start.store(range.start, Ordering::Relaxed);
    entry.end.store(range.end, Ordering::Relaxed);
    entry.handler.store(Box::into_raw(Box::new(handler)), Ordering::Release);
    Ok(Watched(number))
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _changes = CHANGES.lock();
        let entry = &ENTRIES[self.0];
        let handler = entry.handler.swap(std::ptr::null_mut(), Ordering::SeqCst);
        while entry.users.load(Ordering::SeqCst) != 0 {
            std::thread::yield_now();
        }
        // SAFETY: it came from `watch`, and no thread uses it any more.
        drop(unsafe { Box::from_raw(handler) });
    }
}

/// Installs the signal handlers, unless they are installed.
fn install() -> std::io::Result<()> {
    for (signal, before) in SIGNALS.into_iter().zip(&BEFORE) {
        // SAFETY: zeros are a valid `sigaction`.
        let mut found: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        // SAFETY: the kernel writes the current action.
        if unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut found) } != 0 {
            return Err(Error::last_os_error());
        }
        if found.sa_sigaction == on_signal as *const () as usize {
            continue;
        }
        let found = Box::into_raw(Box::new(found));
        before.last.store(found, Ordering::Release);
        // Fails at later installations.
        let _ =
            before.first.compare_exchange(std::ptr::null_mut(), found, Ordering::Release, Ordering::Relaxed);
        // SAFETY: zeros are a valid `sigaction`.
        let mut ours: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        ours.sa_sigaction = on_signal as *const () as usize;
        // Nested: a fault may occur while the handler copies memory of a program. On the alternate stack, if the thread has one.
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESTART;
        // SAFETY: the action is complete, and its handler async-signal-safe.
        if unsafe { libc::sigaction(signal, &raw const ours, std::ptr::null_mut()) } != 0 {
            return Err(Error::last_os_error());
        }
    }
    Ok(())
}

extern "C" fn on_signal(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: errno belongs to this thread.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the kernel passes valid pointers.
    let (address, code) = unsafe { ((*info).si_addr() as usize, (*info).si_code) };
    // A positive code: sent by the kernel for an access of this thread.
    let fault = PageFault { address, write: is_write(context) };
    let before = |signal| &BEFORE[usize::from(signal == libc::SIGSEGV)];
    match if code > 0 { serve(fault) } else { None } {
        Some(true) => {}
        Some(false) => {
            // With either mechanism, as for a mapped file.
            // SAFETY: the kernel passes a valid pointer.
            unsafe { ((*info).si_signo, (*info).si_code) = (libc::SIGBUS, libc::BUS_ADRERR) };
            pass_on(&before(libc::SIGBUS).last, libc::SIGBUS, info, context, false);
        }
        None if code > 0 => pass_on(&before(signal).last, signal, info, context, true),
        None => pass_on(&before(signal).first, signal, info, context, false),
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Serves a fault; `None` if its address is not watched.
fn serve(fault: PageFault) -> Option<bool> {
    let address = fault.address..fault.address + 1;
    ENTRIES.iter().find_map(|entry| entry.used_for(&address, |handler, _| handler.serve(fault)))
}

/// Makes watched parts of a range of memory accessible to system calls, as far as possible. Async-signal-safe.
pub fn bring(addresses: &Range<usize>, write: bool) {
    for entry in &ENTRIES {
        entry.used_for(addresses, |handler, part| handler.bring(part, write));
    }
}

impl Entry {
    /// Runs `work` with the handler and the watched part of a range.
    fn used_for<T>(
        &self,
        addresses: &Range<usize>,
        work: impl FnOnce(&dyn FaultHandler, Range<usize>) -> T,
    ) -> Option<T> {
        let (start, end) = (self.start.load(Ordering::Relaxed), self.end.load(Ordering::Relaxed));
        let part = addresses.start.max(start)..addresses.end.min(end);
        if part.is_empty() {
            return None;
        }
        self.users.fetch_add(1, Ordering::SeqCst);
        let handler = self.handler.load(Ordering::SeqCst);
        // SAFETY: it is valid while `users` counts this thread, and null after its removal.
        let done = unsafe { handler.as_ref() }.map(|handler| work(&**handler, part));
        self.users.fetch_sub(1, Ordering::SeqCst);
        done
    }
}

/// Passes a signal to a handler that was there before. If there was none and it `repeats` by itself, the repeated access ends the
/// process, as it would have without this library.
fn pass_on(
    before: &AtomicPtr<libc::sigaction>,
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
    repeats: bool,
) {
    // SAFETY: null, or a value that is never freed or changed.
    match unsafe { before.load(Ordering::Acquire).as_ref() } {
        Some(action) if action.sa_sigaction > libc::SIG_IGN => {
            if action.sa_flags & libc::SA_SIGINFO != 0 {
                // SAFETY: a handler with `SA_SIGINFO` has this type.
                let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                    unsafe { std::mem::transmute(action.sa_sigaction) };
                handler(signal, info, context);
            } else {
                // SAFETY: a handler without `SA_SIGINFO` has this type.
                let handler: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(action.sa_sigaction) };
                handler(signal);
            }
        }
        _ => {
            // SAFETY: zeros are a valid `sigaction`: the default action.
            let default: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
            // SAFETY: the action is valid.
            unsafe { libc::sigaction(signal, &raw const default, std::ptr::null_mut()) };
            if !repeats {
                // SAFETY: sends a signal to this thread.
                unsafe { libc::raise(signal) };
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn is_write(context: *mut libc::c_void) -> bool {
    /// Bit of the page fault error code.
    const WRITE: i64 = 1 << 1;
    // SAFETY: the kernel passes a `ucontext_t`.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    context.uc_mcontext.gregs[libc::REG_ERR as usize] & WRITE != 0
}

#[cfg(target_arch = "aarch64")]
fn is_write(context: *mut libc::c_void) -> bool {
    /// `ESR_MAGIC` of `asm/sigcontext.h`.
    const ESR_MAGIC: u32 = 0x4553_5201;
    /// "Write, not read" of a data abort.
    const WNR: u64 = 1 << 6;
    /// Offset of the extension records in `struct sigcontext`: fault address, 31 registers, stack, counter, state; aligned to 16.
    const RECORDS: usize = (8 * (1 + 31 + 3) + 15) / 16 * 16;
    // SAFETY: the kernel passes a `ucontext_t`, with 4096 bytes of records that end with a zero one.
    unsafe {
        let base = (&raw const (*context.cast::<libc::ucontext_t>()).uc_mcontext).cast::<u8>();
        let mut record = base.add(RECORDS);
        loop {
            let (magic, size) = (record.cast::<u32>().read(), record.add(4).cast::<u32>().read());
            match magic {
                ESR_MAGIC => return record.add(8).cast::<u64>().read() & WNR != 0,
                0 => return true,
                _ => record = record.add(size as usize),
            }
        }
    }
}
