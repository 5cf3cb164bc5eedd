//! Reclaims what the programs of this node have open and locked, from the nodes that take over homes.
//!
//! After each change of the home map, the node sends to the new primary of each home what it has there, and repeats that until the primary
//! has it. Before, it drops what the old primary has leased to it.

use crate::views::Views;
use event_listener::Event;
use futures_util::future::join_all;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tameike_core::wire::reclaim::{Reclaim, Reclaimed};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Cluster, Errno, Fault, HomeId, HomeMap, MapEpoch, NodeId, Result};
use tameike_fabric::{Destination, Rpc};
use tameike_io::Runtime;

/// Pause before homes are reclaimed again that could not be.
const RETRY_TIME: Duration = Duration::from_millis(100);

struct State {
    /// The epoch of the last map whose changes are noted.
    noted: MapEpoch,
    /// For each home, the node that served it under that map.
    primaries: Vec<NodeId>,
    /// For each home, the node that knows what this node has there.
    reclaimed: Vec<NodeId>,
}

/// Reclaims opens and locks after changes of the home map.
pub struct Reclaimer {
    runtime: Runtime,
    cluster: Arc<Cluster>,
    rpc: Arc<dyn Rpc>,
    views: Arc<Views>,
    state: Mutex<State>,
    changed: Event,
}

fn primaries(map: &HomeMap) -> Vec<NodeId> {
    map.homes().map(|home| map.primary(home)).collect()
}

impl Reclaimer {
    /// Follows the home map from now on. Calls to earlier primaries must have ended when a watcher of the map that was added before returns.
    pub fn start(runtime: Runtime, cluster: Arc<Cluster>, rpc: Arc<dyn Rpc>, views: Arc<Views>) -> Arc<Self> {
        let map = cluster.map();
        let state = State { noted: map.epoch, primaries: primaries(&map), reclaimed: primaries(&map) };
        let changed = Event::new();
        let reclaimer = Arc::new(Self {
            runtime,
            cluster: cluster.clone(),
            rpc,
            views,
            state: Mutex::new(state),
            changed,
        });
        let weak = Arc::downgrade(&reclaimer);
        cluster.watch(move || {
            if let Some(reclaimer) = weak.upgrade() {
                reclaimer.map_changed();
            }
        });
        reclaimer.runtime.spawn(run(Arc::downgrade(&reclaimer)));
        reclaimer
    }

    fn map_changed(&self) {
        let map = self.cluster.map();
        let moved: Vec<bool> = {
            let mut state = self.state.lock();
            if state.noted >= map.epoch {
                return;
            }
            state.noted = map.epoch;
            let now = primaries(&map);
            let moved = state.primaries.iter().zip(&now).map(|(before, now)| before != now).collect();
            state.primaries = now;
            moved
        };
        if moved.contains(&true) {
            self.views.homes_moved(&|home: HomeId| moved[usize::from(home.0)]);
        }
        self.changed.notify(usize::MAX);
    }

    /// The homes whose primary does not know what this node has there, by primary.
    fn unclaimed(&self, map: &HomeMap) -> BTreeMap<NodeId, Vec<HomeId>> {
        let state = self.state.lock();
        let mut by_primary = BTreeMap::<_, Vec<_>>::new();
        for (home, known) in map.homes().zip(&state.reclaimed) {
            let primary = map.primary(home);
            // No node takes over the homes that only an excluded node has: it knows still.
            if primary != *known {
                by_primary.entry(primary).or_default().push(home);
            }
        }
        by_primary
    }

    /// Reclaims homes at their new primary.
    async fn reclaim(&self, map: &HomeMap, primary: NodeId, homes: &[HomeId]) -> Result<()> {
        let mut parts = self.views.reclaim(&|home| homes.contains(&home));
        if let Some(last) = parts.last_mut() {
            last.complete = homes.to_vec();
        }
        for part in parts {
            let Reclaimed { lost_locks } = self.send(map, primary, part).await?;
            self.views.lost_locks(&lost_locks);
        }
        let mut state = self.state.lock();
        homes.iter().for_each(|home| state.reclaimed[usize::from(home.0)] = primary);
        Ok(())
    }

    async fn send(&self, map: &HomeMap, primary: NodeId, part: Reclaim) -> Result<Reclaimed> {
        let to = Destination::Primary(primary, map.epoch);
        match self.rpc.call(to, Request::Reclaim(part), None, None).await?.reply {
            Reply::Reclaimed(reclaimed) => Ok(reclaimed),
            other => {
                let problem = format!("{primary} answered a reclaim with {other:?}");
                Err(Fault::new(Errno::EPROTO, problem))
            }
        }
    }

    /// Reclaims all homes once. Returns whether all primaries know everything then.
    async fn reclaim_all(&self) -> bool {
        let map = self.cluster.map();
        let unclaimed = self.unclaimed(&map);
        let map = &map;
        let calls = unclaimed.iter().map(|(&primary, homes)| async move {
            let done = self.reclaim(map, primary, homes).await;
            if let Err(fault) = &done {
                log::info!("{} homes are not reclaimed from {primary} yet: {fault}", homes.len());
            }
            done.is_ok()
        });
        join_all(calls).await.into_iter().all(|done| done) && self.cluster.epoch() == map.epoch
    }
}

/// Reclaims after each change of the map, until the agent ends.
async fn run(reclaimer: Weak<Reclaimer>) {
    loop {
        let Some(this) = reclaimer.upgrade() else { return };
        let changed = this.changed.listen();
        if this.reclaim_all().await {
            drop(this);
            changed.await;
        } else {
            let pause = this.runtime.timeout(RETRY_TIME, changed);
            pause.await;
        }
    }
}
