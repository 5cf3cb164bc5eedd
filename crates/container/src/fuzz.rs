//! Decoders of containers, for fuzz targets.

use super::index::{IndexEntry, LaneEnd, entries_of};
use crate::format::codec::unpack;
use crate::format::entry::{Entry, Node};
use crate::format::geometry::{Geometry, LaneId};
use crate::format::record::{self, FIXED_SIZE, Found, Position};
use crate::format::superblock::{self, Superblock};
use crate::reader::scan::{LaneScan, Step};
use crate::shared_fs::stat_of;
use std::sync::Arc;
use tameike_core::attr::AttrChange;
use tameike_core::{Errno, FileKind, Result, Timestamp};
use tameike_io::shared::{Allocate, FileStat, Seek, SharedFile};

/// Number of the container in the corpus.
const CONTAINER: u64 = 0x0123_4567_89ab_cdef;

/// Decodes a superblock, as given and with a corrected checksum.
pub fn header(bytes: &[u8]) {
    let mut header = [0; superblock::SIZE];
    let count = bytes.len().min(superblock::SIZE);
    header[..count].copy_from_slice(&bytes[..count]);
    for is_right in [false, true] {
        if is_right {
            superblock::sign(&mut header);
        }
        if let Ok((superblock, subfile)) = Superblock::decode(&header) {
            assert_eq!(Superblock::decode(&superblock.encode(subfile)), Ok((superblock, subfile)));
            let Geometry { block_size, lanes } = superblock.geometry;
            assert!(block_size.is_power_of_two() && lanes > 0);
        }
    }
}

/// Decodes a record, as given and with a corrected checksum: its chunks must lie within it, and its entry must encode to the same bytes.
pub fn record(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    bytes.resize(bytes.len().max(FIXED_SIZE), 0);
    let lane = LaneId { subfile: 0, lane: 0 };
    let position = Position { container: CONTAINER, lane, address: 0, sequence: 0 };
    for is_right in [false, true] {
        if is_right {
            record::sign(&mut bytes, &position);
        }
        let Found::Record(head) = record::decode(&bytes, &position) else { continue };
        assert!(head.size as usize <= bytes.len());
        for chunk in 0..head.chunks.len() {
            let stored = head.stored_range(chunk);
            assert!(stored.end <= (head.size + head.stored_size) as usize);
            let size = head.chunk_range(chunk).len();
            let Some(stored) = bytes.get(stored) else { continue };
            let mut unpacked = Vec::new();
            if stored.len() < size && unpack(stored, size, &mut unpacked).is_ok() {
                assert_eq!(unpacked.len(), size);
            }
        }
        if let Some(entry) = &head.entry {
            assert_eq!(Entry::decode(&entry.encode()).as_ref(), Some(entry));
        }
    }
}

/// Scans a lane: the scan must end, and return records and damage by ascending address.
pub fn lane(bytes: &[u8]) {
    let geometry = Geometry { block_size: superblock::BLOCK_SIZE_MIN, lanes: 1 };
    let superblock = Superblock { container: CONTAINER, geometry };
    let lane = LaneId { subfile: 0, lane: 0 };
    let mut content = vec![0; geometry.offset(0, 0) as usize];
    content.extend(bytes);
    let file = Arc::new(Memory(content));
    let mut scan = LaneScan::new(file, superblock, LaneEnd::none(lane)).expect("memory does not fail");
    let mut last = 0;
    while let Some(step) = scan.next().expect("memory does not fail") {
        let address = match step {
            Step::Record(head) => head.position.address,
            Step::Damage { address, .. } => address,
        };
        assert!(address >= last && address < bytes.len() as u64);
        last = address;
    }
}

/// Decodes a page of an index.
pub fn page(bytes: &[u8]) {
    if let Ok(entries) = entries_of(bytes) {
        let again: Vec<u8> = entries.iter().flat_map(IndexEntry::encode).collect();
        assert_eq!(entries_of(&again).as_ref(), Ok(&entries));
    }
}

/// A read-only file in memory.
struct Memory(Vec<u8>);

impl SharedFile for Memory {
    fn stat(&self) -> Result<FileStat> {
        let size = self.0.len() as u64;
        let node = Node::new(FileKind::File, 0o600, (0, 0), Timestamp::default());
        Ok(stat_of(b"", &Node { size, ..node }))
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let rest = self.0.get(offset as usize..).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }
    fn write_at(&self, _: &[u8], _: u64) -> Result<()> {
        Err(Errno::EROFS.into())
    }
    fn append(&self, _: &[u8]) -> Result<()> {
        Err(Errno::EROFS.into())
    }
    fn truncate(&self, _: u64) -> Result<()> {
        Err(Errno::EROFS.into())
    }
    fn allocate(&self, _: Allocate, _: u64, _: u64) -> Result<()> {
        Err(Errno::EROFS.into())
    }
    fn seek(&self, _: Seek, _: u64) -> Result<u64> {
        Err(Errno::ENXIO.into())
    }
    fn sync(&self) -> Result<()> {
        Ok(())
    }
    fn forget_pages(&self) -> Result<()> {
        Ok(())
    }
    fn revalidate(&self) -> Result<()> {
        Ok(())
    }
    fn change(&self, _: &AttrChange) -> Result<()> {
        Err(Errno::EROFS.into())
    }
}
