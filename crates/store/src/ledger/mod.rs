//! Write-ahead log of metadata changes, with the key-value table that they produce.
//!
//! - A change is a record. The ledger applies it to the table and appends it to the log; replay gives the same table.
//! - The table is a key-value store under an overlay of the changes since the last checkpoint.
//! - A checkpoint freezes the overlay and switches to the other of two log files. It commits the frozen changes and the
//!   sequence number of the last of them to the key-value store in one atomic commit, then empties the old log file. At
//!   every instant, store and log files together hold every persisted record.
//! - Records may name bytes elsewhere, behind [`Data`]. The ledger syncs those bytes before it counts the records as
//!   durable. After a power loss, recovery accepts records beyond the durable ones only if their bytes are intact.
//! - Changes run one after another. A reader sees the table of one moment and neither waits for changes nor delays
//!   them, however long the store below takes: the overlay keeps old versions until the reader is done. The lock on the
//!   ledger's state is held for steps in memory only.

mod copy_on_write;
pub(crate) mod inspect;
pub mod kv;
mod of_home;
mod overlay;
mod record;
mod recovery;
pub mod redb;
#[cfg(test)]
mod tests;
mod transaction;
mod writer;

use crate::table::{ReadTable, Table};
use async_lock::Mutex as AsyncMutex;
use event_listener::Event;
use futures_util::future::{BoxFuture, try_join};
use kv::Kv;
use of_home::set_last;
use overlay::{Overlay, Readers};
use parking_lot::{Mutex, RwLock};
use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use tameike_core::{Errno, Fault, HomeId, Result};
use tameike_io::Runtime;
use tameike_io::disk::AppendFile;
use tameike_io::os::runtime::promise;
use transaction::{ReadView, Transaction};
use writer::Writer;

pub use of_home::{HomeLog, HomeRecord, LastRecord, last_record, last_record_entry};
pub use record::BODY_SIZE_MAX;

/// Names of the two log files in the directory of a store.
pub(crate) const LOG_NAMES: [&str; 2] = ["log.0", "log.1"];

/// The component that owns a record: the first byte of its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordKind {
    /// Names and attributes.
    Names = 1,
    /// Extents of units.
    Extents = 2,
    /// Coordination of cached files.
    Cache = 3,
    /// A numbered record of a home that has replicas ([`HomeRecord`]).
    OfHome = 4,
    /// A part of a home that is copied to this node ([`crate::copied`]).
    Copied = 5,
}

impl RecordKind {
    fn from_byte(byte: u8) -> Option<Self> {
        [Self::Names, Self::Extents, Self::Cache, Self::OfHome, Self::Copied]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }
}

/// The bytes outside the ledger that records name.
pub trait Data: Send + Sync {
    /// Makes them durable, as far as records executed before this call name them.
    fn settle(&self) -> BoxFuture<'static, Result<()>>;
    /// Returns true if the bytes that this record names are intact. Recovery asks after a power loss.
    fn holds(&self, kind: RecordKind, body: Vec<u8>) -> BoxFuture<'static, Result<bool>>;
}

/// The files and stores that a ledger uses.
pub struct Media {
    /// The files of the log.
    pub logs: [Arc<dyn AppendFile>; 2],
    /// The key-value store of the table.
    pub kv: Arc<dyn Kv>,
    /// The bytes that the records name.
    pub data: Arc<dyn Data>,
}

/// Options of a ledger.
#[derive(Clone, Copy, Debug)]
pub struct LedgerOptions {
    /// Bytes of changes in memory, or of records in the log, at which a checkpoint begins.
    pub checkpoint_bytes: usize,
    /// The media are memory and lose everything at power loss, so that a sync is never of use.
    pub volatile: bool,
    /// The machine may have lost power since the media were last used.
    pub after_power_loss: bool,
}

impl LedgerOptions {
    /// Size of a log file, in bytes, at which changes wait for a checkpoint, unless checkpoints fail.
    pub fn log_bytes_max(&self) -> usize {
        2 * self.checkpoint_bytes
    }
}

/// Size of the log buffer, in bytes, at which the ledger writes it without a sync call.
const PENDING_SIZE_MAX: usize = 4 << 20;

/// The log and the table of one store.
pub struct Ledger {
    me: Weak<Self>,
    runtime: Runtime,
    options: LedgerOptions,
    kv: Arc<dyn Kv>,
    /// Serializes changes, including their reads of the store; taken before `state`.
    change_lock: Mutex<()>,
    state: RwLock<State>,
    readers: Readers,
    writer: Arc<AsyncMutex<Writer>>,
    /// Serializes checkpoints.
    checkpointing: Arc<AsyncMutex<()>>,
    /// By kind of task, checkpoint and log write: one is scheduled or running.
    scheduled: [AtomicBool; 2],
    /// Last record that is durable with its data; on volatile media, the last persisted one.
    durable: AtomicU64,
    /// Last record that the log itself marks as durable, so that recovery knows.
    confirmed: AtomicU64,
    space: Event,
    /// Set if homes of the job have replicas.
    home_log: OnceLock<Arc<dyn HomeLog>>,
}

/// A record that a change appends to the log.
struct Appended<'a> {
    kind: RecordKind,
    body: Cow<'a, [u8]>,
    /// Its home, number and chain, if the home has replicas.
    of_home: Option<(HomeId, LastRecord)>,
}

#[derive(Default)]
struct State {
    active: Arc<Overlay>,
    frozen: Option<Arc<Overlay>>,
    /// Encoded records that are not yet in the log file.
    pending: Vec<u8>,
    /// Size of the records and marks since the last freeze.
    logged_bytes: usize,
    /// Sequence number of the last executed record.
    last: u64,
    /// The fault that stops all further changes.
    broken: Option<Fault>,
    /// The fault of the last checkpoint.
    stalled: Option<Fault>,
}

impl Ledger {
    /// Runs `change`. On `Ok` the ledger keeps its changes to the table and appends (`kind`, `body`) to the log's
    /// buffer; it does not log a change that put and deleted nothing. On `Err` it undoes every change to the table.
    ///
    /// # Errors
    /// - those of `change`
    /// - `EIO` if the log has failed
    /// - the fault of the last checkpoint, if checkpoints fail and their changes take too much memory
    pub fn execute<T>(
        &self,
        kind: RecordKind,
        body: &[u8],
        change: impl FnOnce(&mut dyn Table) -> Result<T>,
    ) -> Result<T> {
        self.run(|table| {
            let answer = change(table)?;
            Ok((answer, Appended { kind, body: Cow::Borrowed(body), of_home: None }))
        })
    }

    /// As [`Ledger::execute`], for a change of a home that this node serves. If homes have replicas, the record is numbered, and passed to
    /// the [`HomeLog`].
    ///
    /// # Errors
    /// As [`Ledger::execute`]; `EREMCHG` if this node does not serve the home any more.
    pub fn execute_at<T>(
        &self,
        home: HomeId,
        kind: RecordKind,
        body: &[u8],
        change: impl FnOnce(&mut dyn Table) -> Result<T>,
    ) -> Result<T> {
        let Some(home_log) = self.home_log.get() else { return self.execute(kind, body, change) };
        self.run(|table| {
            let last = home_log.last(home)?.next(kind, body);
            let answer = change(table)?;
            if table.has_changes() {
                set_last(table, home, last);
            }
            let LastRecord { number, chain } = last;
            let body = HomeRecord { home, number, chain, kind, body }.encode().into();
            Ok((answer, Appended { kind: RecordKind::OfHome, body, of_home: Some((home, last)) }))
        })
    }

    /// Sets the observer of the records of homes. Called once, before the first of them.
    pub fn set_home_log(&self, home_log: Arc<dyn HomeLog>) {
        if self.home_log.set(home_log).is_err() {
            log::error!("ignored a second observer of the records of homes");
        }
    }

    fn run<'a, T>(&self, change: impl FnOnce(&mut Transaction) -> Result<(T, Appended<'a>)>) -> Result<T> {
        let change_lock = self.change_lock.lock();
        let view = {
            let state = self.state.read();
            if let Some(fault) = &state.broken {
                return Err(fault.clone());
            }
            if let (true, Some(fault)) = (self.is_crowded(&state), &state.stalled) {
                return Err(fault.clone());
            }
            self.read_view(&state)
        };
        let mut table = Transaction::new(view);
        let (answer, Appended { kind, body, of_home }) = change(&mut table)?;
        // Must drop the snapshot before `state` is locked: reopening the store's file waits for all snapshots while
        // others wait for the lock.
        let changes = table.into_changes();
        if changes.is_empty() {
            return Ok(answer);
        }
        if body.len() > record::BODY_SIZE_MAX {
            let problem = format!("a log record of {} bytes is too large", body.len());
            return Err(Fault::new(Errno::EINVAL, problem));
        }
        let (overlay_full, log_full) = {
            let state = &mut *self.state.write();
            state.last += 1;
            state.active.merge(changes, state.last, &self.readers);
            state.logged_bytes += record::HEADER_SIZE + body.len();
            record::push_record(&mut state.pending, state.last, kind, &body);
            let limit = self.options.checkpoint_bytes;
            let overlay_full = state.active.read().bytes() >= limit || state.logged_bytes >= limit;
            (overlay_full, state.pending.len() >= PENDING_SIZE_MAX)
        };
        if let (Some((home, last)), Some(home_log)) = (of_home, self.home_log.get()) {
            home_log.append(home, last, &body);
        }
        drop(change_lock);
        if overlay_full {
            self.schedule_checkpoint();
        } else if log_full {
            self.schedule_flush();
        }
        Ok(answer)
    }

    /// Runs `query` on the table as it is now. The query does not see later changes and does not delay them. It must
    /// not use the ledger itself.
    pub fn read<T>(&self, query: impl FnOnce(&dyn ReadTable) -> Result<T>) -> Result<T> {
        let (view, _reader) = {
            let state = self.state.read();
            (self.read_view(&state), self.readers.begin(state.last))
        };
        query(&Transaction::new(view))
    }

    /// The table as it is now. The store may already contain the frozen changes; the result is the same.
    fn read_view(&self, state: &State) -> ReadView {
        ReadView {
            active: state.active.clone(),
            frozen: state.frozen.clone(),
            stored: self.kv.snapshot(),
            sequence: state.last,
        }
    }

    fn is_crowded(&self, state: &State) -> bool {
        state.active.read().bytes() >= 2 * self.options.checkpoint_bytes
    }

    /// Returns true if changes must wait for a checkpoint because of the size of the log. While checkpoints fail, only
    /// the disk limits the log.
    fn is_log_full(&self, state: &State) -> bool {
        state.logged_bytes >= self.options.log_bytes_max() && state.stalled.is_none()
    }

    /// Whether a sync has failed, after which the ledger refuses all changes.
    pub fn has_failed(&self) -> bool {
        self.state.read().broken.is_some()
    }

    /// Waits while the changes since the last checkpoint exceed their memory or the log its size. Callers with many
    /// records wait here before each.
    ///
    /// # Errors
    /// The fault of the last checkpoint, if checkpoints fail.
    pub async fn wait_for_space(&self) -> Result<()> {
        loop {
            let listener = self.space.listen();
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

    /// Makes all executed records persisted (`durable == false`) or, with the data they name, durable (`durable ==
    /// true`), here and in the copies of the homes that this node serves. The copies need not persist them before a durable sync.
    ///
    /// # Errors
    /// As [`Ledger::sync_own`] and [`HomeLog::sync`].
    pub async fn sync(&self, durable: bool) -> Result<()> {
        let Some(home_log) = self.home_log.get() else { return self.sync_own(durable).await };
        let copies = if durable { home_log.sync() } else { home_log.on_backups() };
        try_join(self.sync_own(durable), copies).await.map(drop)
    }

    /// As [`Ledger::sync`], without the copies on other nodes. Concurrent callers share one write and one sync.
    ///
    /// # Errors
    /// Those of the disk. The next call retries a failed write. After a failed sync the content of the device is
    /// unknown, and the ledger refuses all further changes.
    pub async fn sync_own(&self, durable: bool) -> Result<()> {
        let durable = durable || self.options.volatile;
        let target = self.position();
        if durable && self.durable.load(Ordering::Acquire) >= target {
            return Ok(());
        }
        let mut writer = self.writer.lock_arc().await;
        if writer.covers(target, durable) {
            return Ok(());
        }
        let ledger = self.strong();
        // In a separate task, the write continues even if this caller is cancelled.
        let (resolver, written) = promise();
        self.runtime.spawn(async move {
            let result = writer.flush(&ledger, durable).await;
            drop(writer);
            resolver.resolve(result);
        });
        written.await
    }

    /// Makes all executed records durable as [`Ledger::sync_own`] does, and appends a mark that says so to the log. Returns
    /// the number of the last one: recovery never restores an earlier state, so bytes that only older records name may
    /// be overwritten.
    pub async fn confirm(&self) -> Result<u64> {
        if self.options.volatile {
            self.sync_own(true).await?;
            return Ok(self.confirmed());
        }
        let target = self.position();
        let mut writer = self.writer.lock_arc().await;
        if self.confirmed.load(Ordering::Acquire) < target {
            let ledger = self.strong();
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

    /// Number of the last record that recovery knows to be durable. Syncs nothing.
    pub fn confirmed(&self) -> u64 {
        if self.options.volatile { &self.durable } else { &self.confirmed }.load(Ordering::Acquire)
    }

    fn strong(&self) -> Arc<Self> {
        self.me.upgrade().expect("the caller borrows a ledger in an Arc")
    }

    /// Returns true if the media lose everything at power loss, so that a confirm costs no more than a write.
    pub fn is_volatile(&self) -> bool {
        self.options.volatile
    }

    /// Returns true if executed records may be missing: the machine may have lost power before the ledger was opened.
    pub fn may_lack_records(&self) -> bool {
        self.options.after_power_loss
    }

    /// Sequence number of the last executed record.
    pub fn position(&self) -> u64 {
        self.state.read().last
    }

    /// Moves all changes into the key-value store and empties the log. After an error, the log still has all records,
    /// and a later checkpoint may succeed.
    pub async fn checkpoint(&self) -> Result<()> {
        let guard = self.checkpointing.lock_arc().await;
        let ledger = self.strong();
        let (resolver, done) = promise();
        self.runtime.spawn(async move {
            let result = ledger.run_checkpoint().await;
            drop(guard);
            resolver.resolve(result);
        });
        done.await
    }

    /// Size of the key-value store, in bytes.
    pub fn table_size_bytes(&self) -> Result<u64> {
        self.kv.size_bytes()
    }
}

#[cfg(feature = "fuzz")]
pub(crate) use record::fuzz as fuzz_log;
