//! The packer: moves closed files to the container, which frees space in the tree.

use super::batch::{Batch, DirStates, Pass};
use super::intent::Intent;
use super::requests::RequestSocket;
use super::tree::{Found, Tree, spool_fault};
use super::{Names, Packed, Packer, Shared, find, open_session};
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

/// Minimum time between rounds. It grows with the tree, so that rounds take at most a tenth of the time.
const STEP: Duration = Duration::from_millis(20);
/// Time to the next round after a failure.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// Result of a round through the tree.
pub struct Round {
    packing: Duration,
    /// Files that could not be packed.
    pub faults: Vec<Fault>,
}

impl Packer {
    /// Opens the container, and begins to answer requests.
    pub fn begin(shared: Arc<Shared>) -> Result<(Arc<Self>, RequestSocket)> {
        let session = open_session(&shared.container, &shared.options)?;
        let is_empty = session.read_dir(b"")?.is_empty();
        let before = shared.tree.page.epoch()?;
        shared.tree.clear_beside()?;
        Intent::recover(&shared.dir, &shared.tree, &session)?;
        drop_stubs_without_record(&shared.tree, &session)?;
        // Programs may wait for the end of a change that a killed packer began.
        shared.tree.page.while_changing(|| Ok(()))?;
        let epoch = if is_empty { 0 } else { before + 1 };
        shared.tree.page.set_epoch(epoch)?;
        let names = Mutex::new(Names { epoch, ..Names::default() });
        let packer = Arc::new(Self {
            shared,
            session,
            names,
            packing: Mutex::default(),
            space: Default::default(),
            files: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        });
        let socket = RequestSocket::open(&packer)?;
        Ok((packer, socket))
    }

    /// Packs until the program has ended, and then everything that is left.
    pub fn work((packer, socket): (Arc<Self>, RequestSocket)) -> Result<Packed> {
        let mut seen = DirStates::default();
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
                return Self::end(packer, socket, faults);
            }
            let looking = (monotonic() - begin).saturating_sub(packing);
            let rest = if faults.is_empty() { STEP.max(looking * 10) } else { AFTER_FAILURE };
            packer.shared.sleep(rest);
        }
    }

    fn end(packer: Arc<Self>, socket: RequestSocket, mut faults: Vec<Fault>) -> Result<Packed> {
        packer.space.end();
        socket.close()?;
        let packer = Arc::into_inner(packer)
            .ok_or(Fault::new(Errno::EBUSY, "a request of the spool is still in progress"))?;
        faults.extend(packer.session.finish().err());
        let (files, bytes) = (packer.files.into_inner(), packer.bytes.into_inner());
        Ok(Packed { files, bytes, faults, kept: None })
    }

    /// Goes through the tree once.
    pub fn round(&self, seen: &mut DirStates, pass: Pass) -> Round {
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
        self.space.report(self.is_full(), packed == 0);
        Round { packing, faults }
    }

    /// Packs one file in its current state.
    pub fn pack_now(&self, path: &[u8]) -> Result<()> {
        let _one = self.packing.lock();
        let mut batch = Batch::new(self, Pass::All, false);
        batch.add(path);
        batch.flush();
        batch.faults.pop().map_or(Ok(()), Err)
    }

    /// Returns true if the spool has no space for new files.
    pub fn is_full(&self) -> bool {
        rustix::fs::statvfs(self.shared.tree.real(b""))
            .is_ok_and(|space| is_short([(space.f_bavail, space.f_blocks), (space.f_favail, space.f_files)]))
    }
}

/// Removes stubs whose records a killed packer has not written; the container then shows the previous version.
fn drop_stubs_without_record(tree: &Tree, session: &Session) -> Result<()> {
    let mut dirs = vec![Vec::new()];
    while let Some(dir) = dirs.pop() {
        for (name, kind) in tree.names(&dir)? {
            let path = join(&dir, &name);
            match kind {
                FileKind::Directory => dirs.push(path),
                FileKind::Symlink => {
                    let is_stub = matches!(tree.lookup(&path)?, Some(Found::Packed(_)));
                    if is_stub && find(session, &path)?.is_none() {
                        std::fs::remove_file(tree.real(&path)).map_err(spool_fault)?;
                    }
                }
                _ => {}
            }
        }
    }
    Ok(())
}
