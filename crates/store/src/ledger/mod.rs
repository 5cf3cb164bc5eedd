//! The ledger: a log of changes and the table that they make.
//!
//! A change is a record. It is applied to the table and appended to the log; replaying the log gives the same
//! table. The table is a key-value store under an overlay of the changes since the last checkpoint. A
//! checkpoint freezes the overlay, turns to the other of two log files, moves the frozen changes into the
//! key-value store in one atomic commit together with the sequence number of the last of them, and empties the
//! old log file. At every instant, store and log files together hold every record that was made safe.
//!
//! Bytes that records name lie elsewhere, behind [`Data`]. They are made safe against power loss before the
//! records that name them count as safe; records beyond are believed after a power loss only if their bytes
//! prove to be there.
//!
//! Changes run one after another. Readers see the table of one moment, and neither wait for a change nor make
//! one wait, however long the store below takes to answer: the overlay keeps what it said at that moment until
//! they are done. The lock on the ledger's state is held for steps in memory only.

pub(crate) mod inspect;
pub mod kv;
mod overlay;
mod record;
mod recovery;
pub mod redb;
#[cfg(test)]
mod tests;
mod transaction;
mod untouched;
mod writer;

use crate::table::Table;
use async_lock::Mutex as AsyncMutex;
use event_listener::Event;
use futures_util::future::BoxFuture;
use kv::Kv;
use overlay::{Overlay, Readers};
use parking_lot::{Mutex, RwLock};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use tameike_core::{Errno, Fault, Result};
use tameike_io::Runtime;
use tameike_io::disk::AppendFile;
use tameike_io::os::runtime::promise;
use transaction::{Moment, Transaction};
use writer::Writer;

/// Names of the two files of the log in the directory of a store.
pub(crate) const LOG_NAMES: [&str; 2] = ["log.0", "log.1"];

/// To whom a record belongs: the first byte of its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordKind {
    /// Names and attributes.
    Names = 1,
    /// Extents of units.
    Extents = 2,
    /// Coordination of cached files.
    Cache = 3,
}

impl RecordKind {
    fn from_byte(byte: u8) -> Option<Self> {
        [Self::Names, Self::Extents, Self::Cache].into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// The bytes that records name.
pub trait Data: Send + Sync {
    /// Makes them safe against power loss, as far as records executed before this call name them.
    fn settle(&self) -> BoxFuture<'static, Result<()>>;
    /// Whether the bytes that this record names are there. Asked after a power loss.
    fn holds(&self, kind: RecordKind, body: Vec<u8>) -> BoxFuture<'static, Result<bool>>;
}

/// What a ledger is kept on.
pub struct Media {
    /// The files of the log.
    pub logs: [Arc<dyn AppendFile>; 2],
    /// The table's store.
    pub kv: Arc<dyn Kv>,
    /// What the records name.
    pub data: Arc<dyn Data>,
}

/// How a ledger works.
#[derive(Clone, Copy, Debug)]
pub struct LedgerOptions {
    /// Changes kept in memory, and size of the log, beyond which a checkpoint begins, in bytes.
    pub checkpoint_bytes: usize,
    /// The media forget all at power loss (they are memory), so that a sync against it is never of use.
    pub volatile: bool,
    /// The machine may have lost power since the media were last used.
    pub after_power_loss: bool,
}

impl LedgerOptions {
    /// Size of a file of the log at which changes wait for a checkpoint, unless checkpoints are stuck; in bytes.
    pub fn log_bytes_max(&self) -> usize {
        2 * self.checkpoint_bytes
    }
}

/// Log buffer beyond which it is written without being asked, in bytes.
const PENDING_SIZE_MAX: usize = 4 << 20;

/// The log and the table of one store.
pub struct Ledger {
    me: Weak<Self>,
    runtime: Runtime,
    options: LedgerOptions,
    kv: Arc<dyn Kv>,
    /// Held by the one change that is being made, also while it reads the store; taken before `state`.
    turn: Mutex<()>,
    state: RwLock<State>,
    readers: Readers,
    writer: Arc<AsyncMutex<Writer>>,
    /// Held by whoever moves changes into the store.
    checkpointing: Arc<AsyncMutex<()>>,
    /// A task is at a checkpoint or about to begin one; a task is about to write the log.
    scheduled: [AtomicBool; 2],
    /// Last record safe against power loss with its data, or against death of the agent on volatile media.
    durable: AtomicU64,
    /// Last record of which recovery will know that.
    confirmed: AtomicU64,
    room: Event,
}

struct State {
    active: Arc<Overlay>,
    frozen: Option<Arc<Overlay>>,
    /// Records not yet handed to the log file, encoded.
    pending: Vec<u8>,
    /// Size of the records and marks since the last freeze.
    logged_bytes: usize,
    /// Sequence number of the last executed record.
    last: u64,
    /// Why nothing can be executed any more.
    broken: Option<Fault>,
    /// Why the last checkpoint failed.
    stalled: Option<Fault>,
}

impl Ledger {
    /// Runs `change`. On `Ok` its changes to the table are kept and (`kind`, `body`) goes to the log's buffer; a
    /// change that put and deleted nothing is not logged. On `Err` every change to the table is undone.
    ///
    /// # Errors
    /// Those of `change`; `EIO` when the log has failed, and what stops the checkpoints when they are stuck and
    /// their changes take too much memory.
    pub fn execute<T>(
        &self,
        kind: RecordKind,
        body: &[u8],
        change: impl FnOnce(&mut dyn Table) -> Result<T>,
    ) -> Result<T> {
        if body.len() > record::BODY_SIZE_MAX {
            return Err(Fault::new(Errno::EINVAL, format!("a record of {} bytes is too large", body.len())));
        }
        let turn = self.turn.lock();
        let moment = {
            let state = self.state.read();
            if let Some(fault) = &state.broken {
                return Err(fault.clone());
            }
            if let (true, Some(fault)) = (self.is_crowded(&state), &state.stalled) {
                return Err(fault.clone());
            }
            self.moment(&state)
        };
        let mut table = Transaction::new(moment);
        let answer = change(&mut table)?;
        // Whoever opens the store's file again waits for the snapshot, and others with the state locked for him.
        let changes = table.into_changes();
        if changes.is_empty() {
            return Ok(answer);
        }
        let (overlay_full, log_full) = {
            let state = &mut *self.state.write();
            state.last += 1;
            state.active.merge(changes, state.last, &self.readers);
            state.logged_bytes += record::HEADER_SIZE + body.len();
            record::push_record(&mut state.pending, state.last, kind, body);
            let limit = self.options.checkpoint_bytes;
            let overlay_full = state.active.read().bytes() >= limit || state.logged_bytes >= limit;
            (overlay_full, state.pending.len() >= PENDING_SIZE_MAX)
        };
        drop(turn);
        if overlay_full {
            self.schedule_checkpoint();
        } else if log_full {
            self.schedule_flush();
        }
        Ok(answer)
    }

    /// Runs `query` on the table as it is now. Changes that are made meanwhile are not seen, and do not wait.
    /// The query must not use the ledger itself.
    ///
    /// # Errors
    /// Those of `query`.
    pub fn read<T>(&self, query: impl FnOnce(&dyn Table) -> Result<T>) -> Result<T> {
        let (moment, _reader) = {
            let state = self.state.read();
            (self.moment(&state), self.readers.begin(state.last))
        };
        query(&Transaction::new(moment))
    }

    /// The table as it is now. Frozen changes may be in the store already: they say the same.
    fn moment(&self, state: &State) -> Moment {
        Moment {
            active: state.active.clone(),
            frozen: state.frozen.clone(),
            stored: self.kv.snapshot(),
            sequence: state.last,
        }
    }

    fn is_crowded(&self, state: &State) -> bool {
        state.active.read().bytes() >= 2 * self.options.checkpoint_bytes
    }

    /// Whether the next checkpoint is to come before the next change, for the log's sake. While checkpoints are stuck it is
    /// up to the disk how far the log may grow.
    fn is_log_full(&self, state: &State) -> bool {
        state.logged_bytes >= self.options.log_bytes_max() && state.stalled.is_none()
    }

    /// Waits while the changes since the last checkpoint take more memory than they may, or more of the log. Whoever
    /// executes many records waits here before each.
    ///
    /// # Errors
    /// What stops the checkpoints, when they are stuck.
    pub async fn room(&self) -> Result<()> {
        loop {
            let listener = self.room.listen();
            {
                let state = self.state.read();
                if !self.is_crowded(&state) && !self.is_log_full(&state) {
                    return Ok(());
                }
                if let Some(fault) = state.broken.as_ref().or(state.stalled.as_ref()) {
                    return Err(fault.clone());
                }
            }
            self.schedule_checkpoint();
            listener.await;
        }
    }

    /// Makes all executed records safe against the death of the agent (`durable == false`), or against power
    /// loss with the data they name (`durable == true`). Concurrent callers share one write and one sync.
    ///
    /// # Errors
    /// What the disk says. A failed write is tried again at the next call; after a failed sync nobody knows what
    /// the device holds, and the ledger refuses all further changes.
    pub async fn sync(&self, durable: bool) -> Result<()> {
        let durable = durable || self.options.volatile;
        let target = self.position();
        if durable && self.durable.load(Ordering::Acquire) >= target {
            return Ok(());
        }
        let mut writer = self.writer.lock_arc().await;
        if writer.covers(target, durable) {
            return Ok(());
        }
        let ledger = self.alive();
        // A task of its own: the write goes on even if this caller stops waiting.
        let (resolver, written) = promise();
        self.runtime.spawn(async move {
            let result = writer.flush(&ledger, durable).await;
            drop(writer);
            resolver.resolve(result);
        });
        written.await
    }

    /// Makes all executed records safe as [`Ledger::sync`] does, and notes in the log that they are. Returns the
    /// number of the last one: whatever happens, no state before it comes back, so that bytes which only older
    /// records name may be overwritten.
    ///
    /// # Errors
    /// As [`Ledger::sync`].
    pub async fn confirm(&self) -> Result<u64> {
        if self.options.volatile {
            self.sync(true).await?;
            return Ok(self.confirmed());
        }
        let target = self.position();
        let mut writer = self.writer.lock_arc().await;
        if self.confirmed.load(Ordering::Acquire) < target {
            let ledger = self.alive();
            let (resolver, written) = promise();
            self.runtime.spawn(async move {
                let result = writer.confirm(&ledger).await;
                drop(writer);
                resolver.resolve(result);
            });
            written.await?;
        }
        Ok(self.confirmed())
    }

    /// Number of the last record that recovery knows to be safe, without making more so.
    pub fn confirmed(&self) -> u64 {
        if self.options.volatile { &self.durable } else { &self.confirmed }.load(Ordering::Acquire)
    }

    fn alive(&self) -> Arc<Self> {
        self.me.upgrade().expect("a ledger that is borrowed lives")
    }

    /// Whether the media forget all at power loss, so that to confirm costs no more than a write.
    pub fn is_volatile(&self) -> bool {
        self.options.volatile
    }

    /// Whether records that were executed may be gone: the machine may have lost power before the ledger was opened.
    pub fn may_lack_records(&self) -> bool {
        self.options.after_power_loss
    }

    /// Sequence number of the last executed record.
    pub fn position(&self) -> u64 {
        self.state.read().last
    }

    /// Moves all changes into the key-value store and empties the log.
    ///
    /// # Errors
    /// What the disk says; then everything is still in the log, and a later checkpoint may succeed.
    pub async fn checkpoint(&self) -> Result<()> {
        let guard = self.checkpointing.lock_arc().await;
        let ledger = self.alive();
        let (resolver, done) = promise();
        self.runtime.spawn(async move {
            let result = ledger.run_checkpoint().await;
            drop(guard);
            resolver.resolve(result);
        });
        done.await
    }

    /// Size of the table's store, in bytes.
    ///
    /// # Errors
    /// `EIO` when the disk fails.
    pub fn table_size_bytes(&self) -> Result<u64> {
        self.kv.size_bytes()
    }
}

#[cfg(feature = "fuzz")]
pub(crate) use record::fuzz as fuzz_log;
