//! Who a process is among those that share a container, and how one is made.

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

/// Files of a container, unless somebody asks for others.
pub const SUBFILES_MAX: u32 = 8;
/// Smaller blocks are not chosen.
const BLOCK_SIZE_MIN: u64 = 4 << 20;
/// The same where blocks of several writers lie in one file in turn: what one has written is read on in long pieces then.
const BLOCK_SIZE_MIN_IN_TURN: u64 = 16 << 20;
/// Bytes of a file that lie on one server of MooseFS, which does not tell them as its best size.
const CHUNK_OF_MOOSEFS: u64 = 64 << 20;
/// Writers that share a file, where nobody knows how many there will be.
const LANES_OF_HOST: u32 = 8;
/// Of more writers only the first one looks whether all have ended.
const LOOKING_MAX: u32 = 1024;
/// How long a rank waits for the first one to make the container.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// The same where it is not certain that there is a first one.
const GUESS_WAIT_MAX: Duration = Duration::from_secs(5);
const WAIT_STEP: Duration = Duration::from_millis(5);

/// Which of several processes one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    /// From 0 on.
    pub rank: u32,
    /// How many there are.
    pub size: u32,
    /// It was found in the environment, which children of a rank have, too.
    pub is_guess: bool,
}

/// Environment variables that tell a process its rank and how many there are.
const OF_LAUNCHERS: [(&str, &str); 5] = [
    // Open MPI.
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    // MPICH, Intel MPI, and what else speaks PMI.
    ("PMI_RANK", "PMI_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    // A launcher by PMIx under Slurm; the number of processes is Slurm's.
    ("PMIX_RANK", "SLURM_NTASKS"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
];

impl Rank {
    /// The rank that the launcher of a parallel program has told this process, by `variable`.
    pub fn guess(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let number = |name: &str| variable(name)?.parse::<u32>().ok();
        OF_LAUNCHERS.iter().find_map(|(rank, size)| {
            let (rank, size) = (number(rank)?, number(size)?);
            (rank < size).then_some(Self { rank, size, is_guess: true })
        })
    }
}

/// When a session looks for what others have added. That asks the file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LookAgain {
    /// Whenever a name is missed, and before a directory is listed or gets another name.
    #[default]
    Always,
    /// When it is asked to, by [`Session::refresh`](super::Session::refresh).
    Asked,
}

/// Who may read the files of a container that is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Openness {
    /// Whom the umask lets.
    #[default]
    ByUmask,
    /// Its owner.
    Private,
}

/// How a process takes part in a container.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// Which of several processes it is; nothing where it is one of any number.
    pub rank: Option<Rank>,
    /// Ranks begin and end together: each has its lane from the beginning on, and the first one ends when all others have. It alone writes
    /// the index, and nobody needs to look who is left.
    pub is_collective: bool,
    /// Whether a container is made where there is none.
    pub create: bool,
    /// Who may read one that is made.
    pub openness: Openness,
    /// Nothing is changed.
    pub is_read_only: bool,
    /// When it looks for what others have added.
    pub look_again: LookAgain,
    /// Bytes of a block of one that is made, see [`Geometry::block_size`] and [`block_size_of`]; nothing, as where others make it: 4 MiB.
    pub block_size: Option<u32>,
    /// Files of one that is made, for ranks; nothing: as many as there are ranks, up to [`SUBFILES_MAX`].
    pub subfiles: Option<u32>,
    /// What makes data smaller that this process writes.
    pub codec: Codec,
    /// Files at most that content goes to at the same time, beside that of the entries, by threads of their own; 0: to none but that. Only where this
    /// process is one of any number.
    pub streams: usize,
    /// Permission bits that new files do not get.
    pub umask: u16,
    /// Owner of new files.
    pub uid: u32,
    /// Group of new files.
    pub gid: u32,
}

impl SessionOptions {
    /// Who this process is as a writer.
    pub(super) fn writer(&self) -> WriterId {
        match self.rank {
            None => WriterId::Host(host_name()),
            Some(Rank { rank, size, is_guess: true }) => WriterId::Guess { rank, size, host: host_name() },
            Some(Rank { rank, size, is_guess: false }) => WriterId::Rank { rank, size },
        }
    }

    /// Finds the container, makes it, or waits until somebody has.
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
        let made = match self.openness {
            Openness::ByUmask => superblock.create(fs),
            Openness::Private => superblock.create_private(fs),
        };
        match made {
            // Another one is at it.
            Err(fault) if fault.errno == Errno::EEXIST => wait_for(fs, GUESS_WAIT_MAX, fault),
            made => made.map(|()| superblock),
        }
    }

    fn superblock(&self) -> Result<Superblock> {
        let lanes = match self.rank {
            // A process that has several files fills them alone: they have no holes, which some file systems read.
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

    /// Whether all others have ended, so that this process is the one to write the index.
    pub(super) fn may_be_last(&self, container: &Container) -> Result<bool> {
        match self.rank {
            Some(Rank { rank, size, .. }) if self.is_collective || size > LOOKING_MAX => Ok(rank == 0),
            // It began alone, and ends alone.
            None if self.is_collective => Ok(true),
            _ => Ok(!container.may_grow()?),
        }
    }
}

/// Waits until there is a container. `missing` tells what is if there is none in time.
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
        Err(Fault::new(last.errno, format!("{last}: nobody has made one in {} seconds", most.as_secs())))
    })
}

/// Bytes of a block that suit the file system of a directory: what it calls best, within bounds; and whether several writers' blocks lie in one file
/// in turn.
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

/// Whether that is a mount of MooseFS, by its type and source, of which different versions tell one or the other.
fn is_moosefs(mounted: Option<(String, OsString)>) -> bool {
    mounted.is_some_and(|(kind, source)| kind == "fuse.mfs" || source.as_bytes().starts_with(b"mfs#"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_in_turn_are_longer() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(block_size_of(dir.path(), false), 4 << 20);
        assert_eq!(block_size_of(dir.path(), true), 16 << 20);
    }

    #[test]
    fn moosefs_is_known_by_its_mount() {
        let is = |kind: &str, source: &str| is_moosefs(Some((kind.to_owned(), source.into())));
        assert!(is("fuse", "mfs#master:9421") && is("fuse.mfs", "master:9421"));
        assert!(!is("fuse.glusterfs", "master:/volume") && !is_moosefs(None));
    }

    #[test]
    fn launchers_tell_a_rank() {
        let of = |told: &'static [(&'static str, &'static str)]| {
            Rank::guess(|name| {
                told.iter().find(|(told, _)| *told == name).map(|(_, value)| (*value).to_string())
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
