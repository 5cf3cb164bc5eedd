//! Lives of packers that did not end well, as a later one finds what they have left.

use tameike_core::Result;
use tameike_io::shared::{Access, SharedFs};
use tameike_store::container::Superblock;
use tameike_store::container::subfile::{self, Subfile};

/// What lives of packers that did not end well have left in memory of this machine goes to the file system, or is not there: after a
/// failed fsync memory has what the disk lacks, and an index that tells of that would hide what the disk has. Whether there was such a
/// life.
///
/// # Errors
/// What the file system says, but for an fsync that fails: what is lost by that is not read.
pub fn settle(fs: &dyn SharedFs) -> Result<bool> {
    let superblock = Superblock::read(fs)?;
    let mut was_cut_off = false;
    for number in subfile::numbers(fs)? {
        let subfile = Subfile::open(fs, superblock, number, Access::Write)?;
        if subfile.lanes()?.iter().any(|lane| lane.life != 0 && !lane.is_finished) {
            was_cut_off = true;
            if let Err(fault) = subfile.file().sync() {
                log::warn!(
                    "what was packed by a job that was cut off is believed where it can be read: {fault}"
                );
            }
            subfile.file().forget_pages()?;
        }
    }
    Ok(was_cut_off)
}
