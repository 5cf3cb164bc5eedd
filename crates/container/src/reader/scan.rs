//! Going through a lane, from record to record, also where some of it is damaged or was never finished.

use crate::format::geometry::LaneId;
use crate::format::record;
use crate::format::record::{ALIGNMENT, FIXED_SIZE, Found, Head, Kind, Place, first_sequence};
use crate::format::superblock::Superblock;
use crate::index::LaneEnd;
use std::sync::Arc;
use tameike_core::Result;
use tameike_io::shared::SharedFile;

/// Bytes that are read at once, where heads stand close to each other.
const WINDOW_SIZE_MAX: usize = 256 << 10;
/// The same where nothing may stand.
const WINDOW_SIZE_MIN: usize = 4 << 10;

/// Why a record is none that begins as one: nobody can tell which of the two.
const TORN: &str =
    "it is not all there: its writer did not come to its end, or the subfile was cut or damaged";

/// What a scan comes upon.
#[derive(Debug)]
pub enum Step {
    /// A record.
    Record(Box<Head>),
    /// Bytes from `address` on that are no record, though one was there.
    Damage {
        /// Where they begin.
        address: u64,
        /// Why they are none.
        why: String,
    },
}

/// The records of a lane, in their order.
pub struct LaneScan {
    file: Arc<dyn SharedFile>,
    superblock: Superblock,
    lane: LaneId,
    /// Of the next record.
    address: u64,
    /// Where the subfile ends, as an address.
    end: u64,
    /// Of the next record.
    sequence: u64,
    /// After the last record.
    known_end: LaneEnd,
    window: Vec<u8>,
    window_at: u64,
    window_size: usize,
}

impl LaneScan {
    /// From where a scan has ended before.
    ///
    /// # Errors
    /// What the file system says.
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

    /// What comes after the last record that was found.
    pub fn known_end(&self) -> LaneEnd {
        self.known_end
    }

    /// What comes next; nothing at the end.
    ///
    /// # Errors
    /// What the file system says.
    pub fn next(&mut self) -> Result<Option<Step>> {
        while self.address < self.end {
            let address = self.address;
            let block_end = self.superblock.geometry.block_end(address);
            match self.look(address)? {
                Found::Record(head)
                    if address + u64::from(head.size + head.kept_size) > self.end.min(block_end) =>
                {
                    self.address = block_end;
                    return Ok(Some(Step::Damage { address, why: TORN.to_string() }));
                }
                Found::Record(head) => {
                    // A new life has numbers of its own.
                    let expected = self.sequence.max(first_sequence(head.place.life()));
                    let missing = head.place.sequence.checked_sub(expected).filter(|missing| *missing > 0);
                    if let Some(missing) = missing {
                        // Found again as it is, once that is told.
                        self.sequence = head.place.sequence;
                        let why = format!("{missing} records before it are missing");
                        return Ok(Some(Step::Damage { address, why }));
                    }
                    self.sequence = head.place.sequence + 1;
                    self.address = match head.kind {
                        Kind::Rest | Kind::End => block_end,
                        Kind::Entry | Kind::Data => address + head.span(),
                    };
                    let (address, sequence) = (self.address, self.sequence);
                    let is_finished = head.kind == Kind::End;
                    self.known_end = LaneEnd { lane: self.lane, address, sequence, is_finished };
                    return Ok(Some(Step::Record(head)));
                }
                // The end of a life, or of what was written before its writer died: another may have gone on behind it.
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

    /// The first record of the block from `address` on, or its end.
    fn find_record(&mut self, mut address: u64, block_end: u64) -> Result<u64> {
        while address < block_end.min(self.end) {
            if matches!(self.look(address)?, Found::Record(_)) {
                return Ok(address);
            }
            address += u64::from(ALIGNMENT);
        }
        Ok(block_end)
    }

    /// What stands at an address.
    fn look(&mut self, address: u64) -> Result<Found> {
        let place =
            Place { container: self.superblock.container, lane: self.lane, address, sequence: self.sequence };
        match self.read(address, FIXED_SIZE)? {
            Some(bytes) => match record::decode(bytes, &place) {
                Found::Part(size) => match self.read(address, size)? {
                    Some(bytes) => Ok(record::decode(bytes, &place)),
                    None => Ok(Found::Part(size)),
                },
                found => Ok(found),
            },
            // Less than a head is left of the subfile, which only a cut leaves.
            None => {
                let mut rest = vec![0; (self.end - address).min(FIXED_SIZE as u64) as usize];
                let offset = self.superblock.geometry.offset(self.lane.lane, address);
                self.file.read_at(&mut rest, offset)?;
                Ok(if rest.iter().all(|&byte| byte == 0) { Found::Blank } else { Found::Part(FIXED_SIZE) })
            }
        }
    }

    /// `size` bytes at least from `address` on, as many as are at hand; none where block or subfile end before.
    fn read(&mut self, address: u64, size: usize) -> Result<Option<&[u8]>> {
        let room = self.superblock.geometry.block_end(address).min(self.end) - address;
        if room < size as u64 {
            return Ok(None);
        }
        let window_end = self.window_at + self.window.len() as u64;
        if address < self.window_at || address + size as u64 > window_end {
            // Where heads follow each other more is read at once.
            let follows = !self.window.is_empty() && address < window_end + WINDOW_SIZE_MIN as u64;
            self.window_size =
                if follows { (self.window_size * 4).min(WINDOW_SIZE_MAX) } else { WINDOW_SIZE_MIN };
            let length = (room as usize).min(size.max(self.window_size));
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
