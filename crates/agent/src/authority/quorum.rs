//! The authority of a volume grants leases only as long as it hears most keepers of its record.
//!
//! A keeper that promises the term of a later driver answers the earlier one no more. So the earlier one grants no lease later than
//! [`QUORUM_TIME`] after most keepers have promised, and the later one knows when all leases of others have ended.

use super::Authority;
use crate::keepers::{Keeper, Keepers, Term};
use std::collections::BTreeMap;
use std::time::Duration;
use tameike_core::NodeId;
use tameike_core::limits::MAP_LEASE;

/// Age of the messages that most keepers have answered, beyond which the authority grants no leases.
const QUORUM_TIME: Duration = MAP_LEASE;

/// Time after the promises of most keepers after which no node has a lease of an earlier driver.
pub const TAKEOVER_TIME: Duration =
    Duration::from_millis(QUORUM_TIME.as_millis() as u64 + MAP_LEASE.as_millis() as u64);

/// The keepers that the authority must hear.
#[derive(Default)]
pub(super) struct Quorum {
    keepers: Keepers,
    /// The numbers of the stores that nodes have now.
    stores: BTreeMap<NodeId, u64>,
}

impl Authority {
    /// The authority of a driver that has a term, which `promised` keepers have promised in answer to messages of the time `asked`. Other nodes
    /// may have leases of the driver before for [`TAKEOVER_TIME`] from now on.
    #[must_use]
    pub fn taking_over(mut self, term: Term, promised: &[Keeper], asked: Duration, now: Duration) -> Self {
        for (node, member) in &mut self.members {
            let heard = promised.iter().any(|keeper| keeper.node == *node).then_some(asked);
            member.take_over(term.0, heard, now + TAKEOVER_TIME);
        }
        self.quorum.stores = promised.iter().map(|keeper| (keeper.node, keeper.store)).collect();
        self
    }

    /// Notes the keepers of the record that is kept now.
    pub fn set_keepers(&mut self, keepers: Keepers) {
        self.quorum.keepers = keepers;
    }

    /// Notes the store that a node has now.
    pub fn set_store(&mut self, keeper: Keeper) {
        self.quorum.stores.insert(keeper.node, keeper.store);
    }

    /// Whether most keepers have answered recent messages, so that no other driver can have taken over long ago.
    pub fn has_quorum(&self, now: Duration) -> bool {
        let since = now.saturating_sub(QUORUM_TIME);
        self.quorum.keepers.is_majority(|Keeper { node, store }| {
            let is_same = self.quorum.stores.get(&node) == Some(&store);
            is_same && self.members.get(&node).is_some_and(|member| member.has_heard_since(since))
        })
    }
}
