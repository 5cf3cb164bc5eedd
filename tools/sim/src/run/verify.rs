//! Checks the results of calls against the model.

use super::{Call, Checked, End, Open, Run};
use crate::kernel::Output;
use crate::model::{FileData, Names, ObjectId, Reader, Source, Write};
use crate::op::Op;
use tameike_core::wire::unit::SpaceChange;
use tameike_core::{Attr, Errno, FileKind, View};

impl Call {
    pub(super) fn wrong(&self, why: impl std::fmt::Display) -> String {
        format!("node {}, {}: {}: {why}", self.node, self.view.as_str(), self.op)
    }

    /// Returns true if another call of the step writes to the same file on the same node.
    fn is_beside_write(&self, other: &Self) -> bool {
        let object = |call: &Self| call.open.as_ref().map(|open| open.object);
        matches!(other.op, Op::Write { .. })
            && (other.node, other.view, object(other)) == (self.node, self.view, object(self))
    }

    fn output(&self) -> Option<&Output> {
        match &self.end {
            End::Returned(output) => Some(output),
            End::Failed(_) | End::NodeFailed => None,
        }
    }

    pub(super) fn has_returned(&self) -> bool {
        self.output().is_some()
    }

    /// Returns the unpublished write of the call.
    fn write(&self, offset: u64, length: u64, source: Source) -> Write {
        Write {
            node: self.node,
            offset,
            length,
            source,
            begun: self.begun,
            acknowledged: self.ended,
            published: None,
            synced: None,
            is_certain: self.has_returned(),
            is_append: false,
        }
    }
}

impl Run {
    /// Checks the calls of a step. At most one per view changes names; the others saw the tree before or after it.
    pub(super) fn verify(&mut self, calls: Vec<Call>) -> Checked {
        let (mut changes, queries): (Vec<_>, Vec<_>) =
            calls.into_iter().partition(|call| call.op.changes_names() || call.op.changes_inode());
        let (files, queries): (Vec<_>, Vec<_>) =
            queries.into_iter().partition(|call| call.op.slot().is_some());
        self.take_writes(&files)?;
        self.unnamed = changes.iter().filter_map(|call| self.may_unname(call)).collect();
        let before: Vec<Checked> = queries.iter().map(|call| self.verify_query(call)).collect();
        self.unnamed.clear();
        changes.sort_by_cached_key(|call| self.moment_of(call));
        for call in &changes {
            self.verify_change(call)?;
        }
        for (call, before) in queries.iter().zip(before) {
            if before.is_err() {
                self.verify_query(call).map_err(|_| before.err().unwrap_or_default())?;
            }
        }
        for call in &files {
            self.verify_file(call, &files)?;
        }
        for call in &files {
            self.publish(call);
        }
        // A lock beside a write may come after it.
        let (locks, others): (Vec<_>, Vec<_>) = files.iter().partition(|call| call.op.locks());
        others.into_iter().chain(locks).for_each(|call| self.note_commit(call));
        Ok(())
    }

    /// Checks that the outcome is allowed. Returns true if the effect of the call is unknown.
    pub(super) fn verify_failure(&mut self, call: &Call, expected: &[Errno]) -> Checked<bool> {
        match &call.end {
            End::Returned(_) if expected.is_empty() => Ok(false),
            End::Returned(_) => {
                let errnos: Vec<_> = expected.iter().map(|errno| errno.describe()).collect();
                Err(call.wrong(format!("succeeded, but should fail with {}", errnos.join(" or "))))
            }
            End::Failed(fault) if expected.contains(&fault.errno) => Ok(false),
            End::Failed(fault) if self.is_explained((call.node, call.view), fault.errno) => {
                self.explained_failures += 1;
                Ok(true)
            }
            End::Failed(fault) => {
                let is_explained = match fault.errno {
                    Errno::EIO => self.may_report_rot(call) || self.reports_failed_sync(call),
                    Errno::ENOSPC => self.may_be_full(call),
                    Errno::ESTALE if self.may_have_missed_removal(call) => true,
                    Errno::ESTALE | Errno::ENOENT => self.may_be_gone(call),
                    _ => false,
                };
                if is_explained { Ok(true) } else { Err(call.wrong(format!("failed with {fault}"))) }
            }
            End::NodeFailed => Ok(true),
        }
    }

    /// Returns true if the call may fail with ESTALE: its node was unreachable and missed the removal of the file (S10).
    fn may_have_missed_removal(&mut self, call: &Call) -> bool {
        let was_unreachable = self.was_unreachable && call.view == View::Cache;
        let object = call.open.as_ref().filter(|_| was_unreachable).map(|open| open.object);
        object.is_some_and(|object| self.model(call.view).object(object).nlink == 0)
    }

    /// Returns true if the file of the call may be gone: it is removed, and the node was excluded (S52f).
    fn may_be_gone(&mut self, call: &Call) -> bool {
        let is_excluded = self.excluded.contains(&call.node);
        let open = call.open.as_ref().filter(|open| is_excluded || open.was_dropped);
        let object = open.map(|open| open.object);
        let is_gone = object.is_some_and(|object| self.model(call.view).object(object).nlink == 0);
        // What its programs write to the file later takes space until the job ends.
        self.has_gone_files |= is_gone;
        is_gone
    }

    /// Returns true if the call may report a failed sync of an unlinked file: the shared file system reports it once to each descriptor
    /// that was open then, even if a repeated sync succeeded (S4).
    fn reports_failed_sync(&mut self, call: &Call) -> bool {
        let (Some(open), Op::Fsync { slot } | Op::Close { slot }) = (&call.open, &call.op) else {
            return false;
        };
        let is_orphan = self.model(call.view).object(open.object).nlink == 0;
        if call.view != View::Cache || !self.tree_syncs_failed || !is_orphan || open.has_reported {
            return false;
        }
        if let Some(open) = self.slots.get_mut(&(call.node, call.view.index(), *slot)) {
            open.has_reported = true;
        }
        true
    }

    /// Checks a call that only reads names and attributes.
    fn verify_query(&mut self, call: &Call) -> Checked {
        if call.op.paths().iter().any(|path| self.model(call.view).is_unknown(path, false)) {
            return Ok(());
        }
        let expected = self.model(call.view).expect(&call.op);
        if self.verify_failure(call, &expected)? {
            return Ok(());
        }
        let Some(output) = call.output() else { return Ok(()) };
        let [path] = call.op.paths()[..] else { return Ok(()) };
        let model = self.model(call.view);
        let id = model.find(path).map_err(|errno| call.wrong(errno.describe()))?;
        match output {
            Output::Attr(attr) => self.verify_attr(call, id, attr),
            Output::Names(found) => {
                let names = &model.object(id).children;
                let unknown = |name: &str| model.is_unknown(&crate::model::path::join(path, name), false);
                let missing = names.keys().find(|name| !found.contains_key(*name) && !unknown(name));
                let excess = found.keys().find(|name| !names.contains_key(*name) && !unknown(name));
                match (missing, excess) {
                    (Some(name), _) => Err(call.wrong(format!("{name} is missing"))),
                    (_, Some(name)) => Err(call.wrong(format!("{name} should not exist"))),
                    (None, None) => Ok(()),
                }
            }
            Output::Bytes(bytes) => {
                let object = model.object(id);
                let known = match &call.op {
                    Op::GetXattr { .. } => object
                        .xattr
                        .map(|known| known.map_or_else(Vec::new, |value| value.to_le_bytes().to_vec())),
                    _ => object.target.as_ref().map(|target| target.clone().into_bytes()),
                };
                match known.filter(|known| known != bytes) {
                    Some(known) => {
                        let (found, known) = (bytes.escape_ascii(), known.escape_ascii());
                        Err(call.wrong(format!("returned {found}, not {known}")))
                    }
                    None => Ok(()),
                }
            }
            Output::Done | Output::Opened(..) => Ok(()),
        }
    }

    fn verify_attr(&mut self, call: &Call, id: ObjectId, attr: &Attr) -> Checked {
        let kind = self.model(call.view).object(id).kind;
        if attr.kind != kind {
            return Err(call.wrong(format!("is a {:?}, and should be a {kind:?}", attr.kind)));
        }
        self.learn(call, id, attr)?;
        let object = self.models.entry(call.view.index()).or_default().object(id);
        if let Some(mode) = object.mode.filter(|mode| *mode != attr.mode) {
            return Err(call.wrong(format!("has mode {:o}, and should have {mode:o}", attr.mode)));
        }
        if object.kind != FileKind::File {
            return Ok(());
        }
        // A call that resolved the name before its removal may stat the file after it.
        let is_unnamed = self.unnamed.contains(&(call.view.index(), id)) && attr.nlink + 1 == object.nlink;
        if attr.nlink != object.nlink && !is_unnamed {
            return Err(call.wrong(format!("has {} names, and should have {}", attr.nlink, object.nlink)));
        }
        let reader = Reader { node: call.node, opened: call.begun, now: call.begun };
        let check = |data: &FileData| match data.size(reader) {
            (least, largest) if (least..=largest).contains(&attr.size) => Ok(()),
            (least, largest) => {
                Err(format!("is {} bytes long, and should be {least} to {largest}", attr.size))
            }
        };
        check(&object.data).or_else(|why| self.find_lost(call, id, check).ok_or_else(|| call.wrong(why)))
    }

    /// Checks a call that changes names or an inode, and applies it to the model.
    fn verify_change(&mut self, call: &Call) -> Checked {
        let expected = self.model(call.view).expect(&call.op);
        if self.verify_failure(call, &expected)? {
            self.mark_unknown(call);
            return Ok(());
        }
        let Some(output) = call.output() else { return Ok(()) };
        self.note_unnamed(call);
        let found = self.model(call.view).apply(&call.op);
        match (&call.op, output) {
            (Op::Open { slot, flags, .. }, Output::Opened(handle, attr)) => {
                let object = found.ok_or_else(|| call.wrong("opened nothing"))?;
                self.learn(call, object, attr)?;
                if flags.truncate && flags.write {
                    self.push_truncation(call, object, 0);
                }
                let open = Open::new(*handle, object, call.begun, *flags);
                self.slots.insert((call.node, call.view.index(), *slot), open);
            }
            (Op::Truncate { path, size }, Output::Attr(_)) => {
                let object =
                    self.model(call.view).find(path).map_err(|errno| call.wrong(errno.describe()))?;
                self.push_truncation(call, object, *size);
            }
            _ => {}
        }
        Ok(())
    }

    fn learn(&mut self, call: &Call, object: ObjectId, attr: &Attr) -> Checked {
        let known = *self.model(call.view).object_mut(object).inode.get_or_insert(attr.inode.0);
        if known != attr.inode.0 {
            return Err(call.wrong(format!("is inode {}, and should be {known}", attr.inode.0)));
        }
        Ok(())
    }

    pub(super) fn push_truncation(&mut self, call: &Call, object: ObjectId, size: u64) {
        let mut write = call.write(size, u64::MAX, Source::Truncation);
        write.published = write.is_certain.then_some(call.ended);
        self.model(call.view).object_mut(object).data.push(write);
    }

    /// Adds the writes of a step to the model, before the check of its reads: a read may see a concurrent write.
    fn take_writes(&mut self, calls: &[Call]) -> Checked {
        for call in calls {
            let Some(open) = &call.open else { continue };
            let (offset, length, source) = match &call.op {
                Op::Write { offset, length, tag, .. } => (*offset, u64::from(*length), Source::Pattern(*tag)),
                Op::Space { change: SpaceChange::Punch | SpaceChange::Zero, offset, length, .. } => {
                    (*offset, *length, Source::Hole)
                }
                _ => continue,
            };
            let in_doubt = match call.end {
                End::Failed(_) if open.is_unnamed => true,
                _ => self.verify_failure(call, &[])?,
            };
            let model = self.models.entry(call.view.index()).or_default();
            let data = &mut model.object_mut(open.object).data;
            let is_append = open.flags.append && matches!(source, Source::Pattern(_));
            let offset = if is_append { call.append_offset.unwrap_or(offset) } else { offset };
            data.push(Write { is_certain: !in_doubt, is_append, ..call.write(offset, length, source) });
            if in_doubt && is_append {
                // The failed append may have extended the file with zeros.
                let grown = call.write(offset + length, u64::MAX, Source::Truncation);
                data.push(Write { is_certain: false, ..grown });
            }
        }
        Ok(())
    }

    fn verify_file(&mut self, call: &Call, beside: &[Call]) -> Checked {
        let Some(open) = call.open.clone() else { return Ok(()) };
        self.expect_report(call)?;
        if let (End::Failed(_), true) = (&call.end, open.is_unnamed) {
            self.model(call.view).object_mut(open.object).data.mark_uncertain(call.node);
            return Ok(());
        }
        if matches!(call.op, Op::Lock { .. }) && call.is_refused() {
            return Ok(());
        }
        if self.verify_failure(call, &[])? {
            if !matches!(call.op, Op::Read { .. }) {
                self.model(call.view).object_mut(open.object).data.mark_uncertain(call.node);
            }
            return Ok(());
        }
        if let (Op::Read { offset, length, .. }, Some(Output::Bytes(bytes))) = (&call.op, call.output()) {
            let reader = Reader { node: call.node, opened: open.opened, now: call.begun };
            let flips = self.flips(call.node, call.view, open.object);
            // While this node writes, the kernel ignores new sizes and ends the read at its cached one (S21).
            let may_end_early = beside.iter().any(|other| call.is_beside_write(other));
            let wanted = if may_end_early { bytes.len() as u64 } else { u64::from(*length) };
            let check = |data: &FileData| {
                let bytes = flips.reverted(data, reader, *offset, bytes);
                data.check(reader, *offset, wanted, &bytes)
            };
            let checked = check(&self.model(call.view).object(open.object).data);
            let lost = |why| self.find_lost(call, open.object, check).ok_or_else(|| call.wrong(why));
            return checked.or_else(lost);
        }
        Ok(())
    }

    /// Returns true if acknowledged writes of a node to a view may be lost before they reach their homes.
    pub(super) fn may_have_lost(&self, node: usize, view: View) -> bool {
        let failures = [Errno::EIO, Errno::ENOSPC, Errno::EROFS, Errno::EHOSTDOWN, Errno::ETIMEDOUT];
        self.may_lack_space(view)
            || self.has_rotted
            || failures.iter().any(|&errno| self.is_explained((node, view), errno))
    }

    /// Returns `Some` if the observation is correct under the assumption that unpublished writes of the node were lost. The next close
    /// or fsync of the descriptors that wrote them must then fail.
    fn find_lost(
        &mut self,
        call: &Call,
        object: ObjectId,
        check: impl Fn(&FileData) -> Checked,
    ) -> Option<()> {
        if !self.may_have_lost(call.node, call.view) {
            return None;
        }
        let data = &mut self.model(call.view).object_mut(object).data;
        let first = data.first_unpublished(call.node)?;
        let mut without = data.clone();
        without.mark_uncertain(call.node);
        check(&without).ok()?;
        *data = without;
        for open in self.descriptors(call, object) {
            open.has_lost |= open.flags.write && open.opened < first;
        }
        Some(())
    }

    /// Checks that a close or fsync reports a lost write.
    fn expect_report(&mut self, call: &Call) -> Checked {
        let (Op::Fsync { slot } | Op::Close { slot }) = call.op else { return Ok(()) };
        let Some(open) = self.slots.get_mut(&(call.node, call.view.index(), slot)) else { return Ok(()) };
        if std::mem::take(&mut open.has_lost) && call.has_returned() {
            return Err(call.wrong("succeeded, but should report a lost write"));
        }
        Ok(())
    }

    /// A successful close, fsync, lock or unlock publishes the writes of its node.
    fn publish(&mut self, call: &Call) {
        let Some(open) = &call.open else { return };
        let (is_close, is_fsync) = (matches!(call.op, Op::Close { .. }), matches!(call.op, Op::Fsync { .. }));
        if is_close {
            let slot = call.op.slot().unwrap_or_default();
            self.slots.remove(&(call.node, call.view.index(), slot));
        }
        // A close or fsync reports lost writes; a lock call does not (S4).
        let is_lock = call.op.locks() && !self.may_have_lost(call.node, call.view);
        let covers = is_fsync || is_lock || (is_close && open.flags.write);
        if call.has_returned() && covers {
            let object = self.model(call.view).object_mut(open.object);
            object.data.publish(call.node, call.begun, call.ended, is_fsync);
            object.is_synced |= is_fsync;
        }
    }
}

pub(super) fn paths(names: &Names) -> String {
    names.all().into_keys().collect::<Vec<_>>().join(", ")
}
