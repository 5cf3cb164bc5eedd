//! Opens beside another call that changes names.

use super::{Call, End, Run};
use crate::kernel::Told;

/// When a call looked at the tree, of which one other call of the step changed names.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Moment {
    Before,
    Change,
    After,
}

impl Run {
    /// When an open was told what it was: before the one change of the tree, where it is so there, or else after it.
    pub(super) fn moment_of(&mut self, call: &Call) -> Moment {
        if !call.op.only_opens() {
            return Moment::Change;
        }
        let model = self.model(call.view);
        let expected = model.expect(&call.op);
        let known = call.op.paths().first().and_then(|path| model.find(path).ok());
        let is_so = match &call.end {
            End::Told(Told::Opened(_, attr)) => {
                let inode = known.and_then(|object| model.object(object).inode);
                expected.is_empty() && inode.is_none_or(|inode| inode == attr.inode.0)
            }
            End::Told(_) => expected.is_empty(),
            End::Failed(fault) => expected.contains(&fault.errno),
            End::Died => false,
        };
        if is_so { Moment::Before } else { Moment::After }
    }
}
