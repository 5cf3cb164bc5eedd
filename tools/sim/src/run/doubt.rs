//! Marks state of the model as unknown after a failed call.

use super::{Call, Run};
use crate::model::{ObjectId, Source, Write};
use crate::op::Op;
use tameike_core::View;

impl Run {
    /// A failed call may have taken effect, or not, or take effect later.
    pub(super) fn doubt_change(&mut self, call: &Call) {
        let model = self.model(call.view);
        for path in call.op.paths() {
            // The call may have sent earlier writes of its node and lost them: the next close reports that (S4), a read may show it before.
            if let Ok(id) = model.find(path) {
                model.object_mut(id).data.doubt(call.node);
            }
        }
        match &call.op {
            Op::Truncate { path, size } => {
                if let Ok(object) = model.find(path) {
                    self.push_truncation(call, object, *size);
                }
            }
            Op::Chmod { path, .. } => {
                if let Ok(id) = model.find(path) {
                    model.object_mut(id).mode = None;
                }
            }
            Op::SetXattr { path, .. } => {
                if let Ok(id) = model.find(path) {
                    model.object_mut(id).xattr = None;
                }
            }
            Op::Open { path, flags, .. } => match model.find(path) {
                Ok(object) if flags.truncate => self.push_truncation(call, object, 0),
                Ok(_) => {}
                Err(_) if flags.create => model.doubt(path),
                Err(_) => {}
            },
            op => {
                // The shared file system reuses the inode number of a removed file.
                if let (View::Cache, Op::Unlink { path } | Op::Rename { to: path, .. }) = (call.view, op)
                    && let Ok(id) = model.find(path)
                {
                    model.object_mut(id).may_be_gone = true;
                }
                if let Op::Unlink { path } | Op::Rename { to: path, .. } = op {
                    model.uncounted(path).iter().for_each(|name| model.doubt(name));
                }
                op.paths().into_iter().for_each(|path| model.doubt(path));
            }
        }
    }

    pub(super) fn push_doubtful_growth(&mut self, call: &Call, object: ObjectId, size: u64) {
        let write = Write {
            node: call.node,
            offset: size,
            length: u64::MAX,
            source: Source::Truncation,
            begun: call.begun,
            acknowledged: call.ended,
            published: None,
            synced: None,
            is_certain: false,
            is_append: false,
        };
        self.model(call.view).object_mut(object).data.push(write);
    }
}
