//! Packing: what is closed goes to the container, and makes room in the tree.

use super::requests::Door;
use super::tree::{Found, Mark, told, xattrs};
use super::{Names, Packed, Packer, Shared, open_session};
use crate::session::{OpenFlags, Session};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tameike_core::attr::{AttrChange, SetTime};
use tameike_core::{Errno, Fault, FileKind, Result, Timestamp};
use tameike_io::os::lease::{self, Lease};
use tameike_io::os::process::{monotonic, wall};
use tameike_io::shared::join;
use tameike_store::container::{Brief, split_path};

/// The tree is looked through this often, or seldom enough to be a tenth of the time.
const STEP: Duration = Duration::from_millis(20);
/// What was changed just now will be changed again: owner, mode and times follow.
const AGE: Duration = Duration::from_millis(50);
/// Files that are packed before all of them are written and leave the tree.
const BATCH_FILES_MAX: usize = 256;
const BATCH_BYTES_MAX: u64 = 32 << 20;
/// Bytes that are read at once.
const PIECE_SIZE: usize = 1 << 20;
/// How long nothing is tried after a failure.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// What is known of the tree's directories.
#[derive(Default)]
pub struct Seen(HashMap<Vec<u8>, SeenDir>);

struct SeenDir {
    /// Last change of what is in it, by the packer, too.
    ctime: Timestamp,
    /// Something in it is not packed yet.
    is_pending: bool,
    dirs: Vec<Vec<u8>>,
}

/// Files on their way.
struct Batch<'a> {
    packer: &'a Packer,
    /// Also what somebody has open for writing, as it is now.
    is_forced: bool,
    is_full: bool,
    files: Vec<Leaving>,
    bytes: u64,
    packed: u64,
    /// Time that putting and writing has taken.
    packing: Duration,
    faults: Vec<Fault>,
}

/// What came of looking through the tree once.
pub struct Round {
    packing: Duration,
    /// What could not be packed.
    pub faults: Vec<Fault>,
}

/// A file that has a record, and leaves the tree when that is written.
struct Leaving {
    path: Vec<u8>,
    /// Holds the lease.
    file: File,
    mark: Mark,
}

impl Packer {
    /// Opens the container, and begins to answer.
    pub fn begin(shared: Arc<Shared>) -> Result<(Arc<Self>, Door)> {
        let session = open_session(&shared.container, &shared.options)?;
        let is_empty = session.read_dir(b"")?.is_empty();
        let before = shared.read_epoch()?;
        shared.tree.clear_beside()?;
        let epoch = if is_empty { 0 } else { before + 1 };
        shared.tell_epoch(epoch)?;
        let names = Mutex::new(Names { epoch, ..Names::default() });
        let packer = Arc::new(Self {
            shared,
            session,
            names,
            packing: Mutex::default(),
            room: Default::default(),
            files: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        });
        let door = Door::open(&packer)?;
        Ok((packer, door))
    }

    /// Packs until the program has ended, and then all that there is.
    pub fn work((packer, door): (Arc<Self>, Door)) -> Result<Packed> {
        let mut seen = Seen::default();
        loop {
            let has_ended = packer.shared.has_ended.load(Ordering::Acquire);
            let begin = monotonic();
            let Round { packing, faults } = packer.round(&mut seen, has_ended);
            if has_ended {
                return Self::end(packer, door, faults);
            }
            let looking = (monotonic() - begin).saturating_sub(packing);
            let rest = if faults.is_empty() { STEP.max(looking * 10) } else { AFTER_FAILURE };
            packer.shared.sleep(rest);
        }
    }

    fn end(packer: Arc<Self>, door: Door, mut faults: Vec<Fault>) -> Result<Packed> {
        door.close()?;
        let packer =
            Arc::into_inner(packer).ok_or(Fault::new(Errno::EBUSY, "a request of the spool is under way"))?;
        faults.extend(packer.session.finish().err());
        let (files, bytes) = (packer.files.into_inner(), packer.bytes.into_inner());
        Ok(Packed { files, bytes, faults, kept: None })
    }

    /// Looks through the tree once; with `force`, nothing is left out.
    pub fn round(&self, seen: &mut Seen, force: bool) -> Round {
        let _one = self.packing.lock();
        let mut batch = Batch {
            packer: self,
            is_forced: force,
            is_full: self.is_full(),
            files: Vec::new(),
            bytes: 0,
            packed: 0,
            packing: Duration::ZERO,
            faults: Vec::new(),
        };
        let mut dirs = vec![Vec::new()];
        while let Some(dir) = dirs.pop() {
            match batch.pack_dir(seen, &dir) {
                Ok(below) => dirs.extend(below),
                Err(fault) => batch.note(&dir, fault),
            }
            if !force && batch.faults.iter().any(|fault| fault.errno == Errno::ENOSPC) {
                break;
            }
        }
        batch.flush();
        let Batch { packed, packing, faults, .. } = batch;
        self.room.tell(self.is_full(), packed == 0);
        Round { packing, faults }
    }

    /// Packs one file as it is now.
    pub fn pack_now(&self, path: &[u8]) -> Result<()> {
        let _one = self.packing.lock();
        let mut batch = Batch {
            packer: self,
            is_forced: true,
            is_full: false,
            files: Vec::new(),
            bytes: 0,
            packed: 0,
            packing: Duration::ZERO,
            faults: Vec::new(),
        };
        batch.add(path);
        batch.flush();
        batch.faults.pop().map_or(Ok(()), Err)
    }

    /// Whether the spool has no room for new files.
    pub fn is_full(&self) -> bool {
        rustix::fs::statvfs(self.shared.tree.real(b"")).is_ok_and(|space| tameike_redirect::is_short(&space))
    }
}

impl Batch<'_> {
    fn note(&mut self, path: &[u8], fault: Fault) {
        if fault.errno == Errno::ENOENT {
            // It has gone meanwhile.
            return;
        }
        let name = String::from_utf8_lossy(path);
        let is_named = fault.message.contains(&*name);
        self.faults.push(if is_named { fault } else { fault.context(name) });
    }

    /// Packs what a directory has. The directories in it.
    fn pack_dir(&mut self, seen: &mut Seen, dir: &[u8]) -> Result<Vec<Vec<u8>>> {
        let real = self.packer.shared.tree.real(dir);
        let found = std::fs::symlink_metadata(&real).map_err(|error| told(dir, &error))?;
        let ctime = Mark::of(&found).ctime;
        if let Some(known) = seen.0.get(dir)
            && !self.is_forced
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
                _ if self.is_forced => {
                    Err(Fault::new(Errno::EINVAL, "only files, directories and links are packed"))
                }
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
        let known = kind_of(session, path)?;
        if known.is_some_and(|known| known.kind == FileKind::Directory) && !self.is_forced {
            return Ok(());
        }
        let found = std::fs::symlink_metadata(self.packer.shared.tree.real(path))
            .map_err(|error| told(path, &error))?;
        let mark = Mark::of(&found);
        match known {
            Some(Brief { kind: FileKind::Directory, mode, uid, gid, mtime, .. }) => {
                if (mode, uid, gid, mtime) == (mark.mode, mark.uid, mark.gid, mark.mtime) {
                    return Ok(());
                }
            }
            Some(_) => {
                session.unlink(path)?;
                session.make_dir(path, mark.mode)?;
            }
            None => session.make_dir(path, mark.mode)?,
        }
        session.set_attributes(path, &mark.attributes())
    }

    /// Has a symbolic link of a program's be in the container.
    fn record_link(&self, path: &[u8]) -> Result<()> {
        let Packer { shared, session, .. } = self.packer;
        if shared.tree.look(path)? != Some(Found::Link) {
            return Ok(());
        }
        let target = shared.tree.link(path)?;
        match kind_of(session, path)? {
            Some(known) if known.kind == FileKind::Symlink && session.read_link(path)? == target => {
                return Ok(());
            }
            Some(known) if known.kind == FileKind::Directory => session.remove_dir(path)?,
            Some(_) => session.unlink(path)?,
            None => {}
        }
        session.make_symlink(path, &target)
    }

    /// Packs a file, unless it is in use. Whether it is done with.
    fn add(&mut self, path: &[u8]) -> bool {
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
        let file = packer.shared.tree.open(path).map_err(|error| told(path, &error))?;
        let mark = Mark::of(&file.metadata().map_err(|error| told(path, &error))?);
        let is_clean = packer.names.lock().clean.get(path) == Some(&mark);
        if is_clean && !self.is_full {
            return Ok(true);
        }
        if !self.is_forced && !self.is_full && is_recent(mark.ctime) {
            return Ok(false);
        }
        let has_lease = matches!(lease::take(file.as_fd()), Ok(Lease::Taken));
        if !has_lease && !self.is_forced {
            return Ok(false);
        }
        if !is_clean {
            let begin = monotonic();
            self.put(path, &file, &mark)?;
            self.packing += monotonic() - begin;
            packer.files.fetch_add(1, Ordering::Relaxed);
            packer.bytes.fetch_add(mark.size, Ordering::Relaxed);
        }
        self.bytes += mark.size;
        self.packed += 1;
        self.files.push(Leaving { path: path.to_vec(), file, mark });
        Ok(has_lease)
    }

    /// Puts content and attributes.
    fn put(&self, path: &[u8], file: &File, mark: &Mark) -> Result<()> {
        let session = &self.packer.session;
        match kind_of(session, path)? {
            Some(known) if known.kind == FileKind::Directory => session.remove_dir(path)?,
            Some(known) if known.kind != FileKind::File => session.unlink(path)?,
            _ => {}
        }
        let flags = OpenFlags { write: true, create: true, truncate: true, exclusive: false };
        let open = session.open_file(path, flags, mark.mode)?;
        let failed = |error| told(path, &error);
        let mut piece = vec![0; PIECE_SIZE.min(mark.size as usize + 1)];
        let mut at = 0;
        loop {
            let count = file.read_at(&mut piece, at).map_err(failed)?;
            if count == 0 {
                break;
            }
            session.write(&open, &piece[..count], Some(at))?;
            at += count as u64;
        }
        let atime = Some(SetTime::To(mark.mtime));
        session.set_file_attributes(&open, &AttrChange { atime, ..mark.attributes() })?;
        session.close(open)?;
        let xattrs = xattrs(file).map_err(failed)?;
        if !xattrs.is_empty() || !session.xattrs(path)?.is_empty() {
            session.set_xattrs(path, xattrs)?;
        }
        Ok(())
    }

    /// What has a record is written, and leaves the tree where nobody has changed it since.
    fn flush(&mut self) {
        let (files, packer, begin) = (std::mem::take(&mut self.files), self.packer, monotonic());
        self.bytes = 0;
        if let Err(fault) = packer.session.write_out() {
            self.note(b"", fault);
            return;
        }
        let mut names = packer.names.lock();
        for Leaving { path, file, mark } in files {
            let is_as_it_was = lease::is_held(file.as_fd())
                && file.metadata().is_ok_and(|found| Mark::of(&found) == mark)
                && packer.shared.tree.look(&path) == Ok(Some(Found::File(mark)));
            if is_as_it_was {
                names.clean.remove(&path);
                let tree = &packer.shared.tree;
                // What stays will be packed again.
                let _ = tree.keeping_time(split_path(&path).0, || tree.put_stub(&path, &mark.stub()));
            }
        }
        self.packing += monotonic() - begin;
    }
}

/// What the container has at a path.
pub fn kind_of(session: &Session, path: &[u8]) -> Result<Option<Brief>> {
    match session.stat(path) {
        Ok(found) => Ok(Some(found)),
        Err(fault) if fault.errno == Errno::ENOENT => Ok(None),
        Err(fault) => Err(fault),
    }
}

/// Whether a time is of just now, or of the future.
fn is_recent(time: Timestamp) -> bool {
    let nanoseconds =
        |time: Timestamp| i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds);
    nanoseconds(wall()) - nanoseconds(time) < AGE.as_nanos() as i128
}
