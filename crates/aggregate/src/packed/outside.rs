//! Files that grow too large to be packed: their content goes outside of the container, to a file of its own in the container's
//! directory, and is written and read there as that of any file. Name, owner and permissions stay with the entry for as long as the job
//! runs, and so does the number.

use super::files::{Open, identity_of};
use super::owed::Owed;
use super::packer::{ContainerDir, OpenContainer, Packer};
use super::store::Store;
use super::{CONTAINER, PackedTree};
use crate::session::draft::Draft;
use std::sync::{Arc, OnceLock};
use tameike_core::attr::{AttrChange, SetTime};
use tameike_core::wire::meta::RenameMode;
use tameike_core::wire::pack::{Changed, PACKED_BYTES_MAX, PackReply, PackRequest, PackedStat};
use tameike_core::{Errno, Fault, Result, Timestamp};
use tameike_io::shared::{SharedFile, SharedFs, anew, is_missing, join, split};
use tameike_store::container::outside::{self, Place};

/// Bytes that are copied between two syncs: nobody waits for one much longer than for them.
const SYNCED_SIZE: u64 = 256 << 20;
/// Beginning of the names of files that are being made beside their places.
pub(super) const ASIDE: &[u8] = b".tameike-moved-";

/// The directory of the container as a node has it that reads and writes content that is outside. It is opened once: who may rename files in the
/// shared directory can put another one under its name.
pub struct OutsideDir {
    open: OpenContainer,
    may_share: bool,
    opened: OnceLock<Arc<dyn SharedFs>>,
}

impl OutsideDir {
    /// The one that `open` opens; with `may_share` also one of another user.
    pub fn new(open: OpenContainer, may_share: bool) -> Self {
        Self { open, may_share, opened: OnceLock::new() }
    }

    /// Opens it, if that was not done yet.
    ///
    /// # Errors
    /// `EPERM` when other users control what is in it, and what the file system says.
    pub(super) fn get(&self, plain: &dyn SharedFs) -> Result<&dyn SharedFs> {
        if let Some(opened) = self.opened.get() {
            return Ok(&**opened);
        }
        plain.look_anew(CONTAINER);
        let ContainerDir { fs, why_not_own } = anew(plain, CONTAINER, || (self.open)())?;
        match why_not_own.filter(|_| !self.may_share) {
            Some(why) => Err(Fault::new(Errno::EPERM, why)),
            None => Ok(&**self.opened.get_or_init(|| fs)),
        }
    }
}

/// The file that has the content of a packed file, in the shared directory. Nothing is opened by this path, as the directory on the way may be
/// another one by now.
pub(super) fn outside_path(number: u64) -> Vec<u8> {
    join(CONTAINER, &outside::name(number))
}

/// Where a file is made that is about to have another place: beside its later one, as permissions and places on disks go by directories.
pub(super) fn aside_of(path: &[u8], number: u64) -> Result<Vec<u8>> {
    let (dir, _) = split(path).ok_or(Errno::EINVAL)?;
    Ok(join(dir, &[ASIDE, format!("{number:016x}").as_bytes()].concat()))
}

/// Removes what may not be there.
pub(super) fn remove(plain: &dyn SharedFs, path: &[u8]) -> Result<()> {
    match plain.unlink(path) {
        Err(fault) if !is_missing(fault.errno) => Err(fault),
        _ => Ok(()),
    }
}

/// Copies so many bytes, given by their offsets, to an empty file, which gets times of last access and change of content. The bytes are there,
/// and safe.
pub(super) fn copy(
    mut read: impl FnMut(u64) -> Result<Vec<u8>>,
    size: u64,
    (atime, mtime): (Timestamp, Timestamp),
    file: &dyn SharedFile,
) -> Result<()> {
    let times = [atime, mtime].map(|time| Some(SetTime::To(time)));
    let times = AttrChange { atime: times[0], mtime: times[1], ..AttrChange::default() };
    if size == 0 {
        return file.change(&times);
    }
    let pieces = || (0..size).step_by(PACKED_BYTES_MAX);
    for offset in pieces() {
        if offset > 0 && offset % SYNCED_SIZE == 0 {
            file.sync()?;
        }
        file.write_at(&read(offset)?, offset)?;
    }
    file.sync()?;
    file.forget_pages()?;
    let mut found = vec![0; PACKED_BYTES_MAX];
    for offset in pieces() {
        let bytes = read(offset)?;
        let count = file.read_at(&mut found, offset)?.min(bytes.len());
        if found[..count] != bytes[..] {
            return Err(Fault::io(format!("what was written of it reads back differently at byte {offset}")));
        }
    }
    file.change(&times)
}

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
            let _ = store.fs.unlink(&outside::name(number));
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
    let (aside, outside, name) = (aside_of(path, number)?, outside_path(number), outside::name(number));
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

/// Whether a path leads to a file that is open.
pub(super) fn is_at(plain: &dyn SharedFs, path: &[u8], file: &dyn SharedFile) -> Result<bool> {
    match plain.stat(path) {
        Ok(there) => Ok(there.inode_id() == file.stat()?.inode_id()),
        Err(fault) if is_missing(fault.errno) => Ok(false),
        Err(fault) => Err(fault),
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
    pub(super) fn set_place_of(&mut self, path: &[u8], place: Place) -> Result<()> {
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
    pub(super) fn end_owed(&mut self) -> Result<()> {
        self.owed.as_mut().map_or(Ok(()), Owed::clear)
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
            if let Err(fault) = remove(&*self.fs, &outside::name(number)) {
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

impl PackedTree {
    /// Changes attributes of what is packed at a path.
    pub(super) fn change_packed(&self, path: &[u8], change: &AttrChange) -> Result<()> {
        let Some(way) = &self.way else { return Err(Errno::ENOENT.into()) };
        match way.ask(PackRequest::Change { of: Changed::At(path.to_vec()), change: change.clone() })? {
            PackReply::Done => Ok(()),
            PackReply::Outside { file } => {
                let (container, name) = (self.container.get(&*self.plain)?, outside::name(file));
                anew(container, &name, || container.change(&name, &times_of(change)))
            }
            other => Err(super::way::out_of_turn(&other)),
        }
    }
}

/// What of a change is of times; these go with the content.
pub(super) fn times_of(change: &AttrChange) -> AttrChange {
    AttrChange { atime: change.atime, mtime: change.mtime, ..AttrChange::default() }
}
