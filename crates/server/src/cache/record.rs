//! The journal of the cache view: the coordinator's records of files, in the ledger of its node.
//!
//! ```text
//! k f <inode: 8 bytes, big endian>                   version (1 byte), Record
//! k d <inode: 8 bytes> <unit index: 8 bytes>         UnitDigest of the unit at its last flush
//! k p <path> <0> <inode: 8 bytes>                    empty: the record of the inode has this path
//! ```
//!
//! A log record lists the keys that it sets and removes, so that replay needs no knowledge of files.

use super::paths;
use crate::unit::digest::unit_count;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use std::ops::Range;
use std::sync::Arc;
use tameike_core::receipt::{FileOutcome, FileReceipt};
use tameike_core::wire::cache::{CacheState, Stamp};
use tameike_core::wire::call::NumberedCall;
use tameike_core::wire::codec;
use tameike_core::wire::unit::{SpaceChange, UnitDigest};
use tameike_core::{Cluster, Errno, Fault, Generation, HomeId, InodeId, NodeId, Result, Timestamp};
use tameike_store::table::{ReadTable, Table, prefix};
use tameike_store::{Ledger, RecordKind};

/// Version of [`Record`] in the ledger.
const RECORD_VERSION: u8 = 1;
/// Paths that a record keeps, at most.
pub(super) const PATHS_MAX: usize = 16;
pub(super) const FILE: u8 = b'f';
pub(super) const DIGEST: u8 = b'd';

/// A file as its coordinator knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// Paths at which the file may be, the likeliest first. The inode number decides.
    pub paths: Vec<ByteBuf>,
    /// The shared file as the coordinator last saw it or left it.
    pub stamp: Stamp,
    /// Size in bytes; newer than that of the shared file while dirty.
    pub size: u64,
    /// Last change of content; likewise.
    pub mtime: Timestamp,
    /// Version of the content.
    pub generation: Generation,
    /// Whether the shared file system lacks something of the file.
    pub dirty: bool,
    /// Whether the job has ever written the file: then the record is in the ledger, and the file has a receipt.
    pub journaled: bool,
    /// Whether the file has lost its last name: late writes are dropped.
    pub removed: bool,
    /// Whether a node has announced the removal of the last name: if the file is missing later, the job has removed it.
    pub removing: bool,
    /// A truncate to this size that is not finished on all nodes.
    pub truncate_to: Option<u64>,
    /// A change of space that is not finished on all nodes: the change, the first byte, the byte after the last.
    pub space: Option<(SpaceChange, u64, u64)>,
    /// Whether the file may have holes.
    pub sparse: bool,
    /// Bytes flushed so far.
    pub written: u64,
    /// Whether another program has changed the file on the shared file system since the job began to write it.
    pub changed_by_others: bool,
    /// Whether a flush is running, or was when its agent stopped, or a node did not answer one and may still run it: the result of its
    /// fsync is unknown.
    pub flush_interrupted: bool,
    /// Whether another program has changed the file since its last flush: the digests in the journal are of older content, and the next
    /// flush drops them.
    pub outdated: bool,
    /// The error of the last flush; empty if it succeeded.
    pub failure: String,
    /// Whether an fsync of the shared file may have failed since the last successful flush: the next one trusts no page cache.
    pub unsynced: bool,
    /// Nodes with writes to the file that they have not committed.
    pub writers: Vec<NodeId>,
    /// Whether a program had the file open for writing when its node, or the job, failed.
    pub writer_failed: bool,
    /// The count of units, from the first, that programs may have written or that a truncate removed. No home has bytes of later units that
    /// the shared file lacks.
    pub reach: u64,
    /// Offsets of appends whose calls may be repeated at another coordinator.
    pub appends: Vec<(NumberedCall, u64)>,
}

/// Appends that a record keeps, at most: more than calls that one caller has in flight.
const APPENDS_MAX: usize = 256;

impl Record {
    pub(super) fn new(path: &[u8], stamp: Stamp, generation: Generation) -> Self {
        Self {
            paths: vec![ByteBuf::from(path)],
            stamp,
            size: stamp.size,
            mtime: stamp.mtime,
            generation,
            ..Self::default()
        }
    }

    /// The receipt of the file at its likeliest path.
    pub(super) fn receipt(&self, outcome: FileOutcome) -> FileReceipt {
        let (checksum, note) = Default::default();
        FileReceipt {
            path: self.shown_path(),
            size: self.size,
            written: self.written,
            checksum,
            note,
            outcome,
        }
    }

    /// Records whether a node has uncommitted writes to the file.
    pub(super) fn set_writer(&mut self, node: NodeId, writes: bool) {
        self.writers.retain(|writer| *writer != node);
        self.writers.extend(writes.then_some(node));
    }

    /// The offset that a call has reserved for its append before, perhaps at another coordinator.
    pub(super) fn appended_at(&self, call: Option<NumberedCall>) -> Option<u64> {
        let call = call?;
        let is_same = |of: &NumberedCall| {
            (of.node, of.incarnation, of.number.number) == (call.node, call.incarnation, call.number.number)
        };
        self.appends.iter().find(|(of, _)| is_same(of)).map(|(_, offset)| *offset)
    }

    /// Keeps the offset of an append until its caller has ended the call.
    pub(super) fn keep_append(&mut self, call: Option<NumberedCall>, offset: u64) {
        let Some(call) = call else { return };
        let is_ended = |of: &NumberedCall| {
            (of.node, of.incarnation) == (call.node, call.incarnation)
                && of.number.number < call.number.finished
        };
        self.appends.retain(|(of, _)| !is_ended(of));
        if self.appends.len() == APPENDS_MAX {
            self.appends.remove(0);
        }
        self.appends.push((call, offset));
    }

    /// Prepares the removal of units at the end of the file, or of all: covers them by `reach`.
    pub(super) fn reach_end(&mut self) {
        self.reach = self.reach.max(unit_count(self.size.max(self.stamp.size)));
    }

    /// Puts a path before the others. Returns whether that changed anything.
    pub(super) fn prefer_path(&mut self, path: &[u8]) -> bool {
        if self.paths.first().is_some_and(|first| first.as_slice() == path) {
            return false;
        }
        self.paths.retain(|known| known.as_slice() != path);
        self.paths.insert(0, ByteBuf::from(path));
        self.paths.truncate(PATHS_MAX);
        true
    }

    /// Whether pages of the file in page caches may not be on the shared file system: an fsync has failed, or its result is unknown.
    pub(super) fn distrusts_page_cache(&self) -> bool {
        self.unsynced || self.flush_interrupted
    }

    /// Whether a shared file with this stamp has the content of the record.
    pub(super) fn matches_content(&self, stamp: &Stamp) -> bool {
        (self.stamp.size, self.stamp.mtime) == (stamp.size, stamp.mtime)
    }

    /// Whether the shared file is as the record says. Clean data is valid only if the ctime is the same as well, since a program can set the
    /// mtime back. A ctime equal to the mtime shows that no program did: Gfarm makes both equal after the last close of a file that several
    /// nodes have written.
    pub(super) fn is_unchanged(&self, stamp: &Stamp) -> bool {
        let set_back = self.stamp.ctime != stamp.ctime && stamp.ctime != stamp.mtime;
        self.matches_content(stamp) && (self.dirty || !set_back)
    }

    /// Records a change of the shared file by another program.
    pub(super) fn note_change(&mut self, stamp: Stamp) {
        // After an interrupted flush the change may be its own.
        let by_others = self.journaled && !self.flush_interrupted && !self.matches_content(&stamp);
        self.changed_by_others |= by_others;
        self.outdated |= by_others;
        self.invalidate(stamp);
    }

    /// Takes a new stamp with a new generation: caches of the content are invalid.
    pub(super) fn invalidate(&mut self, stamp: Stamp) {
        self.generation = self.generation.next();
        if stamp.size < self.size.max(self.stamp.size) {
            self.reach_end();
        }
        self.stamp = stamp;
        self.size = if self.dirty { self.size.max(stamp.size) } else { stamp.size };
        self.mtime = if self.dirty { self.mtime } else { stamp.mtime };
    }

    /// The state for a client that saw the shared file as `seen`.
    pub(super) fn state(&self, seen: Option<&Stamp>) -> CacheState {
        let behind = seen.is_some_and(|seen| !self.matches_content(seen));
        let newer = (self.dirty || behind).then_some((self.size, self.mtime));
        CacheState { generation: self.generation, newer, sparse: self.sparse, removing: false }
    }

    /// The likeliest path, for messages.
    pub(super) fn shown_path(&self) -> String {
        self.paths.first().map_or_else(String::new, |path| String::from_utf8_lossy(path).into_owned())
    }
}

pub(super) fn file_key(inode: InodeId) -> Vec<u8> {
    [&[prefix::CACHE, FILE][..], &inode.0.to_be_bytes()].concat()
}

pub(super) fn digest_key(inode: InodeId, index: u64) -> Vec<u8> {
    [&[prefix::CACHE, DIGEST][..], &inode.0.to_be_bytes(), &index.to_be_bytes()].concat()
}

pub(super) fn encode_record(record: &Record) -> Result<Vec<u8>> {
    let mut value = vec![RECORD_VERSION];
    value.extend(codec::encode(record)?);
    Ok(value)
}

pub(super) fn decode_record(value: &[u8]) -> Result<Record> {
    match value.split_first() {
        Some((&RECORD_VERSION, body)) => codec::decode(body),
        _ => Err(Fault::new(Errno::EBADMSG, "a cache record has a version that this program does not know")),
    }
}

pub(super) type Changes = Vec<(ByteBuf, Option<ByteBuf>)>;

fn apply(changes: Changes, table: &mut dyn Table) {
    for (key, value) in changes {
        match value {
            Some(value) => table.put(key.into_vec(), value.into_vec()),
            None => table.delete(key.into_vec()),
        }
    }
}

/// Replays a log record of kind [`RecordKind::Cache`].
///
/// # Errors
/// `EBADMSG` when the bytes are no such record.
pub fn replay(body: &[u8], table: &mut dyn Table) -> Result<()> {
    apply(codec::decode(body)?, table);
    Ok(())
}

/// The entries of a table for the cached files of a home, ascending within each kind.
///
/// # Errors
/// Those of the table, and of damaged records.
pub fn entries_of_home(
    table: &dyn ReadTable,
    cluster: &Cluster,
    home: HomeId,
) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut found = Vec::new();
    // The numbers of a home are in many ranges.
    if table.scan(&[prefix::CACHE], &[prefix::CACHE + 1], 1)?.is_empty() {
        return Ok(found);
    }
    for (first, last) in cluster.cached_inodes_of(home) {
        let end = |key: Vec<u8>| [key.as_slice(), &[0]].concat();
        let files = table.scan(&file_key(first), &end(file_key(last)), usize::MAX)?;
        for (key, value) in files {
            let inode = inode_of_key(&key)?;
            for (path, _) in paths::changes(inode, &[], &decode_record(&value)?.paths) {
                found.push((path.into_vec(), Vec::new()));
            }
            found.push((key, value));
        }
        found.extend(table.scan(&digest_key(first, 0), &end(digest_key(last, u64::MAX)), usize::MAX)?);
    }
    Ok(found)
}

fn inode_of_key(key: &[u8]) -> Result<InodeId> {
    let number = key.get(2..).and_then(|bytes| bytes.try_into().ok()).map(u64::from_be_bytes);
    number.map(InodeId).ok_or_else(|| Fault::new(Errno::EBADMSG, "a cache record has a bad key"))
}

/// Counts of files of the cache view in the ledger of an agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Journaled {
    /// Dirty files.
    pub dirty: u64,
    /// Files with a record, whose names are known.
    pub named: u64,
    /// Files that a program had open for writing when its node, or the job, failed.
    pub open: u64,
}

/// Counts the files in a ledger; with an owner, only those that this node coordinates, and not its copies of other records.
pub fn journaled(ledger: Arc<Ledger>, owner: Option<(Arc<Cluster>, NodeId)>) -> Result<Journaled> {
    let mut found = Journaled::default();
    Journal { ledger, owner }.for_each(|_, record| {
        let is_open = !record.removed && (record.writer_failed || !record.writers.is_empty());
        found.named += 1;
        found.dirty += u64::from(record.dirty);
        found.open += u64::from(is_open);
        Ok(())
    })?;
    Ok(found)
}

/// The cache records in the ledger.
pub(super) struct Journal {
    ledger: Arc<Ledger>,
    /// The nodes of the job, and this one: the ledger may also have copies of other coordinators' records. `None` for the ledger of a
    /// stopped node.
    owner: Option<(Arc<Cluster>, NodeId)>,
}

impl Journal {
    /// The records of the files that a running node coordinates.
    pub(super) fn new(ledger: Arc<Ledger>, cluster: Arc<Cluster>, node: NodeId) -> Self {
        Self { ledger, owner: Some((cluster, node)) }
    }

    /// All records of a stopped node.
    #[cfg(test)]
    pub(super) fn of_stopped(ledger: Arc<Ledger>) -> Self {
        Self { ledger, owner: None }
    }

    /// Whether this node coordinates a file, so that its record is no copy.
    fn is_own(&self, inode: InodeId) -> bool {
        self.owner.as_ref().is_none_or(|(cluster, node)| {
            let map = cluster.map();
            !map.is_replicated() || map.primary(cluster.inode_home(inode)) == *node
        })
    }

    fn write(&self, inode: InodeId, changes: Changes) -> Result<()> {
        let body = codec::encode(&changes)?;
        let home = self.owner.as_ref().map_or(HomeId(0), |(cluster, _)| cluster.inode_home(inode));
        self.ledger.execute_at(home, RecordKind::Cache, &body, |table| {
            apply(changes, table);
            Ok(())
        })
    }

    /// Writes a record in place of `before`, if there was one.
    pub(super) fn put(&self, inode: InodeId, before: Option<&Record>, record: &Record) -> Result<()> {
        let paths_before = before.map_or(&[][..], |before| before.paths.as_slice());
        let mut changes = paths::changes(inode, paths_before, &record.paths);
        changes.push((ByteBuf::from(file_key(inode)), Some(ByteBuf::from(encode_record(record)?))));
        self.write(inode, changes)
    }

    /// Files with a path below `directory`, from key `start` on (empty: from the first on), at most `limit` paths of them; and the key
    /// from which to continue.
    pub(super) fn below(
        &self,
        directory: &[u8],
        start: Vec<u8>,
        limit: usize,
    ) -> Result<(Vec<InodeId>, Option<Vec<u8>>)> {
        let [first, end] = paths::keys_below(directory);
        let found = self.scan(&first.max(start), &end, limit)?;
        let next =
            found.last().filter(|_| found.len() == limit).map(|(last, _)| [last.as_slice(), &[0]].concat());
        let mut inodes = found.iter().map(|(key, _)| paths::inode_of(key)).collect::<Result<Vec<_>>>()?;
        inodes.retain(|&inode| self.is_own(inode));
        Ok((inodes, next))
    }

    /// Keys from `start` to `end` (excluded) with their values, ascending, at most `limit`.
    pub(super) fn scan(&self, start: &[u8], end: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.ledger.read(|table| table.scan(start, end, limit))
    }

    /// Writes the digests of flushed units.
    pub(super) fn put_digests(&self, inode: InodeId, digests: &[UnitDigest]) -> Result<()> {
        let change = |digest: &UnitDigest| {
            let value = ByteBuf::from(codec::encode(digest)?);
            Ok((ByteBuf::from(digest_key(inode, digest.index)), Some(value)))
        };
        match digests.iter().map(change).collect::<Result<Changes>>()? {
            changes if changes.is_empty() => Ok(()),
            changes => self.write(inode, changes),
        }
    }

    /// Removes the digests of these units.
    pub(super) fn drop_digests(&self, inode: InodeId, units: Range<u64>) -> Result<()> {
        const BATCH: usize = 1024;
        if units.is_empty() {
            return Ok(());
        }
        let (start, end) = (digest_key(inode, units.start), digest_key(inode, units.end));
        loop {
            let found = self.scan(&start, &end, BATCH)?;
            let last = found.len() < BATCH;
            let changes: Changes = found.into_iter().map(|(key, _)| (ByteBuf::from(key), None)).collect();
            if !changes.is_empty() {
                self.write(inode, changes)?;
            }
            if last {
                return Ok(());
            }
        }
    }

    /// The digests of the flushed units from `from` to `to` (excluded), ascending, at most `limit`.
    pub(super) fn digests(
        &self,
        inode: InodeId,
        from: u64,
        to: u64,
        limit: usize,
    ) -> Result<Vec<UnitDigest>> {
        let (start, end) = (digest_key(inode, from), digest_key(inode, to));
        let found = self.scan(&start, &end, limit)?;
        found.iter().map(|(_, value)| codec::decode(value)).collect()
    }

    /// The record of a file.
    pub(super) fn get(&self, inode: InodeId) -> Result<Option<Record>> {
        let value = self.ledger.read(|table| table.get(&file_key(inode)))?;
        value.map(|value| decode_record(&value)).transpose()
    }

    /// Records of the files after `after`, ascending, at most `limit`; also copies of other coordinators' records.
    fn page_of_all(&self, after: Option<InodeId>, limit: usize) -> Result<Vec<(InodeId, Record)>> {
        let mut start = file_key(after.unwrap_or(InodeId(0)));
        if after.is_some() {
            start.push(0);
        }
        let end = [prefix::CACHE, FILE + 1];
        let found = self.scan(&start, &end, limit)?;
        let record = |(key, value): (Vec<u8>, Vec<u8>)| Ok((inode_of_key(&key)?, decode_record(&value)?));
        found.into_iter().map(record).collect()
    }

    /// Records of the files after `after`, ascending, at most `limit`.
    pub(super) fn page(&self, mut after: Option<InodeId>, limit: usize) -> Result<Vec<(InodeId, Record)>> {
        let mut own = Vec::new();
        loop {
            let page = self.page_of_all(after, limit)?;
            let Some(&(last, _)) = page.last() else { break };
            after = Some(last);
            own.extend(page.into_iter().filter(|(inode, _)| self.is_own(*inode)));
            if own.len() >= limit {
                break;
            }
        }
        own.truncate(limit);
        Ok(own)
    }

    /// Calls `act` with each record, in the order of inode numbers.
    pub(super) fn for_each(&self, mut act: impl FnMut(InodeId, Record) -> Result<()>) -> Result<()> {
        const PAGE: usize = 1024;
        let mut after = None;
        loop {
            let page = self.page(after, PAGE)?;
            let Some(&(last, _)) = page.last() else { return Ok(()) };
            page.into_iter().try_for_each(|(inode, record)| act(inode, record))?;
            after = Some(last);
        }
    }

    /// Whether a power failure may have lost records.
    pub(super) fn may_lack_records(&self) -> bool {
        self.ledger.may_lack_records()
    }

    /// Waits while the ledger is full.
    pub(super) async fn wait_for_space(&self) -> Result<()> {
        self.ledger.wait_for_space().await
    }

    /// Makes all records persistent, or durable, as [`Ledger::sync`].
    pub(super) async fn sync(&self, durable: bool) -> Result<()> {
        self.ledger.sync(durable).await
    }
}

#[cfg(feature = "fuzz")]
pub(crate) fn fuzz(bytes: &[u8]) {
    if let Ok(record) = decode_record(bytes) {
        let again = encode_record(&record).and_then(|bytes| decode_record(&bytes));
        assert_eq!(again.as_ref(), Ok(&record));
    }
}

/// A record of the log, and the value that it sets.
#[cfg(feature = "fuzz")]
pub(crate) fn fuzz_seeds() -> (Vec<u8>, Vec<u8>) {
    let inode = InodeId(0x8000_0000_0000_0102);
    let mut record = Record::new(b"dir/file", Stamp::default(), Generation(3));
    (record.journaled, record.dirty, record.truncate_to) = (true, true, Some(5));
    record.prefer_path(b"dir/new");
    let digest = UnitDigest { index: 3, length: 9, root: false, value: [1; 32] };
    let mut changes = paths::changes(inode, &[], &record.paths);
    let value = encode_record(&record).expect("small");
    changes.push((ByteBuf::from(file_key(inode)), Some(ByteBuf::from(value.clone()))));
    let digest = codec::encode(&digest).expect("small");
    changes.push((ByteBuf::from(digest_key(inode, 3)), Some(ByteBuf::from(digest))));
    (codec::encode(&changes).expect("small"), value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_log_records_stay_as_they_are() {
        let inode = InodeId(0x8000_0000_0000_0102);
        let changes: Changes = vec![
            (ByteBuf::from(file_key(inode)), Some(ByteBuf::from(vec![RECORD_VERSION, 5]))),
            (ByteBuf::from(digest_key(inode, 3)), None),
        ];
        let golden = concat!(
            "020a",
            "6b66",
            "8000000000000102",
            "01",
            "02",
            "0105",
            "12",
            "6b64",
            "8000000000000102",
            "0000000000000003",
            "00",
        );
        let hex: String = codec::encode(&changes).unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, golden);
        assert!(decode_record(&[RECORD_VERSION + 1, 5]).is_err());
    }
}
