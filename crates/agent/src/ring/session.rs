//! State of one connected program: its user and its open files.

use super::Ending;
use crate::arbiter::Gate;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use tameike_client::data::Grantable;
use tameike_client::region::Attachment;
use tameike_client::vfs::{FileNumber, HandleNumber, OpenMode};
use tameike_ring::server::Peer;

/// Files that one program may have open through the ring; it opens more through the kernel.
const HANDLES_MAX: usize = 4096;
/// Regions to which one program may be attached.
const REGIONS_MAX: usize = 256;

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

/// What a program that has ended has left.
pub(super) struct Left {
    pub open: Vec<Arc<OpenFile>>,
    pub regions: Vec<Arc<Attachment>>,
    /// Counts the ended program.
    pub ending: Option<Arc<Ending>>,
}

#[derive(Default)]
struct Handles {
    open: BTreeMap<u64, Arc<OpenFile>>,
    last: u64,
    regions: BTreeMap<u64, Arc<Attachment>>,
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

    pub(super) fn can_attach(&self) -> bool {
        self.handles.lock().regions.len() < REGIONS_MAX
    }

    pub(super) fn add_region(&self, region: Arc<Attachment>) -> u64 {
        let mut handles = self.handles.lock();
        handles.last += 1;
        let number = handles.last;
        handles.regions.insert(number, region);
        number
    }

    pub(super) fn region(&self, number: u64) -> Option<Arc<Attachment>> {
        self.handles.lock().regions.get(&number).cloned()
    }

    pub(super) fn remove_region(&self, number: u64) -> Option<Arc<Attachment>> {
        self.handles.lock().regions.remove(&number)
    }

    /// Removes all regions.
    pub(super) fn take_regions(&self) -> Vec<Arc<Attachment>> {
        std::mem::take(&mut self.handles.lock().regions).into_values().collect()
    }

    /// Removes all open files and regions.
    pub(super) fn take_all(&self) -> Left {
        let handles = std::mem::take(&mut *self.handles.lock());
        let Handles { open, regions, ending, last: _ } = handles;
        Left { open: open.into_values().collect(), regions: regions.into_values().collect(), ending }
    }
}
