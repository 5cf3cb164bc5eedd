//! Telling nodes of changes that they do not know of, before the call that made them returns.

use super::leases::Untold;
use super::state::State;
use super::{MetaService, leases};
use futures_util::future::join_all;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tameike_core::wire::Request;
use tameike_core::wire::client::ClientRequest;
use tameike_core::wire::meta::{MetaReply, Node, Step, Target};
use tameike_core::{FileKind, InodeId, NodeId, Result};

/// Inodes in one message: it fits, whatever their numbers.
const REVOKED_MAX: usize = 8192;

impl MetaService {
    /// What the view of `node` may believe of a name from now on, as it is told; whether it holds the name.
    pub(super) fn lease(
        &self,
        state: &mut State,
        dir: InodeId,
        target: Target,
        inode: Option<&Node>,
        node: NodeId,
    ) -> bool {
        let now = self.parts.runtime.clock.monotonic();
        if target.kind == FileKind::Directory {
            state.leases.see(target.inode, node, now);
            return false;
        }
        // A file with other names, or that lives elsewhere, changes unseen from here.
        inode.is_some_and(|inode| inode.attr.nlink == 1) && state.leases.grant(target.inode, dir, node, now)
    }

    /// `from` has changed an inode, or tried to; `access` says that mode or owner changed. Nobody is promised to
    /// see a directory's other attributes at once.
    pub(super) async fn tell_of(
        &self,
        inode: InodeId,
        from: NodeId,
        access: bool,
        reply: &Result<MetaReply>,
    ) {
        let is_dir = matches!(reply, Ok(MetaReply::Node(node)) if node.attr.kind == FileKind::Directory);
        let now = self.parts.runtime.clock.monotonic();
        let untold = {
            let mut state = self.state.lock();
            let untold = match is_dir && !access {
                true => None,
                false => state.leases.changed(inode, is_dir, Some(from), now),
            };
            if is_dir {
                state.leases.see(inode, from, now); // in the reply
            }
            untold
        };
        self.tell(untold.into_iter().collect()).await;
    }

    /// Who must be told of these steps, which are done.
    pub(super) fn untold<'a>(
        &self,
        state: &mut State,
        steps: impl IntoIterator<Item = &'a Step>,
        by: Option<NodeId>,
    ) -> Vec<Untold> {
        let now = self.parts.runtime.clock.monotonic();
        let touched = steps.into_iter().flat_map(leases::touched);
        touched.filter_map(|(inode, is_dir)| state.leases.changed(inode, is_dir, by, now)).collect()
    }

    /// Returns when nobody believes any more what is not so.
    pub(super) async fn tell(&self, untold: Vec<Untold>) {
        let mut all = BTreeMap::<_, (Duration, BTreeSet<InodeId>)>::new();
        for Untold { inode, holder, until } in untold {
            let (latest, inodes) = all.entry(holder).or_default();
            *latest = until.max(*latest);
            inodes.insert(inode);
        }
        if !all.is_empty() {
            let tell = |(holder, (until, inodes)): (_, (_, BTreeSet<_>))| {
                self.tell_one(holder, inodes.into_iter().collect(), until)
            };
            join_all(all.into_iter().map(tell)).await;
        }
    }

    async fn tell_one(&self, holder: Option<NodeId>, inodes: Vec<InodeId>, until: Duration) {
        let runtime = &self.parts.runtime;
        let left = || until.saturating_sub(runtime.clock.monotonic());
        if let Some(holder) = holder {
            let told = join_all(inodes.chunks(REVOKED_MAX).map(|inodes| self.revoke(holder, inodes)));
            match runtime.timeout(left(), told).await {
                Some(told) if told.iter().all(Result::is_ok) => {
                    let (mut state, now) = (self.state.lock(), runtime.clock.monotonic());
                    inodes.iter().for_each(|&inode| state.leases.told(inode, holder, now));
                    return;
                }
                Some(_) => log::info!("{holder} cannot be told of changes; its leases run out"),
                None => log::info!("{holder} was not told of changes in time"),
            }
        }
        runtime.sleep(left()).await;
    }

    async fn revoke(&self, holder: NodeId, inodes: &[InodeId]) -> Result<()> {
        let revoke = Request::Client(ClientRequest::Revoke { inodes: inodes.to_vec() });
        self.call(holder, revoke, None).await.map(drop)
    }
}
