//! Tracks files that lose names.

use super::{Call, End, Run};
use crate::model::ObjectId;
use crate::op::Op;
use tameike_core::View;
use tameike_core::wire::meta::RenameMode;

impl Run {
    /// Returns the file of the cache view from which a call removes a name, unless the call was refused.
    pub(super) fn may_unname(&mut self, call: &Call) -> Option<(usize, ObjectId)> {
        let is_refused = matches!(call.end, End::Failed(_));
        if call.view == View::Cache && !is_refused { self.unnamed_by(call) } else { None }
    }

    /// Returns the file from which a call removes a name.
    fn unnamed_by(&mut self, call: &Call) -> Option<(usize, ObjectId)> {
        let gone = match &call.op {
            Op::Unlink { path } => path,
            Op::Rename { to, mode: RenameMode::Replace, .. } => to,
            _ => return None,
        };
        self.model(call.view).find(gone).ok().map(|object| (call.view.index(), object))
    }

    /// Marks descriptors on other nodes that may refer to a file of the cache view by the removed name. With the last name, the nodes are
    /// notified.
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
