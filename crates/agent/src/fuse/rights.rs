//! Files that give rights to who runs them (setuid, setgid), and are open past the kernel's pages for writing.
//!
//! A write by somebody without privileges takes the rights away. The kernel does so itself for what goes through its pages,
//! and leaves other writes to the file system. To look at the file's attributes for each of them would cost more than most
//! writes do: so a handle keeps in mind whether its file gives rights, by what its open has seen and by what this node has
//! heard since.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tameike_client::vfs::{FileNumber, HandleNumber, gives_rights};

#[derive(Default)]
struct State {
    /// Whether a write through a handle may have to take rights away.
    handles: BTreeMap<(FileNumber, HandleNumber), bool>,
    /// How often a file was given rights.
    given: u64,
}

/// What the handles of one view keep in mind.
#[derive(Clone, Default)]
pub(super) struct Rights(Arc<Mutex<State>>);

impl Rights {
    /// How often a file was given rights so far.
    pub(super) fn given(&self) -> u64 {
        self.0.lock().given
    }

    /// A handle past the kernel's pages was opened for writing, after `given` times; the open saw whether the file `gives` rights.
    pub(super) fn opened(&self, file: FileNumber, handle: HandleNumber, (gives, given): (bool, u64)) {
        let mut state = self.0.lock();
        // What was given meanwhile may have been to this file.
        let gives = gives || state.given != given;
        state.handles.insert((file, handle), gives);
    }

    /// The last descriptor of a handle is gone.
    pub(super) fn closed(&self, file: FileNumber, handle: HandleNumber) {
        self.0.lock().handles.remove(&(file, handle));
    }

    /// A file has a new mode.
    pub(super) fn changed(&self, file: FileNumber, mode: u16) {
        if !gives_rights(mode) {
            return;
        }
        let mut state = self.0.lock();
        state.given += 1;
        let of_file = (file, HandleNumber(0))..=(file, HandleNumber(u64::MAX));
        state.handles.range_mut(of_file).for_each(|(_, gives)| *gives = true);
    }

    /// Whether a write through a handle may have to take rights away.
    pub(super) fn may_give(&self, file: FileNumber, handle: HandleNumber) -> bool {
        self.0.lock().handles.get(&(file, handle)).is_some_and(|gives| *gives)
    }

    /// Keeps in mind whether a write through a handle may have to take rights away.
    pub(super) fn keep(&self, file: FileNumber, handle: HandleNumber, gives: bool) {
        if let Some(kept) = self.0.lock().handles.get_mut(&(file, handle)) {
            *kept = gives;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_keeps_in_mind_what_its_file_gives() {
        let (rights, file, other) = (Rights::default(), FileNumber(7), FileNumber(8));
        let handle = HandleNumber(1);
        rights.opened(file, handle, (false, rights.given()));
        assert!(!rights.may_give(file, handle));
        rights.changed(other, 0o4755);
        rights.changed(file, 0o755);
        assert!(!rights.may_give(file, handle));
        rights.changed(file, 0o2755);
        assert!(rights.may_give(file, handle));
        rights.keep(file, handle, false);
        assert!(!rights.may_give(file, handle));
        rights.closed(file, handle);
        rights.keep(file, handle, true);
        assert!(!rights.may_give(file, handle) && rights.0.lock().handles.is_empty());
    }

    #[test]
    fn what_is_given_while_a_file_is_opened_is_not_missed() {
        let (rights, file, handle) = (Rights::default(), FileNumber(7), HandleNumber(1));
        let given = rights.given();
        rights.changed(file, 0o4755);
        rights.opened(file, handle, (false, given));
        assert!(rights.may_give(file, handle));
    }
}
