//! Files on their way from the tree to the container.

use super::lookup::find;
use super::tree::{Found, Mark, told};
use super::{Names, Packer};
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tameike_container::session::{OpenFile, OpenFlags, Session, Xattr};
use tameike_container::tree::content::{Input, LocalInput, next_range};
use tameike_container::{Brief, split_path};
use tameike_core::attr::{AttrChange, SetTime};
use tameike_core::spool::stub::Stub;
use tameike_core::{Errno, Fault, FileKind, Result, Timestamp};
use tameike_io::os::lease::{self, Lease};
use tameike_io::os::process::{monotonic, wall};
use tameike_io::shared::join;

/// What was changed just now will be changed again: owner, mode and times follow.
const AGE: Duration = Duration::from_millis(50);
/// Files that are packed before all of them are written and leave the tree.
const BATCH_FILES_MAX: usize = 256;
const BATCH_BYTES_MAX: u64 = 32 << 20;
/// Bytes of a file for whose memory a stub is not worth its making, where all of the tree goes in a moment.
const STAYS_MAX: u64 = 4 << 10;
/// Bytes that are read at once.
const PIECE_SIZE: usize = 1 << 20;

/// What is known of the tree's directories.
#[derive(Default)]
pub struct Seen(HashMap<Vec<u8>, SeenDir>);

impl Seen {
    /// A directory is looked at again.
    pub fn forget(&mut self, dir: &[u8]) {
        self.0.remove(dir);
    }
}

struct SeenDir {
    /// Last change of what is in it, by the packer, too.
    ctime: Timestamp,
    /// Something in it is not packed yet.
    is_pending: bool,
    dirs: Vec<Vec<u8>>,
}

/// What is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// What nobody is about to change.
    Idle,
    /// All, also what somebody has open for writing, as it is now.
    All,
    /// The same of a tree that nobody else sees: it goes when all is packed.
    Last,
}

/// Files on their way.
pub struct Batch<'a> {
    packer: &'a Packer,
    pass: Pass,
    is_full: bool,
    files: Vec<Leaving>,
    bytes: u64,
    /// Small files that are written in the last pass, and stay in the tree until it goes.
    staying: Vec<(Vec<u8>, Mark)>,
    /// Where content is on its way.
    piece: Vec<u8>,
    /// Files that have a record.
    pub packed: u64,
    /// Time that putting and writing has taken.
    pub packing: Duration,
    /// What could not be packed.
    pub faults: Vec<Fault>,
}

/// A file that has a record, and leaves the tree when that is written.
struct Leaving {
    path: Vec<u8>,
    /// Holds the lease.
    file: File,
    mark: Mark,
    /// Its content was put this time, not before.
    is_put: bool,
}

impl<'a> Batch<'a> {
    /// No files yet.
    pub fn new(packer: &'a Packer, pass: Pass, is_full: bool) -> Self {
        Self {
            packer,
            pass,
            is_full,
            files: Vec::new(),
            bytes: 0,
            staying: Vec::new(),
            piece: Vec::new(),
            packed: 0,
            packing: Duration::ZERO,
            faults: Vec::new(),
        }
    }

    pub fn note(&mut self, path: &[u8], fault: Fault) {
        if fault.errno == Errno::ENOENT {
            // It has gone meanwhile.
            return;
        }
        let name = String::from_utf8_lossy(path);
        self.faults.push(if path.is_empty() { fault } else { fault.context(name) });
    }

    /// Packs what a directory has. The directories in it.
    pub fn pack_dir(&mut self, seen: &mut Seen, dir: &[u8]) -> Result<Vec<Vec<u8>>> {
        let real = self.packer.shared.tree.real(dir);
        let found = std::fs::symlink_metadata(&real).map_err(|error| told(&error))?;
        let ctime = Mark::of(&found).ctime;
        if let Some(known) = seen.0.get(dir)
            && self.pass == Pass::Idle
            && !self.is_full
            && known.ctime == ctime
            && !known.is_pending
        {
            return Ok(known.dirs.clone());
        }
        let (mut dirs, mut is_pending) = (Vec::new(), is_recent(ctime));
        for (name, kind) in self.packer.shared.tree.names(dir)? {
            let path = join(dir, &name);
            let done = match kind {
                FileKind::Directory => {
                    let done = self.record_dir(&path);
                    dirs.push(path.clone());
                    done
                }
                FileKind::Symlink => self.record_link(&path),
                FileKind::File => {
                    is_pending |= !self.add(&path);
                    Ok(())
                }
                // Pipes and sockets have nothing that could be kept.
                _ => Ok(()),
            };
            if let Err(fault) = done {
                is_pending = true;
                self.note(&path, fault);
            }
        }
        seen.0.insert(dir.to_vec(), SeenDir { ctime, is_pending, dirs: dirs.clone() });
        Ok(dirs)
    }

    /// Has a directory be in the container; when all ends, with the attributes that it has then.
    fn record_dir(&self, path: &[u8]) -> Result<()> {
        let session = &self.packer.session;
        let known = find(session, path)?;
        if known.is_some_and(|known| known.kind == FileKind::Directory) && self.pass == Pass::Idle {
            return Ok(());
        }
        let found =
            std::fs::symlink_metadata(self.packer.shared.tree.real(path)).map_err(|error| told(&error))?;
        let mark = Mark::of(&found);
        match known {
            Some(Brief { kind: FileKind::Directory, mode, uid, gid, mtime, .. }) => {
                if (mode, uid, gid, mtime) == (mark.mode, mark.uid, mark.gid, mark.mtime) {
                    return self.record_xattrs(path);
                }
            }
            Some(_) => {
                session.unlink(path)?;
                session.make_dir(path, mark.mode)?;
            }
            None => session.make_dir(path, mark.mode)?,
        }
        session.set_attributes(path, &mark.attributes())?;
        self.record_xattrs(path)
    }

    /// Has extended attributes of a directory be in the container.
    fn record_xattrs(&self, path: &[u8]) -> Result<()> {
        let Packer { shared, session, .. } = self.packer;
        let xattrs = shared.tree.xattrs(path)?;
        if session.xattrs(path)? == xattrs { Ok(()) } else { session.set_xattrs(path, xattrs) }
    }

    /// Has a symbolic link of a program's be in the container.
    fn record_link(&self, path: &[u8]) -> Result<()> {
        let Packer { shared, session, .. } = self.packer;
        let target = match shared.tree.link(path) {
            // Something else has taken the name since. It is met in the next round.
            Err(fault) if fault.errno == Errno::EINVAL => return Ok(()),
            target => target?,
        };
        if Stub::parse(&target).is_some() {
            return Ok(());
        }
        let found = std::fs::symlink_metadata(shared.tree.real(path)).map_err(|error| told(&error))?;
        if !found.is_symlink() {
            return Ok(());
        }
        let mark = Mark::of(&found);
        match find(session, path)? {
            Some(known) if known.kind == FileKind::Symlink && session.read_link(path)? == target => {
                let is_same = (known.uid, known.gid, known.mtime) == (mark.uid, mark.gid, mark.mtime);
                return if is_same { Ok(()) } else { session.set_attributes(path, &mark.link_attributes()) };
            }
            Some(known) if known.kind == FileKind::Directory => session.remove_dir(path)?,
            Some(_) => session.unlink(path)?,
            None => {}
        }
        session.make_symlink(path, &target)?;
        session.set_attributes(path, &mark.link_attributes())
    }

    /// Packs a file, unless it is in use. Whether it is done with.
    pub fn add(&mut self, path: &[u8]) -> bool {
        match self.pack(path) {
            Ok(is_done) => {
                if self.files.len() >= BATCH_FILES_MAX || self.bytes >= BATCH_BYTES_MAX {
                    self.flush();
                }
                is_done
            }
            Err(fault) => {
                self.note(path, fault);
                false
            }
        }
    }

    fn pack(&mut self, path: &[u8]) -> Result<bool> {
        let packer = self.packer;
        let found = std::fs::symlink_metadata(packer.shared.tree.real(path)).map_err(|error| told(&error))?;
        // Before it is opened: that may change what its bits forbid for a moment, and with it this time.
        if self.pass == Pass::Idle && !self.is_full && is_recent(Mark::of(&found).ctime) {
            return Ok(false);
        }
        let (file, xattrs) = packer.shared.tree.open(path).map_err(|error| told(&error))?;
        let mark = Mark::of(&file.metadata().map_err(|error| told(&error))?);
        let has_lease = matches!(lease::take(file.as_fd()), Ok(Lease::Taken));
        if !has_lease && self.pass == Pass::Idle {
            return Ok(false);
        }
        let is_clean = has_lease && packer.names.lock().clean.has(path, &mark);
        if is_clean && !self.is_full {
            return Ok(true);
        }
        if !is_clean {
            let begin = monotonic();
            let is_put = self.put(path, &file, xattrs, &mark)?;
            self.packing += monotonic() - begin;
            if !is_put {
                return Ok(false);
            }
        }
        self.bytes += mark.size;
        self.packed += 1;
        self.files.push(Leaving { path: path.to_vec(), file, mark, is_put: !is_clean });
        Ok(has_lease)
    }

    /// Puts content and attributes. Not where another file has taken the name meanwhile.
    fn put(&mut self, path: &[u8], file: &File, xattrs: Option<Vec<Xattr>>, mark: &Mark) -> Result<bool> {
        let (session, shared) = (&self.packer.session, &self.packer.shared);
        // From then on the name of what is put follows when that of the file changes.
        let open = {
            let _names = self.packer.names.lock();
            if shared.tree.look(path)? != Some(Found::File(*mark)) {
                return Ok(false);
            }
            match find(session, path)? {
                Some(known) if known.kind == FileKind::Directory => session.remove_dir(path)?,
                Some(known) if known.kind != FileKind::File => session.unlink(path)?,
                _ => {}
            }
            let flags = OpenFlags { write: true, create: true, truncate: true, exclusive: false };
            session.open_file(path, flags, mark.mode)?
        };
        put_content(session, &open, file, &mut self.piece)?;
        let atime = Some(SetTime::To(mark.mtime));
        session.set_file_attributes(&open, &AttrChange { atime, ..mark.attributes() })?;
        let has_name = xattrs
            .map_or_else(|| super::tree::xattrs(file), Ok)
            .map_err(|error| told(&error))
            .and_then(|xattrs| self.tell_xattrs(path, xattrs, mark));
        session.close(open)?;
        has_name
    }

    /// Gives extended attributes to what is being put, unless another file has taken its name meanwhile: whether it has the name.
    fn tell_xattrs(&self, path: &[u8], xattrs: Vec<Xattr>, mark: &Mark) -> Result<bool> {
        let Packer { shared, session, names, .. } = self.packer;
        let _names = names.lock();
        let has_name = matches!(shared.tree.look(path)?, Some(Found::File(now)) if now.inode == mark.inode);
        if has_name && session.xattrs(path)? != xattrs {
            session.set_xattrs(path, xattrs)?;
        }
        Ok(has_name)
    }

    /// What has a record is written, and leaves the tree where nobody has changed it since.
    pub fn flush(&mut self) {
        let (files, packer, begin) = (std::mem::take(&mut self.files), self.packer, monotonic());
        self.bytes = 0;
        if let Err(fault) = packer.session.write_out() {
            self.note(b"", fault);
            return;
        }
        for Leaving { mark, .. } in files.iter().filter(|file| file.is_put) {
            packer.files.fetch_add(1, Ordering::Relaxed);
            packer.bytes.fetch_add(mark.size, Ordering::Relaxed);
        }
        packer.session.start_write_back();
        let stays = |file: &Leaving| self.pass == Pass::Last && file.mark.size <= STAYS_MAX;
        let (staying, leaving): (Vec<_>, Vec<_>) = files.into_iter().partition(stays);
        self.leave(leaving);
        self.staying.extend(staying.into_iter().map(|Leaving { path, mark, .. }| (path, mark)));
        self.packing += monotonic() - begin;
    }

    /// If something has failed, the tree does not go after the last pass: the next packer has the rest to pack, and not what is written.
    pub fn end(&mut self) {
        self.flush();
        let tree = &self.packer.shared.tree;
        for (path, mark) in std::mem::take(&mut self.staying) {
            if !self.faults.is_empty() && tree.look(&path) == Ok(Some(Found::File(mark))) {
                self.put_stub(&path, &mark);
            }
        }
    }

    /// A stub takes the name of a file. What stays will be packed again.
    fn put_stub(&self, path: &[u8], mark: &Mark) {
        let tree = &self.packer.shared.tree;
        let _ = tree.keeping_time(split_path(path).0, || tree.put_stub(path, &mark.stub()));
    }

    /// Files that are written leave the tree, one after the other: who looks at their directory waits while one of them does.
    fn leave(&self, files: Vec<Leaving>) {
        let mut names = self.packer.names.lock();
        files.into_iter().for_each(|file| self.leave_one(&mut names, &file));
    }

    /// One of them, unless somebody has changed it since or has it open.
    fn leave_one(&self, names: &mut Names, Leaving { path, file, mark, .. }: &Leaving) {
        let tree = &self.packer.shared.tree;
        let Ok(found) = file.metadata() else { return };
        let is_as_it_was = lease::is_held(file.as_fd())
            && Mark::of(&found) == *mark
            && tree.look(path) == Ok(Some(Found::File(*mark)));
        if !is_as_it_was {
            return;
        }
        // Names of one file stay so while there is room.
        let may_leave = found.nlink() == 1 || self.is_full;
        if may_leave && lease::is_alone(file.as_fd()) {
            names.clean.remove(path);
            self.put_stub(path, mark);
        } else {
            // Who reads it sees what others write to it, and by other names.
            let watched = names.clean.watch(&tree.real(path));
            names.clean.insert(path, watched, *mark);
        }
    }
}

/// Puts the content of a file, but for its holes.
fn put_content(session: &Session, open: &OpenFile, file: &File, piece: &mut Vec<u8>) -> Result<()> {
    let (mut input, size) = LocalInput::new(file).map_err(|error| told(&error))?;
    let wanted = PIECE_SIZE.min(size as usize + 1);
    if piece.len() < wanted {
        piece.resize(wanted, 0);
    }
    let mut at = 0;
    while let Some(range) = next_range(&mut input, at, size)? {
        at = range.start;
        while at < range.end {
            let wanted = (range.end - at).min(piece.len() as u64) as usize;
            let count = input.read_at(&mut piece[..wanted], at)?;
            if count == 0 {
                return Ok(());
            }
            session.write(open, &piece[..count], Some(at))?;
            at += count as u64;
        }
    }
    // It ends with a hole.
    session.truncate(open, size.max(at))
}

/// Whether a time is of just now, or of the future.
pub fn is_recent(time: Timestamp) -> bool {
    let nanoseconds =
        |time: Timestamp| i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds);
    nanoseconds(wall()) - nanoseconds(time) < AGE.as_nanos() as i128
}
