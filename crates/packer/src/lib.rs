//! Packed files of the cache view: small files of a shared directory, kept in one container of it.
//!
//! One agent of the job, the packer ([`Packer`]), writes the container. All agents, that one included, show the shared directory merged
//! with the packed files ([`PackedTree`]) and send the packer a [`PackRequest`] for every lookup and change of a packed file. The
//! shared file system thus only has to persist what one host writes. Client and server sides share the messages
//! (`tameike_core::wire::pack`), the [`external`] files and the definitions below, and nothing else.
//!
//! A packed file keeps its inode number until the job ends, whatever its name and size. A file of the shared directory hides a packed
//! file with the same path. Only regular files are packed, and only those that programs create in directories marked for packing.
#![forbid(unsafe_code)]

mod client;
mod external;
mod negative_lookups;
mod recent_lookups;
mod server;
#[cfg(test)]
mod tests;

pub use client::PackedTree;
pub use client::packer_client::PackerClient;
pub use client::storms::{STORM_FILES, STORM_SECONDS};
pub use external::{ContainerDir, ExternalDir, OpenContainer};
pub use server::{DEVICE_FILES, Packer, PackerParts, count_journaled, count_pending_promotions};

use std::time::Duration;
use tameike_core::attr::S_ISGID;
use tameike_core::wire::pack::{PackReply, PackRequest};
use tameike_core::{Errno, FileKind, Result};
use tameike_io::shared::{FileStat, SharedFs};

/// The container's directory, in the shared directory. The views hide it.
pub const CONTAINER: &[u8] = b".tameike-packed";
/// The extended attribute of a directory that says whether files created in it are packed.
pub const ATTRIBUTE: &[u8] = b"user.tameike.aggregate";
/// Bytes of file content in one request of the packer's own agent, at most.
const LOCAL_BYTES_MAX: usize = 1 << 20;
/// How long the packer answers from a snapshot of a shared directory.
const SNAPSHOT_LIFETIME: Duration = Duration::from_millis(50);

/// Serves requests for packed files; blocks.
pub trait PackHandler: Send + Sync {
    /// Serves one request.
    fn serve(&self, request: PackRequest) -> Result<PackReply>;
}

/// Owner and group of a file that a process with these ids creates in `dir`.
fn owner_of_new(dir: &FileStat, creator: (u32, u32)) -> (u32, u32) {
    (creator.0, if dir.mode & S_ISGID == 0 { creator.1 } else { dir.gid })
}

/// Turns `ENOENT` into `None`.
fn unless_missing<T>(found: Result<T>) -> Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(fault) if fault.errno == Errno::ENOENT => Ok(None),
        Err(fault) => Err(fault),
    }
}

/// Whether a path of the shared directory is a directory.
fn is_dir(plain: &dyn SharedFs, path: &[u8]) -> Result<bool> {
    Ok(unless_missing(plain.stat(path))?.is_some_and(|stat| stat.kind == FileKind::Directory))
}
