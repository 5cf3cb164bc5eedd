//! Calls that another primary of the home has executed before it failed.

use super::{MetaService, RETRY_TIME_MIN};
use tameike_core::wire::call::NumberedCall;
use tameike_core::wire::meta::{Command, MetaReply, Node};
use tameike_core::{Errno, Fault, FileKind, Result};
use tameike_store::meta::record::CallRecord;
use tameike_store::meta::{Outcome, query as table};

impl MetaService {
    /// The reply to a command, if it was executed before.
    pub(super) async fn result_of(
        &self,
        call: Option<NumberedCall>,
        command: &Command,
    ) -> Result<Option<MetaReply>> {
        let Some(call) = call else { return Ok(None) };
        let outcome = match self.query(|names| table::call(names, &call))? {
            Some(CallRecord::Outcome(outcome)) => outcome,
            Some(CallRecord::Begun { .. } | CallRecord::Decided { .. }) => {
                return Err(Fault::new(Errno::EPROTO, "the number of a call belongs to another one"));
            }
            None => return Ok(None),
        };
        log::debug!("a call of {} was executed before: {outcome:?}", call.node);
        match (command, outcome) {
            (Command::Create { entry, opener, .. }, Outcome::Created { target, attr }) => {
                if let (Some(opener), FileKind::File) = (*opener, target.kind) {
                    let mut state = self.state.lock();
                    state.check_opener(opener)?;
                    state.open(target.inode, opener);
                }
                let content = opener.filter(|_| attr.inline).map(|_| Default::default());
                let node = Some(Node { content, ..Node::of(attr) });
                let dir = Some(self.children_stat(entry.dir)?);
                Ok(Some(MetaReply::Entry { target, node, created: true, dir, lease: false }))
            }
            // What the command has found may have changed: it looks again.
            (Command::Create { .. }, _) => Ok(None),
            (_, outcome) => self.reply_to_change(outcome).map(Some),
        }
    }

    /// Whether the operation of a call was decided before. Waits until it has ended.
    pub(super) async fn has_decided(&self, call: Option<NumberedCall>) -> Result<bool> {
        let Some(call) = call else { return Ok(false) };
        let mut pause = RETRY_TIME_MIN;
        loop {
            let (decided, is_pending) = self.query(|names| {
                let (decided, sequence) = match table::call(names, &call)? {
                    Some(CallRecord::Begun { sequence }) => (false, sequence),
                    Some(CallRecord::Decided { sequence }) => (true, sequence),
                    Some(CallRecord::Outcome(_)) | None => return Ok((false, false)),
                };
                Ok((decided, table::intent(names, sequence)?.is_some()))
            })?;
            if !is_pending {
                return Ok(decided);
            }
            // Recovery completes it, or undoes it.
            self.parts.runtime.sleep(pause).await;
            pause = (pause * 2).min(super::RETRY_TIME_MAX);
        }
    }
}
