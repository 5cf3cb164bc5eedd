//! Assignment of lanes to writers that do not communicate.

use super::LaneWriter;
use crate::format::listing::Listing;
use crate::format::subfile::Subfile;
use crate::format::superblock::Superblock;
use crate::reader::records::Records;
use std::time::Duration;
use tameike_core::{Errno, Fault, Result};
use tameike_io::os::process::ask_until;
use tameike_io::shared::{Access, SharedFs};

/// Subfiles for ranks have lower numbers; each subfile from this number on belongs to a host.
pub const FIRST_OF_HOSTS: u32 = 1 << 16;
/// How long a rank waits while another process holds its lane: a file system may detect the failure of a process late.
const WAIT_MAX: Duration = Duration::from_secs(5);
const WAIT_STEP: Duration = Duration::from_millis(20);

/// Identity of a writer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriterId {
    /// A rank of a parallel program; unique.
    Rank {
        /// Rank, from 0.
        rank: u32,
        /// Number of ranks.
        size: u32,
    },
    /// A rank from the environment; if another process holds its lane, the writer is treated as [`Self::Host`].
    Guess {
        /// Rank, from 0.
        rank: u32,
        /// Number of ranks.
        size: u32,
        /// Name of the host.
        host: String,
    },
    /// One of any number of processes on the host of this name.
    Host(String),
}

impl LaneWriter {
    /// Claims a free lane. A rank has a fixed lane, in subfiles that all ranks share. Processes of a host take the next free lane in subfiles
    /// of their host, or create one. Fails with `EBUSY` if another process is the same rank, and with `EINVAL` if the rank is invalid.
    pub fn begin(fs: &dyn SharedFs, superblock: Superblock, writer: &WriterId) -> Result<Self> {
        match writer {
            WriterId::Rank { rank, size } => begin_rank(fs, superblock, *rank, *size),
            WriterId::Guess { rank, size, host } => match claim_of_rank(fs, superblock, *rank, *size, true) {
                Ok(Some(writer)) => Ok(writer),
                Ok(None) => Self::begin_on_host(fs, superblock, host, &[]),
                // The container was created for fewer ranks, or the file system has no locks.
                Err(fault) if matches!(fault.errno, Errno::EINVAL | Errno::EOPNOTSUPP) => {
                    Self::begin_on_host(fs, superblock, host, &[])
                }
                Err(fault) => Err(fault),
            },
            WriterId::Host(host) => Self::begin_on_host(fs, superblock, host, &[]),
        }
    }

    /// Claims a free lane of a subfile of this host, or of a new one, outside of the subfiles `taken`.
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
                    // Without locks, writers that are alive cannot be detected.
                    Err(fault) if fault.errno == Errno::EOPNOTSUPP => break,
                    Err(fault) => return Err(fault),
                }
            }
            let next = numbers.last().map_or(FIRST_OF_HOSTS, |last| (last + 1).max(FIRST_OF_HOSTS));
            let made = match Subfile::create(fs, superblock, next, host) {
                Err(fault) if fault.errno == Errno::EEXIST => continue,
                made => made?,
            };
            // Another process of the host may have claimed its first lane already.
            if let Some(writer) = LaneWriter::claim(made, superblock, 0, false)? {
                return Ok(writer);
            }
        }
    }
}

/// The lane of a rank; `None` if another process holds it.
fn claim_of_rank(
    fs: &dyn SharedFs,
    superblock: Superblock,
    rank: u32,
    size: u32,
    needs_lock: bool,
) -> Result<Option<LaneWriter>> {
    let files = size.div_ceil(superblock.geometry.lanes);
    if rank >= size || files > FIRST_OF_HOSTS {
        let message = format!("rank {rank} of {size} does not fit into this container");
        return Err(Fault::new(Errno::EINVAL, message));
    }
    loop {
        let subfile = Subfile::open_or_create(fs, superblock, rank % files)?;
        let writer = LaneWriter::claim(subfile.clone(), superblock, rank / files, needs_lock)?;
        // Compaction may have removed the subfile meanwhile.
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

/// Claims the first lane of a subfile that no process holds.
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

/// Returns true if a writer may still add to a container: one that has neither finished nor is known to have failed.
pub(crate) fn may_grow(records: &Records) -> Result<bool> {
    let (fs, superblock) = (&**records.fs(), records.superblock());
    for number in Listing::of(fs)?.numbers {
        let lanes = records.subfile(number)?.lanes()?;
        if lanes.iter().all(|lane| !lane.is_open()) {
            continue;
        }
        // Locks can be tested on files open for writing only.
        let subfile = Subfile::open(fs, superblock, number, Access::Write)?;
        for (lane, state) in (0..).zip(subfile.lanes()?) {
            if subfile.may_grow(lane, state)? {
                return Ok(true);
            }
        }
    }
    Ok(false)
}
