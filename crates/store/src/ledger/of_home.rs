//! Numbered log records of homes that have replicas.
//!
//! The primary of a home numbers the records that change it, in the order of its log, and sends them to the backups. A backup appends
//! them to its own log. The table has the number and chain of the last record of each home, so a restarted agent knows how far its copy goes.
//!
//! ```text
//!  0      2            10         14     15
//! +------+------------+----------+------+----------------+
//! | home | number     | chain    | kind | body           |    the body of a log record of kind `OfHome`
//! +------+------------+----------+------+----------------+
//! ```
//!
//! Numbers are little-endian. The chain is the CRC-32C of the chain of the record before (0 before the first), kind and body: it differs
//! if an earlier record does. So a backup notices that a restarted primary has lost records that the backup has.

use super::{Ledger, RecordKind};
use crate::table::{ReadTable, Table, prefix};
use futures_util::future::BoxFuture;
use tameike_core::{Errno, Fault, HomeId, Result};
use tameike_io::Crc32c;

const HEADER_SIZE: usize = 15;

/// The records of the homes that have replicas, as the ledger of their primary makes them.
pub trait HomeLog: Send + Sync {
    /// Returns the last record of a home. Called while no other record is appended.
    ///
    /// # Errors
    /// `EREMCHG` if this node does not serve the home.
    fn last(&self, home: HomeId) -> Result<LastRecord>;
    /// Takes the next record of a home. Called in the order of the numbers; must not block, and must not use the ledger.
    fn append(&self, home: HomeId, last: LastRecord, record: &[u8]);
    /// Waits until the backups have all records that were appended before this call.
    ///
    /// # Errors
    /// `EREMCHG` if this node does not serve one of the homes any more.
    fn on_backups(&self) -> BoxFuture<'static, Result<()>>;
    /// As [`HomeLog::on_backups`], and until the backups have made durable what they got before this call.
    ///
    /// # Errors
    /// As [`HomeLog::on_backups`], and those of the backups' devices.
    fn sync(&self) -> BoxFuture<'static, Result<()>>;
}

/// The last record of a home.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastRecord {
    /// Its number; 0 if the home has no record.
    pub number: u64,
    /// Its chain.
    pub chain: u32,
}

impl LastRecord {
    /// The last record after the next one, with this content.
    pub(super) fn next(self, kind: RecordKind, body: &[u8]) -> Self {
        let mut sum = Crc32c::new();
        sum.update(&self.chain.to_le_bytes());
        sum.update(&[kind as u8]);
        sum.update(body);
        Self { number: self.number + 1, chain: sum.take() }
    }
}

/// A record of a home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HomeRecord<'a> {
    /// The home.
    pub home: HomeId,
    /// Its number among those of the home, from 1.
    pub number: u64,
    /// The CRC-32C of it and of all records before.
    pub chain: u32,
    /// The owner of the body.
    pub kind: RecordKind,
    /// The change.
    pub body: &'a [u8],
}

impl<'a> HomeRecord<'a> {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_SIZE + self.body.len());
        bytes.extend(self.home.0.to_le_bytes());
        bytes.extend(self.number.to_le_bytes());
        bytes.extend(self.chain.to_le_bytes());
        bytes.push(self.kind as u8);
        bytes.extend(self.body);
        bytes
    }

    /// Parses the body of a log record.
    ///
    /// # Errors
    /// `EBADMSG` if it is malformed.
    pub fn decode(bytes: &'a [u8]) -> Result<Self> {
        let malformed = || Fault::new(Errno::EBADMSG, "a log record of a home is malformed");
        let (home, rest) = bytes.split_first_chunk().ok_or_else(malformed)?;
        let (number, rest) = rest.split_first_chunk().ok_or_else(malformed)?;
        let (chain, rest) = rest.split_first_chunk().ok_or_else(malformed)?;
        let (&kind, body) = rest.split_first().ok_or_else(malformed)?;
        let kind = RecordKind::from_byte(kind)
            .filter(|kind| !matches!(kind, RecordKind::OfHome | RecordKind::Copied));
        Ok(Self {
            home: HomeId(u16::from_le_bytes(*home)),
            number: u64::from_le_bytes(*number),
            chain: u32::from_le_bytes(*chain),
            kind: kind.ok_or_else(malformed)?,
            body,
        })
    }

    /// Applies the record to a table: `replay` makes its change.
    ///
    /// # Errors
    /// Those of `replay`.
    pub fn replay(
        &self,
        table: &mut dyn Table,
        replay: impl FnOnce(RecordKind, &[u8], &mut dyn Table) -> Result<()>,
    ) -> Result<()> {
        replay(self.kind, self.body, table)?;
        set_last(table, self.home, LastRecord { number: self.number, chain: self.chain });
        Ok(())
    }
}

/// The entry of the table with the last record of a home: key and value.
pub fn last_record_entry(home: HomeId, last: LastRecord) -> (Vec<u8>, Vec<u8>) {
    (key(home), [&last.number.to_be_bytes()[..], &last.chain.to_be_bytes()].concat())
}

fn key(home: HomeId) -> Vec<u8> {
    [&[prefix::LAST_RECORD][..], &home.0.to_be_bytes()].concat()
}

pub(super) fn set_last(table: &mut dyn Table, home: HomeId, last: LastRecord) {
    let (key, value) = last_record_entry(home, last);
    table.put(key, value);
}

/// The last record of a home in a table.
///
/// # Errors
/// Those of the table; `EIO` if the entry of the home is damaged.
pub fn last_record(table: &dyn ReadTable, home: HomeId) -> Result<LastRecord> {
    let Some(value) = table.get(&key(home))? else { return Ok(LastRecord::default()) };
    let parts = value.split_first_chunk().and_then(|(number, chain)| Some((number, chain.try_into().ok()?)));
    let Some((number, chain)) = parts else {
        return Err(Fault::io(format!("the number of the last record of {home} is damaged")));
    };
    Ok(LastRecord { number: u64::from_be_bytes(*number), chain: u32::from_be_bytes(chain) })
}

impl Ledger {
    /// Appends a record of a home to this copy of it. Returns false if the record does not follow the last one, or follows others than this
    /// copy has. Records that the copy has are ignored.
    ///
    /// # Errors
    /// As [`Ledger::execute`], those of `replay`, and `EBADMSG` for a malformed record.
    pub fn append_of_home(
        &self,
        bytes: &[u8],
        replay: impl FnOnce(RecordKind, &[u8], &mut dyn Table) -> Result<()>,
    ) -> Result<bool> {
        let record = HomeRecord::decode(bytes)?;
        self.execute(RecordKind::OfHome, bytes, |table| {
            let last = last_record(table, record.home)?;
            if record.number <= last.number {
                return Ok(record.number < last.number || record.chain == last.chain);
            }
            if last.next(record.kind, record.body)
                != (LastRecord { number: record.number, chain: record.chain })
            {
                return Ok(false);
            }
            record.replay(table, replay)?;
            Ok(true)
        })
    }
}
