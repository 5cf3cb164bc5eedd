//! Writer of the log, and checkpoints of the overlay into the key-value store.

use super::kv::{Changes, applied_entry};
use super::{Data, Ledger, State, record};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tameike_core::{Fault, Result};
use tameike_io::disk::AppendFile;

const CHECKPOINT: usize = 0;
const FLUSH: usize = 1;
const RETRY_TIME: Duration = Duration::from_secs(1);

/// Writer of the log's end, used by one task at a time.
pub(super) struct Writer {
    logs: [Arc<dyn AppendFile>; 2],
    data: Arc<dyn Data>,
    /// Index of the file that is appended to; the other is empty, or a checkpoint is moving its records into the store.
    current: usize,
    size: u64,
    /// An append failed: the file may be longer than `size`.
    torn: bool,
    /// Encoded records taken from the buffer and not yet in the file.
    unwritten: Vec<u8>,
    /// Last record taken from the buffer, appended, durable, and marked as durable in the log.
    taken: u64,
    appended: u64,
    durable: u64,
    marked: u64,
    /// The other file is empty.
    spare: bool,
}

impl Writer {
    /// A writer of two empty files; the store has all records up to `last`.
    pub(super) fn new(logs: [Arc<dyn AppendFile>; 2], data: Arc<dyn Data>, last: u64) -> Self {
        Self {
            logs,
            data,
            current: 0,
            size: 0,
            torn: false,
            unwritten: Vec::new(),
            taken: last,
            appended: last,
            durable: last,
            marked: last,
            spare: true,
        }
    }

    pub(super) fn covers(&self, sequence: u64, durable: bool) -> bool {
        sequence <= if durable { self.durable } else { self.appended }
    }

    fn take_pending(&mut self, state: &mut State) {
        if self.unwritten.is_empty() {
            std::mem::swap(&mut self.unwritten, &mut state.pending);
        } else {
            self.unwritten.append(&mut state.pending);
        }
        self.taken = state.last;
    }

    /// Writes the buffer, and syncs the file if `durable`.
    pub(super) async fn flush(&mut self, ledger: &Ledger, durable: bool) -> Result<()> {
        {
            let state = &mut *ledger.state.write();
            if let Some(fault) = &state.broken {
                return Err(fault.clone());
            }
            self.take_pending(state);
        }
        self.write(ledger, durable).await
    }

    async fn write(&mut self, ledger: &Ledger, durable: bool) -> Result<()> {
        if !self.unwritten.is_empty() {
            let mut batch = Vec::with_capacity(self.unwritten.len() + record::HEADER_SIZE);
            if self.durable > self.marked {
                self.push_mark(ledger, &mut batch);
            }
            batch.extend_from_slice(&self.unwritten);
            self.append(batch).await?;
            self.marked = self.durable;
            self.appended = self.taken;
            self.unwritten.clear();
        }
        if durable && self.durable < self.appended {
            let data = self.data.clone();
            data.settle().await.map_err(|fault| ledger.give_up(fault))?;
            self.sync_log(ledger).await?;
            self.durable = self.appended;
            ledger.durable.store(self.durable, Ordering::Release);
            ledger.confirmed.fetch_max(self.marked, Ordering::AcqRel);
        }
        Ok(())
    }

    fn push_mark(&self, ledger: &Ledger, batch: &mut Vec<u8>) {
        record::push_mark(batch, self.durable);
        ledger.state.write().logged_bytes += record::HEADER_SIZE;
    }

    async fn append(&mut self, bytes: Vec<u8>) -> Result<()> {
        let log = self.logs[self.current].clone();
        if self.torn {
            log.truncate(self.size).await?;
        }
        let size = bytes.len() as u64;
        self.torn = true;
        log.append(bytes).await?;
        self.torn = false;
        self.size += size;
        Ok(())
    }

    async fn sync_log(&self, ledger: &Ledger) -> Result<()> {
        self.logs[self.current].sync().await.map_err(|fault| ledger.give_up(fault))
    }

    /// Makes everything durable, and appends a mark that says so.
    pub(super) async fn confirm(&mut self, ledger: &Ledger) -> Result<()> {
        self.flush(ledger, true).await?;
        if self.marked < self.durable {
            let mut mark = Vec::new();
            self.push_mark(ledger, &mut mark);
            self.append(mark).await?;
            self.sync_log(ledger).await?;
            self.marked = self.durable;
        }
        ledger.confirmed.fetch_max(self.durable, Ordering::AcqRel);
        Ok(())
    }
}

impl Ledger {
    /// Refuses all further changes: after a failed sync the content of the device is unknown.
    fn give_up(&self, fault: Fault) -> Fault {
        let fault = fault.context("the log cannot be synced any more; the store accepts no more changes");
        log::error!("{fault}");
        self.state.write().broken = Some(fault.clone());
        fault
    }

    pub(super) fn schedule_flush(&self) {
        if self.scheduled[FLUSH].swap(true, Ordering::AcqRel) {
            return;
        }
        let ledger = self.strong();
        self.runtime.spawn(async move {
            let result = ledger.sync_own(false).await;
            ledger.scheduled[FLUSH].store(false, Ordering::Release);
            if let Err(fault) = result {
                log::warn!("cannot write the log, will retry: {fault}");
            }
        });
    }

    /// Starts a task that retries the checkpoint until it succeeds.
    pub(super) fn schedule_checkpoint(&self) {
        if self.scheduled[CHECKPOINT].swap(true, Ordering::AcqRel) {
            return;
        }
        let ledger = self.strong();
        self.runtime.spawn(async move {
            while let Err(fault) = ledger.checkpoint().await {
                log::error!("checkpoint of the log into the table failed, retrying: {fault}");
                if ledger.state.read().broken.is_some() {
                    break;
                }
                ledger.runtime.sleep(RETRY_TIME).await;
            }
            ledger.scheduled[CHECKPOINT].store(false, Ordering::Release);
            ledger.space.notify(usize::MAX);
        });
    }

    /// One attempt. Callers serialize the attempts.
    pub(super) async fn run_checkpoint(&self) -> Result<()> {
        let result = self.move_changes().await;
        self.state.write().stalled = result.as_ref().err().cloned();
        self.space.notify(usize::MAX);
        result
    }

    async fn move_changes(&self) -> Result<()> {
        self.finish_frozen().await?;
        if !self.freeze().await? {
            return Ok(());
        }
        self.finish_frozen().await
    }

    /// Freezes the overlay and switches to the other log file. Returns false if there is nothing to freeze.
    async fn freeze(&self) -> Result<bool> {
        let mut writer = self.writer.lock().await;
        // Writes most of the buffer first, so that little remains to write while the overlay is frozen but the log not
        // switched.
        writer.flush(self, true).await?;
        let (last, logged_bytes) = {
            let _lock = self.change_lock.lock();
            let state = &mut *self.state.write();
            if state.active.read().changes().is_empty() {
                return Ok(false);
            }
            writer.take_pending(state);
            let logged_bytes = std::mem::take(&mut state.logged_bytes);
            let applied = applied_entry(state.last);
            state.active.merge(Changes::from([applied]), state.last, &self.readers);
            state.frozen = Some(std::mem::take(&mut state.active));
            (state.last, logged_bytes)
        };
        // Records of the other file must never survive a power loss that loses these.
        if let Err(fault) = writer.write(self, true).await {
            self.unfreeze(logged_bytes);
            return Err(fault);
        }
        debug_assert_eq!(writer.appended, last);
        writer.current = 1 - writer.current;
        writer.size = 0;
        writer.spare = false;
        Ok(true)
    }

    /// Makes the frozen changes (`logged_bytes` of them in the log) active again, with newer ones on top.
    pub(super) fn unfreeze(&self, logged_bytes: usize) {
        let _lock = self.change_lock.lock();
        let state = &mut *self.state.write();
        state.logged_bytes += logged_bytes;
        if let Some(frozen) = state.frozen.take() {
            let newer = std::mem::replace(&mut state.active, frozen);
            let newer = newer.read().changes().clone();
            state.active.merge(newer, state.last, &self.readers);
        }
    }

    /// Moves frozen changes into the store, and empties the log file that has them.
    async fn finish_frozen(&self) -> Result<()> {
        let frozen = self.state.read().frozen.clone();
        if let Some(frozen) = frozen {
            let kv = self.kv.clone();
            self.runtime.block(move || kv.commit(frozen.read().changes())).await?;
            self.state.write().frozen = None;
        }
        let (spare, log) = {
            let writer = self.writer.lock().await;
            (writer.spare, writer.logs[1 - writer.current].clone())
        };
        if !spare {
            log.truncate(0).await?;
            self.writer.lock().await.spare = true;
        }
        Ok(())
    }
}
