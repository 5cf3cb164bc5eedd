//! How writers that cannot ask one another come to lanes of their own.

use super::LaneWriter;
use crate::format::listing::Listing;
use crate::format::subfile::Subfile;
use crate::format::superblock::Superblock;
use crate::reader::records::Records;
use std::time::Duration;
use tameike_core::{Errno, Fault, Result};
use tameike_io::os::process::ask_until;
use tameike_io::shared::{Access, SharedFs};

/// Subfiles whose lanes are given to ranks have numbers below; each from here on belongs to a host.
pub const FIRST_OF_HOSTS: u32 = 1 << 16;
/// How long a rank waits for who has its lane: a file system may learn late that a process has died.
const WAIT_MAX: Duration = Duration::from_secs(5);
const WAIT_STEP: Duration = Duration::from_millis(20);

/// Who a writer is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriterId {
    /// One of `size` processes that are numbered from 0 on, each of them once.
    Rank {
        /// Its number.
        rank: u32,
        /// How many there are.
        size: u32,
    },
    /// The same, if nobody else is: else one of the processes of a host.
    Guess {
        /// Its number.
        rank: u32,
        /// How many there are.
        size: u32,
        /// The host's name.
        host: String,
    },
    /// One of any number of processes on the host of this name.
    Host(String),
}

impl LaneWriter {
    /// Begins a lane that nobody else has. A rank has a lane by formula, in files that all ranks share; processes of a host take the next free
    /// lane in files of their host, or make one.
    ///
    /// # Errors
    /// `EBUSY` when another process is the same rank, `EINVAL` when there is no such rank; what the file system says.
    pub fn begin(fs: &dyn SharedFs, superblock: Superblock, writer: &WriterId) -> Result<Self> {
        match writer {
            WriterId::Rank { rank, size } => begin_rank(fs, superblock, *rank, *size),
            WriterId::Guess { rank, size, host } => match claim_of_rank(fs, superblock, *rank, *size, true) {
                Ok(Some(writer)) => Ok(writer),
                Ok(None) => Self::begin_on_host(fs, superblock, host, &[]),
                // A container that was made for fewer, or locks that nobody knows of.
                Err(fault) if matches!(fault.errno, Errno::EINVAL | Errno::EOPNOTSUPP) => {
                    Self::begin_on_host(fs, superblock, host, &[])
                }
                Err(fault) => Err(fault),
            },
            WriterId::Host(host) => Self::begin_on_host(fs, superblock, host, &[]),
        }
    }

    /// Begins a free lane of a file of this host, or of a new one; of none of `taken`.
    pub(crate) fn begin_on_host(
        fs: &dyn SharedFs,
        superblock: Superblock,
        host: &str,
        taken: &[u32],
    ) -> Result<Self> {
        loop {
            let numbers = Listing::of(fs)?.numbers;
            for number in
                numbers.iter().copied().filter(|number| *number >= FIRST_OF_HOSTS && !taken.contains(number))
            {
                let is_ours = match Subfile::open(fs, superblock, number, Access::Read) {
                    Err(fault) if fault.errno == Errno::ENOENT => false,
                    subfile => subfile?.owner()? == host,
                };
                if !is_ours {
                    continue;
                }
                match take_free(fs, superblock, number) {
                    Ok(Some(writer)) => return Ok(writer),
                    Ok(None) => {}
                    Err(fault) if fault.errno == Errno::ENOENT => {}
                    // Without locks it cannot be known who is alive there.
                    Err(fault) if fault.errno == Errno::EOPNOTSUPP => break,
                    Err(fault) => return Err(fault),
                }
            }
            let next = numbers.last().map_or(FIRST_OF_HOSTS, |last| (last + 1).max(FIRST_OF_HOSTS));
            let made = match Subfile::create(fs, superblock, next, host) {
                Err(fault) if fault.errno == Errno::EEXIST => continue,
                made => made?,
            };
            // Another process of the host may have seen it, and have its first lane by now.
            if let Some(writer) = LaneWriter::claim(made, superblock, 0, false)? {
                return Ok(writer);
            }
        }
    }
}

/// The lane of a rank, unless somebody has it.
fn claim_of_rank(
    fs: &dyn SharedFs,
    superblock: Superblock,
    rank: u32,
    size: u32,
    needs_lock: bool,
) -> Result<Option<LaneWriter>> {
    let files = size.div_ceil(superblock.geometry.lanes);
    if rank >= size || files > FIRST_OF_HOSTS {
        let message = format!("rank {rank} of {size} has no place in this container");
        return Err(Fault::new(Errno::EINVAL, message));
    }
    loop {
        let subfile = Subfile::open_or_create(fs, superblock, rank % files)?;
        let writer = LaneWriter::claim(subfile.clone(), superblock, rank / files, needs_lock)?;
        // Who compacts a container removes its files.
        if writer.is_none() || subfile.is_there(fs)? {
            return Ok(writer);
        }
    }
}

fn begin_rank(fs: &dyn SharedFs, superblock: Superblock, rank: u32, size: u32) -> Result<LaneWriter> {
    let claimed =
        ask_until(WAIT_MAX, WAIT_STEP, || claim_of_rank(fs, superblock, rank, size, false).transpose());
    claimed.unwrap_or_else(|| {
        let message = format!("another process writes to this container as rank {rank} of {size}");
        Err(Fault::new(Errno::EBUSY, message))
    })
}

/// A lane of a subfile that nobody has now.
fn take_free(fs: &dyn SharedFs, superblock: Superblock, number: u32) -> Result<Option<LaneWriter>> {
    for lane in 0..superblock.geometry.lanes {
        let subfile = Subfile::open(fs, superblock, number, Access::Write)?;
        let writer = LaneWriter::claim(subfile.clone(), superblock, lane, true)?;
        if writer.is_some() && subfile.is_there(fs)? {
            return Ok(writer);
        }
    }
    Ok(None)
}

/// Whether a writer may still add to a container: one that has not ended, and of which nothing tells that it has died.
///
/// # Errors
/// What the file system says.
pub(crate) fn may_grow(records: &Records) -> Result<bool> {
    let (fs, superblock) = (&**records.fs(), records.superblock());
    for number in Listing::of(fs)?.numbers {
        let lanes = records.subfile(number)?.lanes()?;
        if lanes.iter().all(|lane| lane.life == 0 || lane.is_finished) {
            continue;
        }
        // To ask for a lock, it must be open for writing.
        let subfile = Subfile::open(fs, superblock, number, Access::Write)?;
        for (lane, state) in (0..).zip(subfile.lanes()?) {
            if subfile.may_grow(lane, state)? {
                return Ok(true);
            }
        }
    }
    Ok(false)
}
