//! Creates, opens, reads and writes packed files. Calls with the number of a file that is not open fail with `ESTALE`.

use super::Store;
use crate::server::entries::identity_of;
use crate::server::open_files::OpenFile;
use crate::server::succession::{Succession, is_removed, removed_path};
use tameike_container::format::external::{ContentLocation, Identity};
use tameike_container::session::draft::{Draft, Reading};
use tameike_container::{Content, HandedOverBlock, IndexEntry, Node, check_path};
use tameike_core::attr::AttrChange;
use tameike_core::wire::pack::PackedStat;
use tameike_core::{Errno, FileKind, Result};
use tameike_io::os::process::wall;

/// A file to be created.
pub struct NewFile<'a> {
    pub path: &'a [u8],
    pub number: u64,
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
}

/// A file that was created. It is acknowledged once its entry is with the file system.
pub struct Created {
    pub stat: PackedStat,
    /// Its first entry.
    pub entry: IndexEntry,
}

impl Store {
    /// Creates a file that must not exist, and opens it. [`Self::end_create`] ends that, once the entry was written. Fails with `EEXIST` if
    /// it exists.
    pub fn begin_create(&mut self, file: &NewFile<'_>) -> Result<Created> {
        let NewFile { path, number, mode, uid, gid } = *file;
        check_path(path)?;
        if self.stat(path).is_ok() {
            return Err(Errno::EEXIST.into());
        }
        self.begin()?;
        let now = wall();
        let identity = Identity { number, ctime: now, location: ContentLocation::Internal };
        let node = Node::new(FileKind::File, mode & 0o7777, (uid, gid), now);
        let node = Node { target: identity.encode(), ..node };
        let entry = self.log.put(path, Some(node.clone()))?;
        let draft = Draft::of(path.to_vec(), node, Vec::new(), 0);
        let stat = self.files.insert(OpenFile::new(draft, identity, Some(entry.address)));
        self.log.begin_creation();
        Ok(Created { stat, entry })
    }

    /// Ends a creation, whose entry must be with the file system. If that fails, the file does not exist, unless another request has
    /// changed it meanwhile.
    pub fn end_create(&mut self, created: &Created) -> Result<()> {
        let Created { stat, entry } = created;
        self.log.end_creation();
        let Err(fault) = self.log.write_entry(entry.address) else { return Ok(()) };
        if self.log.entry(&entry.path).is_ok_and(|now| now.version == entry.version) {
            self.log.undo(&[(entry.clone(), None)]);
            self.forget_name(&entry.path);
        }
        self.drop_open(stat.number);
        Err(fault)
    }

    /// The address of the entry of the open file at a path, if the file system does not have it yet.
    pub fn unwritten(&self, path: &[u8]) -> Option<u64> {
        self.files.at(path)?.put_at().filter(|address| !self.log.has_written(*address))
    }

    /// Writes the entry at an address, with all entries before it.
    pub fn write_entry(&mut self, address: u64) -> Result<()> {
        self.log.write_entry(address)
    }

    /// Returns the write that covers the entry at an address, for the caller to do without the store.
    pub fn begin_write(&mut self, address: u64) -> Result<Option<HandedOverBlock>> {
        self.log.begin_write(address)
    }

    /// Opens a file.
    pub fn open_file(&mut self, path: &[u8]) -> Result<PackedStat> {
        if let Some(stat) = self.files.reopen(path) {
            return Ok(stat);
        }
        let entry = self.log.entry(path)?;
        let node = self.log.node_of(&entry)?;
        let identity = identity_of(&entry, &node);
        let Content::Extents(extents) = node.content.clone() else { return Err(Errno::EIO.into()) };
        let size = node.size;
        let draft = Draft::of(path.to_vec(), node, extents, size);
        Ok(self.files.insert(OpenFile::new(draft, identity, None)))
    }

    /// Opens a file that an earlier packer had open, whatever path it has now. It had this path. Fails with `ESTALE` if it is gone.
    pub fn reopen_file(&mut self, number: u64, path: &[u8]) -> Result<PackedStat> {
        if let Some(stat) = self.files.reopen_number(number) {
            return Ok(stat);
        }
        let is_it = |store: &mut Self, path: &[u8]| store.stat(path).is_ok_and(|stat| stat.number == number);
        let known = [path.to_vec(), removed_path(number)].into_iter().find(|path| is_it(self, path));
        let path = match known {
            Some(path) => path,
            // It was renamed.
            None => self.below(b"")?.into_iter().find(|path| is_it(self, path)).ok_or(Errno::ESTALE)?,
        };
        self.open_file(&path)
    }

    /// Ends one open of a file. If the last writes fail, the file stays open.
    pub fn close_file(&mut self, number: u64) -> Result<()> {
        if self.files.get(number)?.is_last_open() {
            self.publish(number)?;
            if let Some(address) = self.files.get(number)?.put_at() {
                self.log.write_entry(address)?;
            }
            let path = self.files.get(number)?.path().filter(|path| is_removed(path)).map(<[u8]>::to_vec);
            if let (Some(path), Succession::First) = (path, self.succession) {
                self.remove_name(&path)?;
            }
        }
        self.drop_open(number);
        Ok(())
    }

    fn drop_open(&mut self, number: u64) {
        if let Some(removed) = self.files.close(number) {
            self.drop_external(&removed);
        }
    }

    /// Whether any file is open.
    #[cfg(test)]
    pub fn has_open_files(&self) -> bool {
        !self.files.numbers().is_empty()
    }

    /// Attributes of an open file.
    pub fn stat_open(&mut self, number: u64) -> Result<PackedStat> {
        Ok(self.files.get(number)?.stat())
    }

    /// The path of an open file, unless it was removed.
    pub fn path_of(&mut self, number: u64) -> Result<Option<Vec<u8>>> {
        Ok(self.files.get(number)?.path().map(<[u8]>::to_vec))
    }

    /// Begins a read of the present content of an open file, which ends without the store.
    pub fn read(&mut self, number: u64, offset: u64, length: usize) -> Result<Reading> {
        self.files.get(number)?.begin_read(&mut self.log, offset, length)
    }

    /// Writes to an open file, at its end without an offset. The file system has the bytes once the file was published.
    pub fn write(&mut self, number: u64, bytes: &[u8], offset: Option<u64>) -> Result<()> {
        self.begin()?;
        let buffered = self.files.buffered();
        self.files.get(number)?.write(&mut self.log, bytes, offset, buffered)?;
        if self.files.get(number)?.path().is_some_and(is_removed) {
            // No home has the bytes, and a later packer needs them.
            self.publish(number)?;
            self.log.write_pending()?;
        }
        Ok(())
    }

    /// Sets the size of an open file. If that fails, nothing has changed.
    pub fn truncate(&mut self, number: u64, size: u64) -> Result<()> {
        if size > i64::MAX as u64 {
            return Err(Errno::EFBIG.into());
        }
        self.begin()?;
        self.publish(number)?;
        self.files.get(number)?.truncate(size);
        self.publish(number)?;
        self.log.write_pending()
    }

    /// Changes attributes of an open file. Returns the address of its last entry, for the caller to have written.
    pub fn change(&mut self, number: u64, change: &AttrChange) -> Result<Option<u64>> {
        if change.size.is_some() || change.layout.is_some() {
            return Err(Errno::EINVAL.into());
        }
        let AttrChange { mode, uid, gid, .. } = change;
        let is_external = self.files.get(number)?.location() != ContentLocation::Internal;
        if is_external && mode.is_none() && uid.is_none() && gid.is_none() {
            // The external file has the times.
            return self.check().map(|()| None);
        }
        self.begin()?;
        self.files.get(number)?.change(change);
        self.publish(number)?;
        Ok(self.files.get(number)?.put_at())
    }

    /// Puts an entry of the present state of an open file, where its last entry lacks that.
    pub(super) fn publish(&mut self, number: u64) -> Result<()> {
        if !self.files.get(number)?.is_unpublished() {
            return Ok(());
        }
        self.begin()?;
        self.files.get(number)?.publish(&mut self.log)
    }
}
