//! Replicas of homes: the primary of a home repeats its changes on the backups; a backup applies them to its own store.
//!
//! - Log records of names and of cached files go to the backups in the order of their numbers ([`stream`]). A reply about a home leaves
//!   its primary only when the backups have all records of the home up to then.
//! - Bytes of units go there with each change, which ends when all replicas have made it ([`copies`]).
//! - A backup that becomes the primary takes the home over before it serves it ([`takeover`]).
//! - On request, a primary compares its copies with those of the backups, and repairs them ([`compare`]).
//! - A backup makes a change only for a primary that has the same home map ([`backup`]).
//!
//! If a backup cannot be reached, or its device fails, changes wait until a home map without it arrives. If it has no space for bytes, the
//! change fails, and this node keeps what it has stored.

mod backup;
mod compare;
mod comparison;
mod copies;
mod join;
mod reconcile;
mod stream;
mod takeover;

pub use backup::BackupService;
pub use compare::CopyCheck;
pub use copies::{Copies, CopiesParts};
pub use join::{Joins, JoinsParts};
pub use takeover::{Takeover, TakeoverParts, is_served_by_primaries};

use event_listener::Event;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};
use std::time::Duration;
use stream::Streams;
use tameike_core::wire::replica::{ReplicaReply, ReplicaRequest};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Cluster, Errno, Fault, HomeId, HomeMap, NodeId, Result};
use tameike_fabric::{Destination, Rpc};
use tameike_io::os::runtime::{Promise, promise};
use tameike_io::{Payload, Runtime};
use tameike_store::Ledger;

/// Pause before a request to a backup that failed is repeated.
const RETRY_TIME: Duration = Duration::from_millis(100);

/// The parts that both sides need.
pub struct ReplicaParts {
    /// Clock and tasks.
    pub runtime: Runtime,
    /// All nodes.
    pub cluster: Arc<Cluster>,
    /// Calls to other agents. Weak, since the agent owns both.
    pub rpc: Weak<dyn Rpc>,
    /// This node.
    pub node: NodeId,
}

/// The primary's side: what this node has to repeat on the backups of the homes that it serves.
pub struct Replicas {
    me: Weak<Self>,
    parts: ReplicaParts,
    streams: Mutex<Streams>,
    /// Notified when a backup has confirmed records, and when the home map has changed.
    progress: Event,
    /// Notified when the home map has changed.
    new_map: Event,
    /// Backups that refused a change for lack of space.
    full: Mutex<BTreeSet<NodeId>>,
    /// Homes that this node is copying to other nodes, which get all changes of units from now on.
    joins: Mutex<BTreeMap<HomeId, Join>>,
    /// Counts the changes of `joins`.
    joins_begun: AtomicU64,
}

/// A home that is being copied.
#[derive(Clone, Copy)]
struct Join {
    node: NodeId,
    /// The node has everything.
    is_complete: bool,
}

impl Replicas {
    /// The primary's side on a ledger that has replayed its log; observes its records from now on.
    ///
    /// # Errors
    /// Those of the ledger.
    pub fn new(parts: ReplicaParts, ledger: &Ledger) -> Result<Arc<Self>> {
        let (cluster, map) = (parts.cluster.clone(), parts.cluster.map());
        let streams = ledger.read(|table| Streams::new(map.served_by(parts.node), table))?;
        let replicas = Arc::new_cyclic(|me: &Weak<Self>| {
            let (progress, new_map, full, joins, joins_begun) = Default::default();
            let streams = Mutex::new(streams);
            Self { me: me.clone(), parts, streams, progress, new_map, full, joins, joins_begun }
        });
        let weak = Arc::downgrade(&replicas);
        cluster.watch(move || {
            if let Some(replicas) = weak.upgrade() {
                replicas.map_changed();
            }
        });
        ledger.set_home_log(replicas.clone());
        replicas.start_senders();
        Ok(replicas)
    }

    /// The nodes that get the changes of a home, with the map that names them: its backups, and the node to which it is being copied.
    ///
    /// # Errors
    /// `EREMCHG` if this node does not serve the home.
    fn targets(&self, home: HomeId) -> Result<(Arc<HomeMap>, Vec<NodeId>)> {
        let map = self.parts.cluster.map();
        if map.primary(home) != self.parts.node {
            return Err(moved(home));
        }
        let joining = self.joins.lock().get(&home).map(|join| join.node);
        let joining = joining.filter(|&node| map.joining(home) == Some(node));
        let targets = map.backups(home).iter().copied().chain(joining).collect();
        Ok((map, targets))
    }

    /// The nodes that get changes of the homes that this node serves, each with these homes.
    fn all_targets(&self) -> (Arc<HomeMap>, BTreeMap<NodeId, BTreeSet<HomeId>>) {
        let (map, mut all) = (self.parts.cluster.map(), BTreeMap::<_, BTreeSet<_>>::new());
        for home in map.served_by(self.parts.node) {
            let (_, targets) = self.targets(home).unwrap_or_else(|_| (map.clone(), Vec::new()));
            targets.into_iter().for_each(|target| _ = all.entry(target).or_default().insert(home));
        }
        (map, all)
    }

    /// Sends a request to a backup, under the map that names it.
    ///
    /// # Errors
    /// `EREMCHG` if there is another map now; those of the fabric, and of the backup.
    async fn ask(
        &self,
        map: &HomeMap,
        backup: NodeId,
        request: ReplicaRequest,
        payload: Option<Payload>,
    ) -> Result<ReplicaReply> {
        let to = Destination::Backup(backup, map.epoch);
        match self.rpc()?.call(to, Request::Replica(request), payload, None).await?.reply {
            Reply::Replica(reply) => Ok(reply),
            other => {
                let problem = format!("{backup} answered a request to a backup with {other:?}");
                Err(Fault::new(Errno::EPROTO, problem))
            }
        }
    }

    /// Runs `work` in a task of its own: it ends even if the caller drops the result.
    pub fn run_to_end<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Promise<T> {
        let (resolver, done) = promise();
        self.parts.runtime.spawn(async move { resolver.resolve(work.await) });
        done
    }

    fn rpc(&self) -> Result<Arc<dyn Rpc>> {
        self.parts.rpc.upgrade().ok_or_else(|| Fault::io("this agent is shutting down"))
    }

    /// Waits before a request that a backup did not serve is repeated: for another home map, but not for long.
    async fn wait_for_backup(&self, map: &HomeMap, backup: NodeId, fault: &Fault) {
        let changed = self.new_map.listen();
        if self.parts.cluster.epoch() == map.epoch {
            log::debug!("{backup} does not confirm a change: {fault}");
            self.parts.runtime.timeout(RETRY_TIME, changed).await;
        }
    }
}

/// Whether a request that failed may succeed at the same backup later, or at the backups of another map.
fn may_be_repeated(fault: &Fault) -> bool {
    matches!(
        fault.errno,
        Errno::EREMCHG | Errno::EHOSTDOWN | Errno::EAGAIN | Errno::ECONNRESET | Errno::ETIMEDOUT
    )
}

fn moved(home: HomeId) -> Fault {
    Fault::new(Errno::EREMCHG, format!("another node serves {home}"))
}
