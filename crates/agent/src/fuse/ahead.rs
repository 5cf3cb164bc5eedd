//! Files that are opened before the kernel asks for it.
//!
//! The kernel looks a name up and opens what it found: two requests, between which another node may replace the file. The
//! open then fails with ESTALE, and the kernel does both once more; had the file been replaced again, the program would be
//! told. So the look-up of a thread that was told ESTALE opens what it finds, and the open that follows is answered with it.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tameike_client::lock_calls;
use tameike_client::vfs::{FileNumber, Found, OpenMode, Opened, Vfs};
use tameike_core::attr::AttrChange;
use tameike_core::{Errno, FileKind, Result};
use tameike_io::Runtime;

/// How long a thread is waited for: it has nothing else to do between the two requests.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often a look-up opens what it finds, when other nodes replace the file each time.
const TRIES_MAX: usize = 16;

/// Where a thread is.
#[derive(Clone, Copy)]
enum Step {
    /// An open in this mode was told ESTALE.
    Stale(OpenMode),
    /// What its look-up has found is open.
    Open(FileNumber, OpenMode, Opened),
}

#[derive(Default)]
struct State {
    /// By number of the thread; with the number of the step.
    threads: BTreeMap<u32, (u64, Step)>,
    steps: u64,
}

/// Threads of programs in the middle of opening a file that is being replaced.
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
        // On its way, the kernel looks the directories up again, too.
        if found.attr.kind != FileKind::File {
            return Ok(found);
        }
        // The kernel may look twice: first whether the name it knows still stands for what it did.
        let Some(Step::Stale(mode) | Step::Open(_, mode, _)) = self.step_of(thread) else { return Ok(found) };
        for _ in 0..TRIES_MAX {
            match vfs.open(found.file, mode).await {
                Ok(opened) => {
                    self.set(vfs, thread, Step::Open(found.file, mode, opened)).await;
                    // The attributes may be those of before the open.
                    found.attr = vfs.getattr(found.file).await.unwrap_or(found.attr);
                    return Ok(found);
                }
                Err(fault) if fault.errno == Errno::ESTALE => {
                    vfs.forget(found.file, 1);
                    found = vfs.lookup(dir, name).await?;
                }
                // The open itself will tell.
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
        // Who may not cut the file has been refused by now, but had not been when it was looked up.
        let uncut = OpenMode { truncate: false, ..mode };
        match self.take(thread) {
            Some(Step::Open(ahead, ahead_mode, opened)) if (ahead, ahead_mode) == (file, uncut) => {
                // It may have been given rights since it was opened.
                return cut(vfs, file, mode, Opened { gives_rights: true, ..opened }).await;
            }
            step => abandon(vfs, step).await,
        }
        let opened = vfs.open(file, mode).await;
        if opened.as_ref().is_err_and(|fault| fault.errno == Errno::ESTALE) {
            self.set(vfs, thread, Step::Stale(uncut)).await;
        }
        opened
    }

    fn step_of(&self, thread: u32) -> Option<Step> {
        self.state.lock().threads.get(&thread).map(|(_, step)| *step)
    }

    fn take(&self, thread: u32) -> Option<Step> {
        self.state.lock().threads.remove(&thread).map(|(_, step)| step)
    }

    /// The thread is at `step` until its next one, or until it is waited for no longer.
    async fn set<V: Vfs>(&self, vfs: &Arc<V>, thread: u32, step: Step) {
        let (number, former) = {
            let mut state = self.state.lock();
            state.steps += 1;
            let number = state.steps;
            (number, state.threads.insert(thread, (number, step)).map(|(_, step)| step))
        };
        let (ahead, vfs_then) = (self.clone(), vfs.clone());
        self.runtime.spawn(async move {
            ahead.runtime.sleep(PATIENCE).await;
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

async fn cut<V: Vfs>(vfs: &Arc<V>, file: FileNumber, mode: OpenMode, opened: Opened) -> Result<Opened> {
    if !(mode.truncate && mode.write) {
        return Ok(opened);
    }
    match vfs.setattr(file, AttrChange { size: Some(0), ..AttrChange::default() }).await {
        Ok(_) => Ok(Opened { keep_cache: false, ..opened }),
        Err(fault) => {
            vfs.pages_passed(opened.handle);
            lock_calls::release(&**vfs, opened.handle).await;
            Err(fault)
        }
    }
}

async fn abandon<V: Vfs>(vfs: &Arc<V>, step: Option<Step>) {
    if let Some(Step::Open(_, _, opened)) = step {
        // The kernel, which hears of no open, keeps what it has.
        vfs.pages_passed(opened.handle);
        lock_calls::release(&**vfs, opened.handle).await;
    }
}
