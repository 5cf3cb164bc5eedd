//! Opening a ledger: replay of the log records that the key-value store lacks.

use super::kv::{APPLIED_KEY, Changes, Kv, applied_entry};
use super::overlay::{Overlay, Readers};
use super::record::{self, Contents, Record};
use super::transaction::{ReadView, Transaction};
use super::writer::Writer;
use super::{Ledger, LedgerOptions, Media, RecordKind, State};
use crate::table::Table;
use async_lock::Mutex as AsyncMutex;
use event_listener::Event;
use parking_lot::{Mutex, RwLock};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use tameike_core::{Fault, Result};
use tameike_io::Runtime;

/// Both log files with their contents, the older one first.
pub(super) struct Log {
    /// Number, bytes and contents of each.
    pub(super) files: Vec<(usize, Vec<u8>, Contents)>,
}

impl Log {
    pub(super) fn new(files: [Vec<u8>; 2], parse: impl Fn(&[u8]) -> Contents) -> Self {
        let parsed = files.into_iter().enumerate().map(|(number, bytes)| {
            let contents = parse(&bytes);
            (number, bytes, contents)
        });
        let mut files: Vec<_> = parsed.collect();
        files.sort_by_key(|(_, _, contents)| {
            contents.records.first().map_or(u64::MAX, |first| first.sequence)
        });
        Self { files }
    }

    async fn read(media: &Media, parse: impl Fn(&[u8]) -> Contents) -> Result<Self> {
        let [first, second] = &media.logs;
        Ok(Self::new([first.read_all().await?, second.read_all().await?], parse))
    }

    /// The last record known to be durable.
    pub(super) fn durable(&self) -> u64 {
        self.files.iter().map(|(_, _, contents)| contents.durable).max().unwrap_or(0)
    }

    /// The records to replay, in order, each with the bytes of its file.
    ///
    /// - A file that ends inside a record was being written when the agent failed: that record was not persisted.
    /// - Whole records beyond damage mean that persisted records are damaged.
    /// - After a power loss they do not: later writes may have reached the device before earlier ones, and none of
    ///   those was durable.
    pub(super) fn tail(&self, applied: u64, after_power_loss: bool) -> Result<Vec<(&[u8], &Record)>> {
        let durable = self.durable();
        let mut last = applied;
        let mut tail = Vec::new();
        for (_, bytes, contents) in &self.files {
            for record in contents.records.iter().filter(|record| record.sequence > applied) {
                if record.sequence != last + 1 {
                    return Err(damage(last + 1, "a later record is in the other file"));
                }
                tail.push((bytes.as_slice(), record));
                last = record.sequence;
            }
            if let Some((place, sequence)) = contents.beyond
                && sequence > last
                && !after_power_loss
            {
                let why = format!("record {sequence} is whole, at byte {place}");
                return Err(damage(last + 1, &why));
            }
        }
        if last < durable {
            return Err(damage(last + 1, &format!("records up to {durable} were durable")));
        }
        match self.broken_last(last) {
            Some((number, place)) if !after_power_loss => {
                let why = format!("the checksum at byte {place} of log.{number} does not match");
                Err(damage(last + 1, &why))
            }
            _ => Ok(tail),
        }
    }

    /// File and offset of the record after the last whole one, if it has its full length but a wrong checksum. An agent
    /// that fails during a write leaves a shorter record instead; a power loss may leave such a one.
    fn broken_last(&self, last: u64) -> Option<(usize, usize)> {
        self.files.iter().find_map(|(number, bytes, contents)| {
            let sequence = record::broken_at(bytes, contents.end)?;
            (sequence == last + 1).then_some((*number, contents.end))
        })
    }

    /// Trailing bytes of files that are no record, with no whole record behind them: number of the file, offset, count.
    pub(super) fn torn(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        let torn = self.files.iter().filter(|(_, bytes, contents)| bytes.len() > contents.end);
        torn.map(|(number, bytes, contents)| (*number, contents.end, bytes.len() - contents.end))
    }

    /// All whole records to replay, in order; adds to `damage` which are missing.
    pub(super) fn salvaged_tail(
        &self,
        applied: u64,
        after_power_loss: bool,
        damage: &mut Vec<String>,
    ) -> Vec<(&[u8], &Record)> {
        let mut last = applied;
        let mut tail = Vec::new();
        for (_, bytes, contents) in &self.files {
            for record in contents.records.iter().filter(|record| record.sequence > applied) {
                if record.sequence > last + 1 {
                    damage.push(lost(last + 1, record.sequence - 1));
                }
                if record.sequence > last {
                    tail.push((bytes.as_slice(), record));
                    last = record.sequence;
                }
            }
        }
        if last < self.durable() {
            damage.push(lost(last + 1, self.durable()));
        } else if let (false, Some((number, place))) = (after_power_loss, self.broken_last(last)) {
            let sequence = last + 1;
            damage.push(format!(
                "record {sequence}, the last of the log, is broken: the checksum at byte {place} of log.{number} does \
                 not match"
            ));
        }
        tail
    }

    /// Empties the files, the newer one first: after a crash in between, the rest still fits the store.
    async fn clear(self, media: &Media) -> Result<()> {
        for (number, ..) in self.files.into_iter().rev() {
            media.logs[number].truncate(0).await?;
            media.logs[number].sync().await?;
        }
        Ok(())
    }
}

fn lost(first: u64, last: u64) -> String {
    format!("records {first} to {last} of the log are missing or broken")
}

fn damage(sequence: u64, why: &str) -> Fault {
    Fault::io(format!(
        "the log is damaged: record {sequence} is missing or broken ({why}). Its changes cannot be restored; \
         check the device, and start with an empty store directory"
    ))
}

/// The last record in the key-value store.
pub(super) fn applied(kv: &dyn Kv) -> Result<u64> {
    let Some(bytes) = kv.snapshot().get(APPLIED_KEY)? else { return Ok(0) };
    let wrong = |_| Fault::io("the table's record number is not 8 bytes long");
    Ok(u64::from_le_bytes(bytes.try_into().map_err(wrong)?))
}

/// Replay of log records over the key-value store.
pub(super) struct Replay {
    kv: Arc<dyn Kv>,
    made: Arc<Overlay>,
}

impl Replay {
    pub(super) fn new(kv: Arc<dyn Kv>) -> Self {
        Self { kv, made: Arc::default() }
    }

    pub(super) fn table(&self) -> Transaction {
        let view =
            ReadView { active: self.made.clone(), frozen: None, stored: self.kv.snapshot(), sequence: 0 };
        Transaction::new(view)
    }

    pub(super) fn apply(&self, change: impl FnOnce(&mut dyn Table) -> Result<()>) -> Result<()> {
        let mut table = self.table();
        change(&mut table)?;
        self.merge(table.into_changes());
        Ok(())
    }

    pub(super) fn merge(&self, changes: Changes) {
        self.made.merge(changes, 0, &Readers::default());
    }

    pub(super) fn changes(&self) -> Changes {
        self.made.read().changes().clone()
    }
}

impl Ledger {
    /// Opens a ledger: `replay` gets each log record that the key-value store lacks, in order.
    ///
    /// # Errors
    /// Those of the media and of `replay`; `EIO` with the position if records in the middle are damaged.
    pub async fn open(
        runtime: Runtime,
        media: Media,
        options: LedgerOptions,
        mut replay: impl FnMut(RecordKind, &[u8], &mut dyn Table) -> Result<()> + Send,
    ) -> Result<Arc<Self>> {
        let applied = applied(&*media.kv)?;
        let log = Log::read(&media, record::parse).await?;
        let tail = log.tail(applied, options.after_power_loss)?;
        for (number, place, size) in log.torn() {
            log::info!("log.{number}: dropped {size} bytes at byte {place} that are no whole record");
        }
        let durable = log.durable();
        let mut last = applied;
        let replayed = Replay::new(media.kv.clone());
        for (bytes, record) in tail {
            let body = &bytes[record.body.clone()];
            let may_lack_data = options.after_power_loss && record.sequence > durable;
            if may_lack_data && !media.data.holds(record.kind, body.to_vec()).await? {
                let sequence = record.sequence;
                log::warn!("dropped the log from record {sequence} on: a power loss destroyed its data");
                break;
            }
            replayed
                .apply(|table| replay(record.kind, body, table))
                .map_err(|fault| fault.context(format_args!("replay record {}", record.sequence)))?;
            last = record.sequence;
        }
        if last > applied {
            Self::commit(&runtime, &media, replayed.changes(), last).await?;
        }
        log.clear(&media).await?;
        Ok(Self::new(runtime, media, options, last))
    }

    /// Opens a damaged ledger: applies all whole records of the log and adds to `damage` what is missing. Calls `note`
    /// before it empties the log.
    pub async fn salvage(
        runtime: Runtime,
        media: Media,
        options: LedgerOptions,
        damage: &mut Vec<String>,
        note: impl FnOnce(&[String]) -> Result<()> + Send,
        mut replay: impl FnMut(RecordKind, &[u8], &mut dyn Table) -> Result<()> + Send,
    ) -> Result<Arc<Self>> {
        let applied = applied(&*media.kv)?;
        let log = Log::read(&media, record::parse_damaged).await?;
        let mut last = applied;
        let replayed = Replay::new(media.kv.clone());
        for (bytes, record) in log.salvaged_tail(applied, options.after_power_loss, damage) {
            let body = &bytes[record.body.clone()];
            if let Err(fault) = replayed.apply(|table| replay(record.kind, body, table)) {
                damage.push(format!("record {} cannot be applied: {fault}", record.sequence));
            }
            last = record.sequence;
        }
        note(damage)?;
        if last > applied {
            Self::commit(&runtime, &media, replayed.changes(), last).await?;
        }
        log.clear(&media).await?;
        Ok(Self::new(runtime, media, options, last))
    }

    /// Commits the replayed changes to the key-value store.
    async fn commit(runtime: &Runtime, media: &Media, mut changes: Changes, last: u64) -> Result<()> {
        media.data.settle().await?;
        changes.extend([applied_entry(last)]);
        let kv = media.kv.clone();
        runtime.block(move || kv.commit(&changes)).await
    }

    fn new(runtime: Runtime, media: Media, options: LedgerOptions, last: u64) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            runtime,
            options,
            kv: media.kv,
            change_lock: Mutex::new(()),
            state: RwLock::new(State { last, ..State::default() }),
            readers: Readers::default(),
            writer: Arc::new(AsyncMutex::new(Writer::new(media.logs, media.data, last))),
            checkpointing: Arc::default(),
            scheduled: Default::default(),
            durable: AtomicU64::new(last),
            confirmed: AtomicU64::new(last),
            space: Event::new(),
            home_log: OnceLock::new(),
        })
    }
}
