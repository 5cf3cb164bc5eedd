//! Numbered log records of homes that have replicas.
//!
//! The primary of a home numbers the records that change it, in the order of its log, and sends them to the backups. A backup appends
//! them to its own log. The table has the number of the last record of each home, so a restarted agent knows how far its copy goes.
//!
//! ```text
//!  0      2            10     11
//! +------+------------+------+----------------+
//! | home | number     | kind | body           |    the body of a log record of kind `OfHome`
//! +------+------------+------+----------------+
//! ```
//!
//! Numbers are little-endian.

use super::{Ledger, RecordKind};
use crate::table::{ReadTable, Table, prefix};
use futures_util::future::BoxFuture;
use tameike_core::{Errno, Fault, HomeId, Result};

const HEADER_SIZE: usize = 11;

/// The records of the homes that have replicas, as the ledger of their primary makes them.
pub trait HomeLog: Send + Sync {
    /// Returns the number of the last record of a home. Called while no other record is appended.
    ///
    /// # Errors
    /// `EREMCHG` if this node does not serve the home.
    fn last(&self, home: HomeId) -> Result<u64>;
    /// Takes the next record of a home. Called in the order of the numbers; must not block, and must not use the ledger.
    fn append(&self, home: HomeId, number: u64, record: &[u8]);
    /// Waits until the backups have all records that were appended before this call.
    ///
    /// # Errors
    /// `EREMCHG` if this node does not serve one of the homes any more.
    fn confirmed(&self) -> BoxFuture<'static, Result<()>>;
    /// As [`HomeLog::confirmed`], and until the backups have made durable what they got before this call.
    ///
    /// # Errors
    /// As [`HomeLog::confirmed`], and those of the backups' devices.
    fn sync(&self) -> BoxFuture<'static, Result<()>>;
}

/// A record of a home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HomeRecord<'a> {
    /// The home.
    pub home: HomeId,
    /// Its number among those of the home, from 1.
    pub number: u64,
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
        let (&kind, body) = rest.split_first().ok_or_else(malformed)?;
        let kind = RecordKind::from_byte(kind).filter(|kind| *kind != RecordKind::OfHome);
        Ok(Self {
            home: HomeId(u16::from_le_bytes(*home)),
            number: u64::from_le_bytes(*number),
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
        set_last(table, self.home, self.number);
        Ok(())
    }
}

fn key(home: HomeId) -> Vec<u8> {
    [&[prefix::LAST_RECORD][..], &home.0.to_be_bytes()].concat()
}

pub(super) fn set_last(table: &mut dyn Table, home: HomeId, number: u64) {
    table.put(key(home), number.to_be_bytes().to_vec());
}

/// The number of the last record of a home in a table; 0 if it has none.
///
/// # Errors
/// Those of the table; `EIO` if the number is damaged.
pub fn last_record(table: &dyn ReadTable, home: HomeId) -> Result<u64> {
    let Some(value) = table.get(&key(home))? else { return Ok(0) };
    let number = value.try_into().map(u64::from_be_bytes);
    number.map_err(|_| Fault::io(format!("the number of the last record of {home} is damaged")))
}

impl Ledger {
    /// Appends a record of a home to this copy of it. Returns false if the record does not follow the last one; records that the copy
    /// has already are ignored.
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
            if record.number != last + 1 {
                return Ok(record.number <= last);
            }
            record.replay(table, replay)?;
            Ok(true)
        })
    }
}
