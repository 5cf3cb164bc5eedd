//! Executes a step: concurrent calls and faults.

use super::appends::APPENDS_MAX;
use super::{CALL_TIME_MAX, Call, Checked, End, Open, Run, SlotName, VIEWS};
use crate::countdown::{FaultKind, Medium};
use crate::kernel;
use crate::locking::{Caller, process_of};
use crate::model::ObjectId;
use crate::op::{Flags, Op};
use crate::program::{Action, Injection};
use crate::world::{DiskFaults, World};
use futures_util::future::{Either, select};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tameike_core::{Errno, NodeId, Result, View};
use tameike_fabric::simulated::NetworkFaults;
use tameike_io::os::runtime::{Promise, promise};

/// Maximum number of program calls that may fail for one injected fault: one per view, or a write and the close that reports it.
const EXPLAINED_MAX: usize = 2;

/// How long programs wait for a lock after all other calls ended. Longer than the detection of a failed node takes.
const SIGNAL_AFTER: Duration = Duration::from_secs(20);

pub(super) struct Pending {
    call: Call,
    done: Promise<(Result<kernel::Output>, u64)>,
    node_failure: Promise<()>,
    watch: u64,
}

impl Pending {
    fn waits(&self) -> bool {
        self.call.waits()
    }
}

impl Run {
    pub(super) fn begin(&mut self, node: usize, view: View, op: Op, open: Option<Open>) -> Option<Pending> {
        let (views, runtime) = self.world.views(node)?;
        let begun = self.moment();
        let (moments, (resolver, done)) = (self.moments.clone(), promise());
        let (handle, request) = (open.as_ref().map(|open| open.handle), op.clone());
        log::trace!("node {node}, {}: {op}", view.as_str());
        let caller = Caller { signalled: self.signalled.clone(), ..self.world.caller(node, view)? };
        runtime.spawn(async move {
            let output = kernel::call(&views, &caller, &request, handle).await;
            resolver.resolve((output, moments.fetch_add(1, Ordering::SeqCst) + 1));
        });
        let (resolver, node_failure) = promise();
        let watch = self.world.on_failure(node, resolver);
        let append_offset = match (&op, &open) {
            (Op::Write { .. }, Some(open)) if open.flags.append => self.end_of(node, view, open.object),
            _ => None,
        };
        let call = Call { node, view, op, open, append_offset, begun, ended: 0, end: End::NodeFailed };
        Some(Pending { call, done, node_failure, watch })
    }

    pub(super) async fn end(&mut self, pending: Pending) -> Checked<Call> {
        let Pending { mut call, done, node_failure, watch } = pending;
        let either = select(done, node_failure);
        match self.world.runtime().timeout(CALL_TIME_MAX, either).await {
            Some(Either::Left(((output, ended), _))) => {
                call.ended = ended;
                call.end = output.map_or_else(End::Failed, End::Returned);
            }
            Some(Either::Right(_)) => call.ended = self.moment(),
            None => return Err(call.wrong(format!("does not end within {CALL_TIME_MAX:?}"))),
        }
        self.world.cancel_on_failure(call.node, watch);
        self.apply_countdown();
        self.note_excluded();
        match &call.end {
            End::Returned(kernel::Output::Bytes(bytes)) => log::trace!("... {} bytes", bytes.len()),
            End::Returned(output) => log::trace!("... {output:?}"),
            End::Failed(fault) => log::trace!("... {fault}"),
            End::NodeFailed => log::trace!("... node failed"),
        }
        Ok(call)
    }

    pub(super) async fn one(&mut self, node: usize, view: View, op: Op, open: Option<Open>) -> Checked<Call> {
        match self.begin(node, view, op, open) {
            Some(pending) => self.end(pending).await,
            None => Err(format!("node {node} is down")),
        }
    }

    pub(super) async fn together(&mut self, actions: &[Action]) -> Checked {
        let (mut pending, mut injections) = (Vec::new(), Vec::new());
        let mut used = Used::default();
        self.rots = false;
        for action in actions {
            match action {
                Action::Injection(after, injection) => injections.push(self.inject(*after, injection)),
                Action::Call { node, view, op } => {
                    let Some(open) = self.admit(*node, *view, op, &mut used) else { continue };
                    pending.extend(self.begin(*node, *view, op.clone(), open));
                }
            }
        }
        let mut calls = Vec::new();
        let (waiting, others): (Vec<_>, Vec<_>) = pending.into_iter().partition(Pending::waits);
        for one in others {
            calls.push(self.end(one).await?);
        }
        futures_util::future::join_all(injections).await;
        if !waiting.is_empty() {
            self.world.runtime().sleep(SIGNAL_AFTER).await;
            self.signalled.store(true, Ordering::Relaxed);
        }
        for one in waiting {
            calls.push(self.end(one).await?);
        }
        self.signalled.store(false, Ordering::Relaxed);
        calls.sort_by_key(|call| call.begun);
        self.drop_failed_nodes(&calls);
        self.note_space(&calls);
        self.find_rot().await?;
        self.locate_appends(&mut calls).await?;
        self.verify_locks(&calls)?;
        self.verify(calls)
    }

    /// Returns the open file of a call, or `None` if the call cannot be made or checked in this step.
    fn admit(&mut self, node: usize, view: View, op: &Op, used: &mut Used) -> Option<Option<Open>> {
        let node = node % self.world.count();
        if !self.world.is_up(node) || op.paths().iter().any(|path| self.is_unknown(view, path, op)) {
            return None;
        }
        let name = |slot| -> SlotName { (node, view.index(), slot) };
        if let Op::Truncate { path, .. } | Op::Open { path, flags: Flags { truncate: true, .. }, .. } = op
            && let Ok(object) = self.model(view).find(path)
            && !used.whole.insert((view.index(), object))
        {
            return None;
        }
        if let Op::Open { slot, .. } = op {
            return (!self.slots.contains_key(&name(*slot)) && used.slots.insert(name(*slot)))
                .then_some(None);
        }
        let Some(slot) = op.slot() else { return Some(None) };
        let open = self.slots.get(&name(slot))?.clone();
        let file = (view.index(), open.object);
        let is_append = matches!(op, Op::Write { .. }) && open.flags.append;
        let writes = matches!(op, Op::Write { .. } | Op::Space { .. });
        if writes && !open.flags.write {
            return None;
        }
        if is_append {
            // Its position can be checked only if nothing but appends moves the end.
            let is_known = self.end_of(node, view, open.object).is_some();
            let others = used.appended.get(&file).copied().unwrap_or_default();
            let is_shared = others == 0 && (used.written.contains(&file) || used.whole.contains(&file));
            if !is_known || is_shared || others == APPENDS_MAX {
                return None;
            }
            used.whole.insert(file);
            used.appended.insert(file, others + 1);
        } else if writes {
            if used.whole.contains(&file) {
                return None;
            }
            used.written.insert(file);
        }
        // One lock call per process at a time: else the locks that it holds are ambiguous.
        let process = (view.index(), open.object, node, process_of(slot));
        let (is_lock, is_close) = (op.locks(), matches!(op, Op::Close { .. }));
        if (is_lock && used.ended.contains(&process))
            || ((is_lock || is_close) && used.locked.contains(&process))
        {
            return None;
        }
        // A correct program makes no other call on a descriptor that it closes.
        if used.closed.contains(&name(slot)) || (is_close && used.slots.contains(&name(slot))) {
            return None;
        }
        used.slots.insert(name(slot));
        if is_close {
            used.closed.insert(name(slot));
            used.ended.insert(process);
        }
        if is_lock {
            used.locked.insert(process);
        }
        Some(Some(open))
    }

    fn end_of(&mut self, node: usize, view: View, object: ObjectId) -> Option<u64> {
        let now = self.moment();
        self.model(view).object(object).data.end(node, now)
    }

    fn is_unknown(&mut self, view: View, path: &str, op: &Op) -> bool {
        let below = matches!(op, Op::Rename { .. } | Op::Rmdir { .. });
        self.model(view).is_unknown(path, below)
    }

    fn explain(&mut self, views: &[View], errnos: &[Errno]) {
        for view in views {
            self.explained_errors.entry(view.index()).or_default().extend(errnos.iter().map(|errno| errno.0));
        }
    }

    /// Ends the period in which earlier faults explain errors.
    pub(super) fn clear_explained(&mut self) {
        self.explained_errors.clear();
        let excluded = std::mem::take(&mut self.excluded);
        let dropped = self.slots.iter_mut().filter(|((node, ..), _)| excluded.contains(node));
        dropped.for_each(|(_, open)| open.was_dropped = true);
        self.has_rotted = false;
    }

    /// Injects a fault; the promise resolves after it.
    fn inject(&mut self, after: u64, injection: &Injection) -> Promise<()> {
        let mut injection = injection.clone();
        match &mut injection {
            Injection::Kill { .. } if self.world.replicas() > 1 => self.was_unreachable = true,
            Injection::Hang { node, .. } => {
                self.was_unreachable = true;
                let node = *node % self.world.count();
                self.doubt_locks(node);
            }
            Injection::Kill { power, .. } => {
                *power &= !self.volatile;
                (self.must_restart, self.was_unreachable) = (true, true);
                self.power_lost |= *power;
                self.explain(&VIEWS, &[Errno::EHOSTDOWN, Errno::ETIMEDOUT]);
            }
            Injection::Driver => self.was_unreachable = true,
            Injection::CutDriver { .. } => (self.has_partitions, self.was_unreachable) = (true, true),
            Injection::Partition { .. } if self.world.replicas() > 1 => {
                (self.has_partitions, self.was_unreachable) = (true, true);
            }
            Injection::Partition { .. } => {
                (self.has_partitions, self.was_unreachable) = (true, true);
                self.explain(&VIEWS, &[Errno::EHOSTDOWN, Errno::ETIMEDOUT]);
            }
            Injection::Tree(faults) => {
                self.tree_syncs_failed |= faults.syncs > 0;
                self.explain(&[View::Cache], &[Errno::EIO, Errno::ENOSPC, Errno::EROFS]);
            }
            Injection::Disk(..) => {
                (self.must_restart, self.disks_failed) = (true, true);
                self.explain(&VIEWS, &[Errno::EIO]);
            }
            Injection::Rot(node) => {
                self.must_restart = true;
                self.rotten.insert(*node % self.world.count());
                (self.has_rotted, self.rots) = (true, true);
            }
            Injection::Network(_)
            | Injection::Heal
            | Injection::Flip(_)
            | Injection::Warm(_)
            | Injection::Map(_)
            | Injection::Leave(_)
            | Injection::Slow(..) => {}
        }
        let keeps_from_flushing = matches!(
            injection,
            Injection::Kill { .. } | Injection::Partition { .. } | Injection::Disk(..) | Injection::Rot(_)
        );
        if self.is_small() && keeps_from_flushing {
            self.explain(&[View::Cache], &[Errno::ENOSPC]);
        }
        let (world, wait) = (self.world.clone(), self.world.runtime().sleep(Duration::from_micros(after)));
        let (resolver, happened) = promise();
        self.world.runtime().spawn(async move {
            wait.await;
            execute(&world, &injection);
            resolver.resolve(());
        });
        happened
    }

    /// Checks that a single injected fault did not fail many calls of programs.
    pub(super) fn verify_explained(&mut self) -> Checked {
        let count = std::mem::take(&mut self.explained_failures);
        match self.world.countdown.injected() {
            Some(site) if count > EXPLAINED_MAX && !self.log_broken => {
                Err(format!("one injected fault, {site}, failed {count} calls of programs"))
            }
            _ => Ok(()),
        }
    }

    /// Adds the errors that the injected fault of a countdown explains. Returns false if there is no new one. A lost message explains none.
    pub(super) fn apply_countdown(&mut self) -> bool {
        let Some((site, fault)) = self.world.countdown.take_injected() else { return false };
        match site.medium {
            Medium::Disk(_) => {
                self.explain(&VIEWS, &[Errno::EIO]);
                // After a failed sync the node accepts no more changes; after other faults it works.
                let is_sync = site.call.ends_with(" sync");
                if self.world.replicas() > 1 {
                    // Other nodes serve its homes.
                    return true;
                }
                self.must_restart |= is_sync;
                self.bytes_lost |= fault == FaultKind::Forgotten;
                self.has_losses |= fault == FaultKind::Forgotten;
                self.log_broken |= is_sync;
            }
            Medium::SharedFs => self.explain(&[View::Cache], &[Errno::EIO, Errno::ENOSPC]),
            Medium::Network(_) => {}
        }
        true
    }

    /// Drops the open files of failed nodes, and puts their unpublished writes in doubt.
    pub(super) fn drop_failed_nodes(&mut self, calls: &[Call]) {
        let failed: BTreeSet<usize> =
            (0..self.world.count()).filter(|&node| !self.world.is_up(node)).collect();
        self.note_interrupted(&failed, calls);
        self.slots.retain(|(node, ..), _| !failed.contains(node));
        for names in self.models.values_mut() {
            for object in names.objects_mut() {
                failed.iter().for_each(|&node| object.data.mark_uncertain(node));
            }
        }
    }
}

fn execute(world: &Arc<World>, injection: &Injection) {
    log::trace!("injection: {injection}");
    let at = |node: &usize| node % world.count();
    let id = |node: &usize| NodeId(at(node) as u32);
    match injection {
        Injection::Kill { node, power } => world.kill(at(node), *power),
        Injection::Hang { node, milliseconds } => world.hang(at(node), Duration::from_millis(*milliseconds)),
        Injection::Partition { from, to, both } => {
            world.network.cut(id(from), id(to));
            if *both {
                world.network.cut(id(to), id(from));
            }
        }
        Injection::Heal => world.network.heal(),
        Injection::Network(faults) => world.network.set_faults(*faults),
        Injection::Tree(faults) => world.tree.set_faults(*faults),
        Injection::Disk(node, faults) => world.set_disk_faults(at(node), *faults),
        Injection::Rot(node) => world.rot(at(node)),
        Injection::Flip(node) => world.flip(at(node)),
        Injection::Warm(node) => world.warm(at(node)),
        Injection::Map(node) => world.renew_map(at(node)),
        Injection::Leave(node) => world.leave(at(node)),
        Injection::Driver => world.fail_driver(None),
        Injection::CutDriver { node, milliseconds } => {
            world.fail_driver(Some((at(node), Duration::from_millis(*milliseconds))));
        }
        Injection::Slow(node, limit) => world.set_slowness(at(node), Duration::from_millis(*limit)),
    }
}

impl Run {
    pub(super) fn end_faults(&mut self) {
        self.world.network.set_faults(NetworkFaults::NONE);
        self.world.network.heal();
        self.world.reach_all();
        self.world.stay();
        self.has_partitions = false;
        self.world.tree.set_faults(crate::tree::TreeFaults::default());
        for node in 0..self.world.count() {
            self.world.set_disk_faults(node, DiskFaults::default());
            self.world.set_slowness(node, Duration::ZERO);
        }
    }
}

/// Files and slots that calls of the step already use.
#[derive(Default)]
struct Used {
    slots: BTreeSet<SlotName>,
    closed: BTreeSet<SlotName>,
    /// Processes that acquire or release locks of files.
    locked: BTreeSet<(usize, ObjectId, usize, u64)>,
    ended: BTreeSet<(usize, ObjectId, usize, u64)>,
    written: BTreeSet<(usize, ObjectId)>,
    /// Files whose size calls change.
    whole: BTreeSet<(usize, ObjectId)>,
    /// Files that calls append to, with the number of appends.
    appended: BTreeMap<(usize, ObjectId), usize>,
}
