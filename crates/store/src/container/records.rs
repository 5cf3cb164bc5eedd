//! Reading records of a container by their places.

use super::entry::{Entry, Node};
use super::geometry::{ADDRESS_MAX, LaneId};
use super::index::IndexEntry;
use super::record::{self, Found, Head, Place};
use super::subfile::Subfile;
use super::superblock::Superblock;
use super::writer::LaneWriter;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tameike_core::{Errno, Fault, Result};
use tameike_io::shared::{Access, SharedFile, SharedFs};

/// Most heads are no larger.
const HEAD_SIZE: usize = 4 << 10;

/// The subfiles of a container, opened when they are first read.
pub struct Records {
    fs: Arc<dyn SharedFs>,
    superblock: Superblock,
    subfiles: Mutex<BTreeMap<u32, Subfile>>,
}

impl Records {
    /// Those of the container whose directory `fs` is.
    pub fn new(fs: Arc<dyn SharedFs>, superblock: Superblock) -> Self {
        Self { fs, superblock, subfiles: Mutex::default() }
    }

    /// The directory of the container.
    pub fn fs(&self) -> &Arc<dyn SharedFs> {
        &self.fs
    }

    /// What is the same for all of it.
    pub fn superblock(&self) -> Superblock {
        self.superblock
    }

    /// One of the subfiles.
    ///
    /// # Errors
    /// `ENOENT` when it is missing, and what the file system says.
    pub fn subfile(&self, number: u32) -> Result<Subfile> {
        if let Some(subfile) = self.subfiles.lock().get(&number) {
            return Ok(subfile.clone());
        }
        let subfile = Subfile::open(&*self.fs, self.superblock, number, Access::Read)?;
        Ok(self.subfiles.lock().entry(number).or_insert(subfile).clone())
    }

    /// From now on a writer's subfile is read by the open file that it writes to. A file system may keep what is written by an open file where others of this
    /// machine do not see it before it is synced (Gfarm's).
    pub fn read_by(&self, writer: &LaneWriter) {
        self.subfiles.lock().insert(writer.lane().subfile, writer.subfile().clone());
    }

    /// Reads at an address of a lane, within a block, as far as the subfile goes.
    ///
    /// # Errors
    /// What the file system says.
    pub fn read_at(&self, lane: LaneId, address: u64, buffer: &mut [u8]) -> Result<usize> {
        let offset = self.superblock.geometry.offset(lane.lane, address);
        self.subfile(lane.subfile)?.file().read_at(buffer, offset)
    }

    /// The record of an entry, what it tells, and its bytes as far as they were read: with the head, up to `ahead` of data.
    ///
    /// # Errors
    /// `EIO` when it is not there, or damaged.
    pub fn read_entry(&self, entry: &IndexEntry, ahead: usize) -> Result<(Head, Node, Vec<u8>)> {
        let size = (entry.record_size as usize).min(HEAD_SIZE + ahead);
        let (head, bytes) = self.read(entry.lane, entry.address, size)?;
        match &head.entry {
            Some(Entry { path, version, node: Some(node) })
                if *path == entry.path && *version == entry.version =>
            {
                let node = node.clone();
                Ok((head, node, bytes))
            }
            _ => Err(not_there(entry.lane, entry.address, "it is another one than the index tells of")),
        }
    }

    /// A record and the bytes of it that were read: `size`, and more where its head is larger.
    ///
    /// # Errors
    /// `EIO` when it is not there, or damaged.
    pub fn read(&self, lane: LaneId, address: u64, size: usize) -> Result<(Head, Vec<u8>)> {
        let geometry = self.superblock.geometry;
        if lane.lane >= geometry.lanes
            || address >= ADDRESS_MAX
            || geometry.block_end(address) - address < record::FIXED_SIZE as u64
        {
            return Err(not_there(lane, address, "there is no such place"));
        }
        let file: Arc<dyn SharedFile> = match self.subfile(lane.subfile) {
            Err(fault) if fault.errno == Errno::ENOENT => {
                return Err(not_there(lane, address, "the subfile is missing"));
            }
            subfile => subfile?.file().clone(),
        };
        let room = (geometry.block_end(address) - address) as usize;
        let offset = geometry.offset(lane.lane, address);
        let mut wanted = size.clamp(record::FIXED_SIZE, room);
        let place = Place { container: self.superblock.container, lane, address, sequence: 0 };
        loop {
            let mut bytes = vec![0; wanted];
            let count = file.read_at(&mut bytes, offset)?;
            bytes.truncate(count);
            if count < record::FIXED_SIZE {
                return Err(not_there(lane, address, "the subfile ends before it"));
            }
            match record::decode(&bytes, &place) {
                Found::Record(head) => return Ok((*head, bytes)),
                Found::Part(size) if size > wanted && size <= room => wanted = size,
                Found::Part(_) => return Err(not_there(lane, address, "the subfile ends in it")),
                Found::Blank => return Err(not_there(lane, address, "nothing was ever written there")),
                Found::Damaged(why) => return Err(not_there(lane, address, why)),
            }
        }
    }
}

/// What a reader is told of a record that is not as it should be.
pub fn not_there(lane: LaneId, address: u64, why: &str) -> Fault {
    Fault::new(Errno::EIO, format!("the record at {address} in {lane} is damaged: {why}"))
}
