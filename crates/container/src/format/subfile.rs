//! Header of a subfile: its owner, and the incarnation of each lane.
//!
//! ```text
//! 0             32           36              40      104     128
//! +------------+------------+---------------+-------+-------+--------------------+
//! | superblock | owner      | crc32c of the | owner | zeros | incarnations       |
//! |            | size u32   | owner u32     |       |       | u32 of each lane   |
//! +------------+------------+---------------+-------+-------+--------------------+
//! ```
//!
//! A lane that no writer has claimed has incarnation 0. The highest bit says that the incarnation's writer has finished. Only these numbers
//! change: the writer that claims a lane sets its number before the first record, and again when it finishes. The number is durable with the
//! writer's first sync.

use super::geometry::{INCARNATIONS_AT, LaneId};
use super::superblock::{SIZE, Superblock, create_like};
use std::sync::Arc;
use tameike_core::{Errno, Fault, FaultKind, Result};
use tameike_io::crc32c;
use tameike_io::shared::{Access, SharedFile, SharedFs};

/// Maximum size of an owner's name, in bytes: that of the kernel's host names.
pub const OWNER_SIZE_MAX: usize = 64;
const OWNER_AT: usize = 40;
/// Locks are taken on offsets beyond any subfile: this offset plus the lane's number.
const LOCKS_AT: u64 = 1 << 62;

/// Bit of a lane's number: its writer has finished.
const FINISHED: u32 = 1 << 31;

/// State of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneState {
    /// How often the lane was claimed.
    pub incarnation: u32,
    /// True if the writer of this incarnation has finished.
    pub is_finished: bool,
}

impl LaneState {
    /// Returns true if the lane was claimed and its writer has not finished.
    pub fn is_open(self) -> bool {
        self.incarnation != 0 && !self.is_finished
    }
}

/// An open subfile.
#[derive(Clone)]
pub struct Subfile {
    file: Arc<dyn SharedFile>,
    superblock: Superblock,
    number: u32,
}

/// Result of a claim of a lane.
pub enum Claim {
    /// The claim succeeded.
    Taken {
        /// Incarnation of the lane, one more than before.
        incarnation: u32,
        /// First address that no writer has written.
        address: u64,
    },
    /// Another process holds the lane.
    Busy,
}

impl Subfile {
    /// Opens a subfile.
    pub fn open(fs: &dyn SharedFs, superblock: Superblock, number: u32, access: Access) -> Result<Self> {
        let file = fs.open(&name(number), access)?;
        Ok(Self { file, superblock, number })
    }

    /// Creates a subfile whose lanes writers on host `owner` claim; without an owner, a formula assigns the lanes. Fails with `EEXIST` if
    /// it exists.
    pub fn create(fs: &dyn SharedFs, superblock: Superblock, number: u32, owner: &str) -> Result<Self> {
        let file = create_like(fs, &name(number))?;
        let owner = owner.as_bytes();
        let owner = &owner[..owner.len().min(OWNER_SIZE_MAX)];
        let mut header = [0; INCARNATIONS_AT as usize];
        header[..SIZE].copy_from_slice(&superblock.encode(number));
        header[32..36].copy_from_slice(&(owner.len() as u32).to_le_bytes());
        header[36..40].copy_from_slice(&crc32c(owner).to_le_bytes());
        header[OWNER_AT..OWNER_AT + owner.len()].copy_from_slice(owner);
        file.write_at(&header, 0)?;
        Ok(Self { file, superblock, number })
    }

    /// Opens a subfile for writing, and creates it if it is missing.
    pub fn open_or_create(fs: &dyn SharedFs, superblock: Superblock, number: u32) -> Result<Self> {
        match Self::open(fs, superblock, number, Access::Write) {
            Err(fault) if fault.errno == Errno::ENOENT => {}
            opened => return opened,
        }
        match Self::create(fs, superblock, number, "") {
            Err(fault) if fault.errno == Errno::EEXIST => Self::open(fs, superblock, number, Access::Write),
            made => made,
        }
    }

    /// The owner; empty if the header is damaged.
    pub fn owner(&self) -> Result<String> {
        let mut header = [0; INCARNATIONS_AT as usize];
        self.file.read_at(&mut header, 0)?;
        let word = |at: usize| header[at..].first_chunk().copied().map_or(0, u32::from_le_bytes);
        let owner = header[OWNER_AT..OWNER_AT + OWNER_SIZE_MAX].get(..word(32) as usize).unwrap_or_default();
        let is_whole = crc32c(owner) == word(36);
        Ok(if is_whole { String::from_utf8_lossy(owner).into_owned() } else { String::new() })
    }

    /// The state of each lane.
    pub fn lanes(&self) -> Result<Vec<LaneState>> {
        let mut bytes = vec![0; self.superblock.geometry.lanes as usize * 4];
        // Numbers beyond the end of the file were never written.
        self.file.read_at(&mut bytes, INCARNATIONS_AT)?;
        let state = |word: &[u8]| {
            let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            LaneState { incarnation: word & !FINISHED, is_finished: word & FINISHED != 0 }
        };
        Ok(bytes.chunks_exact(4).map(state).collect())
    }

    /// Claims a lane that no other process holds. If several writers claim it, the file system's lock decides, where it supports locks.
    /// Fails with `EOPNOTSUPP` if the file system has no locks and `needs_lock`.
    pub fn claim(&self, lane: u32, needs_lock: bool) -> Result<Claim> {
        match self.file.try_lock(LOCKS_AT + u64::from(lane), 1) {
            Ok(true) => {}
            Ok(false) => return Ok(Claim::Busy),
            Err(fault) if fault.errno == Errno::EOPNOTSUPP && !needs_lock => {}
            Err(fault) => return Err(fault),
        }
        let before = self.lanes()?[lane as usize].incarnation;
        let incarnation = before + 1;
        if incarnation == FINISHED {
            let message = format!("lane {lane} of subfile {} was claimed too often", self.number);
            return Err(Fault::new(Errno::ENOSPC, message));
        }
        // The last writer may have crashed within a block. Nothing is written beyond the end of the file.
        let address = match before {
            0 => 0,
            _ => {
                let end = self.superblock.geometry.addresses(lane, self.file.stat()?.size).end;
                end.next_multiple_of(self.superblock.geometry.block_size.into())
            }
        };
        self.set(lane, incarnation)?;
        Ok(Claim::Taken { incarnation, address })
    }

    /// Locks all lanes for this open file, so that no writer begins one. Returns false if a writer holds a lane. Without locks of the file
    /// system, the header decides.
    pub fn try_close(&self) -> Result<bool> {
        let lanes = u64::from(self.superblock.geometry.lanes);
        match self.file.try_lock(LOCKS_AT, lanes) {
            Err(fault) if fault.errno == Errno::EOPNOTSUPP => {
                Ok(self.lanes()?.iter().all(|lane| !lane.is_open()))
            }
            is_ours => is_ours,
        }
    }

    /// Returns true if the name still refers to this file.
    pub fn is_there(&self, fs: &dyn SharedFs) -> Result<bool> {
        match fs.stat(&name(self.number)) {
            Ok(stat) => Ok(stat.inode_id() == self.file.stat()?.inode_id()),
            Err(fault) if fault.kind() == FaultKind::Missing => Ok(false),
            Err(fault) => Err(fault),
        }
    }

    /// Marks an incarnation of a lane as finished.
    pub fn finish(&self, lane: u32, incarnation: u32) -> Result<()> {
        self.set(lane, incarnation | FINISHED)
    }

    fn set(&self, lane: u32, state: u32) -> Result<()> {
        self.file.write_at(&state.to_le_bytes(), INCARNATIONS_AT + 4 * u64::from(lane))
    }

    /// Returns true if a lane may grow: its writer has neither finished nor is known to have failed.
    pub fn may_grow(&self, lane: u32, state: LaneState) -> Result<bool> {
        if !state.is_open() {
            return Ok(false);
        }
        // A read-only process can take read locks only, and these do not show that a writer is alive.
        match self.file.is_locked(LOCKS_AT + u64::from(lane), 1) {
            Err(fault) if fault.errno == Errno::EOPNOTSUPP => Ok(true),
            is_locked => is_locked,
        }
    }

    /// The open file.
    pub fn file(&self) -> &Arc<dyn SharedFile> {
        &self.file
    }

    /// Number of the subfile in the container.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Identifier of a lane of this subfile.
    pub fn lane(&self, lane: u32) -> LaneId {
        LaneId { subfile: self.number, lane }
    }
}

/// The file name of a subfile.
pub fn name(number: u32) -> Vec<u8> {
    format!("{number:08x}.data").into_bytes()
}

/// The number of a subfile by its file name; `None` for other names.
pub fn number_of(name: &[u8]) -> Option<u32> {
    let digits = name.strip_suffix(b".data").filter(|digits| digits.len() == 8)?;
    let number = u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    (self::name(number) == name).then_some(number)
}
