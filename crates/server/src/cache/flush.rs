//! Flushes one file: its homes write their dirty bytes to the shared file system and fsync it, in rounds; then the coordinator records that.

use super::Activity;
use super::base::Base;
use super::dir_syncs::DirSyncs;
use super::file_table::File;
use super::record::Record;
use super::removal::Removals;
use super::resize::Resizer;
use crate::flush_end;
use futures_util::future::join_all;
use std::sync::Arc;
use tameike_core::limits::FAILOVER_TIME_MAX;
use tameike_core::wire::cache::Stamp;
use tameike_core::wire::unit::{FLUSH_UNITS_MAX, FlushEnd, UnitDigest, UnitReply, UnitRequest};
use tameike_core::{Errno, Fault, FaultKind, InodeId, MapEpoch, NodeId, Result};
use tameike_fabric::rpc::REFUSED_TIME;
use tameike_io::shared::{Access, FileStat, open_same, split};

/// Whether a flush gives way to foreground requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// It does.
    Yields,
    /// It does not.
    Urgent,
}

/// Nodes that a flush asks besides the homes of committed bytes, since they may hold bytes that were never committed.
#[derive(Clone, Copy)]
pub(super) enum Extra<'a> {
    /// No other nodes.
    None,
    /// All nodes that may hold such bytes of the file.
    Written,
    /// Those of these nodes that still serve homes.
    Nodes(&'a [NodeId]),
}

/// The flush of one file.
struct Order<'a> {
    inode: InodeId,
    path: &'a [u8],
    record: &'a Record,
    urgency: Urgency,
    /// The size and mtime that the only home of the file sets itself, where there is only one, and it may.
    ending: Option<FlushEnd>,
}

/// What the homes flushed.
#[derive(Default)]
struct Flushed {
    written: u64,
    end: u64,
    rest: bool,
    /// How the only home left the file, if it has set size and mtime.
    left: Option<Stamp>,
}

/// Marks a file as being flushed until dropped.
struct Flushing<'a>(&'a File);

impl<'a> Flushing<'a> {
    fn begin(file: &'a File) -> (Self, Record, u64) {
        let mut state = file.state();
        state.flushing = true;
        (Self(file), state.record.clone(), state.changes)
    }
}

impl Drop for Flushing<'_> {
    fn drop(&mut self) {
        self.0.state().flushing = false;
    }
}

/// Flushes files.
pub(super) struct Flusher {
    pub(super) base: Base,
    removals: Arc<Removals>,
    resizer: Arc<Resizer>,
    dir_syncs: DirSyncs,
    pub(super) activity: Arc<Activity>,
    /// Files that may be flushed at a time.
    pub(super) parallel: usize,
}

impl Flusher {
    /// A flusher that flushes `parallel` files at a time.
    pub(super) fn new(
        base: Base,
        removals: Arc<Removals>,
        resizer: Arc<Resizer>,
        activity: Arc<Activity>,
        parallel: usize,
    ) -> Self {
        Self { base, removals, resizer, dir_syncs: DirSyncs::default(), activity, parallel: parallel.max(1) }
    }

    /// Flushes a file, whatever its homes hold, because a node is full or a name is about to be removed. Fails with `ESTALE` if the file
    /// was removed.
    pub(super) async fn write_back(&self, inode: InodeId) -> Result<()> {
        if self.base.files.get(inode)?.is_none() {
            return Ok(());
        }
        self.flush(inode, Extra::Written, Urgency::Urgent).await?;
        let is_removed = self.base.files.get(inode)?.is_some_and(|file| file.state().record.removed);
        if is_removed { Err(Errno::ESTALE.into()) } else { Ok(()) }
    }

    /// Flushes a file, and returns whether it is clean now. After an error, the bytes that the shared file system lacks stay dirty.
    pub(super) async fn flush(&self, inode: InodeId, extra: Extra<'_>, urgency: Urgency) -> Result<bool> {
        if !self.base.homes.coordinates(inode) {
            self.base.queue.remove(inode);
            return Ok(true);
        }
        let Some(file) = self.base.files.get(inode)? else { return Ok(true) };
        let _flush = file.flush.lock().await;
        if self.removals.finish(&file).await? {
            self.base.queue.remove(inode);
            return Ok(true);
        }
        let flushed = async {
            self.resizer.finish(&file).await?;
            let nodes = self.nodes_of(extra, inode, &file.state().record);
            if !nodes.is_empty() && !self.note_uncommitted(&file, &nodes).await? {
                return Ok(true);
            }
            self.flush_again(&file, extra, urgency).await
        };
        let flushed = flushed.await;
        if let Err(fault) = &flushed {
            let (why, unsynced) = (fault.to_string(), may_be_unsynced(fault));
            self.base.files.update(&file, |state| {
                state.record.failure = why;
                state.record.unsynced |= unsynced;
            })?;
        }
        flushed
    }

    /// Flushes a file, and again when a home has got another primary, or a home of several replicas has not answered.
    async fn flush_again(&self, file: &Arc<File>, extra: Extra<'_>, urgency: Urgency) -> Result<bool> {
        let Base { homes, runtime, .. } = &self.base;
        let deadline = runtime.clock.monotonic() + FAILOVER_TIME_MAX;
        loop {
            match homes.chosen_again(|_| self.flush_locked(file, extra, urgency)).await {
                Err(fault) if fault.errno == Errno::EREMCHG && homes.coordinates(file.inode) => {}
                flushed => return flushed,
            }
            runtime.sleep(REFUSED_TIME).await;
            if runtime.clock.monotonic() >= deadline {
                let inode = file.inode;
                return Err(Fault::new(
                    Errno::EHOSTDOWN,
                    format!("a node with units of {inode} does not answer"),
                ));
            }
        }
    }

    /// The extra nodes of a flush under the current home map.
    fn nodes_of(&self, extra: Extra<'_>, inode: InodeId, record: &Record) -> Vec<NodeId> {
        let homes = &self.base.homes;
        match extra {
            Extra::None => Vec::new(),
            Extra::Written => homes.written(inode, record),
            Extra::Nodes(nodes) => {
                let serving = homes.nodes();
                nodes.iter().filter(|node| serving.contains(node)).copied().collect()
            }
        }
    }

    /// Marks a clean file dirty if these nodes hold bytes of it that their writers have not committed: if they cannot be flushed, the file
    /// lacks them all the same. Returns whether the file is dirty. The caller holds the file's flush lock.
    async fn note_uncommitted(&self, file: &File, nodes: &[NodeId]) -> Result<bool> {
        if file.state().record.dirty {
            return Ok(true);
        }
        let before = InodeId(file.inode.0 - 1);
        for &node in nodes {
            // A node that does not answer may have some.
            let homes = &self.base.homes;
            let answer = homes.chosen_again(|epoch| homes.dirty_inodes((epoch, node), before, 1)).await;
            if answer.is_ok_and(|inodes| !inodes.contains(&file.inode)) {
                continue;
            }
            let now = self.base.runtime.now();
            self.base.files.update(file, |state| {
                state.changes += 1;
                (state.record.dirty, state.record.journaled, state.record.mtime) = (true, true, now);
            })?;
            self.base.queue.add(file.inode);
            return Ok(true);
        }
        Ok(false)
    }

    async fn flush_locked(&self, file: &Arc<File>, extra: Extra<'_>, urgency: Urgency) -> Result<bool> {
        let Base { runtime, journal, files, homes, locator, queue, .. } = &self.base;
        let (_flushing, record, changes) = Flushing::begin(file);
        let inode = file.inode;
        let (path, stat) = locator.locate(inode, &record).await?;
        let record = self.begin(file, record, stat.stamp())?;
        let began = runtime.now();
        if record.outdated {
            journal.drop_digests(inode, 0..u64::MAX)?;
            files.update(file, |state| state.record.outdated = false)?;
        }
        journal.sync(false).await?;
        let epoch = homes.epoch();
        let mut nodes = homes.committed(inode, &record);
        let extra = self.nodes_of(extra, inode, &record);
        nodes.extend(extra.iter().filter(|node| !nodes.contains(node)).copied().collect::<Vec<_>>());
        let ending = FlushEnd { mtime: record.dirty.then_some(record.mtime) };
        let by_home = nodes.len() == 1 && !record.distrusts_page_cache();
        let order = Order { inode, path: &path, record: &record, urgency, ending: by_home.then_some(ending) };
        let (total, failure) = self.flush_homes(epoch, nodes, &order).await;
        let (size, ended) = (record.size.max(total.end), runtime.now());
        if total.rest || failure.is_some() {
            // The homes have changed the shared file: the stamp follows, so that this does not look like a change by another program. A
            // node that did not answer may go on changing it. The page cache of one whose fsync failed lacks what it seems to have.
            let (_, stat) = locator.locate(inode, &record).await?;
            let is_unknown = failure.as_ref().is_some_and(may_hide_fsync);
            files.update(file, |state| {
                state.note_partial_flush(began, ended, stat.stamp());
                // Flushed bytes behind the reported size are clean now: the size must cover them.
                state.record.size = state.record.size.max(total.end);
                state.record.written += total.written;
                state.record.flush_interrupted = record.flush_interrupted || is_unknown;
            })?;
            return failure.map_or(Ok(false), Err);
        }
        let stamp = match total.left {
            Some(left) => left,
            None => self.set_size_and_times(inode, &path, size, ending).await?,
        };
        self.sync_name(&path, &stat).await?;
        let clean = files.update(file, |state| {
            let unchanged = state.changes == changes;
            state.note_flush(began, ended, stamp);
            let record = &mut state.record;
            record.prefer_path(&path);
            record.written += total.written;
            record.failure.clear();
            // A flush that wrote nothing has not made the kernel drop pages that it may wrongly take for written.
            record.unsynced &= total.written == 0;
            record.flush_interrupted = false;
            record.journaled = true;
            if unchanged {
                (record.size, record.mtime, record.dirty) = (stamp.size, stamp.mtime, false);
                // Under the lock of the state: a client that makes the file dirty next adds it again after this.
                queue.remove(inode);
            } else {
                record.size = record.size.max(size);
            }
            unchanged
        });
        // The journal refused it: the file is still dirty.
        let clean = clean.inspect_err(|_| queue.add_if_absent(inode))?;
        journal.sync(false).await?;
        Ok(clean)
    }

    /// Records the start of a flush, and changes of the shared file by other programs before it. Returns the record to flush by, whose
    /// `flush_interrupted` is that from before.
    fn begin(&self, file: &File, record: Record, seen: Stamp) -> Result<Record> {
        let now = self.base.runtime.now();
        self.base.files.update(file, |state| {
            if !record.matches_content(&seen) {
                state.observe(seen, now);
            }
            let begun = Record { flush_interrupted: record.flush_interrupted, ..state.record.clone() };
            state.record.flush_interrupted = true;
            begun
        })
    }

    /// Sets the size and the times of the shared file, and syncs it. Returns its stamp.
    async fn set_size_and_times(
        &self,
        inode: InodeId,
        path: &[u8],
        size: u64,
        how: FlushEnd,
    ) -> Result<Stamp> {
        let (shared, path) = (self.base.shared.clone(), path.to_vec());
        let finish = move || {
            let (file, seen) = open_same(&*shared, &path, inode, Access::Write)?;
            flush_end::set_size_and_times(&*file, &seen, size, how)
        };
        let stat = self.base.change_shared(inode, finish).await?;
        Ok(stat.stamp())
    }

    /// Makes the name of a synced file durable.
    async fn sync_name(&self, path: &[u8], stat: &FileStat) -> Result<()> {
        let (runtime, shared) = (&self.base.runtime, self.base.shared.clone());
        if shared.syncs_name_of(stat) {
            return Ok(());
        }
        let dir = split(path).map_or(&b""[..], |(dir, _)| dir);
        let at = dir.to_vec();
        self.dir_syncs.share(dir, || runtime.block(move || shared.sync_dir(&at))).await
    }

    /// Asks homes to flush, all at once, in rounds as long as one has more. Returns what they did, also when one of them failed.
    async fn flush_homes(
        &self,
        epoch: MapEpoch,
        mut nodes: Vec<NodeId>,
        order: &Order<'_>,
    ) -> (Flushed, Option<Fault>) {
        let Order { inode, path, record, urgency, ending } = *order;
        let distrust = record.distrusts_page_cache();
        let (mut total, mut failure) = (Flushed::default(), None);
        loop {
            let round = self.base.runtime.random_u64();
            let request = UnitRequest::Flush {
                inode,
                path: path.to_vec(),
                size: record.size,
                generation: record.generation,
                patient: urgency == Urgency::Yields,
                distrust,
                round,
                ending,
            };
            let calls = nodes.iter().map(|&node| self.base.homes.ask(epoch, node, request.clone()));
            let answers = join_all(calls).await;
            let (mut flushed, mut digests, mut rest) = (Vec::new(), Vec::new(), Vec::new());
            for (&node, answer) in nodes.iter().zip(answers) {
                match answer {
                    Ok(UnitReply::Flushed { written, end, digests: made, rest: more, left }) => {
                        // Only a single home is asked to set size and mtime.
                        total.left = left;
                        total.written += written;
                        total.end = total.end.max(end);
                        flushed.extend((!made.is_empty()).then_some(node));
                        digests.extend(made);
                        rest.extend(more.then_some(node));
                    }
                    Ok(reply) => {
                        let what = format!("{node} answered a flush with {reply:?}");
                        failure = Some(graver(failure, Fault::new(Errno::EPROTO, what)));
                    }
                    Err(fault) => failure = Some(graver(failure, fault)),
                }
            }
            total.rest = !rest.is_empty();
            // The kernel reports a failed fsync only to descriptors that were open then, on this host to none of a home that opens the
            // file later: no home is believed unless all succeed. Homes that distrust the page cache need no such check.
            if !distrust && failure.as_ref().is_some_and(may_be_unsynced) {
                return (total, failure);
            }
            if let Err(fault) = self.note_flushed(inode, &digests, (epoch, flushed), round).await {
                return (total, Some(graver(failure, fault)));
            }
            if rest.is_empty() || urgency == Urgency::Yields {
                return (total, failure);
            }
            nodes = rest;
        }
    }

    /// Records the digests of a round in the journal, and then lets the homes mark the units clean: so a clean unit has the digest of its
    /// last flush.
    async fn note_flushed(
        &self,
        inode: InodeId,
        digests: &[UnitDigest],
        (epoch, nodes): (MapEpoch, Vec<NodeId>),
        round: u64,
    ) -> Result<()> {
        if nodes.is_empty() {
            return Ok(());
        }
        // The receipt makes digests again that were made for another size of the file.
        digests.chunks(FLUSH_UNITS_MAX).try_for_each(|part| self.base.journal.put_digests(inode, part))?;
        self.base.journal.sync(false).await?;
        let clean = UnitRequest::MarkClean { inode, round };
        let calls = nodes.into_iter().map(|node| self.base.homes.ask(epoch, node, clean.clone()));
        join_all(calls).await.into_iter().try_for_each(|answer| answer.map(drop))
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        // The background flush ends.
        self.base.queue.wake();
    }
}

/// Returns the fault after which less is known of the shared file, the first of equal ones.
fn graver(known: Option<Fault>, other: Fault) -> Fault {
    let gravity = |fault: &Fault| (fault.kind() == FaultKind::Unreachable, may_be_unsynced(fault));
    match known {
        Some(known) if gravity(&known) >= gravity(&other) => known,
        _ => other,
    }
}

/// Whether a flush that failed so may have met a failing fsync: all but those that found the file system full.
fn may_be_unsynced(fault: &Fault) -> bool {
    fault.kind() != FaultKind::Full
}

/// Whether a node that failed so may have called fsync, with a result that it does not report: it did not answer, or the home map has changed
/// while it flushed.
fn may_hide_fsync(fault: &Fault) -> bool {
    fault.kind() == FaultKind::Unreachable || fault.errno == Errno::EREMCHG
}
