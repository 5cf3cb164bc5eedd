//! Recovery of a superblock whose file is lost or damaged: each subfile has a copy.

use super::{NAME, SIZE, Superblock, TEMPORARY_NAME, mode_like};
use crate::format::listing::Listing;
use crate::format::subfile;
use tameike_core::wire::meta::RenameMode;
use tameike_core::{Errno, Result};
use tameike_io::shared::{Access, SharedFs};

impl Superblock {
    /// Reads the superblock of a container's directory: from the file [`NAME`], or from the subfiles if that file is lost or damaged.
    ///
    /// # Errors
    /// `EINVAL` if the directory is not a container, and as [`Self::decode`].
    pub fn read(fs: &dyn SharedFs) -> Result<Self> {
        match Self::read_file(fs) {
            Err(fault) if matches!(fault.errno, Errno::EINVAL | Errno::EIO) => {
                Self::of_subfiles(fs).ok_or(fault)
            }
            read => read,
        }
    }

    /// The superblock in the subfiles; `None` if there are no subfiles, or if two of them disagree.
    fn of_subfiles(fs: &dyn SharedFs) -> Option<Self> {
        let mut found = None;
        for number in Listing::of(fs).ok()?.numbers {
            let mut bytes = [0; SIZE];
            let file = fs.open(&subfile::name(number), Access::Read).ok()?;
            if file.read_at(&mut bytes, 0).ok()? < SIZE {
                continue;
            }
            let Ok((superblock, named)) = Self::decode(&bytes) else { continue };
            if named != number || found.is_some_and(|found| found != superblock) {
                return None;
            }
            found = Some(superblock);
        }
        found
    }

    /// Rewrites the file [`NAME`] if it is lost or damaged.
    pub fn restore(&self, fs: &dyn SharedFs) -> Result<()> {
        // A process that crashed may have left it.
        match fs.unlink(TEMPORARY_NAME) {
            Err(fault) if fault.errno != Errno::ENOENT => return Err(fault),
            _ => {}
        }
        if Self::is_file_whole(fs) {
            return Ok(());
        }
        // The permissions of a subfile, which has the same content.
        let file = match Listing::of(fs)?.numbers.first().map(|first| fs.stat(&subfile::name(*first))) {
            Some(Ok(first)) => fs.create(TEMPORARY_NAME, mode_like(first.mode))?,
            _ => fs.create_by_umask(TEMPORARY_NAME)?,
        };
        file.write_at(&self.encode(0), 0)?;
        file.sync()?;
        fs.rename(TEMPORARY_NAME, NAME, RenameMode::Replace)?;
        fs.sync_dir(b"")
    }
}
