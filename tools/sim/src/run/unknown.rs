//! Marks state of the model as unknown after a failed call.

use super::{Call, Run};
use crate::op::Op;
use tameike_core::View;

impl Run {
    /// A failed call may have taken effect, or not, or take effect later.
    pub(super) fn mark_unknown(&mut self, call: &Call) {
        let model = self.model(call.view);
        for path in call.op.paths() {
            // The call may have sent earlier writes of its node and lost them: the next close reports that (S4), a read may show it before.
            if let Ok(id) = model.find(path) {
                model.object_mut(id).data.mark_uncertain(call.node);
            }
        }
        match &call.op {
            Op::Truncate { path, .. } | Op::Chmod { path, .. } | Op::SetXattr { path, .. } => {
                let Ok(id) = model.find(path) else { return };
                match &call.op {
                    Op::Truncate { size, .. } => self.push_truncation(call, id, *size),
                    Op::Chmod { .. } => model.object_mut(id).mode = None,
                    _ => model.object_mut(id).xattr = None,
                }
            }
            Op::Open { path, flags, .. } => match model.find(path) {
                Ok(object) if flags.truncate => self.push_truncation(call, object, 0),
                Err(_) if flags.create => model.mark_unknown(path),
                _ => {}
            },
            op => {
                // The shared file system reuses the inode number of a removed file.
                if let (View::Cache, Op::Unlink { path } | Op::Rename { to: path, .. }) = (call.view, op)
                    && let Ok(id) = model.find(path)
                {
                    model.object_mut(id).may_be_gone = true;
                }
                if let Op::Unlink { path } | Op::Rename { to: path, .. } = op {
                    model.uncounted(path).iter().for_each(|name| model.mark_unknown(name));
                }
                op.paths().into_iter().for_each(|path| model.mark_unknown(path));
            }
        }
    }
}
