//! One file goes to the shared file system.

use super::CacheService;
use super::files::File;
use super::record::Record;
use crate::ending;
use futures_util::future::join_all;
use std::sync::Arc;
use tameike_core::wire::cache::Stamp;
use tameike_core::wire::unit::{Ending, FLUSH_UNITS_MAX, UnitDigest, UnitReply, UnitRequest};
use tameike_core::{Errno, Fault, InodeId, NodeId, Result};
use tameike_io::shared::{Access, FileStat, open_same, split};

/// Whether a flush gives way to foreground requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// It does.
    GivesWay,
    /// It does not.
    Urgent,
}

/// What is flushed.
struct Order<'a> {
    inode: InodeId,
    path: &'a [u8],
    record: &'a Record,
    patience: Patience,
    /// What the file gets by the node that flushes it, where that is one, and may do so.
    ending: Option<Ending>,
}

/// What all nodes flushed.
#[derive(Default)]
struct Flushed {
    written: u64,
    end: u64,
    rest: bool,
    /// How the file was left, where the node that flushed it has ended it.
    left: Option<Stamp>,
}

/// Marks the file as being flushed until dropped.
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

impl CacheService {
    /// Flushes the file; whether it is clean now. `extra` nodes are asked beside those that hold what was committed: they may hold bytes
    /// that never were committed.
    ///
    /// # Errors
    /// Why it cannot be flushed; everything that is not on the shared file system stays dirty.
    pub(super) async fn flush_file(
        &self,
        inode: InodeId,
        extra: &[NodeId],
        patience: Patience,
    ) -> Result<bool> {
        let Some(file) = self.files.get(&self.journal, inode)? else { return Ok(true) };
        let _flush = file.flush.lock().await;
        if self.finish_removal(&file).await? {
            self.dirty.lock().remove(&inode);
            return Ok(true);
        }
        let flushed = async {
            self.finish_cut(&file).await?;
            if !extra.is_empty() && !self.take_uncommitted(&file, extra).await? {
                return Ok(true);
            }
            self.flush_held(&file, extra, patience).await
        };
        let flushed = flushed.await;
        if let Err(fault) = &flushed {
            let (why, unsynced) = (fault.to_string(), may_be_unsynced(fault.errno));
            file.update(&self.journal, |state| {
                state.record.failure = why;
                state.record.unsynced |= unsynced;
            })?;
        }
        flushed
    }

    async fn flush_held(&self, file: &Arc<File>, extra: &[NodeId], patience: Patience) -> Result<bool> {
        let (_flushing, record, changes) = Flushing::begin(file);
        let inode = file.inode;
        let (path, stat) = self.locate(inode, &record).await?;
        let record = self.begin_flush(file, record, stat.stamp())?;
        let began = self.parts.runtime.now();
        if record.outdated {
            self.journal.drop_digests(inode, 0..u64::MAX)?;
            file.update(&self.journal, |state| state.record.outdated = false)?;
        }
        self.journal.sync(false).await?;
        let mut homes = self.homes_committed(inode, &record);
        homes.extend(extra.iter().filter(|node| !homes.contains(node)).copied().collect::<Vec<_>>());
        let ending = Ending { mtime: record.dirty.then_some(record.mtime) };
        let by_writer = homes.len() == 1 && !record.distrusts();
        let order =
            Order { inode, path: &path, record: &record, patience, ending: by_writer.then_some(ending) };
        let (total, failure) = self.flush_homes(homes, &order).await;
        let (size, ended) = (record.size.max(total.end), self.parts.runtime.now());
        if total.rest || failure.is_some() {
            // Bytes of the shared file have changed: the stamp follows, so that this is not taken for a change
            // by others. A node that did not answer may go on changing them.
            let (_, stat) = self.locate(inode, &record).await?;
            let unanswered = failure.as_ref().is_some_and(|fault| !is_refusal(fault.errno));
            file.update(&self.journal, |state| {
                state.take_part(began, ended, stat.stamp());
                // What is behind the size that was told is clean now, and must not be cut.
                state.record.size = state.record.size.max(total.end);
                state.record.written += total.written;
                state.record.interrupted = record.interrupted || unanswered;
            })?;
            return failure.map_or(Ok(false), Err);
        }
        let stamp = match total.left {
            Some(left) => left,
            None => self.end_file(inode, &path, size, ending).await?,
        };
        self.sync_name(&path, &stat).await?;
        let clean = file.update(&self.journal, |state| {
            let unchanged = state.changes == changes;
            state.take_whole(began, ended, stamp);
            let record = &mut state.record;
            record.prefer_path(&path);
            record.written += total.written;
            record.failure.clear();
            // Where nothing was left to be written, the kernel was not made to forget what it takes for written.
            record.unsynced &= total.written == 0;
            record.interrupted = false;
            record.journaled = true;
            if unchanged {
                (record.size, record.mtime, record.dirty) = (stamp.size, stamp.mtime, false);
                // Under the lock of the state: who makes the file dirty next puts it back after this.
                self.dirty.lock().remove(&inode);
            } else {
                record.size = record.size.max(size);
            }
            unchanged
        })?;
        self.journal.sync(false).await?;
        Ok(clean)
    }

    /// Takes note of what others did to the shared file before we write to it, and that a flush is under way. Gives
    /// the record to flush by, with `interrupted` as it was.
    fn begin_flush(&self, file: &File, record: Record, seen: Stamp) -> Result<Record> {
        let now = self.parts.runtime.now();
        file.update(&self.journal, |state| {
            if !record.has_content_of(&seen) {
                state.take_change(seen, now);
            }
            let begun = Record { interrupted: record.interrupted, ..state.record.clone() };
            state.record.interrupted = true;
            begun
        })
    }

    /// Gives the shared file its size and time, makes it safe, and tells how it then is.
    async fn end_file(&self, inode: InodeId, path: &[u8], size: u64, how: Ending) -> Result<Stamp> {
        let (shared, path) = (self.parts.shared.clone(), path.to_vec());
        let finish = move || {
            let (file, seen) = open_same(&*shared, &path, inode, Access::Write)?;
            ending::end(&*file, &seen, size, how)
        };
        self.parts.runtime.block(finish).await.map(|stat| stat.stamp())
    }

    /// Makes the name of a file safe that was synced itself, and is `stat`.
    async fn sync_name(&self, path: &[u8], stat: &FileStat) -> Result<()> {
        let (runtime, shared) = (&self.parts.runtime, self.parts.shared.clone());
        if shared.syncs_name_of(stat) {
            return Ok(());
        }
        let dir = split(path).map_or(&b""[..], |(dir, _)| dir);
        let at = dir.to_vec();
        self.dir_syncs.share(dir, || runtime.block(move || shared.sync_dir(&at))).await
    }

    /// Flushes what these nodes hold; what they did, also when one of them failed. They are asked in rounds, all at
    /// once, as long as one has more.
    async fn flush_homes(&self, mut homes: Vec<NodeId>, order: &Order<'_>) -> (Flushed, Option<Fault>) {
        let Order { inode, path, record, patience, ending } = *order;
        let distrust = record.distrusts();
        let (mut total, mut failure) = (Flushed::default(), None);
        loop {
            let round = self.parts.runtime.random_u64();
            let request = UnitRequest::Flush {
                inode,
                path: path.to_vec(),
                size: record.size,
                generation: record.generation,
                patient: patience == Patience::GivesWay,
                distrust,
                round,
                ending,
            };
            let asked = homes.iter().map(|&home| self.ask_unit(home, request.clone()));
            let answers = join_all(asked).await;
            let (mut flushed, mut digests, mut rest) = (Vec::new(), Vec::new(), Vec::new());
            for (&home, answer) in homes.iter().zip(answers) {
                match answer {
                    Ok(UnitReply::Flushed { written, end, digests: made, rest: more, left }) => {
                        // It is asked for of one node at most.
                        total.left = left;
                        total.written += written;
                        total.end = total.end.max(end);
                        flushed.extend((!made.is_empty()).then_some(home));
                        digests.extend(made);
                        rest.extend(more.then_some(home));
                    }
                    Ok(reply) => {
                        let what = format!("{home} answered a flush with {reply:?}");
                        failure = Some(graver(failure, Fault::new(Errno::EPROTO, what)));
                    }
                    Err(fault) => failure = Some(graver(failure, fault)),
                }
            }
            total.rest = !rest.is_empty();
            // A node that opens the file after the fsync of another one has failed is not told: none is believed
            // before all have succeeded. One that distrusts the kernel needs no word of others.
            if !distrust && failure.as_ref().is_some_and(|fault| may_be_unsynced(fault.errno)) {
                return (total, failure);
            }
            if let Err(fault) = self.take_flushed(inode, &digests, flushed, round).await {
                return (total, Some(graver(failure, fault)));
            }
            if rest.is_empty() || patience == Patience::GivesWay {
                return (total, failure);
            }
            homes = rest;
        }
    }

    /// What these nodes flushed in a round is on the shared file system. The digests are in the journal before
    /// anything becomes clean: what is clean has a digest, and that of its last flush.
    async fn take_flushed(
        &self,
        inode: InodeId,
        digests: &[UnitDigest],
        nodes: Vec<NodeId>,
        round: u64,
    ) -> Result<()> {
        if nodes.is_empty() {
            return Ok(());
        }
        // Those made for another size than the file has in the end are made again for its receipt.
        digests.chunks(FLUSH_UNITS_MAX).try_for_each(|part| self.journal.put_digests(inode, part))?;
        self.journal.sync(false).await?;
        self.ask_units(nodes, &UnitRequest::MarkClean { inode, round }).await
    }

    /// Digests of units as the shared file system has them now, by index.
    pub(super) async fn digest_units(
        &self,
        inode: InodeId,
        path: &[u8],
        size: u64,
        units: Vec<u64>,
    ) -> Result<Vec<UnitDigest>> {
        let mut by_home = std::collections::BTreeMap::<NodeId, Vec<u64>>::new();
        for index in units {
            by_home.entry(self.home(tameike_core::UnitId { inode, index })).or_default().push(index);
        }
        let asked = by_home.into_iter().map(|(home, units)| async move {
            let mut digests = Vec::with_capacity(units.len());
            for part in units.chunks(FLUSH_UNITS_MAX) {
                let request = UnitRequest::Digest { inode, path: path.to_vec(), size, units: part.to_vec() };
                match self.ask_unit(home, request).await? {
                    UnitReply::Digests(part) => digests.extend(part),
                    other => {
                        return Err(Fault::new(
                            Errno::EPROTO,
                            format!("{home} answered a digest with {other:?}"),
                        ));
                    }
                }
            }
            Ok(digests)
        });
        let mut digests = Vec::new();
        for answer in join_all(asked).await {
            digests.extend(answer?);
        }
        digests.sort_by_key(|digest| digest.index);
        Ok(digests)
    }
}

/// Of two faults, the one that leaves more in doubt; the first of equal ones.
fn graver(known: Option<Fault>, other: Fault) -> Fault {
    let doubt = |fault: &Fault| (!is_refusal(fault.errno), may_be_unsynced(fault.errno));
    match known {
        Some(known) if doubt(&known) >= doubt(&other) => known,
        _ => other,
    }
}

/// Whether a node said so, and not that none could be heard of.
pub(super) fn is_refusal(errno: Errno) -> bool {
    !matches!(errno, Errno::EHOSTDOWN | Errno::ECONNRESET | Errno::ETIMEDOUT)
}

/// Whether a flush that failed so may have met a failing fsync: all but those that found no room when they wrote.
fn may_be_unsynced(errno: Errno) -> bool {
    !matches!(errno, Errno::ENOSPC | Errno::EDQUOT)
}
