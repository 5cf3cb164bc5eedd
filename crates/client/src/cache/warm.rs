//! Preload of files into the pool (warm). This node walks the tree and sends load requests to the homes of the units.
//!
//! Per directory it keeps only one batch of entries of the shared file system. After a cancellation it sends no more requests; those in
//! flight complete. No cleanup is needed, because each unit is either loaded or absent.

use super::CacheView;
use crate::data::FileVersion;
use crate::replies::unexpected_reply;
use futures_util::StreamExt;
use futures_util::future::try_join_all;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tameike_core::limits::UNIT_SIZE;
use tameike_core::wire::admin::Warmed;
use tameike_core::wire::unit::{UnitReply, UnitRequest};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Errno, Fault, FaultKind, FileKind, HomeMap, InodeId, Layout, NodeId, Result, UnitId};
use tameike_fabric::{Destination, under_one_map};
use tameike_io::shared::{NamedFile, SharedDir, join};

/// Files that load concurrently.
const FILES_AT_ONCE: usize = 16;
/// Units per request to one home: few, so that a cancellation takes effect soon.
const UNITS_AT_ONCE: u64 = 16;
/// Most faults with a message; the rest are only counted.
const FAULTS_REPORTED_MAX: usize = 10;
/// Maximum directory depth: each level keeps one directory open.
const LEVELS_MAX: usize = 256;

/// A preload in progress.
pub struct Warming {
    number: u64,
    so_far: Mutex<Warmed>,
    is_cancelled: AtomicBool,
}

impl Warming {
    /// Returns the progress.
    pub fn so_far(&self) -> Warmed {
        self.so_far.lock().clone()
    }

    /// Cancels the preload.
    pub fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Release);
        self.so_far.lock().is_cancelled = true;
    }

    fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Acquire)
    }

    fn note_fault(&self, path: &[u8], fault: &Fault) {
        let mut so_far = self.so_far.lock();
        so_far.failed += 1;
        if so_far.faults.len() < FAULTS_REPORTED_MAX {
            so_far.faults.push(format!("{}: {fault}", String::from_utf8_lossy(path).escape_debug()));
        }
    }

    /// Counts a loaded file, of which `left_out` bytes did not fit.
    fn note_file(&self, left_out: u64) {
        let mut so_far = self.so_far.lock();
        if left_out == 0 {
            so_far.files += 1;
        } else {
            so_far.left_out_files += 1;
            so_far.left_out_bytes += left_out;
        }
    }
}

/// A directory on the current path of the walk.
struct Level {
    path: Vec<u8>,
    dir: Arc<dyn SharedDir>,
    after: u64,
    names: std::vec::IntoIter<NamedFile>,
}

impl CacheView {
    /// Creates a preload. Units that it loads first are not evicted for its later ones.
    pub fn warming(&self) -> Arc<Warming> {
        let (so_far, is_cancelled) = Default::default();
        Arc::new(Warming { number: self.runtime.random_u64(), so_far, is_cancelled })
    }

    /// Loads the file at `path`, relative to the root, or all regular files below that directory. Does not follow symbolic links.
    pub async fn warm(&self, path: Vec<u8>, warming: &Warming) {
        let at = path.clone();
        let mut levels = Vec::new();
        match self.below.run(move |fs| fs.stat(&at)).await {
            Ok(stat) if stat.kind == FileKind::Directory => self.enter(path, &mut levels, warming).await,
            Ok(_) => self.load_and_note(path, warming).await,
            Err(fault) => warming.note_fault(&path, &fault),
        }
        let mut loads = FuturesUnordered::new();
        loop {
            while loads.len() < FILES_AT_ONCE
                && !warming.is_cancelled()
                && let Some(file) = self.next_file(&mut levels, warming).await
            {
                loads.push(self.load_and_note(file, warming));
            }
            if loads.next().await.is_none() {
                return;
            }
        }
    }

    async fn enter(&self, path: Vec<u8>, levels: &mut Vec<Level>, warming: &Warming) {
        if levels.len() == LEVELS_MAX {
            let deep = format!("more than {LEVELS_MAX} directory levels: load it by its own path");
            return warming.note_fault(&path, &Fault::new(Errno::ELOOP, deep));
        }
        let at = path.clone();
        match self.below.run(move |fs| fs.open_dir(&at)).await {
            Ok(dir) => levels.push(Level { path, dir, after: 0, names: Vec::new().into_iter() }),
            // The directory was removed after its name was read.
            Err(fault) if fault.kind() == FaultKind::Missing && !levels.is_empty() => {}
            Err(fault) => warming.note_fault(&path, &fault),
        }
    }

    async fn next_file(&self, levels: &mut Vec<Level>, warming: &Warming) -> Option<Vec<u8>> {
        loop {
            let level = levels.last_mut()?;
            let Some(found) = level.names.next() else {
                let (dir, after) = (level.dir.clone(), level.after);
                match self.below.run(move |_| dir.read(after)).await {
                    Ok(names) if names.is_empty() => drop(levels.pop()),
                    Ok(names) => {
                        level.after = names.last().map_or(after, |last| last.next);
                        level.names = names.into_iter();
                    }
                    Err(fault) => {
                        warming.note_fault(&level.path, &fault);
                        levels.pop();
                    }
                }
                continue;
            };
            let path = join(&level.path, &found.name);
            match found.kind {
                FileKind::File => return Some(path),
                FileKind::Directory if found.name != b"." && found.name != b".." => {
                    self.enter(path, levels, warming).await;
                }
                _ => {}
            }
        }
    }

    async fn load_and_note(&self, path: Vec<u8>, warming: &Warming) {
        match self.load(path.clone(), warming).await {
            Ok(Some(left_out)) => warming.note_file(left_out),
            Ok(None) => {}
            Err(fault) if fault.kind() == FaultKind::Missing && self.is_gone(path.clone()).await => {}
            Err(fault) => warming.note_fault(&path, &fault),
        }
    }

    async fn is_gone(&self, path: Vec<u8>) -> bool {
        self.below.run(move |fs| fs.stat(&path)).await.is_err_and(|fault| fault.kind() == FaultKind::Missing)
    }

    /// Has the homes of a file's units load them. Returns the number of bytes that did not fit, or None after a cancellation.
    async fn load(&self, path: Vec<u8>, warming: &Warming) -> Result<Option<u64>> {
        let at = path.clone();
        let stat = self.below.run(move |fs| fs.stat(&at)).await?;
        if stat.kind != FileKind::File {
            return Err(Fault::new(Errno::EINVAL, "not a regular file or directory"));
        }
        let inode = stat.inode_id();
        let (state, _) = self.ask_open((inode, path.clone(), stat.stamp()), false, false).await?;
        let known = FileVersion::of_cache(state, stat.size);
        let (count, nodes) = (known.size.div_ceil(UNIT_SIZE as u64), self.cluster.map().nodes().len() as u64);
        let (some, mut left_out) = (UNITS_AT_ONCE * nodes, 0);
        for first in (0..count).step_by(some as usize) {
            if warming.is_cancelled() {
                return Ok(None);
            }
            let units = first..(first + some).min(count);
            let load = |map| self.load_units(map, &known, inode, (units.clone(), &path), warming);
            left_out += under_one_map(&self.cluster, load).await?;
        }
        Ok(Some(left_out))
    }

    /// Sends each node one request to load its units in a range. Returns the number of bytes that did not fit.
    async fn load_units(
        &self,
        map: Arc<HomeMap>,
        known: &FileVersion,
        inode: InodeId,
        (units, path): (Range<u64>, &[u8]),
        warming: &Warming,
    ) -> Result<u64> {
        let mut by_node = BTreeMap::<NodeId, Vec<u64>>::new();
        for index in units {
            let home = self.cluster.unit_home(Layout::Striped, UnitId { inode, index });
            by_node.entry(map.primary(home)).or_default().push(index);
        }
        let mut calls = Vec::new();
        for (node, units) in by_node {
            let (size, generation, path) = (known.size, known.generation, path.to_vec());
            let loading = warming.number;
            let request = UnitRequest::Load { inode, units, size, generation, path, loading };
            let to = Destination::Primary(node, map.epoch);
            calls.push(self.rpc.call(to, Request::Unit(request), None, None));
        }
        let mut sum = 0;
        for answer in try_join_all(calls).await? {
            match answer.reply {
                Reply::Unit(UnitReply::Loaded { held, left_out }) => {
                    warming.so_far.lock().bytes += held;
                    sum += left_out;
                }
                other => return Err(unexpected_reply(&other)),
            }
        }
        Ok(sum)
    }

    /// Returns the inode of the file at `path`, relative to the root.
    pub async fn inode_at(&self, path: Vec<u8>) -> Result<InodeId> {
        self.below.run(move |fs| fs.stat(&path)).await.map(|stat| stat.inode_id())
    }
}
