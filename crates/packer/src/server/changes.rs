//! Changes of a container: each is with the file system before it is answered, or is taken back.

use super::journal::{Journal, Noted, pieces_of};
use super::packer::Packer;
use super::store::Store;
use tameike_container::STREAMS;
use tameike_container::session::Brief;
use tameike_container::{Codec, Entry, Given, IndexEntry, LaneWriter, Node, Put, WriterId};
use tameike_core::{Errno, Fault, Result, Timestamp};
use tameike_io::os::process::{host_name, wall};

/// Room of names that change, with what takes it back where the file system has none: that must not fail, too.
const CHANGE_SIZE: usize = 64 << 10;
/// The same of what takes back a file that was made.
const UNDO_SIZE_MAX: usize = 8 << 10;

impl Packer {
    /// Has an entry that was put at an address be written. Those that are put while others are being written go together (decision 0053).
    /// Whether the file system has taken it, [`Store::write_entry`] tells.
    pub(crate) fn write_with_others(&self, address: u64) {
        let _one = self.writing.lock();
        if let Ok(Some(given)) = self.with_store(|store| store.begin_write(address)) {
            given.write();
        }
    }

    /// Who is told that a file is there may count on it: one that is being made is not yet.
    ///
    /// # Errors
    /// What the file system says of it.
    pub(crate) fn await_maker(&self, path: &[u8]) -> Result<()> {
        let unwritten = self.state.lock().store.as_ref().and_then(|store| store.unwritten(path));
        let Some(address) = unwritten else { return Ok(()) };
        self.write_with_others(address);
        self.with_store(|store| store.write_entry(address))
    }
}

impl Store {
    pub(crate) fn check(&self) -> Result<()> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    /// From the first change on there is a lane, with room for a change and for what takes it back. What the file system has not taken
    /// before goes first: so what waits for room does not grow with each change that is refused.
    pub(crate) fn begin(&mut self) -> Result<()> {
        self.check()?;
        if self.writer.is_none() {
            let who = WriterId::Host(host_name());
            self.writer = Some(self.container.begin_writer(&who, Codec::None, STREAMS)?);
        }
        if self.was_refused {
            if self.lacks_room {
                // What is gone makes some at once.
                self.remove_gone(u64::MAX);
            }
            self.write_pending()?;
        }
        self.make_room()
    }

    pub(crate) fn make_room(&mut self) -> Result<()> {
        let size = CHANGE_SIZE + self.in_making * UNDO_SIZE_MAX;
        self.writer.as_mut().map_or(Ok(()), |writer| writer.make_room(size))
    }

    /// Puts what is at a path now; with a version that is later than all that was there, whatever clocks say.
    pub(crate) fn put(&mut self, path: &[u8], node: Option<Node>) -> Result<IndexEntry> {
        let version = self.next_version(path)?;
        let Some(writer) = &mut self.writer else { return Err(Errno::EBADF.into()) };
        let (put, Put { address, size }) = writer.put_entry(path, version, node, &[])?;
        let lane = writer.lane();
        self.add_to_journal(&put, address);
        let Entry { path, node, .. } = put;
        let brief = node.as_ref().map(Brief::of);
        let entry = IndexEntry { path, version, lane, address, record_size: size, node: brief };
        self.container.add(entry.clone());
        match &node {
            Some(node) => drop(self.know(&entry, node)),
            None => drop(self.known.remove(&entry.path)),
        }
        self.changes += 1;
        Ok(entry)
    }

    pub(crate) fn next_version(&mut self, path: &[u8]) -> Result<u64> {
        let Timestamp { seconds, nanoseconds } = wall();
        let now = u64::try_from(seconds).unwrap_or(0) * 1_000_000_000 + u64::from(nanoseconds);
        self.version = now.max(self.version + 1).max(self.container.version(path)? + 1);
        Ok(self.version)
    }

    pub(crate) fn write_pending(&mut self) -> Result<()> {
        let noted = self.note_put();
        let put = match &noted {
            Ok(()) => self.writer.as_mut().map_or(Ok(()), LaneWriter::write_pending),
            Err(_) => Ok(()),
        };
        let is_full = |fault: &Fault| [Errno::ENOSPC, Errno::EDQUOT].contains(&fault.errno);
        self.lacks_room = put.as_ref().is_err_and(is_full);
        let written = noted.and(put);
        self.was_refused = written.is_err();
        written
    }

    /// An entry that was put is to be noted on the device.
    pub(crate) fn add_to_journal(&mut self, entry: &Entry, address: u64) {
        let (Some(journal), Some(writer)) = (&mut self.journal, &self.writer) else { return };
        let pieces = entry.node.as_ref().map_or(&[][..], pieces_of);
        let unsafe_pieces = (0..).zip(pieces).filter(|(_, piece)| !writer.is_safe(piece));
        let unsafe_pieces = unsafe_pieces.map(|(number, _)| number).collect();
        journal.add(&Noted { entry: entry.clone(), lane: writer.lane(), address, unsafe_pieces });
    }

    /// What was put is noted on the device.
    fn note_put(&mut self) -> Result<()> {
        self.journal.as_mut().map_or(Ok(()), Journal::write)?;
        self.noted_end = self.writer.as_ref().map_or(0, LaneWriter::end);
        Ok(())
    }

    /// Whether an entry that was put at an address is with the file system, and noted.
    fn has_written(&self, address: u64) -> bool {
        address < self.noted_end && self.writer.as_ref().is_some_and(|writer| writer.has_written(address))
    }

    /// Where the entry is of a file that somebody has open, if that is not with the file system yet.
    pub(crate) fn unwritten(&self, path: &[u8]) -> Option<u64> {
        let open = self.paths.get(path).and_then(|number| self.open.get(number))?;
        open.put_at.filter(|address| !self.has_written(*address))
    }

    /// Has an entry that was put at an address be with the file system, and all that was put before. What others have put besides is
    /// written when they ask for it.
    pub(crate) fn write_entry(&mut self, address: u64) -> Result<()> {
        if self.has_written(address) { Ok(()) } else { self.write_pending() }
    }

    /// What is to be written, without the store, for an entry that was put at an address to be with the file system; and all that was put
    /// besides.
    pub(crate) fn begin_write(&mut self, address: u64) -> Result<Option<Given>> {
        self.note_put()?;
        match &mut self.writer {
            Some(writer) if !writer.has_written(address) => writer.begin_write(),
            _ => Ok(None),
        }
    }

    /// Entries that were put are with the file system then. Where it takes none, what was there before is put again: it is known
    /// here at once, and comes with the next that the file system takes.
    pub(crate) fn hand_over(&mut self, put: &[(IndexEntry, Option<IndexEntry>)]) -> Result<()> {
        let Err(fault) = self.write_pending() else { return Ok(()) };
        self.undo(put);
        Err(fault)
    }

    /// What was there before is put again.
    pub(crate) fn undo(&mut self, put: &[(IndexEntry, Option<IndexEntry>)]) {
        for (now, before) in put {
            let node = before.as_ref().map(|before| self.node_in(before)).transpose();
            let undone = node.and_then(|node| self.put(&now.path, node));
            if let Err(fault) = undone {
                self.failure = Some(fault);
            }
        }
        // Who was told that it is not done does not find it later.
        if let Err(fault) = self.note_put() {
            self.failure = Some(fault);
        }
    }
}
