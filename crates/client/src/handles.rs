//! Table of the open files of a view, by handle and by file.

use crate::types::HandleNumber;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

struct State<F, T> {
    handles: BTreeMap<HandleNumber, (F, T)>,
    files: BTreeSet<(F, HandleNumber)>,
    last: u64,
}

/// The open files of a view; `F` is its type of file numbers.
pub(crate) struct Handles<F, T>(Mutex<State<F, T>>);

impl<F, T> Default for Handles<F, T> {
    fn default() -> Self {
        Self(Mutex::new(State { handles: BTreeMap::new(), files: BTreeSet::new(), last: 0 }))
    }
}

fn of<F: Copy>(file: F) -> RangeInclusive<(F, HandleNumber)> {
    (file, HandleNumber(0))..=(file, HandleNumber(u64::MAX))
}

impl<F: Copy + Ord, T: Clone> Handles<F, T> {
    /// Opens a file. `make` gets an existing handle of the file, if any.
    pub(crate) fn add(&self, file: F, make: impl FnOnce(Option<&T>) -> T) -> HandleNumber {
        let state = &mut *self.0.lock();
        let other = state.files.range(of(file)).next().and_then(|(_, handle)| state.handles.get(handle));
        let open = make(other.map(|(_, open)| open));
        state.last += 1;
        let handle = HandleNumber(state.last);
        state.handles.insert(handle, (file, open));
        state.files.insert((file, handle));
        handle
    }

    pub(crate) fn get(&self, handle: HandleNumber) -> Option<T> {
        self.0.lock().handles.get(&handle).map(|(_, open)| open.clone())
    }

    pub(crate) fn file(&self, handle: HandleNumber) -> Option<F> {
        self.0.lock().handles.get(&handle).map(|(file, _)| *file)
    }

    /// Closes a handle. Returns its file, and true if the file has no other handle.
    pub(crate) fn remove(&self, handle: HandleNumber) -> Option<(F, T, bool)> {
        let mut state = self.0.lock();
        let (file, open) = state.handles.remove(&handle)?;
        state.files.remove(&(file, handle));
        let is_last = state.files.range(of(file)).next().is_none();
        Some((file, open, is_last))
    }

    pub(crate) fn find(&self, file: F, fits: impl Fn(&T) -> bool) -> Option<T> {
        let state = self.0.lock();
        let mut handles = state.files.range(of(file)).filter_map(|(_, handle)| state.handles.get(handle));
        handles.find(|(_, open)| fits(open)).map(|(_, open)| open.clone())
    }

    pub(crate) fn all_of(&self, file: F) -> Vec<T> {
        let state = self.0.lock();
        let handles = state.files.range(of(file)).filter_map(|(_, handle)| state.handles.get(handle));
        handles.map(|(_, open)| open.clone()).collect()
    }

    pub(crate) fn all(&self) -> Vec<(F, T)> {
        self.0.lock().handles.values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tameike_core::InodeId;

    #[test]
    fn handles_are_found_by_number_and_by_file() {
        let handles = Handles::default();
        let (one, two) = (InodeId(1), InodeId(2));
        let a = handles.add(one, |other: Option<&&str>| other.map_or("a", |_| "again"));
        let b = handles.add(one, |other| other.map_or("b", |_| "again"));
        let c = handles.add(two, |_| "c");
        assert_eq!((handles.get(a), handles.get(b), handles.get(c)), (Some("a"), Some("again"), Some("c")));
        assert_eq!(handles.all_of(one), ["a", "again"]);
        assert_eq!(handles.find(one, |open| open.len() > 1), Some("again"));
        assert_eq!(handles.find(two, |open| open.len() > 1), None);
        assert_eq!(handles.remove(a), Some((one, "a", false)));
        assert_eq!(handles.remove(b), Some((one, "again", true)));
        assert_eq!((handles.remove(b), handles.all_of(one)), (None, vec![]));
        assert_eq!(handles.all(), [(two, "c")]);
    }

    /// Counts clones: one for each handle that a lookup touches.
    struct Counted(Arc<AtomicUsize>);

    impl Clone for Counted {
        fn clone(&self) -> Self {
            self.0.fetch_add(1, Ordering::Relaxed);
            Self(self.0.clone())
        }
    }

    /// Each GETATTR request scanned all open files of the view.
    #[test]
    fn a_lookup_by_file_touches_only_its_handles() {
        let (handles, clones) = (Handles::default(), Arc::new(AtomicUsize::new(0)));
        for number in 0..10_000 {
            handles.add(InodeId(number), |_| Counted(clones.clone()));
        }
        let fitted = AtomicUsize::new(0);
        for number in 0..10_000 {
            let fits = |_: &Counted| fitted.fetch_add(1, Ordering::Relaxed) < usize::MAX;
            assert!(handles.find(InodeId(number), fits).is_some());
            assert_eq!(handles.all_of(InodeId(number)).len(), 1);
        }
        assert_eq!((fitted.into_inner(), clones.load(Ordering::Relaxed)), (10_000, 20_000));
    }

    /// Each open scanned all handles of its file.
    #[test]
    fn the_oldest_handle_is_found_without_touching_the_rest() {
        let (handles, clones) = (Handles::default(), Arc::new(AtomicUsize::new(0)));
        let fitted = AtomicUsize::new(0);
        for _ in 0..10_000 {
            handles.add(InodeId(1), |_| Counted(clones.clone()));
            assert!(
                handles.find(InodeId(1), |_| fitted.fetch_add(1, Ordering::Relaxed) < usize::MAX).is_some()
            );
        }
        assert_eq!((fitted.into_inner(), clones.load(Ordering::Relaxed)), (10_000, 10_000));
    }
}
