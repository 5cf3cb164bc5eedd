//! Grants leases, and revokes them on other nodes before the call that changed a name or inode returns.

use super::leases::Revocation;
use super::state::State;
use super::{MetaService, leases};
use futures_util::future::join_all;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tameike_core::wire::Request;
use tameike_core::wire::client::ClientRequest;
use tameike_core::wire::meta::{MetaReply, Node, Step, Target};
use tameike_core::{FileKind, InodeId, NodeId, Result};

/// Maximum number of inodes in one message, so that it fits with any numbers.
const REVOKED_MAX: usize = 8192;

impl MetaService {
    /// Records that the view of `node` caches the reply about a name. Returns true if it gets a lease on the name.
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
            state.leases.cached(target.inode, node, now);
            return false;
        }
        // This home does not see all changes of a file with several names, or with its inode at another home.
        inode.is_some_and(|inode| inode.attr.nlink == 1) && state.leases.grant(target.inode, dir, node, now)
    }

    /// Revokes leases after `from` changed an inode, or tried to. `access` is true if mode or owner changed; other attributes of
    /// directories are not coherent.
    pub(super) async fn revoke_changed(
        &self,
        inode: InodeId,
        from: NodeId,
        access: bool,
        reply: &Result<MetaReply>,
    ) {
        let is_dir = matches!(reply, Ok(MetaReply::Node(node)) if node.attr.kind == FileKind::Directory);
        let now = self.parts.runtime.clock.monotonic();
        let revocations = {
            let mut state = self.state.lock();
            let revocations = match is_dir && !access {
                true => None,
                false => state.leases.changed(inode, is_dir, Some(from), now),
            };
            if is_dir {
                state.leases.cached(inode, from, now); // the reply has the attributes
            }
            revocations
        };
        self.revoke(revocations.into_iter().collect()).await;
    }

    /// Returns the leases to revoke after these steps.
    pub(super) fn revocations<'a>(
        &self,
        state: &mut State,
        steps: impl IntoIterator<Item = &'a Step>,
        by: Option<NodeId>,
    ) -> Vec<Revocation> {
        let now = self.parts.runtime.clock.monotonic();
        let touched = steps.into_iter().flat_map(leases::touched);
        touched.filter_map(|(inode, is_dir)| state.leases.changed(inode, is_dir, by, now)).collect()
    }

    /// Revokes leases. Returns when all have been revoked or have expired.
    pub(super) async fn revoke(&self, revocations: Vec<Revocation>) {
        let mut all = BTreeMap::<_, (Duration, BTreeSet<InodeId>)>::new();
        for Revocation { inode, holder, until } in revocations {
            let (latest, inodes) = all.entry(holder).or_default();
            *latest = until.max(*latest);
            inodes.insert(inode);
        }
        if !all.is_empty() {
            let revoke = |(holder, (until, inodes)): (_, (_, BTreeSet<_>))| {
                self.revoke_from(holder, inodes.into_iter().collect(), until)
            };
            join_all(all.into_iter().map(revoke)).await;
        }
    }

    async fn revoke_from(&self, holder: Option<NodeId>, inodes: Vec<InodeId>, until: Duration) {
        let runtime = &self.parts.runtime;
        let left = || until.saturating_sub(runtime.clock.monotonic());
        if let Some(holder) = holder {
            let replies = join_all(inodes.chunks(REVOKED_MAX).map(|inodes| self.send_revoke(holder, inodes)));
            match runtime.timeout(left(), replies).await {
                Some(replies) if replies.iter().all(Result::is_ok) => {
                    let (mut state, now) = (self.state.lock(), runtime.clock.monotonic());
                    inodes.iter().for_each(|&inode| state.leases.revoked(inode, holder, now));
                    return;
                }
                Some(_) => log::info!("cannot revoke leases of {holder}; waiting until they expire"),
                None => log::info!("{holder} did not acknowledge revoked leases before they expired"),
            }
        }
        runtime.sleep(left()).await;
    }

    async fn send_revoke(&self, holder: NodeId, inodes: &[InodeId]) -> Result<()> {
        let revoke = Request::Client(ClientRequest::Revoke { inodes: inodes.to_vec() });
        self.call(holder.into(), revoke, None).await.map(drop)
    }
}
