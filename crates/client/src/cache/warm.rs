//! Loads files before anybody reads them: this node looks through the tree, and has the homes of units read them, each its own.

use super::{CacheView, version};
use crate::data::FileVersion;
use futures_util::future::try_join_all;
use futures_util::{StreamExt, stream};
use std::collections::BTreeMap;
use std::ops::Range;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::wire::admin::Warmed;
use tameike_core::wire::unit::{Backing, LOAD_UNITS_MAX, UnitReply, UnitRequest};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Errno, Fault, FileKind, InodeId, Layout, NodeId, Result, UnitId};
use tameike_io::shared::{FileStat, is_missing};

/// Files that are loaded at the same time.
const FILES_AT_ONCE: usize = 16;
/// Files whose fault is told; of others, only their number.
const FAULTS_TOLD_MAX: usize = 10;

/// Takes note of what became of one file or directory.
fn note(warmed: &mut Warmed, path: &[u8], outcome: Result<u64>) {
    match outcome {
        Ok(bytes) => {
            warmed.files += 1;
            warmed.bytes += bytes;
        }
        Err(fault) => {
            warmed.failed += 1;
            if warmed.faults.len() < FAULTS_TOLD_MAX {
                warmed.faults.push(format!("{}: {fault}", String::from_utf8_lossy(path)));
            }
        }
    }
}

impl CacheView {
    /// Has the job hold the file at `path`, relative to the root, or all regular files below that directory; symbolic links are not
    /// followed. What is larger than the job's cache area pushes out what was loaded before it.
    pub async fn warm(&self, path: Vec<u8>) -> Warmed {
        let mut warmed = Warmed::default();
        let at = path.clone();
        match self.below.run(move |fs| fs.stat(&at)).await {
            Ok(stat) if stat.kind == FileKind::Directory => self.warm_below(path, &mut warmed).await,
            Ok(_) => {
                let loaded = self.load(path.clone()).await;
                note(&mut warmed, &path, loaded);
            }
            Err(fault) => note(&mut warmed, &path, Err(fault)),
        }
        warmed
    }

    async fn warm_below(&self, path: Vec<u8>, warmed: &mut Warmed) {
        let mut dirs = vec![path];
        while let Some(dir) = dirs.pop() {
            let (files, below) = match self.list(dir.clone()).await {
                Ok(found) => found,
                Err(fault) => {
                    note(warmed, &dir, Err(fault));
                    continue;
                }
            };
            dirs.extend(below);
            let loads = files.into_iter().map(|file| async move {
                let loaded = self.load(file.clone()).await;
                (file, loaded)
            });
            let mut loads = stream::iter(loads).buffer_unordered(FILES_AT_ONCE);
            while let Some((file, loaded)) = loads.next().await {
                // What has gone since the directory was read is not wanted any more.
                if !matches!(&loaded, Err(fault) if is_missing(fault.errno)) {
                    note(warmed, &file, loaded);
                }
            }
        }
    }

    /// Paths of the regular files and of the directories in a directory.
    async fn list(&self, dir: Vec<u8>) -> Result<(Vec<Vec<u8>>, Vec<Vec<u8>>)> {
        let listed = self.below.run(move |fs| {
            let (open, mut after) = (fs.open_dir(&dir)?, 0);
            let (mut files, mut dirs) = (Vec::new(), Vec::new());
            loop {
                let some = open.read(after)?;
                let Some(last) = some.last() else { return Ok((files, dirs)) };
                after = last.next;
                for found in some.into_iter().filter(|found| found.name != b"." && found.name != b"..") {
                    let path = if dir.is_empty() { found.name } else { [&dir[..], &found.name].join(&b'/') };
                    match found.kind {
                        FileKind::File => files.push(path),
                        FileKind::Directory => dirs.push(path),
                        _ => {}
                    }
                }
            }
        });
        listed.await
    }

    /// Has the homes of a file's units load them; its size.
    async fn load(&self, path: Vec<u8>) -> Result<u64> {
        let at = path.clone();
        let stat = self.below.run(move |fs| fs.stat(&at)).await?;
        if stat.kind != FileKind::File {
            return Err(Fault::new(Errno::EINVAL, "it is neither a regular file nor a directory"));
        }
        let (inode, FileStat { size, .. }) = (stat.inode_id(), &stat);
        let (state, _) = self.ask_open(inode, path.clone(), stat.stamp(), false).await?;
        let known = version(state, *size);
        let backing = Backing::Shared { path, holders: Vec::new() };
        let (count, homes) =
            (known.size.div_ceil(UNIT_SIZE as u64), self.cluster.device_nodes().len() as u64);
        let some = LOAD_UNITS_MAX as u64 * homes;
        for first in (0..count).step_by(some as usize) {
            let units = first..(first + some).min(count);
            self.load_units(&known, inode, units, &backing).await?;
        }
        Ok(known.size)
    }

    /// Has the homes of some units of a file load them, each with one request.
    async fn load_units(
        &self,
        known: &FileVersion,
        inode: InodeId,
        units: Range<u64>,
        backing: &Backing,
    ) -> Result<()> {
        let mut by_home = BTreeMap::<NodeId, Vec<u64>>::new();
        for index in units {
            let home = self.cluster.unit_home(Layout::Striped, UnitId { inode, index });
            by_home.entry(home).or_default().push(index);
        }
        let mut asked = Vec::new();
        for (home, units) in by_home {
            let (size, generation, backing) = (known.size, known.generation, backing.clone());
            let request = UnitRequest::Load { inode, units, size, generation, backing };
            asked.push(self.rpc.call(home, Request::Unit(request), None, None));
        }
        for answer in try_join_all(asked).await? {
            match answer.reply {
                Reply::Unit(UnitReply::Loaded(_)) => {}
                other => return Err(super::out_of_turn(&other)),
            }
        }
        Ok(())
    }
}
