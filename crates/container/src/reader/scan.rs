//! Scan of a lane, record by record, across damaged and unfinished parts.

use crate::format::geometry::LaneId;
use crate::format::record::{self, ALIGNMENT, FIXED_SIZE, Found, Head, Kind, Position, first_sequence};
use crate::format::superblock::Superblock;
use crate::index::LaneEnd;
use std::sync::Arc;
use tameike_core::Result;
use tameike_io::shared::SharedFile;

/// Maximum bytes per read, for consecutive heads.
const WINDOW_SIZE_MAX: usize = 256 << 10;
/// Minimum bytes per read, where no record may be.
const WINDOW_SIZE_MIN: usize = 4 << 10;

/// Damage of an incomplete record; the two causes cannot be distinguished.
const TORN: &str = "it is incomplete: its writer failed, or the subfile was truncated or damaged";

/// Result of one step of a scan.
#[derive(Debug)]
pub enum Step {
    /// A record.
    Record(Box<Head>),
    /// Invalid bytes where a record was.
    Damage {
        /// Address of the first invalid byte.
        address: u64,
        /// The reason.
        why: String,
    },
}

/// Iterates over the records of a lane.
pub struct LaneScan {
    file: Arc<dyn SharedFile>,
    superblock: Superblock,
    lane: LaneId,
    /// Address of the next record.
    address: u64,
    /// End of the subfile, as an address.
    end: u64,
    /// Expected sequence number of the next record.
    sequence: u64,
    /// End of the last record.
    known_end: LaneEnd,
    window: Vec<u8>,
    window_at: u64,
    window_size: usize,
}

impl LaneScan {
    /// A scan from the end of an earlier one.
    pub fn new(file: Arc<dyn SharedFile>, superblock: Superblock, from: LaneEnd) -> Result<Self> {
        let end = superblock.geometry.addresses(from.lane.lane, file.stat()?.size).end;
        Ok(Self {
            file,
            superblock,
            lane: from.lane,
            address: from.address,
            end,
            sequence: from.sequence,
            known_end: from,
            window: Vec::new(),
            window_at: 0,
            window_size: WINDOW_SIZE_MIN,
        })
    }

    /// The end of the last record that was found.
    pub fn known_end(&self) -> LaneEnd {
        self.known_end
    }

    /// The next record or damage; `None` at the end.
    pub fn next(&mut self) -> Result<Option<Step>> {
        while self.address < self.end {
            let address = self.address;
            let block_end = self.superblock.geometry.block_end(address);
            match self.decode_at(address)? {
                Found::Record(head)
                    if address + u64::from(head.size + head.stored_size) > self.end.min(block_end) =>
                {
                    self.address = block_end;
                    return Ok(Some(Step::Damage { address, why: TORN.to_string() }));
                }
                Found::Record(head) => {
                    // Each incarnation has its own sequence numbers.
                    let expected = self.sequence.max(first_sequence(head.position.incarnation()));
                    let missing = head.position.sequence.checked_sub(expected).filter(|missing| *missing > 0);
                    if let Some(missing) = missing {
                        // The next step returns this record.
                        self.sequence = head.position.sequence;
                        let why = format!("{missing} records before it are missing");
                        return Ok(Some(Step::Damage { address, why }));
                    }
                    self.sequence = head.position.sequence + 1;
                    self.address = match head.kind {
                        Kind::Rest | Kind::End => block_end,
                        Kind::Entry | Kind::Data => address + head.span(),
                    };
                    let (address, sequence) = (self.address, self.sequence);
                    let is_finished = head.kind == Kind::End;
                    self.known_end = LaneEnd { lane: self.lane, address, sequence, is_finished };
                    return Ok(Some(Step::Record(head)));
                }
                // The end of an incarnation, or of what was written before its writer failed: the next one may begin in the next block.
                Found::Blank => self.address = block_end,
                Found::Part(_) => {
                    self.address = self.find_record(address + u64::from(ALIGNMENT), block_end)?;
                    return Ok(Some(Step::Damage { address, why: TORN.to_string() }));
                }
                Found::Damaged(why) => {
                    self.address = self.find_record(address + u64::from(ALIGNMENT), block_end)?;
                    return Ok(Some(Step::Damage { address, why: why.to_string() }));
                }
            }
        }
        Ok(None)
    }

    /// The address of the first record of the block from `address` on, or the end of the block.
    fn find_record(&mut self, mut address: u64, block_end: u64) -> Result<u64> {
        while address < block_end.min(self.end) {
            if matches!(self.decode_at(address)?, Found::Record(_)) {
                return Ok(address);
            }
            address += u64::from(ALIGNMENT);
        }
        Ok(block_end)
    }

    /// Decodes a record at an address.
    fn decode_at(&mut self, address: u64) -> Result<Found> {
        let position = Position {
            container: self.superblock.container,
            lane: self.lane,
            address,
            sequence: self.sequence,
        };
        match self.read(address, FIXED_SIZE)? {
            Some(bytes) => match record::decode(bytes, &position) {
                Found::Part(size) => match self.read(address, size)? {
                    Some(bytes) => Ok(record::decode(bytes, &position)),
                    None => Ok(Found::Part(size)),
                },
                found => Ok(found),
            },
            // The subfile ends within a head, which only truncation leaves.
            None => {
                let mut rest = vec![0; (self.end - address).min(FIXED_SIZE as u64) as usize];
                let offset = self.superblock.geometry.offset(self.lane.lane, address);
                self.file.read_at(&mut rest, offset)?;
                Ok(if rest.iter().all(|&byte| byte == 0) { Found::Blank } else { Found::Part(FIXED_SIZE) })
            }
        }
    }

    /// At least `size` bytes from `address` on; `None` if the block or the subfile ends before that.
    fn read(&mut self, address: u64, size: usize) -> Result<Option<&[u8]>> {
        let rest = self.superblock.geometry.block_end(address).min(self.end) - address;
        if rest < size as u64 {
            return Ok(None);
        }
        let window_end = self.window_at + self.window.len() as u64;
        if address < self.window_at || address + size as u64 > window_end {
            // Consecutive heads are read in growing windows.
            let follows = !self.window.is_empty() && address < window_end + WINDOW_SIZE_MIN as u64;
            self.window_size =
                if follows { (self.window_size * 4).min(WINDOW_SIZE_MAX) } else { WINDOW_SIZE_MIN };
            let length = (rest as usize).min(size.max(self.window_size));
            self.window.resize(length, 0);
            let offset = self.superblock.geometry.offset(self.lane.lane, address);
            let count = self.file.read_at(&mut self.window, offset)?;
            self.window.truncate(count);
            self.window_at = address;
            if count < size {
                return Ok(None);
            }
        }
        Ok(Some(&self.window[(address - self.window_at) as usize..]))
    }
}
