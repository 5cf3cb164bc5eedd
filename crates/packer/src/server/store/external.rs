//! Moves the content of packed files between the container and external files.

use super::Store;
use crate::external::copy;
use crate::server::entries::identity_of;
use tameike_container::format::external::{self, ContentLocation};
use tameike_core::Result;
use tameike_core::wire::pack::{PACKED_BYTES_MAX, PackedStat};
use tameike_io::shared::SharedFile;

/// The files with external content whose entries can be read.
pub struct ExternalFiles {
    /// Their paths and attributes.
    pub files: Vec<(Vec<u8>, PackedStat)>,
    /// There are no others.
    pub are_all: bool,
}

impl Store {
    /// Moves the content of an open file to an external file, which is empty. If the copy fails, the external file is removed, and the
    /// content stays in the container.
    pub fn move_to_external(&mut self, number: u64, content: &dyn SharedFile) -> Result<()> {
        let PackedStat { size, atime, mtime, .. } = self.stat_open(number)?;
        let read = |offset| self.read(number, offset, PACKED_BYTES_MAX)?.bytes();
        if let Err(fault) = copy(read, size, (atime, mtime), content) {
            let _ = self.external.dir.unlink(&external::name(number));
            return Err(fault);
        }
        self.files.get(number)?.drop_content();
        self.external.has_new_files = true;
        self.set_location(number, ContentLocation::External)?;
        self.log.write_pending()
    }

    /// Keeps the content of an open file external where its promotion was begun.
    pub fn cancel_promotion(&mut self, number: u64) -> Result<()> {
        if self.files.get(number)?.location() != ContentLocation::Promotable {
            return Ok(());
        }
        self.set_location(number, ContentLocation::External)?;
        self.log.write_pending()
    }

    fn set_location(&mut self, number: u64, location: ContentLocation) -> Result<()> {
        self.files.get(number)?.set_location(location);
        self.publish(number)
    }

    /// Records where the content of the file at a path is. Content that is moved back to the container is empty.
    pub fn set_location_of(&mut self, path: &[u8], location: ContentLocation) -> Result<()> {
        let PackedStat { number, .. } = self.open_file(path)?;
        let set = self.set_location(number, location);
        self.close_file(number).and(set)
    }

    /// Where the content of a file is.
    pub fn location_of(&self, path: &[u8]) -> Result<ContentLocation> {
        let entry = self.log.entry(path)?;
        Ok(identity_of(&entry, &self.log.container().node(&entry)?).location)
    }

    /// The files whose content is external.
    pub fn external_files(&mut self) -> Result<ExternalFiles> {
        let mut found =
            ExternalFiles { files: Vec::new(), are_all: self.log.container().damage().is_empty() };
        for path in self.below(b"")? {
            // Their entries have no content.
            if self.log.entry(&path)?.node.is_none_or(|node| node.size > 0) {
                continue;
            }
            match self.stat(&path) {
                Ok(stat) => found.files.extend(stat.is_external.then_some((path, stat))),
                Err(fault) => {
                    log::warn!("{}: {fault}", String::from_utf8_lossy(&path));
                    found.are_all = false;
                }
            }
        }
        Ok(found)
    }

    /// Removes the external content of a file that was removed, once that is durable and the file is not open.
    pub(super) fn drop_external(&mut self, removed: &PackedStat) {
        if removed.is_external && !self.files.is_open(removed.number) {
            self.external.schedule_removal(removed.number, self.log.changes());
            self.external.remove_until(self.log.durable_changes());
        }
    }

    /// Schedules the removal of external content of removed files that are still open at the end.
    pub(super) fn drop_nameless(&mut self) {
        for removed in self.files.nameless().filter(|stat| stat.is_external) {
            self.external.schedule_removal(removed.number, 0);
        }
    }
}
