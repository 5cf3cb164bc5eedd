//! Runs blocking calls of a task on the thread that spawned it, instead of on a thread of the pool.
//!
//! A frontend has several threads that only read requests. If such a thread makes the blocking calls of its request itself, the
//! request needs no switch between threads; on a busy machine each switch waits for a core. But calls to a shared file system may
//! take long. So only some threads of a frontend may block at a time, and the other threads use the pool.
//!
//! Only the task itself uses the thread, and only until its first wait for something else. Tasks that it spawns use the pool.

use super::runtime::Runtime;
use std::cell::Cell;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Permission {
    /// Blocking calls must not run on this thread.
    None,
    /// The next task that is spawned on this thread may block it.
    Offered,
    /// The task that is being polled on this thread may block it.
    Taken,
}

thread_local! {
    static PERMISSION: Cell<Permission> = const { Cell::new(Permission::None) };
    static NEVER_BLOCKS: Cell<bool> = const { Cell::new(false) };
}

/// Sets the state of this thread, and restores it on drop.
struct PermissionGuard(Permission);

impl PermissionGuard {
    fn begin(permission: Permission) -> Self {
        Self(PERMISSION.replace(permission))
    }
}

impl Drop for PermissionGuard {
    fn drop(&mut self) {
        PERMISSION.set(self.0);
    }
}

/// Never blocks this thread from now on, because no other thread reads its requests.
pub fn never_block_thread() {
    NEVER_BLOCKS.set(true);
}

/// True if a blocking call may run on this thread.
pub(crate) fn is_taken() -> bool {
    PERMISSION.get() == Permission::Taken
}

/// Polls a task for the first time, with the permission that the spawn offered.
pub(super) fn first_poll<T>(poll: impl FnOnce() -> T) -> T {
    let _guard = PermissionGuard::begin(if PERMISSION.get() == Permission::Offered {
        Permission::Taken
    } else {
        Permission::None
    });
    poll()
}

/// Spawns tasks on threads of which a bounded number may block.
pub struct InlineSpawner {
    runtime: Runtime,
    blocked: AtomicUsize,
    blocked_max: usize,
}

/// Counts a thread that may block.
struct Blocked<'a>(&'a AtomicUsize);

impl Drop for Blocked<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl InlineSpawner {
    /// At most `blocked_max` threads block at a time.
    pub fn new(runtime: Runtime, blocked_max: usize) -> Self {
        Self { runtime, blocked: AtomicUsize::new(0), blocked_max }
    }

    /// Runs `task`. Polls it at once on this thread, which it may block if fewer than the maximum of threads are blocked.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let blocked = Blocked(&self.blocked);
        let is_beyond_max = self.blocked.fetch_add(1, Ordering::AcqRel) >= self.blocked_max;
        let permission =
            if is_beyond_max || NEVER_BLOCKS.get() { Permission::None } else { Permission::Offered };
        let guard = PermissionGuard::begin(permission);
        self.runtime.spawn(task);
        drop(guard);
        drop(blocked);
    }

    /// Runs `wait`, which blocks this thread anyway: blocking calls within run here too.
    pub fn wait<T>(&self, wait: impl FnOnce() -> T) -> T {
        let _guard = PermissionGuard::begin(Permission::Taken);
        wait()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::process::start_thread;
    use crate::os::system::System;
    use std::sync::mpsc;
    use std::thread::ThreadId;

    fn here() -> ThreadId {
        std::thread::current().id()
    }

    #[test]
    fn the_first_blocking_calls_of_a_task_run_on_the_spawning_thread() {
        let system = System::start(2).expect("a system");
        let runtime = system.runtime().clone();
        let spawner = InlineSpawner::new(runtime.clone(), 1);
        let (sender, receiver) = mpsc::channel();
        spawner.spawn(async move {
            let (inner, nested) = (runtime.clone(), sender.clone());
            runtime.spawn(async move {
                nested.send(("nested", inner.block(here).await)).expect("the receiver exists");
            });
            sender.send(("first", runtime.block(here).await)).expect("the receiver exists");
            sender.send(("second", runtime.block(here).await)).expect("the receiver exists");
            runtime.sleep(std::time::Duration::from_millis(1)).await;
            sender.send(("later", runtime.block(here).await)).expect("the receiver exists");
        });
        let mut threads: Vec<_> = receiver.iter().collect();
        threads.sort_unstable_by_key(|(call, _)| *call);
        let calls: Vec<_> = threads.iter().map(|&(call, thread)| (call, thread == here())).collect();
        assert_eq!(calls, [("first", true), ("later", false), ("nested", false), ("second", true)]);
        assert!(!is_taken());
        assert_eq!(spawner.blocked.load(Ordering::Acquire), 0);
    }

    #[test]
    fn beyond_the_maximum_of_blocked_threads_calls_go_to_the_pool() {
        let system = System::start(2).expect("a system");
        let runtime = system.runtime().clone();
        let spawner = std::sync::Arc::new(InlineSpawner::new(runtime.clone(), 1));
        let (begun, begins) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let (first, first_runtime) = (spawner.clone(), runtime.clone());
        let block_thread = move || {
            first.spawn(async move {
                let wait = move || {
                    begun.send(here()).expect("the receiver exists");
                    ended.recv().expect("the sender exists");
                };
                first_runtime.block(wait).await;
            });
        };
        let blocked = start_thread("blocked", block_thread).expect("a thread");
        assert_eq!(begins.recv(), Ok(blocked.thread().id()));
        let (sender, receiver) = mpsc::channel();
        let other = runtime.clone();
        spawner.spawn(async move { sender.send(other.block(here).await).expect("the receiver exists") });
        assert_ne!(receiver.recv(), Ok(here()));
        end.send(()).expect("the receiver exists");
        blocked.join().expect("the thread succeeds");
        // A thread that waits anyway makes the calls itself.
        let (sender, receiver) = mpsc::channel();
        spawner.wait(|| runtime.spawn(async move { sender.send(is_taken()).expect("the receiver exists") }));
        assert_eq!(receiver.recv(), Ok(false), "a task spawned meanwhile uses the pool");
        assert!(spawner.wait(is_taken) && !is_taken());
    }
}
