//! Orders opens relative to a concurrent change of names.

use super::{Call, End, Run};
use crate::kernel::Output;

/// The state of the tree that a call saw, relative to the one change of names in its step.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Moment {
    Before,
    Change,
    After,
}

impl Run {
    /// Returns the state that explains the result of an open: before the change if that explains it, else after it.
    pub(super) fn moment_of(&mut self, call: &Call) -> Moment {
        if !call.op.only_opens() {
            return Moment::Change;
        }
        let model = self.model(call.view);
        let expected = model.expect(&call.op);
        let known = call.op.paths().first().and_then(|path| model.find(path).ok());
        let is_so = match &call.end {
            End::Returned(Output::Opened(_, attr)) => {
                let inode = known.and_then(|object| model.object(object).inode);
                expected.is_empty() && inode.is_none_or(|inode| inode == attr.inode.0)
            }
            End::Returned(_) => expected.is_empty(),
            End::Failed(fault) => expected.contains(&fault.errno),
            End::NodeFailed => false,
        };
        if is_so { Moment::Before } else { Moment::After }
    }
}
