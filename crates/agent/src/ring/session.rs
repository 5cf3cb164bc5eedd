//! State of one connected program: its user and its open files.

use super::Ending;
use crate::arbiter::Gate;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use tameike_client::data::Grantable;
use tameike_client::vfs::{FileNumber, HandleNumber, OpenMode};
use tameike_ring::server::Peer;

/// Files that one program may have open through the ring; it opens more through the kernel.
const HANDLES_MAX: usize = 4096;

/// An open file of a program.
pub(super) struct OpenFile {
    pub view: usize,
    pub file: FileNumber,
    pub handle: HandleNumber,
    pub mode: OpenMode,
    /// Grants of the file's frames to the program.
    pub grantable: Option<Grantable>,
    pub gate: Arc<Gate>,
    /// Name by which it was handed over to the kernel.
    pub name: OnceLock<Vec<u8>>,
}

#[derive(Default)]
struct Handles {
    open: BTreeMap<u64, Arc<OpenFile>>,
    last: u64,
    /// Set when the program has ended.
    ending: Option<Arc<Ending>>,
}

pub struct Session {
    /// User and group at the time of connection.
    pub(super) user: u32,
    pub(super) group: u32,
    handles: Mutex<Handles>,
}

impl Session {
    pub(super) fn new(peer: &Peer) -> Self {
        Self { user: peer.user, group: peer.group, handles: Mutex::default() }
    }

    pub(super) fn can_open(&self) -> bool {
        self.handles.lock().open.len() < HANDLES_MAX
    }

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

    pub(super) fn leaves(&self, ending: Arc<Ending>) {
        self.handles.lock().ending = Some(ending);
    }

    /// Removes all open files, and returns them with the guard that counts the ended program.
    pub(super) fn take_all(&self) -> (Vec<Arc<OpenFile>>, Option<Arc<Ending>>) {
        let handles = std::mem::take(&mut *self.handles.lock());
        (handles.open.into_values().collect(), handles.ending)
    }
}
