//! Appends entries of packed files to the container, journals them on the device, and undoes those that the file system refuses.

use super::entries::{identity_of, is_file, packed_stat};
use super::journal::{Journal, JournalEntry, pieces_of};
use std::collections::BTreeMap;
use tameike_container::session::Brief;
use tameike_container::session::draft::{Draft, Reading};
use tameike_container::{
    Codec, Container, Content, Entry, HandedOverBlock, IndexEntry, LaneWriter, Node, Put, STREAMS,
    UnsyncedRecords, Versions, WriterId,
};
use tameike_core::wire::pack::PackedStat;
use tameike_core::{Errno, Fault, FaultKind, Result};
use tameike_io::os::process::host_name;

/// Bytes reserved for a change of names, and for the entries that undo it: undoing must not fail on a full file system.
const CHANGE_SIZE: usize = 64 << 10;
/// Bytes reserved for undoing one creation.
const UNDO_SIZE_MAX: usize = 8 << 10;
/// Files with cached attributes, at most. A full cache is cleared.
const CACHED_MAX: usize = 64 << 10;

/// An entry that was put, and the entry that the path had before.
pub type Replaced = (IndexEntry, Option<IndexEntry>);

/// A sync of the container in flight.
pub struct LogSync {
    /// The records to sync.
    pub records: UnsyncedRecords,
    /// The count of changes that are durable after it.
    changes: u64,
}

/// The entries of a container.
pub struct EntryLog {
    container: Container,
    /// From the first change on.
    writer: Option<LaneWriter>,
    /// Entries that are not durable yet; where only this job writes the container.
    journal: Option<Journal>,
    /// Entries before this address are in the journal.
    noted_end: u64,
    /// Cached attributes of files, by path.
    attributes: BTreeMap<Vec<u8>, PackedStat>,
    versions: Versions,
    /// Changes so far, and how many of them are durable.
    changes: u64,
    durable_changes: u64,
    /// Why the log takes no more changes.
    failure: Option<Fault>,
    /// The file system refused the last write.
    was_refused: bool,
    /// It refused that because it is full.
    is_full: bool,
    /// Files being created whose entries are not written yet.
    creating: usize,
}

impl EntryLog {
    /// The entries of an open container. With a `failure` it takes no changes.
    pub fn new(container: Container, journal: Option<Journal>, failure: Option<Fault>) -> Self {
        Self {
            container,
            writer: None,
            journal,
            noted_end: 0,
            attributes: BTreeMap::new(),
            versions: Versions::default(),
            changes: 0,
            durable_changes: 0,
            failure,
            was_refused: false,
            is_full: false,
            creating: 0,
        }
    }

    /// The container as it is read.
    pub fn container(&self) -> &Container {
        &self.container
    }

    /// Reads what another job has added to the container.
    pub fn refresh(&mut self) -> Result<()> {
        self.attributes.clear();
        self.container.refresh()
    }

    /// Fails when the log takes no more changes.
    pub fn check(&self) -> Result<()> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    /// Refuses all later changes.
    pub fn fail(&mut self, fault: Fault) {
        self.failure = Some(fault);
    }

    /// The entry of the file at a path. Fails with `ENOENT` if there is none.
    pub fn entry(&self, path: &[u8]) -> Result<IndexEntry> {
        self.container.find(path)?.filter(is_file).ok_or_else(|| Errno::ENOENT.into())
    }

    /// The attributes of the file at a path, as its entry has them.
    pub fn stat(&mut self, path: &[u8]) -> Result<PackedStat> {
        if let Some(stat) = self.attributes.get(path) {
            return Ok(stat.clone());
        }
        let entry = self.entry(path)?;
        let node = self.container.node(&entry)?;
        Ok(self.cache_attributes(&entry, &node))
    }

    fn cache_attributes(&mut self, entry: &IndexEntry, node: &Node) -> PackedStat {
        let stat = packed_stat(&identity_of(entry, node), node, node.size, 1);
        if self.attributes.len() >= CACHED_MAX {
            self.attributes.clear();
        }
        self.attributes.insert(entry.path.clone(), stat.clone());
        stat
    }

    /// Drops the cached attributes of a path.
    pub fn forget_attributes(&mut self, path: &[u8]) {
        self.attributes.remove(path);
    }

    /// The node of an entry, with its content as extents that another entry can name.
    pub fn node_of(&mut self, entry: &IndexEntry) -> Result<Node> {
        self.make_readable(entry)?;
        self.written_node(entry)
    }

    /// Writes an entry, so that undoing a change of it can read it.
    pub fn make_readable(&mut self, entry: &IndexEntry) -> Result<()> {
        self.writer.as_mut().map_or(Ok(()), |writer| writer.make_readable(entry.lane, entry.address))
    }

    fn written_node(&self, entry: &IndexEntry) -> Result<Node> {
        let mut node = self.container.node(entry)?;
        if node.content == Content::Here {
            node.content = Content::Extents(entry.own_extent(node.size).into_iter().collect());
        }
        Ok(node)
    }

    /// Begins a read of a draft, which ends without the log.
    pub fn begin_read(&mut self, draft: &mut Draft, offset: u64, length: usize) -> Result<Reading> {
        draft.begin_read(&self.container, self.writer.as_mut(), offset, length)
    }

    /// The lane writer; the log has one from the first change on. Fails with `EBADF` before that.
    pub fn writer(&mut self) -> Result<&mut LaneWriter> {
        self.writer.as_mut().ok_or_else(|| Errno::EBADF.into())
    }

    /// Begins a change: opens the lane where that was not done yet.
    pub fn begin(&mut self) -> Result<()> {
        self.check()?;
        if self.writer.is_none() {
            let id = WriterId::Host(host_name());
            self.writer = Some(self.container.begin_writer(&id, Codec::None, STREAMS)?);
        }
        Ok(())
    }

    /// Writes the entries that the file system refused before, so that these do not accumulate, and reserves space for a change.
    pub fn retry_and_reserve(&mut self) -> Result<()> {
        if self.was_refused {
            self.write_pending()?;
        }
        self.reserve()
    }

    /// Whether the file system refused the last write because it is full.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Reserves space in the lane for a change and for undoing it.
    pub fn reserve(&mut self) -> Result<()> {
        let size = CHANGE_SIZE + self.creating * UNDO_SIZE_MAX;
        self.writer.as_mut().map_or(Ok(()), |writer| writer.reserve(size))
    }

    /// Counts a creation whose entry is not written yet.
    pub fn begin_creation(&mut self) {
        self.creating += 1;
    }

    /// Ends [`Self::begin_creation`].
    pub fn end_creation(&mut self) {
        self.creating -= 1;
    }

    /// Puts an entry without content of its own at a path.
    pub fn put(&mut self, path: &[u8], node: Option<Node>) -> Result<IndexEntry> {
        let version = self.versions.next(self.container.version(path)?);
        let writer = self.writer()?;
        let (put, Put { address, size }) = writer.put_entry(path, version, node, &[])?;
        let lane = writer.lane();
        self.add_to_journal(&put, address);
        let Entry { path, node, .. } = put;
        let brief = node.as_ref().map(Brief::of);
        let entry = IndexEntry { path, version, lane, address, record_size: size, node: brief };
        self.container.add(entry.clone());
        match &node {
            Some(node) => drop(self.cache_attributes(&entry, node)),
            None => self.forget_attributes(&entry.path),
        }
        self.changes += 1;
        Ok(entry)
    }

    /// Puts the entry of a draft at its path, and returns its address.
    pub fn put_draft(&mut self, path: Vec<u8>, draft: &mut Draft) -> Result<u64> {
        let version = self.versions.next(self.container.version(&path)?);
        let writer = self.writer()?;
        let (node, content) = draft.entry(writer)?;
        let (brief, is_here) = (Brief::of(&node), node.content == Content::Here);
        let (mut put, Put { address, size }) = writer.put_entry(&path, version, Some(node), content)?;
        let lane = writer.lane();
        let entry = IndexEntry { path, version, lane, address, record_size: size, node: Some(brief) };
        let own = entry.own_extent(brief.size).filter(|_| is_here);
        draft.published(own);
        if let Some(node) = &put.node {
            self.cache_attributes(&entry, node);
        }
        if let (Some(node), true) = (&mut put.node, is_here) {
            // The journal has no content.
            node.content = Content::Extents(own.into_iter().collect());
        }
        self.add_to_journal(&put, address);
        self.container.add(entry);
        self.changes += 1;
        Ok(address)
    }

    fn add_to_journal(&mut self, entry: &Entry, address: u64) {
        let (Some(journal), Some(writer)) = (&mut self.journal, &self.writer) else { return };
        let pieces = entry.node.as_ref().map_or(&[][..], pieces_of);
        let unsafe_pieces = (0..).zip(pieces).filter(|(_, piece)| !writer.is_durable(piece));
        let unsafe_pieces = unsafe_pieces.map(|(number, _)| number).collect();
        journal.add(&JournalEntry { entry: entry.clone(), lane: writer.lane(), address, unsafe_pieces });
    }

    fn write_journal(&mut self) -> Result<()> {
        self.journal.as_mut().map_or(Ok(()), Journal::write)?;
        self.noted_end = self.writer.as_ref().map_or(0, LaneWriter::end);
        Ok(())
    }

    /// Writes all entries that were put to the journal and to the file system.
    pub fn write_pending(&mut self) -> Result<()> {
        let noted = self.write_journal();
        let put = match &noted {
            Ok(()) => self.writer.as_mut().map_or(Ok(()), LaneWriter::write_pending),
            Err(_) => Ok(()),
        };
        let is_full = |fault: &Fault| fault.kind() == FaultKind::Full;
        self.is_full = put.as_ref().is_err_and(is_full);
        let written = noted.and(put);
        self.was_refused = written.is_err();
        written
    }

    /// Whether the entry at an address is in the journal and with the file system.
    pub fn has_written(&self, address: u64) -> bool {
        address < self.noted_end && self.writer.as_ref().is_some_and(|writer| writer.has_written(address))
    }

    /// Writes the entry at an address, with all entries before it. Those behind it wait until their own callers write them.
    pub fn write_entry(&mut self, address: u64) -> Result<()> {
        if self.has_written(address) { Ok(()) } else { self.write_pending() }
    }

    /// Returns the write that covers the entry at an address and all others that were put, for the caller to do without the log.
    pub fn begin_write(&mut self, address: u64) -> Result<Option<HandedOverBlock>> {
        self.write_journal()?;
        match &mut self.writer {
            Some(writer) if !writer.has_written(address) => writer.begin_write(),
            _ => Ok(None),
        }
    }

    /// Writes entries that were put. Where the file system refuses them, puts again what was there before: lookups see that at once,
    /// and the next write that the file system takes covers it.
    pub fn commit(&mut self, put: &[Replaced]) -> Result<()> {
        let Err(fault) = self.write_pending() else { return Ok(()) };
        self.undo(put);
        Err(fault)
    }

    /// Puts again what was there before these entries.
    pub fn undo(&mut self, put: &[Replaced]) {
        for (now, before) in put {
            let node = before.as_ref().map(|before| self.written_node(before)).transpose();
            if let Err(fault) = node.and_then(|node| self.put(&now.path, node)) {
                self.fail(fault);
            }
        }
        // A change that was reported as failed must not reappear later.
        if let Err(fault) = self.write_journal() {
            self.fail(fault);
        }
    }

    /// Whether the journal has so much that the container must be synced.
    pub fn is_journal_full(&self) -> bool {
        self.journal.as_ref().is_some_and(Journal::is_full)
    }

    /// Takes the journal away: later changes are not journaled.
    pub fn take_journal(&mut self) -> Option<Journal> {
        self.journal.take()
    }

    /// Journals later changes in a journal, which is cleared.
    pub fn restart_journal(&mut self, mut journal: Journal) {
        if let Err(fault) = journal.clear() {
            self.fail(fault);
        }
        self.journal = Some(journal);
    }

    /// Changes so far.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// How many of the changes are durable.
    pub fn durable_changes(&self) -> u64 {
        self.durable_changes
    }

    /// Begins a sync of all changes. None where nothing was ever changed.
    pub fn begin_sync(&mut self) -> Result<Option<LogSync>> {
        self.check()?;
        self.write_pending()?;
        let changes = self.changes;
        let Some(writer) = &mut self.writer else { return Ok(None) };
        let records = writer.begin_sync()?;
        self.journal.iter_mut().for_each(Journal::begin_sync);
        Ok(Some(LogSync { records, changes }))
    }

    /// Counts what a successful sync covered as durable.
    pub fn end_sync(&mut self, synced: &LogSync) {
        if let Some(writer) = &mut self.writer {
            writer.end_sync(&synced.records);
        }
        self.journal.iter_mut().for_each(Journal::end_sync);
        self.durable_changes = self.durable_changes.max(synced.changes);
    }

    /// Whether the log has changed the container.
    pub fn has_writer(&self) -> bool {
        self.writer.is_some()
    }

    /// Ends the lane, and writes the index.
    pub fn end_writing(&mut self) -> Result<()> {
        let Some(writer) = self.writer.take() else { return Ok(()) };
        self.container.end_writer(writer)?;
        self.container.write_index()
    }
}
