//! Files of the container that somebody has open.

use super::packer::Packer;
use super::store::Store;
use tameike_container::format::external::{Identity, Place};
use tameike_container::session::Brief;
use tameike_container::session::draft::{Draft, Reading};
use tameike_container::{Content, IndexEntry, Node, Put};
use tameike_core::attr::{AttrChange, SetTime};
use tameike_core::wire::pack::{Changed, PackReply, PackedStat};
use tameike_core::{Errno, Fault, Result};
use tameike_io::os::process::wall;

/// Bytes that open files gather in memory.
const BUFFERED_MAX: usize = 32 << 20;

/// A file that somebody has open.
pub struct Open {
    pub draft: Draft,
    pub identity: Identity,
    pub opens: u64,
    /// Where the entry is that this job has put of it last.
    pub put_at: Option<u64>,
}

/// What an entry tells; of a file that was packed otherwise, a number made of its place.
pub fn identity_of(entry: &IndexEntry, node: &Node) -> Identity {
    let place = u64::from(entry.lane.subfile) << 52 ^ u64::from(entry.lane.lane) << 46 ^ entry.address;
    Identity::told(node).unwrap_or(Identity { number: place, ctime: node.mtime, place: Place::Inside })
}

/// Attributes of a file with so many bytes and names.
pub fn packed_stat(
    &Identity { number, ctime, place }: &Identity,
    node: &Node,
    size: u64,
    nlink: u32,
) -> PackedStat {
    let is_outside = place != Place::Inside;
    let &Node { mode, uid, gid, atime, mtime, .. } = node;
    PackedStat { number, mode, uid, gid, size, nlink, atime, mtime, ctime, is_outside }
}

impl Open {
    pub fn stat(&self) -> PackedStat {
        let nlink = u32::from(self.draft.path.is_some());
        packed_stat(&self.identity, &self.draft.node, self.draft.size, nlink)
    }

    /// Its content has changed.
    fn touch(&mut self) {
        self.identity.ctime = wall().max(self.identity.ctime);
        self.draft.node.mtime = self.identity.ctime;
    }
}

impl Packer {
    /// Changes attributes of a file: all but times of content that is outside.
    ///
    /// # Errors
    /// `ENOENT`, `ESTALE`, and what the file system says.
    pub(crate) fn change(&self, of: Changed, change: &AttrChange) -> Result<PackReply> {
        match of {
            Changed::Open(file) => self.change_open(file, change),
            Changed::At(path) => {
                let file = match &mut self.state.lock().store {
                    Some(store) => {
                        store.look_again()?;
                        store.open_file(&path)?.number
                    }
                    None => return Err(Errno::ENOENT.into()),
                };
                let changed = self.change_open(file, change);
                let closed = self.with_store(|store| store.close_file(file));
                closed.and(changed)
            }
        }
    }

    fn change_open(&self, file: u64, change: &AttrChange) -> Result<PackReply> {
        let (put_at, is_outside) =
            self.with_store(|store| Ok((store.change(file, change)?, store.look(file)?.is_outside)))?;
        if let Some(address) = put_at {
            self.write_with_others(address);
            self.with_store(|store| store.write_entry(address))?;
        }
        Ok(if is_outside { PackReply::Outside { file } } else { PackReply::Done })
    }
}

impl Store {
    /// Opens a file.
    ///
    /// # Errors
    /// `ENOENT`, `EIO` when what is there is damaged.
    pub fn open_file(&mut self, path: &[u8]) -> Result<PackedStat> {
        if let Some(number) = self.paths.get(path).copied()
            && let Some(open) = self.open.get_mut(&number)
        {
            open.opens += 1;
            return Ok(open.stat());
        }
        let entry = self.entry(path)?;
        let node = self.node_of(&entry)?;
        let identity = identity_of(&entry, &node);
        let number = identity.number;
        let Content::Extents(extents) = node.content.clone() else { return Err(Errno::EIO.into()) };
        let size = node.size;
        let draft = Draft::of(path.to_vec(), node, extents, size);
        let open = Open { draft, identity, opens: 1, put_at: None };
        let stat = open.stat();
        self.open.insert(number, open);
        self.paths.insert(path.to_vec(), number);
        Ok(stat)
    }

    /// Ends an open.
    ///
    /// # Errors
    /// What the file system says of what was written last; it is kept then.
    pub fn close_file(&mut self, number: u64) -> Result<()> {
        if self.opened(number)?.opens == 1 {
            self.publish(number)?;
            if let Some(address) = self.opened(number)?.put_at {
                self.write_entry(address)?;
            }
        }
        self.drop_open(number);
        Ok(())
    }

    /// There is an open less.
    pub(crate) fn drop_open(&mut self, number: u64) {
        match self.open.get_mut(&number) {
            Some(open) if open.opens > 1 => open.opens -= 1,
            _ => {
                let Some(open) = self.open.remove(&number) else { return };
                match &open.draft.path {
                    Some(path) => drop(self.paths.remove(path)),
                    None => self.drop_outside(&open.stat()),
                }
            }
        }
    }

    pub(crate) fn opened(&mut self, number: u64) -> Result<&mut Open> {
        let unknown =
            || Fault::new(Errno::ESTALE, "the packer knows of no such open file, as it was started again");
        self.open.get_mut(&number).ok_or_else(unknown)
    }

    /// Attributes of an open file.
    ///
    /// # Errors
    /// `ESTALE` when it is not open.
    pub fn look(&mut self, number: u64) -> Result<PackedStat> {
        Ok(self.opened(number)?.stat())
    }

    /// A read of an open file, as it is now; the store is not needed for it any more.
    ///
    /// # Errors
    /// `ESTALE` when it is not open, and what the file system says.
    pub fn read(&mut self, number: u64, offset: u64, length: usize) -> Result<Reading> {
        self.opened(number)?;
        let Self { container, writer, open, .. } = self;
        let Some(open) = open.get_mut(&number) else { return Err(Errno::ESTALE.into()) };
        open.draft.begin_read(container, writer.as_mut(), offset, length)
    }

    /// Writes to an open file, at its end without an offset. It is with the file system when it was published.
    ///
    /// # Errors
    /// `EFBIG` beyond the largest size, and what the file system says.
    pub fn write(&mut self, number: u64, bytes: &[u8], offset: Option<u64>) -> Result<()> {
        self.begin()?;
        self.opened(number)?;
        let buffered: usize = self.open.values().map(|open| open.draft.buffered()).sum();
        let (Some(writer), Some(open)) = (&mut self.writer, self.open.get_mut(&number)) else {
            return Err(Errno::EBADF.into());
        };
        let offset = offset.unwrap_or(open.draft.size);
        offset.checked_add(bytes.len() as u64).filter(|end| *end <= i64::MAX as u64).ok_or(Errno::EFBIG)?;
        open.draft.write(writer, bytes, offset)?;
        open.touch();
        if buffered + bytes.len() > BUFFERED_MAX { open.draft.flush(writer) } else { Ok(()) }
    }

    /// Sets the size of an open file.
    ///
    /// # Errors
    /// What the file system says; then nothing has changed.
    pub fn truncate(&mut self, number: u64, size: u64) -> Result<()> {
        if size > i64::MAX as u64 {
            return Err(Errno::EFBIG.into());
        }
        self.begin()?;
        self.publish(number)?;
        let open = self.opened(number)?;
        open.draft.truncate(size);
        open.touch();
        self.publish(number)?;
        self.write_pending()
    }

    /// Changes attributes of an open file. Where its last entry is, for this to be written.
    ///
    /// # Errors
    /// What the file system says.
    pub fn change(&mut self, number: u64, change: &AttrChange) -> Result<Option<u64>> {
        if change.size.is_some() || change.layout.is_some() {
            return Err(Errno::EINVAL.into());
        }
        let open = self.opened(number)?;
        let AttrChange { mode, uid, gid, .. } = change;
        if open.identity.place != Place::Inside && mode.is_none() && uid.is_none() && gid.is_none() {
            // The entry has nothing of it.
            return self.check().map(|()| None);
        }
        self.begin()?;
        let open = self.opened(number)?;
        let now = wall();
        let time = |set: SetTime| match set {
            SetTime::Now => now,
            SetTime::To(time) => time,
        };
        let node = &mut open.draft.node;
        node.mode = mode.map_or(node.mode, |mode| mode & 0o7777);
        node.uid = uid.unwrap_or(node.uid);
        node.gid = gid.unwrap_or(node.gid);
        node.atime = change.atime.map_or(node.atime, time);
        node.mtime = change.mtime.map_or(node.mtime, time);
        open.identity.ctime = now.max(open.identity.ctime);
        open.draft.is_changed = true;
        self.publish(number)?;
        Ok(self.opened(number)?.put_at)
    }

    /// Puts an entry of an open file as it is now.
    pub(crate) fn publish(&mut self, number: u64) -> Result<()> {
        let open = self.opened(number)?;
        let Some(path) = open.draft.path.clone().filter(|_| open.draft.is_changed) else { return Ok(()) };
        open.draft.node.target = open.identity.encode();
        self.begin()?;
        let version = self.next_version(&path)?;
        let (Some(writer), Some(open)) = (&mut self.writer, self.open.get_mut(&number)) else {
            return Err(Errno::EBADF.into());
        };
        let (node, content) = open.draft.entry(writer)?;
        let (brief, is_here) = (Brief::of(&node), node.content == Content::Here);
        let (mut put, Put { address, size }) = writer.put_entry(&path, version, Some(node), content)?;
        let lane = writer.lane();
        let entry = IndexEntry { path, version, lane, address, record_size: size, node: Some(brief) };
        let own = entry.own_extent(brief.size).filter(|_| is_here);
        open.draft.published(own);
        open.put_at = Some(entry.address);
        if let Some(node) = &put.node {
            self.know(&entry, node);
        }
        if let (Some(node), true) = (&mut put.node, is_here) {
            // Where it is noted its content is not.
            node.content = Content::Extents(own.into_iter().collect());
        }
        self.add_to_journal(&put, entry.address);
        self.container.add(entry);
        self.changes += 1;
        Ok(())
    }
}
