//! A simulated shared file system in memory, mounted by several nodes.
//!
//! It behaves as a POSIX file system on a server: calls take effect at once on all nodes. Unsynced writes are lost with the memory of
//! the node that wrote them. It injects faults ([`TreeFaults`]), including the behaviour of file systems after a failed fsync: the
//! dirty pages are dropped, and the next fsync succeeds.

mod content;
mod faults;
mod file;
mod state;

use crate::countdown::Countdown;
pub(crate) use content::Content;
pub use faults::TreeFaults;
use faults::{Call, Control};
use file::{OpenDir, OpenFile};
use parking_lot::Mutex;
use state::State;
use std::sync::Arc;
use tameike_core::attr::AttrChange;
use tameike_core::wire::meta::RenameMode;
use tameike_core::{Errno, FileKind, NodeId, Result, Timestamp};
use tameike_io::os::runtime::Clock;
use tameike_io::os::simulated::Simulation;
use tameike_io::shared::{
    Access, FileStat, OpenFileCache, Pin, SharedDir, SharedFile, SharedFs, Special, TreeSpace, XattrMode,
};

/// Owner and group of all files.
pub const OWNER: u32 = 1000;
/// Granularity of timestamps, as on Linux.
const TICK_NANOSECONDS: u32 = 4_000_000;

struct Inner {
    simulation: Simulation,
    state: Mutex<State>,
    control: Control,
}

/// The shared file system.
#[derive(Clone)]
pub struct SimulatedTree(Arc<Inner>);

fn coarse(time: Timestamp) -> Timestamp {
    Timestamp { nanoseconds: time.nanoseconds / TICK_NANOSECONDS * TICK_NANOSECONDS, ..time }
}

impl SimulatedTree {
    /// Creates an empty tree. `countdown` counts its calls.
    pub fn new(simulation: Simulation, countdown: Countdown) -> Self {
        let state = Mutex::new(State::new(coarse(simulation.wall())));
        Self(Arc::new(Inner { control: Control::new(simulation.clone(), countdown), simulation, state }))
    }

    /// Returns the tree as one node mounts it.
    pub fn mounted_by(&self, node: NodeId) -> Arc<dyn SharedFs> {
        let (tearing, kept) = Default::default();
        Arc::new(Mounted { tree: self.clone(), node, tearing, kept })
    }

    /// Sets the faults for all later calls.
    pub fn set_faults(&self, faults: TreeFaults) {
        self.0.control.set(faults);
    }

    /// Injects a bug: a rename removes its target before it renames the source.
    pub fn tear_renames(&self) {
        self.0.control.tear_renames();
    }

    /// Drops the unsynced writes of a node, as a power loss does.
    pub fn lose_power(&self, node: NodeId) {
        let draw = self.0.simulation.clone();
        self.0.state.lock().lose_power(node, || draw.draw(2) == 0);
    }

    /// Stops the reuse of all inode numbers allocated so far.
    pub(crate) fn retire_numbers(&self) {
        self.0.state.lock().retire_numbers();
    }

    /// Returns all files with their paths, with the durable content (`is_durable`) or the current one.
    pub(crate) fn files(&self, is_durable: bool) -> Vec<(Vec<u8>, Content)> {
        let state = self.0.state.lock();
        let mut found = Vec::new();
        let mut left = vec![(Vec::new(), state::ROOT)];
        while let Some((path, number)) = left.pop() {
            let Ok(inode) = state.inode(number) else { continue };
            match inode.kind {
                FileKind::Directory => {
                    let names = inode.children.iter();
                    left.extend(names.map(|(name, &child)| (tameike_io::shared::join(&path, name), child)));
                }
                FileKind::File => {
                    let content = if is_durable { &inode.durable } else { &inode.content };
                    found.push((path, content.clone()));
                }
                _ => {}
            }
        }
        found
    }

    fn with<T>(&self, call: Call, work: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        self.0.control.call(call)?;
        self.at_work(work)
    }

    fn at_work<T>(&self, work: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        let mut state = self.0.state.lock();
        state.now = coarse(self.0.simulation.wall());
        work(&mut state)
    }
}

/// A rename whose target is removed and whose source is not yet renamed.
type Torn = Option<(Vec<u8>, Vec<u8>)>;

struct Mounted {
    tree: SimulatedTree,
    node: NodeId,
    tearing: Mutex<Torn>,
    kept: OpenFileCache,
}

impl Mounted {
    fn with<T>(&self, call: Call, work: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        self.tree.with(call, work)
    }

    fn open_inode(&self, number: u64) -> Arc<OpenFile> {
        Arc::new(OpenFile::new(self.tree.clone(), self.node, number))
    }

    /// Returns the attributes of a path, without counting as a call of the node.
    fn seen(&self, path: &[u8]) -> Result<FileStat> {
        self.tree.at_work(|state| state.stat(state.find(path)?))
    }

    /// The injected bug: completes an earlier rename, and executes only the first half of the next one.
    fn tear(&self, next: Torn) {
        let torn = std::mem::replace(&mut *self.tearing.lock(), next.clone());
        let mut state = self.tree.0.state.lock();
        if let Some((from, to)) = torn {
            let _ = state.rename(&from, &to, RenameMode::Replace);
        }
        if let Some((_, to)) = next {
            let _ = state.unlink(&to);
        }
    }
}

impl SharedFs for Mounted {
    fn stat(&self, path: &[u8]) -> Result<FileStat> {
        self.with(Call::Stat, |state| state.stat(state.find(path)?))
    }

    fn pin(&self, path: &[u8]) -> Result<(FileStat, Pin)> {
        self.with(Call::Pin, |state| {
            let number = state.find(path)?;
            state.inode_mut(number)?.holds += 1;
            let hold = file::Hold { tree: self.tree.clone(), number };
            Ok((state.stat(number)?, Box::new(hold) as Pin))
        })
    }

    fn open_dir(&self, path: &[u8]) -> Result<Arc<dyn SharedDir>> {
        self.with(Call::OpenDir, |state| {
            let number = state.find(path)?;
            let inode = state.inode_mut(number)?;
            if inode.kind != FileKind::Directory {
                return Err(Errno::ENOTDIR.into());
            }
            inode.holds += 1;
            let hold = file::Hold { tree: self.tree.clone(), number };
            Ok(Arc::new(OpenDir { hold }) as Arc<dyn SharedDir>)
        })
    }

    fn read_link(&self, path: &[u8]) -> Result<Vec<u8>> {
        self.with(Call::ReadLink, |state| {
            let inode = state.inode(state.find(path)?)?;
            if inode.kind == FileKind::Symlink { Ok(inode.target.clone()) } else { Err(Errno::EINVAL.into()) }
        })
    }

    fn open(&self, path: &[u8], access: Access) -> Result<Arc<dyn SharedFile>> {
        let call = if access == Access::Write { Call::OpenToWrite } else { Call::Open };
        let number = self.with(call, |state| {
            let number = state.find(path)?;
            let inode = state.inode_mut(number)?;
            match inode.kind {
                FileKind::File => inode.holds += 1,
                FileKind::Symlink => return Err(Errno::ELOOP.into()),
                FileKind::Directory if access == Access::Write => return Err(Errno::EISDIR.into()),
                _ => return Err(Errno::EINVAL.into()),
            }
            Ok(number)
        })?;
        Ok(self.open_inode(number))
    }

    fn create(&self, path: &[u8], mode: u16) -> Result<Arc<dyn SharedFile>> {
        let number = self.with(Call::Create, |state| {
            let number = state.make(path, FileKind::File, mode)?;
            state.inode_mut(number)?.holds += 1;
            Ok(number)
        })?;
        Ok(self.open_inode(number))
    }

    fn make(&self, path: &[u8], special: &Special) -> Result<FileStat> {
        self.with(Call::Make, |state| {
            let (kind, mode) = match special {
                Special::Directory(mode) => (FileKind::Directory, *mode),
                Special::Symlink(_) => (FileKind::Symlink, 0o777),
                Special::Node { kind, mode, .. } => (*kind, *mode),
            };
            let number = state.make(path, kind, mode)?;
            let inode = state.inode_mut(number)?;
            match special {
                Special::Symlink(target) => inode.target.clone_from(target),
                Special::Node { rdev, .. } => inode.rdev = *rdev,
                Special::Directory(_) => {}
            }
            state.stat(number)
        })
    }

    fn unlink(&self, path: &[u8]) -> Result<()> {
        self.kept
            .invalidate_around(|| self.seen(path), || self.with(Call::Unlink, |state| state.unlink(path)))
    }

    fn rmdir(&self, path: &[u8]) -> Result<()> {
        self.with(Call::Rmdir, |state| state.rmdir(path))
    }

    fn open_file_cache(&self) -> Option<&OpenFileCache> {
        Some(&self.kept)
    }

    fn rename(&self, from: &[u8], to: &[u8], mode: RenameMode) -> Result<()> {
        if self.tree.0.control.tears_renames() {
            let is_file = |path| self.stat(path).is_ok_and(|stat| stat.kind == FileKind::File);
            if mode == RenameMode::Replace && from != to && is_file(from) && is_file(to) {
                self.tear(Some((from.to_vec(), to.to_vec())));
                return Ok(());
            }
            self.tear(None);
        }
        let rename = || self.with(Call::Rename, |state| state.rename(from, to, mode));
        self.kept.invalidate_around(|| self.seen(to), rename)
    }

    fn link(&self, from: &[u8], to: &[u8]) -> Result<()> {
        self.with(Call::Link, |state| state.link(from, to))
    }

    fn change(&self, path: &[u8], change: &AttrChange) -> Result<()> {
        self.with(Call::Change, |state| state.change(state.find(path)?, change))
    }

    fn xattr(&self, path: &[u8], name: &[u8]) -> Result<Vec<u8>> {
        self.with(Call::GetXattr, |state| {
            let inode = state.inode(state.find(path)?)?;
            inode.xattrs.get(name).cloned().ok_or_else(|| Errno::ENODATA.into())
        })
    }

    fn xattrs(&self, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.with(Call::ListXattr, |state| {
            Ok(state.inode(state.find(path)?)?.xattrs.keys().cloned().collect())
        })
    }

    fn set_xattr(&self, path: &[u8], name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.with(Call::SetXattr, |state| state.set_xattr(state.find(path)?, name, value, mode))
    }

    fn remove_xattr(&self, path: &[u8], name: &[u8]) -> Result<()> {
        self.with(Call::RemoveXattr, |state| {
            let number = state.find(path)?;
            let removed = state.inode_mut(number)?.xattrs.remove(name);
            removed.map(drop).ok_or_else(|| Errno::ENODATA.into())
        })
    }

    fn space(&self) -> Result<TreeSpace> {
        self.with(Call::Space, |state| {
            let used: u64 = state.inodes.values().map(|inode| inode.content.blocks() * 512).sum();
            let (total, inodes) = (1 << 40, 1 << 20);
            let free = total - used;
            let inodes_free = inodes - state.inodes.len() as u64;
            Ok(TreeSpace { total, free, available: free, inodes, inodes_free })
        })
    }

    fn sync_dir(&self, path: &[u8]) -> Result<()> {
        self.with(Call::SyncDir, |state| state.find(path).map(drop))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: NodeId = NodeId(0);
    const NEW: NodeId = NodeId(1);

    /// What a file has at the end: the current content, and the durable one.
    fn contents(tree: &SimulatedTree) -> [Vec<u8>; 2] {
        [false, true].map(|is_durable| {
            let files = tree.files(is_durable);
            let [(path, content)] = &files[..] else { panic!("{} files", files.len()) };
            assert_eq!(path, b"x");
            let mut bytes = vec![0; content.size as usize];
            content.read(&mut bytes, 0);
            bytes
        })
    }

    #[test]
    fn a_late_sync_does_not_restore_what_another_node_has_replaced_and_synced() {
        let tree = SimulatedTree::new(Simulation::new(1), Countdown::default());
        let old = tree.mounted_by(OLD).create(b"x", 0o644).expect("no such file yet");
        let new = tree.mounted_by(NEW).open(b"x", Access::Write).expect("the file exists");
        old.write_at(b"aaaaaaaa", 0).expect("no faults");
        new.write_at(b"bb", 3).expect("no faults");
        new.write_at(b"cccc", 6).expect("no faults");
        new.sync().expect("no faults");
        assert_eq!(contents(&tree), [b"aaabbacccc".to_vec(), b"\0\0\0bb\0cccc".to_vec()]);
        old.sync().expect("no faults");
        assert_eq!(contents(&tree), [b"aaabbacccc".to_vec(), b"aaabbacccc".to_vec()]);
    }

    #[test]
    fn a_later_write_of_another_node_replaces_a_synced_one() {
        let tree = SimulatedTree::new(Simulation::new(1), Countdown::default());
        let old = tree.mounted_by(OLD).create(b"x", 0o644).expect("no such file yet");
        let new = tree.mounted_by(NEW).open(b"x", Access::Write).expect("the file exists");
        old.write_at(b"aaaa", 0).expect("no faults");
        new.write_at(b"bb", 1).expect("no faults");
        old.sync().expect("no faults");
        assert_eq!(contents(&tree), [b"abba".to_vec(), b"aaaa".to_vec()]);
        new.sync().expect("no faults");
        assert_eq!(contents(&tree), [b"abba".to_vec(), b"abba".to_vec()]);
    }
}
