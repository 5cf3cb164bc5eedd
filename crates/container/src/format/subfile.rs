//! A subfile's header: whose it is, and how often each of its lanes was begun.
//!
//! ```text
//! 0             32           36              40      104     128
//! +------------+------------+---------------+-------+-------+--------------------+
//! | superblock | owner      | crc32c of the | owner | zeros | lives              |
//! |            | size u32   | owner u32     |       |       | u32 of each lane   |
//! +------------+------------+---------------+-------+-------+--------------------+
//! ```
//!
//! A lane that was never begun has life 0; the highest bit tells that the life's writer has ended as it should. Nothing but a lane's own number
//! is ever changed here, by who begins the lane, before its first record, and when it ends; it is safe with what that writer syncs first.

use super::geometry::{INCARNATIONS_AT, LaneId};
use super::superblock::{SIZE, Superblock, create_like};
use std::sync::Arc;
use tameike_core::{Errno, Fault, FaultKind, Result};
use tameike_io::crc32c;
use tameike_io::shared::{Access, SharedFile, SharedFs};

/// Longest name of an owner, in bytes: the kernel's names of hosts are no longer.
pub const OWNER_SIZE_MAX: usize = 64;
const OWNER_AT: usize = 40;
/// Locks are on places that no subfile has: the number of the lane after this one.
const LOCKS_AT: u64 = 1 << 62;

/// Of a lane's number: its writer has ended.
const FINISHED: u32 = 1 << 31;

/// How a lane stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneState {
    /// How often it was begun.
    pub life: u32,
    /// Whether the last who began it has ended as it should.
    pub is_finished: bool,
}

/// A subfile that is open.
#[derive(Clone)]
pub struct Subfile {
    file: Arc<dyn SharedFile>,
    superblock: Superblock,
    number: u32,
}

/// What came of a claim.
pub enum Claim {
    /// The lane is the claimer's, in this life, from this address on.
    Taken {
        /// One more than that of who had it before.
        life: u32,
        /// Nothing was ever written from here on.
        address: u64,
    },
    /// Somebody else has it.
    Busy,
}

impl Subfile {
    /// Opens one.
    ///
    /// # Errors
    /// `ENOENT` when it is not there, and what the file system says.
    pub fn open(fs: &dyn SharedFs, superblock: Superblock, number: u32, access: Access) -> Result<Self> {
        let file = fs.open(&name(number), access)?;
        Ok(Self { file, superblock, number })
    }

    /// Makes one, which writers on `owner` take lanes of; without an owner, whose lanes are given by formula.
    ///
    /// # Errors
    /// `EEXIST` when it is there, and what the file system says.
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

    /// Opens one for writing, and makes it where it is missing.
    ///
    /// # Errors
    /// What the file system says.
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

    /// Whose it is; nobody's where that cannot be read.
    ///
    /// # Errors
    /// What the file system says.
    pub fn owner(&self) -> Result<String> {
        let mut header = [0; INCARNATIONS_AT as usize];
        self.file.read_at(&mut header, 0)?;
        let word = |at: usize| header[at..].first_chunk().copied().map_or(0, u32::from_le_bytes);
        let owner = header[OWNER_AT..OWNER_AT + OWNER_SIZE_MAX].get(..word(32) as usize).unwrap_or_default();
        let is_whole = crc32c(owner) == word(36);
        Ok(if is_whole { String::from_utf8_lossy(owner).into_owned() } else { String::new() })
    }

    /// How each lane stands.
    ///
    /// # Errors
    /// What the file system says.
    pub fn lanes(&self) -> Result<Vec<LaneState>> {
        let mut bytes = vec![0; self.superblock.geometry.lanes as usize * 4];
        // What the file is too short for was never written.
        self.file.read_at(&mut bytes, INCARNATIONS_AT)?;
        let state = |word: &[u8]| {
            let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            LaneState { life: word & !FINISHED, is_finished: word & FINISHED != 0 }
        };
        Ok(bytes.chunks_exact(4).map(state).collect())
    }

    /// Begins a lane, which nobody else must have. Of writers that claim a lane at the same time one gets it, where the file system knows of locks.
    ///
    /// # Errors
    /// `EOPNOTSUPP` when the file system knows of no locks and `needs_lock`; what the file system says.
    pub fn claim(&self, lane: u32, needs_lock: bool) -> Result<Claim> {
        match self.file.try_lock(LOCKS_AT + u64::from(lane), 1) {
            Ok(true) => {}
            Ok(false) => return Ok(Claim::Busy),
            Err(fault) if fault.errno == Errno::EOPNOTSUPP && !needs_lock => {}
            Err(fault) => return Err(fault),
        }
        let before = self.lanes()?[lane as usize].life;
        let life = before + 1;
        if life == FINISHED {
            let message = format!("lane {lane} of subfile {} was begun too often", self.number);
            return Err(Fault::new(Errno::ENOSPC, message));
        }
        // Whoever had it may have died in the middle of a block: nobody has written behind the file's end.
        let address = match before {
            0 => 0,
            _ => {
                let end = self.superblock.geometry.addresses(lane, self.file.stat()?.size).end;
                end.next_multiple_of(self.superblock.geometry.block_size.into())
            }
        };
        self.set(lane, life)?;
        Ok(Claim::Taken { life, address })
    }

    /// Has all lanes for this open file, so that nobody begins one: whether nobody has any now. Where the file system knows of no locks, only what the
    /// header tells counts.
    ///
    /// # Errors
    /// What the file system says.
    pub fn try_close(&self) -> Result<bool> {
        let lanes = u64::from(self.superblock.geometry.lanes);
        match self.file.try_lock(LOCKS_AT, lanes) {
            Err(fault) if fault.errno == Errno::EOPNOTSUPP => {
                Ok(self.lanes()?.iter().all(|lane| lane.life == 0 || lane.is_finished))
            }
            is_ours => is_ours,
        }
    }

    /// Whether its name still leads to it.
    ///
    /// # Errors
    /// What the file system says.
    pub fn is_there(&self, fs: &dyn SharedFs) -> Result<bool> {
        match fs.stat(&name(self.number)) {
            Ok(stat) => Ok(stat.inode_id() == self.file.stat()?.inode_id()),
            Err(fault) if fault.kind() == FaultKind::Missing => Ok(false),
            Err(fault) => Err(fault),
        }
    }

    /// Tells that a lane's writer has ended in this life of it.
    ///
    /// # Errors
    /// What the file system says.
    pub fn finish(&self, lane: u32, life: u32) -> Result<()> {
        self.set(lane, life | FINISHED)
    }

    fn set(&self, lane: u32, state: u32) -> Result<()> {
        self.file.write_at(&state.to_le_bytes(), INCARNATIONS_AT + 4 * u64::from(lane))
    }

    /// Whether a lane that was begun may have more: its writer has not ended, and nothing tells that it has died.
    ///
    /// # Errors
    /// What the file system says.
    pub fn may_grow(&self, lane: u32, state: LaneState) -> Result<bool> {
        if state.life == 0 || state.is_finished {
            return Ok(false);
        }
        // Who can only read the container can have locks for reading, and tells nothing by them.
        match self.file.is_locked(LOCKS_AT + u64::from(lane), 1) {
            Err(fault) if fault.errno == Errno::EOPNOTSUPP => Ok(true),
            is_locked => is_locked,
        }
    }

    /// The file.
    pub fn file(&self) -> &Arc<dyn SharedFile> {
        &self.file
    }

    /// Its number in the container.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// One of its lanes.
    pub fn lane(&self, lane: u32) -> LaneId {
        LaneId { subfile: self.number, lane }
    }
}

/// What a subfile is called.
pub fn name(number: u32) -> Vec<u8> {
    format!("{number:08x}.data").into_bytes()
}

/// The number of the subfile that is called so.
pub fn number_of(name: &[u8]) -> Option<u32> {
    let digits = name.strip_suffix(b".data").filter(|digits| digits.len() == 8)?;
    let number = u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    (self::name(number) == name).then_some(number)
}
