//! Packing: what is closed goes to the container, and makes room in the tree.

use super::batch::{Batch, Pass, Seen};
use super::intent::Intent;
use super::lookup::find;
use super::requests::Door;
use super::tree::{Found, Tree, told};
use super::{Names, Packed, Packer, Shared, open_session};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tameike_container::session::Session;
use tameike_container::split_path;
use tameike_core::spool::is_short;
use tameike_core::{Errno, Fault, FileKind, Result};
use tameike_io::os::process::monotonic;
use tameike_io::shared::join;

/// The tree is looked through this often, or seldom enough to be a tenth of the time.
const STEP: Duration = Duration::from_millis(20);
/// How long nothing is tried after a failure.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// What came of looking through the tree once.
pub struct Round {
    packing: Duration,
    /// What could not be packed.
    pub faults: Vec<Fault>,
}

impl Packer {
    /// Opens the container, and begins to answer.
    pub fn begin(shared: Arc<Shared>) -> Result<(Arc<Self>, Door)> {
        let session = open_session(&shared.container, &shared.options)?;
        let is_empty = session.read_dir(b"")?.is_empty();
        let before = shared.tree.page.epoch()?;
        shared.tree.clear_beside()?;
        Intent::recover(&shared.dir, &shared.tree, &session)?;
        drop_stubs_without_record(&shared.tree, &session)?;
        // A packer that was killed in the middle of a change has left programs waiting for its end.
        shared.tree.page.while_changing(|| Ok(()))?;
        let epoch = if is_empty { 0 } else { before + 1 };
        shared.tree.page.tell_epoch(epoch)?;
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
            let changed = packer.names.lock().clean.take_changed();
            changed.iter().for_each(|path| seen.forget(split_path(path).0));
            let pass = match has_ended {
                false => Pass::Idle,
                true if packer.shared.is_last.load(Ordering::Acquire) => Pass::Last,
                true => Pass::All,
            };
            let Round { packing, faults } = packer.round(&mut seen, pass);
            if has_ended {
                return Self::end(packer, door, faults);
            }
            let looking = (monotonic() - begin).saturating_sub(packing);
            let rest = if faults.is_empty() { STEP.max(looking * 10) } else { AFTER_FAILURE };
            packer.shared.sleep(rest);
        }
    }

    fn end(packer: Arc<Self>, door: Door, mut faults: Vec<Fault>) -> Result<Packed> {
        packer.room.end();
        door.close()?;
        let packer =
            Arc::into_inner(packer).ok_or(Fault::new(Errno::EBUSY, "a request of the spool is under way"))?;
        faults.extend(packer.session.finish().err());
        let (files, bytes) = (packer.files.into_inner(), packer.bytes.into_inner());
        Ok(Packed { files, bytes, faults, kept: None })
    }

    /// Looks through the tree once.
    pub fn round(&self, seen: &mut Seen, pass: Pass) -> Round {
        let _one = self.packing.lock();
        let mut batch = Batch::new(self, pass, self.is_full());
        let mut dirs = vec![Vec::new()];
        while let Some(dir) = dirs.pop() {
            match batch.pack_dir(seen, &dir) {
                Ok(below) => dirs.extend(below.into_iter().rev()),
                Err(fault) => batch.note(&dir, fault),
            }
            if pass == Pass::Idle && batch.faults.iter().any(|fault| fault.errno == Errno::ENOSPC) {
                break;
            }
        }
        batch.end();
        let Batch { packed, packing, faults, .. } = batch;
        self.room.tell(self.is_full(), packed == 0);
        Round { packing, faults }
    }

    /// Packs one file as it is now.
    pub fn pack_now(&self, path: &[u8]) -> Result<()> {
        let _one = self.packing.lock();
        let mut batch = Batch::new(self, Pass::All, false);
        batch.add(path);
        batch.flush();
        batch.faults.pop().map_or(Ok(()), Err)
    }

    /// Whether the spool has no room for new files.
    pub fn is_full(&self) -> bool {
        rustix::fs::statvfs(self.shared.tree.real(b""))
            .is_ok_and(|space| is_short([(space.f_bavail, space.f_blocks), (space.f_favail, space.f_files)]))
    }
}

/// A stub whose record a packer that was killed has not written leads nowhere: the container has what there was before.
fn drop_stubs_without_record(tree: &Tree, session: &Session) -> Result<()> {
    let mut dirs = vec![Vec::new()];
    while let Some(dir) = dirs.pop() {
        for (name, kind) in tree.names(&dir)? {
            let path = join(&dir, &name);
            match kind {
                FileKind::Directory => dirs.push(path),
                FileKind::Symlink => {
                    let is_stub = matches!(tree.look(&path)?, Some(Found::Packed(_)));
                    if is_stub && find(session, &path)?.is_none() {
                        std::fs::remove_file(tree.real(&path)).map_err(|error| told(&error))?;
                    }
                }
                _ => {}
            }
        }
    }
    Ok(())
}
