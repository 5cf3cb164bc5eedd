//! Calls and troubles that happen together.

use super::{Call, Checked, End, Open, Run, STUCK, SlotName};
use crate::kernel;
use crate::model::ObjectId;
use crate::program::{Action, Op, Trouble};
use crate::world::{DiskFaults, World};
use futures_util::future::{Either, select};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tameike_core::{Errno, NodeId, Result, View};
use tameike_io::os::runtime::{Promise, promise};

/// A call that is under way.
pub(super) struct Pending {
    call: Call,
    done: Promise<(Result<kernel::Told>, u64)>,
    death: Promise<()>,
    death_number: u64,
}

impl Run {
    /// Makes a call, if its node runs; how it ended is to be awaited.
    pub(super) fn begin(&mut self, node: usize, view: View, op: Op, open: Option<Open>) -> Option<Pending> {
        let (views, runtime) = self.world.views(node)?;
        let begun = self.moment();
        let append_at = match (&op, &open) {
            (Op::Write { .. }, Some(open)) if open.flags.append => {
                self.model(view).object(open.object).data.end_for(node)
            }
            _ => None,
        };
        let (moments, (resolver, done)) = (self.moments.clone(), promise());
        let (handle, asked) = (open.as_ref().map(|open| open.handle), op.clone());
        log::trace!("node {node}, {}: {op}", view.as_str());
        runtime.spawn(async move {
            let told = match (view, views.cache()) {
                (View::Cache, Some(cache)) => kernel::call(cache, &asked, handle).await,
                _ => kernel::call(views.shared(), &asked, handle).await,
            };
            resolver.resolve((told, moments.fetch_add(1, std::sync::atomic::Ordering::SeqCst) + 1));
        });
        let (resolver, death) = promise();
        let death_number = self.world.on_death(node, resolver);
        let call = Call { node, view, op, open, append_at, begun, ended: 0, end: End::Died };
        Some(Pending { call, done, death, death_number })
    }

    pub(super) async fn end(&mut self, pending: Pending) -> Checked<Call> {
        let Pending { mut call, done, death, death_number } = pending;
        let either = select(done, death);
        match self.world.runtime().timeout(STUCK, either).await {
            Some(Either::Left(((told, ended), _))) => {
                call.ended = ended;
                call.end = told.map_or_else(End::Failed, End::Told);
            }
            Some(Either::Right(_)) => call.ended = self.moment(),
            None => {
                let (node, view) = (call.node, call.view.as_str());
                return Err(format!("node {node}, {view}: {} does not end within {STUCK:?}", call.op));
            }
        }
        self.world.forget_death(call.node, death_number);
        match &call.end {
            End::Told(kernel::Told::Bytes(bytes)) => log::trace!("... {} bytes", bytes.len()),
            End::Told(told) => log::trace!("... {told:?}"),
            End::Failed(fault) => log::trace!("... {fault}"),
            End::Died => log::trace!("... died"),
        }
        Ok(call)
    }

    /// Makes one call and waits for its end.
    pub(super) async fn one(&mut self, node: usize, view: View, op: Op, open: Option<Open>) -> Checked<Call> {
        match self.begin(node, view, op, open) {
            Some(pending) => self.end(pending).await,
            None => Err(format!("node {node} is down")),
        }
    }

    pub(super) async fn together(&mut self, actions: &[Action]) -> Checked {
        let (mut pending, mut troubles) = (Vec::new(), Vec::new());
        let mut used = Used::default();
        for action in actions {
            match action {
                Action::Trouble(after, trouble) => troubles.push(self.trouble(*after, trouble)),
                Action::Call { node, view, op } => {
                    let Some(open) = self.admit(*node, *view, op, &mut used) else { continue };
                    pending.extend(self.begin(*node, *view, op.clone(), open));
                }
            }
        }
        let mut calls = Vec::new();
        for one in pending {
            calls.push(self.end(one).await?);
        }
        futures_util::future::join_all(troubles).await;
        self.forget_the_dead();
        self.judge(calls)
    }

    /// Whether a call can be made and judged now, and the open file that it works on.
    fn admit(&mut self, node: usize, view: View, op: &Op, used: &mut Used) -> Option<Option<Open>> {
        let node = node % self.world.count();
        if !self.world.is_up(node) || op.paths().iter().any(|path| self.is_doubtful(view, path, op)) {
            return None;
        }
        let name = |slot| -> SlotName { (node, view.index(), slot) };
        if let Op::Open { slot, path, flags } = op {
            if flags.truncate
                && let Ok(object) = self.model(view).find(path)
            {
                let place = (view.index(), object);
                if used.whole.contains(&place) {
                    return None;
                }
                used.written.insert(place);
            }
            return (!self.slots.contains_key(&name(*slot)) && used.slots.insert(name(*slot)))
                .then_some(None);
        }
        let Some(slot) = op.slot() else {
            if let Op::Truncate { path, .. } = op
                && let Ok(object) = self.model(view).find(path)
                && !used.whole.insert((view.index(), object))
            {
                return None;
            }
            return Some(None);
        };
        let open = self.slots.get(&name(slot))?.clone();
        let place = (view.index(), open.object);
        let is_append = matches!(op, Op::Write { .. }) && open.flags.append;
        if matches!(op, Op::Write { .. }) && !open.flags.write {
            return None;
        }
        if is_append {
            let data = &self.model(view).object(open.object).data;
            // Where it lands can be told only when nothing else can move the end.
            if data.end_for(node).is_none() || used.written.contains(&place) || !used.whole.insert(place) {
                return None;
            }
        } else if matches!(op, Op::Write { .. }) {
            if used.whole.contains(&place) {
                return None;
            }
            used.written.insert(place);
        }
        // A close is alone with its handle, as in a program that is right.
        let is_close = matches!(op, Op::Close { .. });
        if used.closed.contains(&name(slot)) || (is_close && used.slots.contains(&name(slot))) {
            return None;
        }
        used.slots.insert(name(slot));
        if is_close {
            used.closed.insert(name(slot));
        }
        Some(Some(open))
    }

    fn is_doubtful(&mut self, view: View, path: &str, op: &Op) -> bool {
        let below = matches!(op, Op::Rename { .. } | Op::Rmdir { .. });
        self.model(view).is_doubtful(path, below)
    }

    fn excuse(&mut self, views: &[View], errnos: &[Errno]) {
        for view in views {
            self.excuses.entry(view.index()).or_default().extend(errnos.iter().map(|errno| errno.0));
        }
    }

    /// Lets something go wrong; ends when it has.
    fn trouble(&mut self, after: u64, trouble: &Trouble) -> Promise<()> {
        let both = [View::JobShared, View::Cache];
        let mut trouble = trouble.clone();
        match &mut trouble {
            Trouble::Kill { power, .. } => {
                *power &= !self.volatile;
                self.must_restart = true;
                self.power_lost |= *power;
                self.excuse(&both, &[Errno::EHOSTDOWN, Errno::ETIMEDOUT]);
            }
            Trouble::Cut { .. } => self.excuse(&both, &[Errno::EHOSTDOWN, Errno::ETIMEDOUT]),
            Trouble::Tree(_) => {
                self.excuse(&[View::Cache], &[Errno::EIO, Errno::ENOSPC, Errno::EROFS]);
            }
            Trouble::Disk(..) | Trouble::Rot(_) => {
                (self.must_restart, self.disks_failed) = (true, true);
                self.excuse(&both, &[Errno::EIO]);
            }
            Trouble::Weather(_) | Trouble::Mend | Trouble::Slow(..) => {}
        }
        let (world, wait) = (self.world.clone(), self.world.runtime().sleep(Duration::from_micros(after)));
        let (resolver, happened) = promise();
        self.world.runtime().spawn(async move {
            wait.await;
            happen(&world, &trouble);
            resolver.resolve(());
        });
        happened
    }

    /// What was open on nodes that have died is gone, and what they had not published is in doubt.
    pub(super) fn forget_the_dead(&mut self) {
        let dead: BTreeSet<usize> = (0..self.world.count()).filter(|&node| !self.world.is_up(node)).collect();
        self.slots.retain(|(node, ..), _| !dead.contains(node));
        for names in self.models.values_mut() {
            for object in names.objects_mut() {
                dead.iter().for_each(|&node| object.data.doubt(node));
            }
        }
    }
}

fn happen(world: &Arc<World>, trouble: &Trouble) {
    log::trace!("trouble: {trouble}");
    let id = |node: usize| NodeId((node % world.count()) as u32);
    match trouble {
        Trouble::Kill { node, power } => world.kill(node % world.count(), *power),
        Trouble::Cut { from, to, both } => {
            world.network.cut(id(*from), id(*to));
            if *both {
                world.network.cut(id(*to), id(*from));
            }
        }
        Trouble::Mend => world.network.heal(),
        Trouble::Weather(weather) => world.network.set_weather(*weather),
        Trouble::Tree(faults) => world.tree.set_faults(*faults),
        Trouble::Disk(node, faults) => world.set_disk_faults(node % world.count(), *faults),
        Trouble::Rot(node) => world.rot(node % world.count()),
        Trouble::Slow(node, limit) => {
            world.set_slowness(node % world.count(), Duration::from_millis(*limit));
        }
    }
}

impl Run {
    /// Everything works from now on.
    pub(super) fn mend(&mut self) {
        self.world.network.set_weather(tameike_io::fabric::simulated::Weather::FAIR);
        self.world.network.heal();
        self.world.tree.set_faults(crate::tree::TreeFaults::default());
        for node in 0..self.world.count() {
            self.world.set_disk_faults(node, DiskFaults::default());
            self.world.set_slowness(node, Duration::ZERO);
        }
    }
}

/// What the calls of a step use already.
#[derive(Default)]
struct Used {
    slots: BTreeSet<SlotName>,
    closed: BTreeSet<SlotName>,
    /// Files that are written.
    written: BTreeSet<(usize, ObjectId)>,
    /// Files whose end is moved.
    whole: BTreeSet<(usize, ObjectId)>,
}
