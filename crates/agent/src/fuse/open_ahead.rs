//! Opens files during lookup, after an open has failed with ESTALE.
//!
//! The kernel sends a lookup and an open, and another node may replace the file in between. The open then fails with ESTALE, and
//! the kernel retries both once. A second replacement would make the program's call fail. Therefore the lookup of a thread whose
//! open failed with ESTALE also opens the file, and the following open returns that handle.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tameike_client::lock_calls;
use tameike_client::vfs::{FileNumber, Found, OpenMode, Opened, Vfs};
use tameike_core::attr::AttrChange;
use tameike_core::{Errno, FileKind, Result};
use tameike_io::Runtime;

/// Time in which the next request of a thread must arrive: the kernel sends the two in direct sequence.
const STEP_TIMEOUT: Duration = Duration::from_secs(1);
/// Attempts of a lookup to open the file, if other nodes replace it each time.
const TRIES_MAX: usize = 16;

#[derive(Clone, Copy)]
enum Step {
    /// An open in this mode failed with ESTALE.
    Stale(OpenMode),
    /// The lookup has opened the file.
    Open(FileNumber, OpenMode, Opened),
}

#[derive(Default)]
struct State {
    /// By thread ID; with the number of the step.
    threads: BTreeMap<u32, (u64, Step)>,
    steps: u64,
}

/// Threads that are opening a file while other nodes replace it.
#[derive(Clone)]
pub(super) struct OpenAhead {
    runtime: Runtime,
    state: Arc<Mutex<State>>,
}

impl OpenAhead {
    pub(super) fn new(runtime: Runtime) -> Self {
        Self { runtime, state: Arc::default() }
    }

    /// As [`Names::lookup`](tameike_client::vfs::Names::lookup), for a thread.
    pub(super) async fn lookup<V: Vfs>(
        &self,
        vfs: &Arc<V>,
        thread: u32,
        (dir, name): (FileNumber, &[u8]),
    ) -> Result<Found> {
        let mut found = vfs.lookup(dir, name).await?;
        // The retry also looks up the directories of the path.
        if found.attr.kind != FileKind::File {
            return Ok(found);
        }
        // The kernel may send two lookups: the first revalidates its dentry.
        let Some(Step::Stale(mode) | Step::Open(_, mode, _)) = self.step_of(thread) else { return Ok(found) };
        for _ in 0..TRIES_MAX {
            match vfs.open(found.file, mode).await {
                Ok(opened) => {
                    self.set(vfs, thread, Step::Open(found.file, mode, opened)).await;
                    // The attributes may be older than the open.
                    found.attr = vfs.getattr(found.file).await.unwrap_or(found.attr);
                    return Ok(found);
                }
                Err(fault) if fault.errno == Errno::ESTALE => {
                    vfs.forget(found.file, 1);
                    found = vfs.lookup(dir, name).await?;
                }
                // The open will report the error.
                Err(_) => return Ok(found),
            }
        }
        Ok(found)
    }

    /// As [`OpenFiles::open`](tameike_client::vfs::OpenFiles::open), for a thread.
    pub(super) async fn open<V: Vfs>(
        &self,
        vfs: &Arc<V>,
        thread: u32,
        file: FileNumber,
        mode: OpenMode,
    ) -> Result<Opened> {
        // The lookup must not truncate: the kernel checks permissions only after it.
        let untruncated = OpenMode { truncate: false, ..mode };
        match self.take(thread) {
            Some(Step::Open(ahead, ahead_mode, opened)) if (ahead, ahead_mode) == (file, untruncated) => {
                // It may have got set-ID bits since it was opened.
                return truncate(vfs, file, mode, Opened { has_setid: true, ..opened }).await;
            }
            step => abandon(vfs, step).await,
        }
        let opened = vfs.open(file, mode).await;
        if opened.as_ref().is_err_and(|fault| fault.errno == Errno::ESTALE) {
            self.set(vfs, thread, Step::Stale(untruncated)).await;
        }
        opened
    }

    fn step_of(&self, thread: u32) -> Option<Step> {
        self.state.lock().threads.get(&thread).map(|(_, step)| *step)
    }

    fn take(&self, thread: u32) -> Option<Step> {
        self.state.lock().threads.remove(&thread).map(|(_, step)| step)
    }

    /// Sets the state of a thread, until its next request or the timeout.
    async fn set<V: Vfs>(&self, vfs: &Arc<V>, thread: u32, step: Step) {
        let (number, former) = {
            let mut state = self.state.lock();
            state.steps += 1;
            let number = state.steps;
            (number, state.threads.insert(thread, (number, step)).map(|(_, step)| step))
        };
        let (ahead, vfs_then) = (self.clone(), vfs.clone());
        self.runtime.spawn(async move {
            ahead.runtime.sleep(STEP_TIMEOUT).await;
            let late = {
                let mut state = ahead.state.lock();
                let is_there = state.threads.get(&thread).is_some_and(|(now, _)| *now == number);
                if is_there { state.threads.remove(&thread) } else { None }
            };
            abandon(&vfs_then, late.map(|(_, step)| step)).await;
        });
        abandon(vfs, former).await;
    }
}

async fn truncate<V: Vfs>(vfs: &Arc<V>, file: FileNumber, mode: OpenMode, opened: Opened) -> Result<Opened> {
    if !(mode.truncate && mode.write) {
        return Ok(opened);
    }
    match vfs.setattr(file, AttrChange { size: Some(0), ..AttrChange::default() }).await {
        Ok(_) => Ok(Opened { keep_cache: false, ..opened }),
        Err(fault) => {
            vfs.mark_pages_stale(opened.handle);
            lock_calls::release(&**vfs, opened.handle).await;
            Err(fault)
        }
    }
}

async fn abandon<V: Vfs>(vfs: &Arc<V>, step: Option<Step>) {
    if let Some(Step::Open(_, _, opened)) = step {
        // Without a reply to an open, the kernel keeps the pages that it has.
        vfs.mark_pages_stale(opened.handle);
        lock_calls::release(&**vfs, opened.handle).await;
    }
}
