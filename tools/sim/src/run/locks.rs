//! Checks of file locks (S21): tracks the locks that owners hold for certain, from the reply that grants one to the call that releases
//! it, and the locks with unknown state, which may still block others.

use super::deadlock::{Owner, Waits};
use super::{Call, Checked, End, Open, Run};
use crate::locking::{owner_of, process_of};
use crate::model::{Moment, ObjectId};
use crate::op::Op;
use std::collections::BTreeSet;
use tameike_core::wire::lock::{LockKind, LockRange};
use tameike_core::{Errno, InodeId, View};

/// The owner and file of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holder {
    view: usize,
    object: ObjectId,
    node: usize,
    owner: u64,
}

/// A lock that an owner holds or requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lock {
    holder: Holder,
    range: LockRange,
    kind: LockKind,
    /// Its owner got it granted and has not begun to release it.
    is_certain: bool,
    /// Its owner's node has failed, and all other nodes can detect that.
    is_node_failed: bool,
}

impl Lock {
    fn owner(&self) -> Owner {
        (self.holder.view, self.holder.node, self.holder.owner)
    }

    fn excludes(&self, other: &Self) -> bool {
        let is_same_file = (self.holder.view, self.holder.object) == (other.holder.view, other.holder.object);
        let exclusive = self.kind == LockKind::Exclusive || other.kind == LockKind::Exclusive;
        is_same_file && self.holder != other.holder && exclusive && self.range.overlaps(other.range)
    }

    fn in_words(&self) -> String {
        let Self { holder, range, kind, .. } = self;
        format!(
            "node {} (owner {}) has {kind:?} on bytes {} to {}",
            holder.node, holder.owner, range.start, range.last
        )
    }
}

/// A byte range of a lock that a call releases, or may release.
struct Release {
    holder: Holder,
    range: LockRange,
    is_sure: bool,
}

impl Release {
    fn touches(&self, lock: &Lock) -> bool {
        self.holder == lock.holder && self.range.overlaps(lock.range)
    }

    fn ends(&self, lock: &Lock) -> bool {
        let is_whole = self.range.start <= lock.range.start && self.range.last >= lock.range.last;
        self.touches(lock) && is_whole && self.is_sure
    }
}

impl Call {
    fn holder(&self, open: &Open, owner: u64) -> Holder {
        Holder { view: self.view.index(), object: open.object, node: self.node, owner }
    }

    /// Returns the lock that the call requests.
    pub(super) fn wanted(&self) -> Option<Lock> {
        let (Op::Lock { slot, range, kind, .. }, Some(open)) = (&self.op, &self.open) else { return None };
        let holder = self.holder(open, owner_of(*slot, open.handle, *range));
        let range = range.unwrap_or(LockRange::ALL);
        Some(Lock { holder, range, kind: *kind, is_certain: true, is_node_failed: false })
    }

    fn failed_with(&self, errnos: &[Errno]) -> bool {
        matches!(&self.end, End::Failed(fault) if errnos.contains(&fault.errno))
    }

    /// Returns true if the home refused the request.
    pub(super) fn is_refused(&self) -> bool {
        self.failed_with(&[Errno::EAGAIN, Errno::EINTR, Errno::EDEADLK])
    }

    pub(super) fn waits(&self) -> bool {
        matches!(self.op, Op::Lock { wait: true, .. })
    }

    /// Returns the locks that the call releases.
    fn releases(&self, is_reachable: bool) -> Vec<Release> {
        let Some(open) = &self.open else { return Vec::new() };
        match &self.op {
            Op::Unlock { slot, range } => {
                let holder = self.holder(open, owner_of(*slot, open.handle, *range));
                let range = range.unwrap_or(LockRange::ALL);
                vec![Release { holder, range, is_sure: self.has_returned() }]
            }
            Op::Close { slot } => [process_of(*slot), owner_of(*slot, open.handle, None)]
                .map(|owner| Release {
                    holder: self.holder(open, owner),
                    range: LockRange::ALL,
                    is_sure: is_reachable && self.has_returned(),
                })
                .into(),
            Op::Lock { .. } if !self.is_refused() => self
                .wanted()
                .map(|lock| Release { holder: lock.holder, range: lock.range, is_sure: self.has_returned() })
                .into_iter()
                .collect(),
            _ => Vec::new(),
        }
    }
}

impl Run {
    /// Notes that a node may lose its locks, since it is excluded.
    pub(super) fn doubt_locks(&mut self, node: usize) {
        let of_node = self.locks.iter_mut().filter(|lock| lock.holder.node == node);
        of_node.for_each(|lock| lock.is_certain = false);
    }
}

/// Builds the wait-for graph of calls whose requests conflict with the locks `held`.
fn waits<'a>(calls: impl Iterator<Item = &'a Call>, held: &[Lock]) -> Waits {
    let wanted = calls.filter(|call| call.waits()).filter_map(Call::wanted);
    let of_one = |wanted: Lock| {
        let conflicting = held.iter().filter(move |lock| lock.excludes(&wanted));
        conflicting.map(move |lock| (wanted.owner(), lock.owner()))
    };
    Waits::new(wanted.flat_map(of_one))
}

/// The calls of a step, and the locks before it.
struct LockStep<'a> {
    calls: &'a [Call],
    before: Vec<Lock>,
    releases: Vec<Release>,
    /// Locks granted in the step to live nodes, with the begin of their calls.
    granted: Vec<(Moment, Lock)>,
    /// The views in which all nodes were reachable.
    reachable: BTreeSet<usize>,
}

impl LockStep<'_> {
    fn others(&self, call: &Call) -> impl Iterator<Item = &Call> {
        let begun = call.begun;
        self.calls.iter().filter(move |other| other.begun != begun)
    }

    fn is_touched(&self, lock: &Lock) -> bool {
        self.releases.iter().any(|release| release.touches(lock))
    }

    fn is_ended(&self, lock: &Lock) -> bool {
        self.releases.iter().any(|release| release.ends(lock))
    }

    /// Checks that a granted lock conflicts with none whose owner has not begun to release it. A lock that is lost in this step, which is not
    /// `is_kept`, may conflict with others of the step.
    fn verify_grant(&self, call: &Call, wanted: &Lock, is_kept: bool) -> Checked {
        let is_held = |lock: &&Lock| lock.is_certain && lock.excludes(wanted) && !self.is_touched(lock);
        let closes = || self.calls.iter().filter(|call| matches!(call.op, Op::Close { .. }));
        let is_closed = |lock: &Lock| {
            closes().any(|close| close.releases(true).iter().any(|release| release.touches(lock)))
        };
        let mut granted =
            self.granted.iter().filter(|(begun, _)| *begun != call.begun).map(|(_, lock)| *lock);
        let is_both =
            |lock: &Lock| is_kept && lock.excludes(wanted) && !is_closed(lock) && !is_closed(wanted);
        match self.before.iter().find(is_held).copied().or(granted.find(is_both)) {
            Some(lock) => Err(call.wrong(format!("was granted, while {}", lock.in_words()))),
            None => Ok(()),
        }
    }

    /// Returns the wait-for graph of all waits that may have existed at some moment.
    fn may_wait(&self) -> Waits {
        let taken = self.calls.iter().filter(|call| !call.is_refused()).filter_map(Call::wanted);
        waits(self.calls.iter(), &self.before.iter().copied().chain(taken).collect::<Vec<_>>())
    }

    /// Returns the wait-for graph of waits that lasted the whole step.
    fn must_wait(&self) -> Waits {
        let is_kept = |lock: &&Lock| lock.is_certain && !self.is_touched(lock);
        let kept: Vec<_> = self.before.iter().filter(is_kept).copied().collect();
        // A call that got EINTR waited until the signal.
        waits(self.calls.iter().filter(|call| call.failed_with(&[Errno::EINTR])), &kept)
    }

    fn verify_refusal(&self, call: &Call, wanted: &Lock, errno: Errno) -> Checked {
        let mut rivals = self.others(call).filter_map(Call::wanted);
        let has_rival = rivals.any(|lock| lock.excludes(wanted));
        let mut conflicting = self.before.iter().filter(|lock| lock.excludes(wanted));
        let why = match errno {
            Errno::EAGAIN if !has_rival && conflicting.next().is_none() => "no lock conflicts",
            Errno::EINTR
                if !has_rival && conflicting.all(|lock| lock.is_node_failed || self.is_ended(lock)) =>
            {
                "it waits forever, and no lock conflicts"
            }
            Errno::EINTR
                if self.reachable.contains(&wanted.holder.view)
                    && self.must_wait().lead_back(wanted.owner()) =>
            {
                "it is in a deadlock, and no call got EDEADLK"
            }
            Errno::EDEADLK if !self.may_wait().lead_back(wanted.owner()) => "there is no deadlock",
            _ => return Ok(()),
        };
        Err(call.wrong(format!("failed with {}, but {why}", errno.describe())))
    }

    /// Returns true if everything published in this step was published under locks that had to be released for this one.
    fn is_handover(&self, call: &Call, wanted: &Lock) -> bool {
        let is_of_file = |other: &&Call| {
            let object = |call: &Call| call.open.as_ref().map(|open| open.object);
            other.view == call.view && object(other) == object(call)
        };
        let releases_conflicting = |other: &Call| {
            let given = other.releases(true);
            let is_given = |lock: &&Lock| lock.is_certain && given.iter().any(|release| release.ends(lock));
            matches!(other.op, Op::Unlock { .. })
                && other.has_returned()
                && self.before.iter().filter(is_given).any(|lock| lock.excludes(wanted))
        };
        let publishes =
            |other: &&Call| !matches!(other.op, Op::Read { .. } | Op::Write { .. }) && !other.is_refused();
        let mut others = self.others(call).filter(is_of_file).filter(publishes).peekable();
        others.peek().is_some() && others.all(releases_conflicting)
    }
}

impl Run {
    /// Returns true if no call can fail because a node is unreachable.
    fn is_reachable(&self, view: View) -> bool {
        self.excluded.is_empty() && self.explained_errors.get(&view.index()).is_none_or(BTreeSet::is_empty)
    }

    /// Returns true if the home and the owner's node of a lock are up. Homes with replicas survive, but drop the locks of excluded nodes.
    fn is_kept(&mut self, lock: &Lock) -> bool {
        if self.world.replicas() > 1 {
            return self.world.is_up(lock.holder.node) && !self.excluded.contains(&lock.holder.node);
        }
        let inode = self.models.entry(lock.holder.view).or_default().object(lock.holder.object).inode;
        let home = inode.map(|inode| {
            self.world.cluster.primary(self.world.cluster.inode_home(InodeId(inode))).0 as usize
        });
        self.world.is_up(lock.holder.node) && home.is_some_and(|home| self.world.is_up(home))
    }

    /// Checks the calls of a step that acquire or release locks.
    pub(super) fn verify_locks(&mut self, calls: &[Call]) -> Checked {
        let mut before = std::mem::take(&mut self.locks);
        for lock in &mut before {
            lock.is_certain &= self.is_kept(lock);
            lock.is_node_failed = !self.has_partitions && !self.world.is_up(lock.holder.node);
        }
        let releases = calls.iter().flat_map(|call| call.releases(self.is_reachable(call.view))).collect();
        let reachable =
            View::ALL.into_iter().filter(|&view| self.is_reachable(view)).map(View::index).collect();
        let returned = calls.iter().filter(|call| call.has_returned());
        let mut granted: Vec<_> = returned.filter_map(|call| Some((call.begun, call.wanted()?))).collect();
        granted.retain(|(_, lock)| self.is_kept(lock));
        let step = LockStep { calls, before, releases, granted, reachable };
        for call in calls {
            let Some(mut wanted) = call.wanted() else { continue };
            match &call.end {
                End::Returned(_) if self.is_kept(&wanted) => step.verify_grant(call, &wanted, true)?,
                End::Returned(_) if self.excluded.contains(&call.node) => {
                    step.verify_grant(call, &wanted, false)?;
                }
                // An excluded node may not reach the home.
                End::Failed(fault) if !self.excluded.contains(&call.node) => {
                    step.verify_refusal(call, &wanted, fault.errno)?;
                }
                End::Returned(_) | End::Failed(_) | End::NodeFailed => {}
            }
            if call.has_returned() {
                self.refresh(call, step.is_handover(call, &wanted));
            }
            wanted.is_certain = call.has_returned() && self.is_kept(&wanted);
            if !call.is_refused() {
                self.locks.push(wanted);
            }
        }
        let taken = std::mem::replace(&mut self.locks, step.before);
        step.releases.iter().for_each(|release| self.release(release));
        self.locks.extend(taken);
        Ok(())
    }

    fn release(&mut self, release: &Release) {
        let mut left = Vec::new();
        for lock in self.locks.drain(..) {
            if !release.touches(&lock) {
                left.push(lock);
                continue;
            }
            let range = release.range;
            if !release.is_sure {
                let both = LockRange {
                    start: lock.range.start.max(range.start),
                    last: lock.range.last.min(range.last),
                };
                left.push(Lock { range: both, is_certain: false, ..lock });
            }
            if lock.range.start < range.start {
                let before = LockRange { start: lock.range.start, last: range.start - 1 };
                left.push(Lock { range: before, ..lock });
            }
            if lock.range.last > range.last {
                let after = LockRange { start: range.last + 1, last: lock.range.last };
                left.push(Lock { range: after, ..lock });
            }
        }
        self.locks = left;
    }

    /// The owner of a new lock sees what was published before through all descriptors of its node; with `is_handover` also what was
    /// published in this step.
    fn refresh(&mut self, call: &Call, is_handover: bool) {
        let Some(open) = &call.open else { return };
        let seen = if is_handover { self.moment() } else { call.begun };
        self.descriptors(call, open.object).for_each(|open| open.opened = open.opened.max(seen));
    }

    /// Drops the locks with unknown state: after the end of all faults, their homes have released them. A node that hung may have kept its
    /// locks, or lost them.
    pub(super) fn settle_locks(&mut self) {
        let world = &self.world;
        self.locks.retain(|lock| lock.is_certain || world.replicas() > 1 && world.is_up(lock.holder.node));
    }

    pub(super) fn end_locks(&mut self, call: &Call) {
        call.releases(true).iter().for_each(|release| self.release(release));
    }
}
