//! Lock requests of the kernel.
//!
//! A waiting request blocks no thread. The frontend does not serve FUSE_INTERRUPT: after it, the kernel leaves even a killed program
//! asleep until the reply. While a request waits, the frontend therefore polls the signals of its thread ([`is_interrupted`]), and
//! replies EINTR: the kernel then restarts or fails the call as the signal's handler specifies. Without a signal it must not reply
//! EINTR, as the program would see an internal error number.

use super::answer::answer;
use crate::kernel_cache::KernelCache;
use futures_util::future::{Either, select};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tameike_client::lock_calls;
use tameike_client::locks::LockCall;
use tameike_client::vfs::{FileNumber, HandleNumber, Vfs};
use tameike_core::wire::lock::{LockKind, LockRange};
use tameike_core::{Errno, Result};
use tameike_fuse::Reply;
use tameike_fuse::abi::{LockRequest, LockState};
use tameike_io::Runtime;

/// Interval at which the signals of a waiting thread are polled.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

fn call(wanted: &LockRequest) -> Result<LockCall> {
    let kind = match wanted.kind {
        libc::F_RDLCK => Some(LockKind::Shared),
        libc::F_WRLCK => Some(LockKind::Exclusive),
        libc::F_UNLCK => None,
        _ => return Err(Errno::EINVAL.into()),
    };
    if wanted.start > wanted.end {
        return Err(Errno::EINVAL.into());
    }
    let range = LockRange { start: wanted.start, last: wanted.end };
    Ok(LockCall { owner: wanted.owner, range, kind, pid: wanted.pid })
}

/// Replies with a conflicting lock, if there is one.
pub(super) async fn test<V: Vfs>(vfs: &V, wanted: LockRequest, reply: Reply) {
    let tested = async { lock_calls::test(vfs, HandleNumber(wanted.handle), call(&wanted)?).await };
    answer(reply, tested.await, |reply, conflict| {
        reply.lock(match conflict {
            None => LockState { start: wanted.start, end: wanted.end, kind: libc::F_UNLCK, pid: 0 },
            Some(lock) => {
                let kind = if lock.kind == LockKind::Shared { libc::F_RDLCK } else { libc::F_WRLCK };
                LockState { start: lock.range.start, end: lock.range.last, kind, pid: lock.pid }
            }
        });
    });
}

/// A request that acquires, changes or releases a lock.
pub(super) struct SetLock<V> {
    pub runtime: Runtime,
    pub vfs: Arc<V>,
    pub kernel: KernelCache,
    pub file: FileNumber,
    /// The request may wait.
    pub waits: bool,
    /// Thread whose signals end a wait; `None` if it cannot be seen here.
    pub thread: Option<u32>,
}

impl<V: Vfs> SetLock<V> {
    pub(super) async fn run(self, wanted: LockRequest) -> Result<()> {
        self.set(HandleNumber(wanted.handle), call(&wanted)?).await
    }

    fn must_end(&self) -> bool {
        self.vfs.is_over() || self.thread.is_some_and(is_interrupted)
    }

    async fn set(&self, handle: HandleNumber, call: LockCall) -> Result<()> {
        let Some(locks) = self.vfs.locks() else { return Err(Errno::EOPNOTSUPP.into()) };
        let ticket = locks.ticket();
        let mut set = pin!(lock_calls::set(&*self.vfs, handle, call, (ticket, self.waits)));
        let stale = loop {
            match select(set, self.runtime.sleep(SIGNAL_INTERVAL)).await {
                Either::Left((done, _)) => break done?,
                Either::Right(((), waiting)) => set = waiting,
            }
            if self.waits && self.must_end() {
                match select(set, pin!(locks.interrupt(ticket))).await {
                    Either::Left((done, _)) => break done?,
                    Either::Right(((), waiting)) => set = waiting,
                }
            }
        };
        if call.kind.is_none() {
            return Ok(());
        }
        if let Err(fault) = self.kernel.drop_stale(&self.vfs, self.file, handle, stale).await {
            lock_calls::set(&*self.vfs, handle, LockCall { kind: None, ..call }, (ticket, false)).await?;
            return Err(fault);
        }
        Ok(())
    }
}

/// Returns whether a thread that sleeps in the kernel has a pending signal. False for threads that are invisible here, such as those
/// of another PID namespace.
fn is_interrupted(thread: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{thread}/status")).is_ok_and(|status| has_signal(&status, thread))
}

/// Signals to the process count for its first thread only: the kernel delivers them to that thread unless it blocks them.
fn has_signal(status: &str, thread: u32) -> bool {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map_or("", str::trim)
    };
    let set = |name| u64::from_str_radix(field(name), 16).unwrap_or(0);
    let for_process = if field("Tgid:").parse() == Ok(thread) { set("ShdPnd:") } else { 0 };
    (set("SigPnd:") | for_process) & !set("SigBlk:") != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(tgid: u32, own: &str, shared: &str, blocked: &str) -> String {
        format!(
            "Name:\tx\nTgid:\t{tgid}\nSigPnd:\t{own}\nShdPnd:\t{shared}\nSigBlk:\t{blocked}\nSigIgn:\tff\n"
        )
    }

    /// S21k, S21l.
    #[test]
    fn only_signals_that_the_thread_receives_count() {
        let (none, kill, usr1) = ("0000000000000000", "0000000000000100", "0000000000000200");
        assert!(!has_signal(&status(7, none, none, none), 7));
        assert!(has_signal(&status(7, kill, none, none), 7));
        assert!(has_signal(&status(5, kill, none, usr1), 7), "a thread that is killed with its process");
        assert!(has_signal(&status(7, none, usr1, kill), 7));
        assert!(!has_signal(&status(7, usr1, usr1, usr1), 7), "blocked");
        assert!(!has_signal(&status(5, none, usr1, none), 7), "the first thread takes it");
        assert!(!has_signal("", 7), "a process that cannot be seen");
    }

    #[test]
    fn requests_of_the_kernel_convert_to_calls() {
        let called = |kind, start, end| call(&LockRequest { handle: 1, owner: 3, start, end, kind, pid: 9 });
        let call = called(libc::F_WRLCK, 5, 9).expect("a lock");
        let range = LockRange { start: 5, last: 9 };
        assert_eq!(call, LockCall { owner: 3, range, kind: Some(LockKind::Exclusive), pid: 9 });
        assert_eq!(called(libc::F_UNLCK, 0, 0).map(|call| call.kind), Ok(None));
        assert!(called(3, 0, 0).is_err() && called(libc::F_RDLCK, 2, 1).is_err());
    }
}
