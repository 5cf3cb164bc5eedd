//! Moves the content of files that grow too large to external files, and removes those of files that are gone.

use super::open_files::Open;
use super::open_files::identity_of;
use super::packer::Packer;
use super::pending_promotions::PendingPromotions;
use super::store::Store;
use crate::external::{aside_of, copy, is_at, outside_path, remove};
use std::sync::Arc;
use tameike_container::format::external::{self, Place};
use tameike_container::session::draft::Draft;
use tameike_core::wire::meta::RenameMode;
use tameike_core::wire::pack::{PACKED_BYTES_MAX, PackedStat};
use tameike_core::{Errno, Result};
use tameike_io::shared::{SharedFile, SharedFs, is_missing};

impl Packer {
    /// Whether the content of an open file, that is about to change and to reach so far, is outside: it goes there before it is too large.
    pub(super) fn goes_outside(&self, store: &mut Store, file: u64, size: u64) -> Result<bool> {
        // What another job has is not changed.
        store.check()?;
        let PackedStat { size: now, is_outside, .. } = store.look(file)?;
        let Some(path) = store.opened(file)?.draft.path.clone() else { return Ok(is_outside) };
        if !is_outside && now.max(size) <= self.size_max() {
            return Ok(false);
        }
        store.owe(file)?;
        if !is_outside {
            self.move_outside(store, file, &path)?;
        } else if store.opened(file)?.identity.place == Place::Leaving {
            store.set_place(file, Place::Outside)?;
            store.write_pending()?;
        }
        Ok(true)
    }

    fn move_outside(&self, store: &mut Store, number: u64, path: &[u8]) -> Result<()> {
        let content = make_outside((self.plain(), &*store.fs), path, number)?;
        let PackedStat { size, atime, mtime, .. } = store.look(number)?;
        let read = |offset| store.read(number, offset, PACKED_BYTES_MAX)?.bytes();
        if let Err(fault) = copy(read, size, (atime, mtime), &*content) {
            // It is in the container as before.
            let _ = store.fs.unlink(&external::name(number));
            return Err(fault);
        }
        let open = store.opened(number)?;
        open.draft = Draft::new(path.to_vec(), open.draft.node.clone());
        store.has_new_outside = true;
        store.set_place(number, Place::Outside)?;
        store.write_pending()
    }
}

/// Makes the file that will have the content of what is at a path. Should the packer die in between, what it has left beside the path is removed
/// when that content goes outside again: it is in the stores of the job.
fn make_outside(
    (plain, container): (&dyn SharedFs, &dyn SharedFs),
    path: &[u8],
    number: u64,
) -> Result<Arc<dyn SharedFile>> {
    const MODE: u16 = 0o600;
    let (aside, outside, name) = (aside_of(path, number)?, outside_path(number), external::name(number));
    remove(container, &name)?;
    let made = remove(plain, &aside).and_then(|()| plain.create(&aside, MODE)).and_then(|file| {
        let renamed = plain.rename(&aside, &outside, RenameMode::Replace);
        if renamed.is_err() {
            let _ = plain.unlink(&aside);
        }
        renamed.map(|()| file)
    });
    match made {
        // Who may rename files there has put another one in its place, or another directory in that of the container.
        Ok(file) if !is_at(container, &name, &*file)? => {
            match container.unlink(&name) {
                // A directory goes back.
                Err(fault) if fault.errno == Errno::EISDIR => {
                    plain.rename(&outside, &aside, RenameMode::NoReplace)?;
                }
                Err(fault) if !is_missing(fault.errno) => return Err(fault),
                _ => {}
            }
            container.create(&name, MODE)
        }
        // Below the shared directory another file system begins, or a part with limits of its own; or nothing can be made there by now.
        Err(fault) if fault.errno == Errno::EXDEV || is_closed(fault.errno) => container.create(&name, MODE),
        made => made,
    }
}

/// Whether an error tells that a directory may not be written, or is not there.
fn is_closed(errno: Errno) -> bool {
    matches!(errno, Errno::EACCES | Errno::EPERM) || is_missing(errno)
}

/// Files whose content is outside, as far as their entries can be read.
pub(super) struct OutsideFiles {
    /// Their paths and attributes.
    pub(super) files: Vec<(Vec<u8>, PackedStat)>,
    /// There are no others.
    pub(super) are_all: bool,
}

impl Store {
    /// The content of an open file is elsewhere from now on.
    fn set_place(&mut self, number: u64, place: Place) -> Result<()> {
        let open = self.opened(number)?;
        open.identity.place = place;
        open.draft.is_changed = true;
        self.publish(number)
    }

    /// Content of a file is elsewhere; where it is in the container again, there is none.
    ///
    /// # Errors
    /// What the file system says.
    pub(crate) fn set_place_of(&mut self, path: &[u8], place: Place) -> Result<()> {
        let PackedStat { number, .. } = self.open_file(path)?;
        let set = self.set_place(number, place);
        self.close_file(number).and(set)
    }

    /// Where the content of a file is.
    ///
    /// # Errors
    /// `EIO` when its entry is damaged.
    pub(super) fn place_of(&self, path: &[u8]) -> Result<Place> {
        let entry = self.entry(path)?;
        Ok(identity_of(&entry, &self.container.node(&entry)?).place)
    }

    /// Files whose content is outside.
    ///
    /// # Errors
    /// `EIO` when the index is damaged.
    pub(super) fn outside(&mut self) -> Result<OutsideFiles> {
        let mut found = OutsideFiles { files: Vec::new(), are_all: self.container.damage().is_empty() };
        for path in self.below(b"")? {
            // Their entries have no content.
            if self.entry(&path)?.node.is_none_or(|node| node.size > 0) {
                continue;
            }
            match self.stat(&path) {
                Ok(stat) => found.files.extend(stat.is_outside.then_some((path, stat))),
                Err(fault) => {
                    log::warn!("{}: {fault}", String::from_utf8_lossy(&path));
                    found.are_all = false;
                }
            }
        }
        Ok(found)
    }

    /// It is this job that brings a file whose content is outside to its place.
    ///
    /// # Errors
    /// What the device says.
    pub(super) fn owe(&mut self, number: u64) -> Result<()> {
        self.owed.as_mut().map_or(Ok(()), |owed| owed.add(number))
    }

    /// Whether it is this job that brings a file whose content is outside to its place.
    pub(super) fn is_owed(&self, number: u64) -> bool {
        self.owed.as_ref().is_some_and(|owed| owed.has(number))
    }

    /// Nobody needs to know any more which files these are.
    ///
    /// # Errors
    /// What the device says.
    pub(crate) fn end_owed(&mut self) -> Result<()> {
        self.owed.as_mut().map_or(Ok(()), PendingPromotions::clear)
    }

    /// Of a file that is gone the content that is outside goes, too, once nobody has it open, and that it is gone is safe.
    pub(super) fn drop_outside(&mut self, gone: &PackedStat) {
        if gone.is_outside && !self.open.contains_key(&gone.number) {
            self.gone.push((self.changes, gone.number));
            self.remove_gone(self.safe);
        }
    }

    /// Removes content of files that were gone after so many changes.
    pub(super) fn remove_gone(&mut self, changes: u64) {
        for (_, number) in self.gone.extract_if(.., |(since, _)| *since <= changes) {
            if let Err(fault) = remove(&*self.fs, &external::name(number)) {
                log::warn!("content of a file that was removed stays in the container's directory: {fault}");
            }
        }
    }

    /// Content of files that are gone, and that somebody has open at the end.
    pub(super) fn drop_nameless(&mut self) {
        let nameless = self.open.values().filter(|open| open.draft.path.is_none()).map(Open::stat);
        self.gone.extend(nameless.filter(|stat| stat.is_outside).map(|stat| (0, stat.number)));
    }
}
