//! Files that lose names.

use super::{Call, End, Run};
use crate::model::ObjectId;
use crate::op::Op;
use tameike_core::View;
use tameike_core::wire::meta::RenameMode;

impl Run {
    /// What a call takes a name from while others look at it.
    pub(super) fn may_unname(&mut self, call: &Call) -> Option<(usize, ObjectId)> {
        let is_refused = matches!(call.end, End::Failed(_));
        if call.view == View::Cache && !is_refused { self.unnamed_by(call) } else { None }
    }

    /// What a call takes a name from, where there is something.
    fn unnamed_by(&mut self, call: &Call) -> Option<(usize, ObjectId)> {
        let gone = match &call.op {
            Op::Unlink { path } => path,
            Op::Rename { to, mode: RenameMode::Replace, .. } => to,
            _ => return None,
        };
        self.model(call.view).find(gone).ok().map(|object| (call.view.index(), object))
    }

    /// Other nodes that have a file of the cache view open may know it by a name that it has lost, and nobody the others
    /// that it has. With its last name, they are told.
    pub(super) fn note_unnamed(&mut self, call: &Call) {
        let Some((_, object)) = self.unnamed_by(call) else { return };
        if self.model(call.view).object(object).nlink == 1 {
            return;
        }
        for ((node, view, _), open) in &mut self.slots {
            let is_elsewhere = *node != call.node && *view == call.view.index();
            open.is_unnamed |= is_elsewhere && call.view == View::Cache && open.object == object;
        }
    }
}
