//! Packing of files from the tree into the container, in batches.

use super::tree::{Found, Version, spool_fault};
use super::{Names, Packer, find};
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

/// Files changed more recently are not packed: changes of owner, mode and times often follow.
const AGE: Duration = Duration::from_millis(50);
/// Maximum size of a batch: its files are written to the container, and then replaced by stubs.
const BATCH_FILES_MAX: usize = 256;
const BATCH_BYTES_MAX: u64 = 32 << 20;
/// Files up to this size, in bytes, get no stub in the last pass: the whole tree is removed soon.
const STAYS_MAX: u64 = 4 << 10;
/// Bytes per read.
const PIECE_SIZE: usize = 1 << 20;

/// State of the tree's directories in the last round.
#[derive(Default)]
pub struct DirStates(HashMap<Vec<u8>, DirState>);

impl DirStates {
    /// Makes the next round read a directory.
    pub fn forget(&mut self, dir: &[u8]) {
        self.0.remove(dir);
    }
}

struct DirState {
    /// ctime in the last round, after the packer's own changes.
    ctime: Timestamp,
    /// It has files that are not packed yet.
    is_pending: bool,
    dirs: Vec<Vec<u8>>,
}

/// Which files a round packs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Files that no process has open for writing.
    Idle,
    /// All files in their current state, also open ones.
    All,
    /// All files of a tree that no other process uses: it is removed after the round.
    Last,
}

/// Files that are being packed.
pub struct Batch<'a> {
    packer: &'a Packer,
    pass: Pass,
    is_full: bool,
    files: Vec<PackedFile>,
    bytes: u64,
    /// Small files that are packed in the last pass and get no stub.
    staying: Vec<(Vec<u8>, Version)>,
    /// Buffer for content.
    piece: Vec<u8>,
    /// Number of files with a record.
    pub packed: u64,
    /// Time spent packing and writing.
    pub packing: Duration,
    /// Files that could not be packed.
    pub faults: Vec<Fault>,
}

/// A file that has a record, and gets a stub after the record is written.
struct PackedFile {
    path: Vec<u8>,
    /// Holds the kernel's lease.
    file: File,
    version: Version,
    /// Its content was packed in this round, not earlier.
    is_put: bool,
}

impl<'a> Batch<'a> {
    /// An empty batch.
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
            // It was removed meanwhile.
            return;
        }
        let name = String::from_utf8_lossy(path);
        self.faults.push(if path.is_empty() { fault } else { fault.context(name) });
    }

    /// Packs the files of a directory. Returns its subdirectories.
    pub fn pack_dir(&mut self, seen: &mut DirStates, dir: &[u8]) -> Result<Vec<Vec<u8>>> {
        let ctime = Version::of(&self.packer.shared.tree.metadata(dir)?).ctime;
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
                // FIFOs and sockets have no content.
                _ => Ok(()),
            };
            if let Err(fault) = done {
                is_pending = true;
                self.note(&path, fault);
            }
        }
        seen.0.insert(dir.to_vec(), DirState { ctime, is_pending, dirs: dirs.clone() });
        Ok(dirs)
    }

    /// Puts a directory to the container if it is missing; in the last rounds, also updates its attributes.
    fn record_dir(&self, path: &[u8]) -> Result<()> {
        let session = &self.packer.session;
        let known = find(session, path)?;
        if known.is_some_and(|known| known.kind == FileKind::Directory) && self.pass == Pass::Idle {
            return Ok(());
        }
        let version = Version::of(&self.packer.shared.tree.metadata(path)?);
        match known {
            Some(Brief { kind: FileKind::Directory, mode, uid, gid, mtime, .. }) => {
                if (mode, uid, gid, mtime) == (version.mode, version.uid, version.gid, version.mtime) {
                    return self.record_xattrs(path);
                }
            }
            Some(_) => {
                session.unlink(path)?;
                session.make_dir(path, version.mode)?;
            }
            None => session.make_dir(path, version.mode)?,
        }
        session.set_attributes(path, &version.attributes())?;
        self.record_xattrs(path)
    }

    /// Updates extended attributes of a directory in the container.
    fn record_xattrs(&self, path: &[u8]) -> Result<()> {
        let Packer { shared, session, .. } = self.packer;
        let xattrs = shared.tree.xattrs(path)?;
        if session.xattrs(path)? == xattrs { Ok(()) } else { session.set_xattrs(path, xattrs) }
    }

    /// Puts a program's symbolic link to the container.
    fn record_link(&self, path: &[u8]) -> Result<()> {
        let Packer { shared, session, .. } = self.packer;
        let target = match shared.tree.link(path) {
            // It is not a symbolic link any more. The next round handles it.
            Err(fault) if fault.errno == Errno::EINVAL => return Ok(()),
            target => target?,
        };
        if Stub::parse(&target).is_some() {
            return Ok(());
        }
        let found = shared.tree.metadata(path)?;
        if !found.is_symlink() {
            return Ok(());
        }
        let version = Version::of(&found);
        match find(session, path)? {
            Some(known) if known.kind == FileKind::Symlink && session.read_link(path)? == target => {
                let is_same =
                    (known.uid, known.gid, known.mtime) == (version.uid, version.gid, version.mtime);
                return if is_same {
                    Ok(())
                } else {
                    session.set_attributes(path, &version.link_attributes())
                };
            }
            Some(known) if known.kind == FileKind::Directory => session.remove_dir(path)?,
            Some(_) => session.unlink(path)?,
            None => {}
        }
        session.make_symlink(path, &target)?;
        session.set_attributes(path, &version.link_attributes())
    }

    /// Packs a file, unless it is in use. Returns true if nothing is left to do for it.
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
        let found = packer.shared.tree.metadata(path)?;
        // Before the open, which may change the mode for a moment, and with it the ctime.
        if self.pass == Pass::Idle && !self.is_full && is_recent(Version::of(&found).ctime) {
            return Ok(false);
        }
        let (file, xattrs) = packer.shared.tree.open(path).map_err(spool_fault)?;
        let version = Version::of(&file.metadata().map_err(spool_fault)?);
        let has_lease = matches!(lease::take(file.as_fd()), Ok(Lease::Taken));
        if !has_lease && self.pass == Pass::Idle {
            return Ok(false);
        }
        let is_clean = has_lease && packer.names.lock().clean.has(path, &version);
        if is_clean && !self.is_full {
            return Ok(true);
        }
        if !is_clean {
            let begin = monotonic();
            let is_put = self.put(path, &file, xattrs, &version)?;
            self.packing += monotonic() - begin;
            if !is_put {
                return Ok(false);
            }
        }
        self.bytes += version.size;
        self.packed += 1;
        self.files.push(PackedFile { path: path.to_vec(), file, version, is_put: !is_clean });
        Ok(has_lease)
    }

    /// Puts content and attributes. Returns false if another file has replaced it meanwhile.
    fn put(
        &mut self,
        path: &[u8],
        file: &File,
        xattrs: Option<Vec<Xattr>>,
        version: &Version,
    ) -> Result<bool> {
        let (session, shared) = (&self.packer.session, &self.packer.shared);
        // From here on, renames of the file also rename the entry in the container.
        let open = {
            let _names = self.packer.names.lock();
            if shared.tree.lookup(path)? != Some(Found::File(*version)) {
                return Ok(false);
            }
            match find(session, path)? {
                Some(known) if known.kind == FileKind::Directory => session.remove_dir(path)?,
                Some(known) if known.kind != FileKind::File => session.unlink(path)?,
                _ => {}
            }
            let flags = OpenFlags { write: true, create: true, truncate: true, exclusive: false };
            session.open_file(path, flags, version.mode)?
        };
        put_content(session, &open, file, &mut self.piece)?;
        let atime = Some(SetTime::To(version.mtime));
        session.set_file_attributes(&open, &AttrChange { atime, ..version.attributes() })?;
        let has_name = xattrs
            .map_or_else(|| super::tree::xattrs(file), Ok)
            .map_err(spool_fault)
            .and_then(|xattrs| self.put_xattrs(path, xattrs, version));
        session.close(open)?;
        has_name
    }

    /// Sets extended attributes of the entry. Returns false if another file has replaced the file meanwhile.
    fn put_xattrs(&self, path: &[u8], xattrs: Vec<Xattr>, version: &Version) -> Result<bool> {
        let Packer { shared, session, names, .. } = self.packer;
        let _names = names.lock();
        let has_name =
            matches!(shared.tree.lookup(path)?, Some(Found::File(now)) if now.inode == version.inode);
        if has_name && session.xattrs(path)? != xattrs {
            session.set_xattrs(path, xattrs)?;
        }
        Ok(has_name)
    }

    /// Writes the records of the batch, and replaces unchanged files by stubs.
    pub fn flush(&mut self) {
        let (files, packer, begin) = (std::mem::take(&mut self.files), self.packer, monotonic());
        self.bytes = 0;
        if let Err(fault) = packer.session.write_out() {
            self.note(b"", fault);
            return;
        }
        for PackedFile { version, .. } in files.iter().filter(|file| file.is_put) {
            packer.files.fetch_add(1, Ordering::Relaxed);
            packer.bytes.fetch_add(version.size, Ordering::Relaxed);
        }
        packer.session.start_write_back();
        let stays = |file: &PackedFile| self.pass == Pass::Last && file.version.size <= STAYS_MAX;
        let (staying, leaving): (Vec<_>, Vec<_>) = files.into_iter().partition(stays);
        self.leave(leaving);
        self.staying.extend(staying.into_iter().map(|PackedFile { path, version, .. }| (path, version)));
        self.packing += monotonic() - begin;
    }

    /// Ends the batch. If something failed in the last pass, the tree is kept: packed files get stubs, so that the next packer skips them.
    pub fn end(&mut self) {
        self.flush();
        let tree = &self.packer.shared.tree;
        for (path, version) in std::mem::take(&mut self.staying) {
            if !self.faults.is_empty() && tree.lookup(&path) == Ok(Some(Found::File(version))) {
                self.put_stub(&path, &version);
            }
        }
    }

    /// Replaces a file by a stub. A failure is ignored: the file is packed again.
    fn put_stub(&self, path: &[u8], version: &Version) {
        let tree = &self.packer.shared.tree;
        let _ = tree.keeping_time(split_path(path).0, || tree.put_stub(path, &version.stub()));
    }

    /// Replaces written files by stubs, under one lock: concurrent lookups in their directory wait for one change at a time.
    fn leave(&self, files: Vec<PackedFile>) {
        let mut names = self.packer.names.lock();
        files.into_iter().for_each(|file| self.leave_one(&mut names, &file));
    }

    /// Replaces a file by a stub, unless it was changed or is open.
    fn leave_one(&self, names: &mut Names, PackedFile { path, file, version, .. }: &PackedFile) {
        let tree = &self.packer.shared.tree;
        let Ok(found) = file.metadata() else { return };
        let is_as_it_was = lease::is_held(file.as_fd())
            && Version::of(&found) == *version
            && tree.lookup(path) == Ok(Some(Found::File(*version)));
        if !is_as_it_was {
            return;
        }
        // Hard links keep their common file until space runs out.
        let may_leave = found.nlink() == 1 || self.is_full;
        if may_leave && lease::is_alone(file.as_fd()) {
            names.clean.remove(path);
            self.put_stub(path, version);
        } else {
            // Readers must see later writes by other descriptors and hard links.
            let watched = names.clean.watch(&tree.real(path));
            names.clean.insert(path, watched, *version);
        }
    }
}

/// Puts the content of a file, without its holes.
fn put_content(session: &Session, open: &OpenFile, file: &File, piece: &mut Vec<u8>) -> Result<()> {
    let (mut input, size) = LocalInput::new(file).map_err(spool_fault)?;
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
    // The file may end with a hole.
    session.truncate(open, size.max(at))
}

/// Returns true if a time is less than [`AGE`] ago, or in the future.
pub fn is_recent(time: Timestamp) -> bool {
    let nanoseconds =
        |time: Timestamp| i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds);
    nanoseconds(wall()) - nanoseconds(time) < AGE.as_nanos() as i128
}
