//! Open files and directories of the simulated shared file system.

use super::faults::Call;
use super::state::{State, UnsyncedWrite};
use super::{SimulatedTree, coarse};
use parking_lot::Mutex;
use tameike_core::attr::AttrChange;
use tameike_core::{Errno, Fault, FileKind, InodeId, NodeId, Result};
use tameike_io::os::runtime::Clock;
use tameike_io::shared::{Allocate, FileStat, NamedFile, Seek, SharedDir, SharedFile};

pub(super) struct Hold {
    pub tree: SimulatedTree,
    pub number: u64,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut state = self.tree.0.state.lock();
        if let Ok(inode) = state.inode_mut(self.number) {
            inode.holds -= 1;
        }
        state.sweep(self.number);
    }
}

/// An open file description of one node.
pub(super) struct OpenFile {
    hold: Hold,
    node: NodeId,
    /// The file's error count that this descriptor has reported, or that preceded it.
    reported: Mutex<u64>,
}

impl OpenFile {
    pub fn new(tree: SimulatedTree, node: NodeId, number: u64) -> Self {
        let reported = tree.0.state.lock().inode(number).map_or(0, |inode| inode.errors);
        Self { hold: Hold { tree, number }, node, reported: Mutex::new(reported) }
    }

    fn with<T>(&self, call: Call, work: impl FnOnce(&mut State, u64) -> Result<T>) -> Result<T> {
        self.hold.tree.with(call, |state| work(state, self.hold.number))
    }

    fn write(&self, bytes: &[u8], offset: Option<u64>) -> Result<()> {
        let written = self.with(Call::Write, |_, _| Ok(()));
        // A failing write takes effect in part, as on a full disk.
        let bytes = if written.is_ok() { bytes } else { &bytes[..bytes.len() / 2] };
        let mut state = self.hold.tree.0.state.lock();
        let now = coarse(self.hold.tree.0.simulation.wall());
        let inode = state.inode_mut(self.hold.number)?;
        (inode.mtime, inode.ctime) = (now, now);
        let offset = offset.unwrap_or(inode.content.size);
        inode.content.write(bytes, offset);
        inode.unsynced_writes.push(UnsyncedWrite { node: self.node, offset, bytes: bytes.to_vec() });
        written
    }
}

impl SharedFile for OpenFile {
    fn stat(&self) -> Result<FileStat> {
        self.with(Call::Stat, |state, number| state.stat(number))
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.with(Call::Read, |state, number| Ok(state.inode(number)?.content.read(buffer, offset)))
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.write(bytes, Some(offset))
    }

    fn append(&self, bytes: &[u8]) -> Result<()> {
        self.write(bytes, None)
    }

    fn truncate(&self, size: u64) -> Result<()> {
        self.with(Call::Truncate, |state, number| {
            let now = state.now;
            let inode = state.inode_mut(number)?;
            (inode.mtime, inode.ctime) = (now, now);
            inode.content.truncate(size);
            inode.durable.truncate(size);
            inode.unsynced_writes.retain_mut(|write| {
                let left = size.saturating_sub(write.offset).min(write.bytes.len() as u64);
                write.bytes.truncate(left as usize);
                left > 0
            });
            Ok(())
        })
    }

    fn allocate(&self, how: Allocate, offset: u64, length: u64) -> Result<()> {
        self.with(Call::Allocate, |state, number| {
            let now = state.now;
            let inode = state.inode_mut(number)?;
            let end = offset + length;
            let clears = matches!(how, Allocate::Punch | Allocate::Zero);
            for content in [&mut inode.content, &mut inode.durable] {
                if clears {
                    content.punch(offset, length);
                }
                if matches!(how, Allocate::Extend | Allocate::Zero) {
                    content.size = content.size.max(end);
                }
            }
            if clears {
                // Later syncs of these writes must not fill the hole.
                for write in &mut inode.unsynced_writes {
                    write.part_in(offset..end).fill(0);
                }
            }
            (inode.mtime, inode.ctime) = (now, now);
            Ok(())
        })
    }

    fn seek(&self, what: Seek, offset: u64) -> Result<u64> {
        self.with(Call::Seek, |state, number| {
            let content = &state.inode(number)?.content;
            content.seek(what == Seek::Data, offset).ok_or_else(|| Errno::ENXIO.into())
        })
    }

    fn sync(&self) -> Result<()> {
        let (must_fail, fails) = self.hold.tree.0.control.sync();
        self.hold.tree.at_work(|state| {
            let inode = state.inode_mut(self.hold.number)?;
            let mut reported = self.reported.lock();
            if *reported < inode.errors {
                *reported = inode.errors;
                return Err(Fault::new(Errno::EIO, "a sync failed for another descriptor"));
            }
            let own = |write: &UnsyncedWrite| write.node == self.node;
            if (fails || must_fail) && inode.unsynced_writes.iter().any(own) {
                // As on Linux, the dirty pages are dropped, and later syncs do not report them again.
                inode.errors += 1;
                *reported = inode.errors;
                inode.unsynced_writes.retain(|write| !own(write));
                inode.sync_failed = true;
                return Err(Fault::new(Errno::EIO, "injected fault"));
            }
            if must_fail {
                return Err(Fault::new(Errno::EIO, "injected fault"));
            }
            if inode.sync_failed {
                inode.unsynced_writes.retain(|write| !own(write));
            } else {
                inode.sync_writes_of(self.node);
            }
            Ok(())
        })
    }

    fn revalidate(&self) -> Result<()> {
        self.stat().map(drop)
    }

    fn forget_pages(&self) -> Result<()> {
        self.with(Call::ForgetPages, |state, number| {
            let inode = state.inode_mut(number)?;
            if std::mem::take(&mut inode.sync_failed) {
                inode.reload();
            }
            Ok(())
        })
    }

    fn change(&self, change: &AttrChange) -> Result<()> {
        self.with(Call::Change, |state, number| state.change(number, change))
    }
}

pub(super) struct OpenDir {
    pub hold: Hold,
}

impl SharedDir for OpenDir {
    fn stat(&self) -> Result<FileStat> {
        self.hold.tree.with(Call::Stat, |state| state.stat(self.hold.number))
    }

    /// Cursors are hashes of names, as in ext4: they stay valid while other names change.
    fn read(&self, after: u64) -> Result<Vec<NamedFile>> {
        self.hold.tree.with(Call::ReadDir, |state| {
            let inode = state.inode(self.hold.number)?;
            if inode.nlink == 0 {
                return Err(Errno::ENOENT.into());
            }
            let own = [&b"."[..], b".."].map(|name| (name.to_vec(), self.hold.number));
            let all =
                own.into_iter().chain(inode.children.iter().map(|(name, &child)| (name.clone(), child)));
            let mut named: Vec<_> = all
                .map(|(name, child)| NamedFile {
                    next: cursor(&name),
                    inode: InodeId::cached(0, child),
                    kind: state.inode(child).map_or(FileKind::File, |inode| inode.kind),
                    name,
                })
                .filter(|named| named.next > after)
                .collect();
            named.sort_by_key(|named| named.next);
            named.truncate(5);
            Ok(named)
        })
    }
}

fn cursor(name: &[u8]) -> u64 {
    match name {
        b"." => 1,
        b".." => 2,
        name => {
            let mixed = name.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            });
            (mixed >> 2) | 4
        }
    }
}
