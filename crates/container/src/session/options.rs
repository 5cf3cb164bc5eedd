//! Options of a session: the identity of the process, and parameters of a new container.

use crate::format::superblock;
use crate::{Codec, Container, Geometry, Superblock, WriterId};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;
use tameike_core::{Errno, Fault, Result};
use tameike_io::os::mount::mounted_as;
use tameike_io::os::process::{ask_until, host_name, random_bytes};
use tameike_io::shared::SharedFs;

/// Default number of subfiles of a container for ranks.
pub const SUBFILES_MAX: u32 = 8;
/// Minimum block size that is chosen.
const BLOCK_SIZE_MIN: u64 = 4 << 20;
/// Minimum if blocks of several writers alternate in a file: each writer's data is then read in longer runs.
const BLOCK_SIZE_MIN_IN_TURN: u64 = 16 << 20;
/// Bytes of a file on one server of MooseFS, which does not report them as its block size.
const CHUNK_OF_MOOSEFS: u64 = 64 << 20;
/// Writers per subfile if their number is unknown.
const LANES_OF_HOST: u32 = 8;
/// With more ranks than this, only rank 0 checks whether all have ended.
const LOOKING_MAX: u32 = 1024;
/// How long a rank waits for rank 0 to create the container.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// The same if the rank was guessed, so that there may be no rank 0.
const GUESS_WAIT_MAX: Duration = Duration::from_secs(5);
const WAIT_STEP: Duration = Duration::from_millis(5);

/// Rank of a process in a parallel program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    /// Rank, from 0.
    pub rank: u32,
    /// Number of ranks.
    pub size: u32,
    /// It was read from the environment, which children of a rank inherit.
    pub is_guess: bool,
}

/// Environment variables with the rank and the number of ranks.
const OF_LAUNCHERS: [(&str, &str); 5] = [
    // Open MPI.
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    // MPICH, Intel MPI, and other launchers with PMI.
    ("PMI_RANK", "PMI_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    // PMIx launchers under Slurm; the number of ranks is Slurm's.
    ("PMIX_RANK", "SLURM_NTASKS"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
];

impl Rank {
    /// The rank that the launcher of a parallel program passes in environment variables, read by `variable`.
    pub fn guess(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let number = |name: &str| variable(name)?.parse::<u32>().ok();
        OF_LAUNCHERS.iter().find_map(|(rank, size)| {
            let (rank, size) = (number(rank)?, number(size)?);
            (rank < size).then_some(Self { rank, size, is_guess: true })
        })
    }
}

/// When a session refreshes the container, which takes requests to the file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Refresh {
    /// When a name is missing, and before a directory is listed or renamed.
    #[default]
    Automatic,
    /// Only in [`Session::refresh`](super::Session::refresh).
    OnRequest,
}

/// Permissions of a new container's files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Permissions {
    /// By the umask.
    #[default]
    ByUmask,
    /// Accessible by the owner only.
    Private,
}

/// Options of a session.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// Rank of the process; `None` if the number of processes is unknown.
    pub rank: Option<Rank>,
    /// Ranks begin and end together: each claims its lane at the open, and rank 0 ends last. It alone writes the index, and no rank checks
    /// for other writers.
    pub is_collective: bool,
    /// Create the container if it is missing.
    pub create: bool,
    /// Permissions of a new container.
    pub permissions: Permissions,
    /// Refuse changes.
    pub is_read_only: bool,
    /// When to read what other processes have added.
    pub refresh: Refresh,
    /// Block size of a new container in bytes, see [`Geometry::block_size`] and [`block_size_of`]; `None`: 4 MiB.
    pub block_size: Option<u32>,
    /// Subfiles of a new container for ranks; `None`: one per rank, up to [`SUBFILES_MAX`].
    pub subfiles: Option<u32>,
    /// Compression of new data.
    pub codec: Codec,
    /// Maximum number of additional subfiles for content, each written by its own thread; 0: content goes to the lane of the entries. Only
    /// without a rank.
    pub streams: usize,
    /// Permission bits that new files do not get.
    pub umask: u16,
    /// Owner of new files.
    pub uid: u32,
    /// Group of new files.
    pub gid: u32,
}

impl SessionOptions {
    /// Identity of this process as a writer.
    pub(super) fn writer(&self) -> WriterId {
        match self.rank {
            None => WriterId::Host(host_name()),
            Some(Rank { rank, size, is_guess: true }) => WriterId::Guess { rank, size, host: host_name() },
            Some(Rank { rank, size, is_guess: false }) => WriterId::Rank { rank, size },
        }
    }

    /// Opens the container, creates it, or waits until another process has.
    pub(super) fn make_or_wait(&self, fs: &dyn SharedFs) -> Result<Superblock> {
        let missing = match Superblock::read(fs) {
            Err(fault) if fault.errno == Errno::EINVAL && self.create => fault,
            found => return found,
        };
        let wait = match self.rank {
            Some(Rank { rank, is_guess, .. }) if rank > 0 => {
                Some(if is_guess { GUESS_WAIT_MAX } else { WAIT_MAX })
            }
            _ => None,
        };
        if let Some(wait) = wait {
            match wait_for(fs, wait, missing) {
                Err(_) if wait == GUESS_WAIT_MAX => {}
                waited => return waited,
            }
        }
        let superblock = self.superblock()?;
        let made = match self.permissions {
            Permissions::ByUmask => superblock.create(fs),
            Permissions::Private => superblock.create_private(fs),
        };
        match made {
            // Another process creates it.
            Err(fault) if fault.errno == Errno::EEXIST => wait_for(fs, GUESS_WAIT_MAX, fault),
            made => made.map(|()| superblock),
        }
    }

    fn superblock(&self) -> Result<Superblock> {
        let lanes = match self.rank {
            // A process with several subfiles fills each alone: without holes, which some file systems read.
            None if self.streams > 0 => 1,
            None => LANES_OF_HOST,
            Some(Rank { size, .. }) => {
                let subfiles = self.subfiles.unwrap_or(SUBFILES_MAX).clamp(1, size.max(1));
                size.div_ceil(subfiles)
            }
        };
        let geometry = Geometry { block_size: self.block_size.unwrap_or(BLOCK_SIZE_MIN as u32), lanes };
        Ok(Superblock { container: u64::from_le_bytes(random_bytes()?), geometry })
    }

    /// Returns true if all other writers have ended, so that this process writes the index.
    pub(super) fn may_be_last(&self, container: &Container) -> Result<bool> {
        match self.rank {
            Some(Rank { rank, size, .. }) if self.is_collective || size > LOOKING_MAX => Ok(rank == 0),
            // A collective open without ranks: this is the only process.
            None if self.is_collective => Ok(true),
            _ => Ok(!container.may_grow()?),
        }
    }
}

/// Waits until the container exists. `missing` is the error if it does not.
fn wait_for(fs: &dyn SharedFs, most: Duration, missing: Fault) -> Result<Superblock> {
    let mut last = missing;
    let found = ask_until(most, WAIT_STEP, || match Superblock::read(fs) {
        Ok(found) => Some(Ok(found)),
        Err(fault) if fault.errno == Errno::EINVAL => {
            last = fault;
            None
        }
        Err(fault) => Some(Err(fault)),
    });
    found.unwrap_or_else(|| {
        Err(Fault::new(
            last.errno,
            format!("{last}: no process created one within {} seconds", most.as_secs()),
        ))
    })
}

/// A suitable block size for the file system of a directory: its preferred I/O size, within bounds. `are_in_turn`: blocks of several
/// writers alternate in a file.
pub fn block_size_of(directory: &Path, are_in_turn: bool) -> u32 {
    let stripe = std::fs::metadata(directory).map_or(0, |metadata| metadata.blksize());
    let least = match are_in_turn {
        true if is_moosefs(mounted_as(directory)) => CHUNK_OF_MOOSEFS,
        true => BLOCK_SIZE_MIN_IN_TURN,
        false => BLOCK_SIZE_MIN,
    };
    let most = u64::from(superblock::BLOCK_SIZE_MAX);
    u32::try_from(stripe.next_power_of_two().clamp(least, most)).unwrap_or(superblock::BLOCK_SIZE_MAX)
}

/// Returns true for a mount of MooseFS, by its type or its source, depending on the version.
fn is_moosefs(mounted: Option<(String, OsString)>) -> bool {
    mounted.is_some_and(|(kind, source)| kind == "fuse.mfs" || source.as_bytes().starts_with(b"mfs#"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alternating_blocks_are_larger() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(block_size_of(dir.path(), false), 4 << 20);
        assert_eq!(block_size_of(dir.path(), true), 16 << 20);
    }

    #[test]
    fn moosefs_is_detected_by_its_mount() {
        let is = |kind: &str, source: &str| is_moosefs(Some((kind.to_owned(), source.into())));
        assert!(is("fuse", "mfs#master:9421") && is("fuse.mfs", "master:9421"));
        assert!(!is("fuse.glusterfs", "master:/volume") && !is_moosefs(None));
    }

    #[test]
    fn launchers_pass_ranks() {
        let of = |set: &'static [(&'static str, &'static str)]| {
            Rank::guess(|name| {
                set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_string())
            })
        };
        let rank = |rank, size| Some(Rank { rank, size, is_guess: true });
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[("OMPI_COMM_WORLD_RANK", "3"), ("OMPI_COMM_WORLD_SIZE", "8")]), rank(3, 8));
        assert_eq!(of(&[("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("SLURM_PROCID", "1")]), rank(0, 2));
        assert_eq!(of(&[("PMIX_RANK", "1"), ("SLURM_NTASKS", "4"), ("SLURM_PROCID", "0")]), rank(1, 4));
        assert_eq!(of(&[("SLURM_PROCID", "4"), ("SLURM_NTASKS", "4")]), None);
        assert_eq!(of(&[("SLURM_PROCID", "two"), ("SLURM_NTASKS", "4")]), None);
    }
}
