//! The superblock: identity and geometry of a container, in the file [`NAME`] of its directory.
//!
//! ```text
//! TMKC | format u16 | 0 u16 | container u64 | block size u32 | lanes u32 | 0 u32 | crc32c of the 28 bytes before u32
//! ```
//!
//! Every subfile begins with the same bytes, with its number in place of the last 0. Numbers are little-endian.

mod recovery;

use super::geometry::Geometry;
use super::readme;
use std::sync::Arc;
use tameike_core::{Errno, Fault, Result};
use tameike_io::crc32c;
use tameike_io::shared::{Access, SharedFile, SharedFs};

/// Name of the file that makes a directory a container.
pub const NAME: &[u8] = b"container";
/// Name of that file while it is written.
pub const TEMPORARY_NAME: &[u8] = b"container.new";
/// Size of that file, in bytes.
pub const SIZE: usize = 32;

/// Minimum block size, in bytes.
pub const BLOCK_SIZE_MIN: u32 = 4 << 10;
/// Maximum block size, in bytes.
pub const BLOCK_SIZE_MAX: u32 = 64 << 20;
/// Maximum number of lanes of a subfile.
pub const LANES_MAX: u32 = 1 << 16;

const MAGIC: [u8; 4] = *b"TMKC";
const FORMAT: u16 = 1;

/// Identity and geometry of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Container number; unique.
    pub container: u64,
    /// Division of the subfiles.
    pub geometry: Geometry,
}

/// Permissions for a new file of a container, derived from those of another of its files.
fn mode_like(other: u16) -> u16 {
    other & 0o666 | 0o600
}

/// Creates a file of a container with the permissions of its file [`NAME`]. Fails with `EEXIST` if it exists.
pub(crate) fn create_like(fs: &dyn SharedFs, name: &[u8]) -> Result<Arc<dyn SharedFile>> {
    match fs.stat(NAME) {
        Ok(found) => fs.create(name, mode_like(found.mode)),
        Err(_) => fs.create_by_umask(name),
    }
}

/// Computes the checksum of a header.
pub(crate) fn sign(bytes: &mut [u8; SIZE]) {
    let sum = crc32c(&bytes[..28]);
    bytes[28..].copy_from_slice(&sum.to_le_bytes());
}

impl Superblock {
    /// Encodes the superblock for the file [`NAME`] (`subfile` 0), or for the beginning of a subfile.
    pub fn encode(&self, subfile: u32) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&FORMAT.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.container.to_le_bytes());
        let words = [self.geometry.block_size, self.geometry.lanes, subfile];
        for (word, to) in words.iter().zip(bytes[16..].chunks_exact_mut(4)) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        sign(&mut bytes);
        bytes
    }

    /// Decodes the superblock, and the number of the subfile.
    ///
    /// # Errors
    /// `EINVAL` if this is not a container, or one of a later format; `EIO` if it is damaged.
    pub fn decode(bytes: &[u8; SIZE]) -> Result<(Self, u32)> {
        let fault = |errno, why: String| Err(Fault::new(errno, why));
        let word = |at: usize| bytes[at..].first_chunk().copied().map_or(0, u32::from_le_bytes);
        if bytes[..4] != MAGIC {
            return fault(Errno::EINVAL, "this is no container".to_string());
        }
        let format = u16::from_le_bytes([bytes[4], bytes[5]]);
        if format != FORMAT {
            return fault(
                Errno::EINVAL,
                format!("this container has format {format}: use a later version of tameike"),
            );
        }
        if word(28) != crc32c(&bytes[..28]) {
            return fault(Errno::EIO, "the header is damaged: its checksum is wrong".to_string());
        }
        let container = bytes[8..].first_chunk().copied().map_or(0, u64::from_le_bytes);
        let superblock = Self { container, geometry: Geometry { block_size: word(16), lanes: word(20) } };
        superblock.check()?;
        Ok((superblock, word(24)))
    }

    /// Returns true if the file [`NAME`] exists and is valid.
    pub fn is_file_whole(fs: &dyn SharedFs) -> bool {
        Self::read_file(fs).is_ok()
    }

    fn read_file(fs: &dyn SharedFs) -> Result<Self> {
        let file = match fs.open(NAME, Access::Read) {
            Err(fault) if fault.errno == Errno::ENOENT => {
                return Err(Fault::new(Errno::EINVAL, "this is no container: it has no file `container`"));
            }
            file => file?,
        };
        let mut bytes = [0; SIZE];
        if file.read_at(&mut bytes, 0)? < SIZE {
            let why = "this is no container: its file `container` is too short. The process that created it may have failed: remove it";
            return Err(Fault::new(Errno::EINVAL, why));
        }
        Self::decode(&bytes).map(|(superblock, _)| superblock)
    }

    /// Creates a container in an empty directory, with permissions by the umask.
    ///
    /// # Errors
    /// `EEXIST` if the directory is a container, `EINVAL` if the geometry is invalid.
    pub fn create(&self, fs: &dyn SharedFs) -> Result<()> {
        self.create_with(fs, || fs.create_by_umask(NAME))
    }

    /// As [`Self::create`], accessible by the owner only.
    pub fn create_private(&self, fs: &dyn SharedFs) -> Result<()> {
        self.create_with(fs, || fs.create(NAME, 0o600))
    }

    fn create_with(
        &self,
        fs: &dyn SharedFs,
        create: impl FnOnce() -> Result<Arc<dyn SharedFile>>,
    ) -> Result<()> {
        self.check()?;
        let file = create()?;
        file.write_at(&self.encode(0), 0)?;
        file.sync()?;
        readme::put(fs, NAME);
        fs.sync_dir(b"")
    }

    fn check(&self) -> Result<()> {
        let Geometry { block_size, lanes } = self.geometry;
        let is_possible = block_size.is_power_of_two()
            && (BLOCK_SIZE_MIN..=BLOCK_SIZE_MAX).contains(&block_size)
            && (1..=LANES_MAX).contains(&lanes);
        match is_possible {
            true => Ok(()),
            false => Err(Fault::new(
                Errno::EINVAL,
                format!(
                    "invalid geometry of {block_size} bytes per block and {lanes} writers per subfile: a block has a power of two from \
                     4 KiB to 64 MiB, and a subfile has 1 to {LANES_MAX} writers"
                ),
            )),
        }
    }
}
