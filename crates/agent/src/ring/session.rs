//! What is kept of one program: who it is, and what it has open.

use super::Ending;
use crate::custody::Gate;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use tameike_client::data::Lendable;
use tameike_client::vfs::{FileNumber, HandleNumber, OpenMode};
use tameike_ring::server::Peer;

/// Files that one program may have open through the ring; the others it has through the kernel.
const HANDLES_MAX: usize = 4096;

/// An open file of a program.
pub(super) struct OpenFile {
    /// Index of the view.
    pub view: usize,
    pub file: FileNumber,
    pub handle: HandleNumber,
    pub mode: OpenMode,
    /// What of it may be lent to the program.
    pub lendable: Option<Lendable>,
    pub gate: Arc<Gate>,
    /// The name by which it was handed over to the kernel.
    pub name: OnceLock<Vec<u8>>,
}

#[derive(Default)]
struct Handles {
    open: BTreeMap<u64, Arc<OpenFile>>,
    last: u64,
    /// Since the program is gone.
    ending: Option<Arc<Ending>>,
}

/// One program.
pub struct Session {
    /// Its user and group when it connected.
    pub(super) user: u32,
    pub(super) group: u32,
    handles: Mutex<Handles>,
}

impl Session {
    pub(super) fn new(peer: &Peer) -> Self {
        Self { user: peer.user, group: peer.group, handles: Mutex::default() }
    }

    /// Whether it may open another file.
    pub(super) fn has_room(&self) -> bool {
        self.handles.lock().open.len() < HANDLES_MAX
    }

    /// The number by which the program calls a file from now on.
    pub(super) fn add(&self, open: OpenFile) -> u64 {
        let mut handles = self.handles.lock();
        handles.last += 1;
        let number = handles.last;
        handles.open.insert(number, Arc::new(open));
        number
    }

    pub(super) fn get(&self, number: u64) -> Option<Arc<OpenFile>> {
        self.handles.lock().open.get(&number).cloned()
    }

    pub(super) fn remove(&self, number: u64) -> Option<Arc<OpenFile>> {
        self.handles.lock().open.remove(&number)
    }

    /// The program is gone.
    pub(super) fn leaves(&self, ending: Arc<Ending>) {
        self.handles.lock().ending = Some(ending);
    }

    /// All that it had open, which it has no more, and what lasts until that is closed.
    pub(super) fn take_all(&self) -> (Vec<Arc<OpenFile>>, Option<Arc<Ending>>) {
        let handles = std::mem::take(&mut *self.handles.lock());
        (handles.open.into_values().collect(), handles.ending)
    }
}
