//! The check step: ends all faults, restarts failed agents, and compares the tree and bytes of every node with the model.

use super::verify::paths;
use super::{Call, Checked, End, Open, Run, VIEWS};
use crate::kernel::Output;
use crate::model::{Names, ObjectId};
use crate::op::{Flags, Op};
use std::collections::BTreeMap;
use std::time::Duration;
use tameike_agent::control::AgentMode;
use tameike_core::{Attr, Errno, FileKind, View};

/// After this time without a fault, all its effects are over: messages have arrived or are lost, and every peer has answered or
/// exceeded its time limit.
pub(super) const SETTLED: Duration = Duration::from_secs(90);
pub(super) const CHECK_SLOT: u8 = u8::MAX;

/// A tree as a node shows it.
pub(super) type Seen = BTreeMap<String, Attr>;

impl Call {
    pub(super) fn unexplained_failure(&self) -> String {
        let (node, view, op) = (self.node, self.view.as_str(), &self.op);
        match &self.end {
            End::Failed(fault) => {
                format!("node {node}, {view}: {op}: failed with {fault} without a fault to explain it")
            }
            End::Returned(output) => format!("node {node}, {view}: {op}: returned {output:?}"),
            End::NodeFailed => format!("node {node} failed"),
        }
    }
}

impl Run {
    pub(super) async fn check(&mut self) -> Checked {
        self.end_faults();
        loop {
            if self.must_restart {
                self.restart(AgentMode::Serve).await?;
            }
            self.world.runtime().sleep(SETTLED).await;
            self.sync_open_files().await?;
            self.apply_countdown();
            // A countdown may have failed a call meanwhile.
            if !self.must_restart {
                break;
            }
        }
        let _pause = self.world.countdown.pause();
        self.verify_readmitted()?;
        self.verify_copied()?;
        self.clear_explained();
        self.settle_locks();
        self.was_full = false;
        self.verify_explained()?;
        if std::mem::take(&mut self.journal_truncated) {
            self.remove_reused_numbers().await?;
        }
        for view in VIEWS {
            self.compare_view(view).await?;
        }
        self.sync_all().await?;
        self.compare_copies().await?;
        self.compare_space().await
    }

    /// Checks that all nodes that can serve homes again are readmitted.
    fn verify_readmitted(&self) -> Checked {
        let map = self.world.map();
        let left = map.excluded().iter().find(|node| self.world.can_serve(node.0 as usize));
        left.map_or(Ok(()), |node| Err(format!("{node} is up, but still excluded")))
    }

    /// Checks that homes do not lack replicas if there are enough nodes with space.
    fn verify_copied(&self) -> Checked {
        let map = self.world.map();
        let wanted = self.world.cluster.replicas();
        let nodes = (0..self.world.count()).filter(|node| self.world.can_serve(*node)).count();
        if self.is_small() || nodes < wanted {
            return Ok(());
        }
        let lacking = map.homes().find(|home| map.copies(*home) < wanted);
        lacking.map_or(Ok(()), |home| Err(format!("{home} has {} of {wanted} replicas", map.copies(home))))
    }

    /// Compares the replicas of all homes.
    async fn compare_copies(&self) -> Checked {
        // A write that failed for lack of space may be on some replicas only.
        match self.world.compare_copies(!self.is_small()).await {
            Ok(None) => Ok(()),
            Ok(Some(difference)) => Err(difference),
            Err(fault) => Err(format!("the replicas cannot be compared: {fault}")),
        }
    }

    pub(super) async fn restart(&mut self, mode: AgentMode) -> Checked {
        let power = self.power_lost;
        let lost = power || self.bytes_lost;
        self.check_stores(!lost)?;
        (0..self.world.count()).for_each(|node| self.world.kill(node, false));
        self.drop_failed_nodes(&[]);
        self.slots.clear();
        self.locks.clear();
        for view in VIEWS {
            let model = self.model(view);
            // Names and closed bytes of the shared file system survive the agents.
            let is_shared = view == View::JobShared;
            model.objects_mut().for_each(|object| object.data.lose(!is_shared && !lost));
            // If the size of a file was lost with its writer or its home, a removal does not find its units.
            let is_published = model.objects_mut().all(|object| object.data.is_settled());
            if is_shared {
                let changed = model.changed.clone();
                self.has_orphans |= !changed.is_empty() || !is_published;
                let model = self.model(view);
                changed.iter().for_each(|path| model.mark_unknown(path));
                for object in model.objects_mut() {
                    (object.mode, object.xattr) = (None, None);
                }
            }
        }
        if lost {
            self.journal_truncated = true;
            self.world.tree.retire_numbers();
        }
        self.has_losses |= power || self.disks_failed;
        (self.must_restart, self.power_lost, self.bytes_lost) = (false, false, false);
        self.start_agents(mode, power).await
    }

    /// Removes files whose inode number also belongs to a removed file.
    ///
    /// A journal without its tail lists removed files, and could apply their state to new files with the same inode number. The product
    /// never serves a view on such a journal (recovery checks the path), so this cannot occur outside of the simulator.
    async fn remove_reused_numbers(&mut self) -> Checked {
        let model = self.model(View::Cache);
        let mut holders = BTreeMap::<u64, usize>::new();
        for inode in model.objects_mut().filter_map(|object| object.inode) {
            *holders.entry(inode).or_default() += 1;
        }
        let mut reusing = model.all();
        reusing.retain(|path, id| {
            let object = model.object(*id);
            let is_reused = object.inode.is_some_and(|inode| holders[&inode] > 1);
            object.kind == FileKind::File && is_reused && !model.is_unknown(path, false)
        });
        for path in reusing.into_keys() {
            self.remove(View::Cache, path).await?;
        }
        Ok(())
    }

    async fn remove(&mut self, view: View, path: String) -> Checked {
        let op = Op::Unlink { path };
        self.must(0, view, op.clone(), None).await?;
        // Counts as an event of the run.
        self.moment();
        self.model(view).apply(&op);
        Ok(())
    }

    async fn sync_open_files(&mut self) -> Checked {
        for ((node, view, slot), open) in self.slots.clone() {
            if open.flags.write {
                let call = self.one(node, View::ALL[view], Op::Fsync { slot }, Some(open)).await?;
                self.verify(vec![call])?;
            }
        }
        Ok(())
    }

    pub(super) async fn must(
        &mut self,
        node: usize,
        view: View,
        op: Op,
        open: Option<Open>,
    ) -> Checked<Output> {
        let call = self.one(node, view, op, open).await?;
        match call.end {
            End::Returned(output) => Ok(output),
            End::Failed(_) | End::NodeFailed => Err(call.unexplained_failure()),
        }
    }

    /// Opens a file in the slot of checks, which must succeed.
    pub(super) async fn must_open(
        &mut self,
        node: usize,
        view: View,
        path: &str,
        id: ObjectId,
        flags: Flags,
    ) -> Checked<Open> {
        let call = self.one(node, view, Op::open(CHECK_SLOT, path, flags), None).await?;
        match call.end {
            End::Returned(Output::Opened(handle, _)) => Ok(Open::new(handle, id, call.begun, flags)),
            _ => Err(call.unexplained_failure()),
        }
    }

    async fn walk(&mut self, node: usize, view: View) -> Checked<Seen> {
        let mut seen = Seen::new();
        let mut left = vec![String::new()];
        while let Some(dir) = left.pop() {
            let list = Op::List { path: dir.clone() };
            let Output::Names(names) = self.must(node, view, list, None).await? else { continue };
            for name in names.into_keys() {
                let path = crate::model::path::join(&dir, &name);
                let call = self.one(node, view, Op::stat(&path), None).await?;
                match &call.end {
                    End::Returned(Output::Attr(attr)) => {
                        if attr.kind == FileKind::Directory {
                            left.push(path.clone());
                        }
                        seen.insert(path, (**attr).clone());
                    }
                    End::Failed(fault) if fault.errno == Errno::ESTALE && self.may_be_orphan(view, &path) => {
                        self.model(view).lose(&path);
                    }
                    _ => return Err(call.unexplained_failure()),
                }
            }
        }
        Ok(seen)
    }

    async fn compare_view(&mut self, view: View) -> Checked {
        let first = self.walk(0, view).await?;
        self.compare_names(view, &first)?;
        self.compare_counts(view, &first)?;
        for node in (1..self.world.count()).filter(|&node| self.world.is_up(node)).collect::<Vec<_>>() {
            let other = self.walk(node, view).await?;
            let name = view.as_str();
            for path in first.keys().chain(other.keys()) {
                let is_settled = self.is_settled(view, path);
                let key = |seen: &Seen| {
                    let size = |attr: &Attr| if is_settled { attr.size } else { 0 };
                    seen.get(path).map(|attr| (attr.inode, attr.kind, attr.mode, size(attr), attr.uid))
                };
                let (one, two) = (key(&first), key(&other));
                if one != two {
                    return Err(format!("{name}: {path} is {one:?} on node 0 and {two:?} on node {node}"));
                }
            }
        }
        self.adopt(view, &first);
        let files: Vec<_> = self.model(view).all().into_iter().collect();
        let mut contents = BTreeMap::new();
        for (path, id) in files {
            if self.model(view).object(id).kind == FileKind::File && !contents.contains_key(&id) {
                let size = first.get(&path).map_or(0, |attr| attr.size);
                contents.insert(id, self.compare_bytes(view, &path, id, size).await?);
            }
        }
        self.give_up_damaged(view);
        self.remove_unsettled(view).await?;
        for (id, bytes) in contents {
            let moment = self.moment();
            self.model(view).object_mut(id).data.agree(bytes, moment);
        }
        Ok(())
    }

    /// Removes files with a write that failed or was lost with an agent: nodes may see different content, which SEMANTICS allows.
    async fn remove_unsettled(&mut self, view: View) -> Checked {
        for ((node, in_view, slot), open) in self.slots.clone() {
            if in_view == view.index() && !self.model(view).object(open.object).data.is_settled() {
                self.slots.remove(&(node, in_view, slot));
                // A close may report the same error again.
                let call = self.one(node, view, Op::Close { slot }, Some(open)).await?;
                self.end_locks(&call);
            }
        }
        for (path, id) in self.model(view).all() {
            let object = self.model(view).object(id);
            if object.kind == FileKind::File && !object.data.is_settled() {
                if self.may_be_damaged(view, id) {
                    // Removing one of several names flushes the file first, which fails for lost bytes.
                    self.must(0, view, Op::Truncate { path: path.clone(), size: 0 }, None).await?;
                }
                self.remove(view, path).await?;
            }
        }
        Ok(())
    }

    fn is_settled(&mut self, view: View, path: &str) -> bool {
        let model = self.model(view);
        model.find(path).is_ok_and(|id| model.object(id).data.is_settled())
    }

    /// Compares names: all that are not in doubt must exist, and no others.
    fn compare_names(&mut self, view: View, seen: &Seen) -> Checked {
        let name = view.as_str();
        let model = self.model(view);
        let all = model.all();
        for (path, id) in &all {
            if model.is_unknown(path, false) {
                continue;
            }
            let object = model.object(*id);
            let Some(attr) = seen.get(path) else {
                return Err(format!("{name}: {path} is missing; the view has {:?}", seen.keys()));
            };
            if attr.kind != object.kind || object.inode.is_some_and(|inode| inode != attr.inode.0) {
                return Err(format!("{name}: {path} is {attr:?}, and should be {:?}", object.inode));
            }
            if let Some(mode) = object.mode.filter(|mode| *mode != attr.mode) {
                return Err(format!("{name}: {path} has mode {:o}, and should have {mode:o}", attr.mode));
            }
        }
        for path in seen.keys() {
            if !all.contains_key(path) && !model.is_unknown(path, false) {
                return Err(format!("{name}: {path} exists, and should not; the model has {}", paths(model)));
            }
        }
        Ok(())
    }

    /// Adopts the observed state of everything that was in doubt.
    fn adopt(&mut self, view: View, seen: &Seen) {
        // Counts as an event of the run.
        self.moment();
        let model = self.model(view);
        let all = model.all();
        let known: BTreeMap<u64, ObjectId> =
            all.values().filter_map(|&id| Some((model.object(id).inode?, id))).collect();
        for path in model.unknown().clone() {
            // Parents first: deepest first would leave names below a name that is removed.
            if !seen.contains_key(&path) {
                model.set(&path, None);
            }
        }
        for (path, attr) in seen {
            let id = match known.get(&attr.inode.0) {
                Some(&id)
                    if model.object(id).kind == attr.kind
                        && (model.find(path) == Ok(id) || !model.object(id).may_be_gone) =>
                {
                    id
                }
                _ if model.find(path).is_ok_and(|id| {
                    // A file may have several names.
                    model.object(id).inode.is_none_or(|inode| inode == attr.inode.0)
                        && model.object(id).kind == attr.kind
                }) =>
                {
                    model.find(path).unwrap_or_default()
                }
                _ => {
                    let id = model.insert(path, attr.kind);
                    let object = model.object_mut(id);
                    object.data.forget();
                    object.xattr = None;
                    id
                }
            };
            if model.find(path) != Ok(id) {
                model.set(path, Some(id));
            }
            let object = model.object_mut(id);
            (object.inode, object.mode, object.nlink) = (Some(attr.inode.0), Some(attr.mode), attr.nlink);
        }
        for path in model.all().into_keys() {
            if !seen.contains_key(&path) {
                model.set(&path, None);
            }
        }
    }

    /// Fsyncs all files and directories, so that their known state survives any fault.
    pub(super) async fn sync_all(&mut self) -> Checked {
        for view in VIEWS {
            let all = self.model(view).all();
            let mut dirs = vec![String::new()];
            for (path, id) in all {
                match self.model(view).object(id).kind {
                    FileKind::Directory => dirs.push(path),
                    FileKind::File => {
                        let open = self.must_open(0, view, &path, id, Flags::WRITE).await?;
                        for op in [Op::Fsync { slot: CHECK_SLOT }, Op::Close { slot: CHECK_SLOT }] {
                            self.must(0, view, op, Some(open.clone())).await?;
                        }
                    }
                    _ => {}
                }
            }
            for path in dirs {
                self.must(0, view, Op::SyncDir { path }, None).await?;
            }
            self.model(view).resolve();
        }
        Ok(())
    }
}

/// Returns the regular file at a path.
pub(super) fn file_at(names: &Names, path: &str) -> Option<ObjectId> {
    let id = names.find(path).ok()?;
    (names.object(id).kind == FileKind::File).then_some(id)
}
