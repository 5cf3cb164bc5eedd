//! The time for which a node of a job with replicas is the packer: it changes the shared file system only then.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tameike_core::wire::pack::PACKER_HOME;
use tameike_core::{Cluster, NodeId, Result};
use tameike_fabric::MapLease;
use tameike_io::Runtime;
use tameike_io::shared::{Change, Hooks};

/// What decides whether this node is the packer.
#[derive(Clone)]
pub struct TenureParts {
    /// Clock and tasks.
    pub runtime: Runtime,
    /// The home map.
    pub cluster: Arc<Cluster>,
    /// This node.
    pub node: NodeId,
    /// The lease of the home map.
    pub lease: Arc<MapLease>,
}

impl TenureParts {
    /// Whether this node is the packer under the current map.
    pub fn is_packer(&self) -> bool {
        self.cluster.primary(PACKER_HOME) == self.node
    }
}

/// One time for which this node is the packer.
pub struct Tenure {
    parts: TenureParts,
    /// Another node was the packer since.
    is_over: AtomicBool,
    /// Changes need the lease: not before the first one, and not when the driver has ended all leases.
    needs_lease: AtomicBool,
}

impl Tenure {
    /// Begins one. It does not need the lease at first if no other node can be the packer yet.
    pub fn begin(parts: TenureParts, needs_lease: bool) -> Arc<Self> {
        let (is_over, needs_lease) = (AtomicBool::new(false), AtomicBool::new(needs_lease));
        Arc::new(Self { parts, is_over, needs_lease })
    }

    /// Another node is the packer from now on.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    /// Whether another node has been the packer since it began.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Whether changes need the lease from now on.
    pub fn set_needs_lease(&self, needs_lease: bool) {
        self.needs_lease.store(needs_lease, Ordering::Release);
    }
}

impl Hooks for Tenure {
    fn begin(&self) -> Result<Change> {
        if !self.needs_lease.load(Ordering::Acquire) {
            return Ok(Box::new(()));
        }
        let serves = || !self.is_over() && self.parts.is_packer();
        Ok(Box::new(pollster::block_on(self.parts.lease.begin(&self.parts.runtime, serves))?))
    }
}

/// The tenure that runs now, which a change of the map ends.
#[derive(Default)]
pub struct CurrentTenure(Mutex<Option<Arc<Tenure>>>);

impl CurrentTenure {
    /// Notes a tenure that begins.
    pub fn set(&self, tenure: &Arc<Tenure>) {
        *self.0.lock() = Some(tenure.clone());
    }

    /// Ends it.
    pub fn end(&self) {
        if let Some(tenure) = self.0.lock().take() {
            tenure.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tameike_core::limits::MAP_LEASE;
    use tameike_core::{Errno, JobId, NodeInfo};
    use tameike_io::os::process::{ask_until, start_thread};
    use tameike_io::os::system::System;

    #[test]
    fn changes_end_with_the_tenure() {
        let system = System::start(1).expect("a thread");
        let node = |id| NodeInfo {
            id: NodeId(id),
            host: format!("host{id}"),
            address: String::new(),
            group: 0,
            device: true,
        };
        let job = JobId::new("job").expect("a name");
        let cluster = Arc::new(Cluster::new(job, vec![node(0), node(1)], 2).expect("enough nodes"));
        let runtime = system.runtime().clone();
        let lease = MapLease::new(runtime.clock.clone());
        let parts = TenureParts { runtime, cluster: cluster.clone(), node: NodeId(0), lease: lease.clone() };
        let tenure = Tenure::begin(parts.clone(), false);
        let errno = |tenure: &Tenure| Hooks::begin(tenure).err().map(|fault| fault.errno);
        assert_eq!(errno(&tenure), None, "the job begins");
        tenure.set_needs_lease(true);
        lease.renew(1, None);
        let late = lease.clone();
        let granter = start_thread("authority", move || {
            ask_until(MAP_LEASE * 2, MAP_LEASE, || None::<()>);
            late.renew(2, None);
            late.renew(3, Some(2));
        });
        assert_eq!(errno(&tenure), None, "it waits for the lease");
        granter.expect("a thread").join().expect("no panic");
        assert!(cluster.replace_map(cluster.map().excluding(NodeId(0))));
        assert_eq!(errno(&tenure), Some(Errno::EREMCHG));
        tenure.end();
        let back = cluster.map().readmitting(NodeId(0)).with_primary(PACKER_HOME, NodeId(0));
        assert!(cluster.replace_map(back));
        assert_eq!(errno(&tenure), Some(Errno::EREMCHG), "another node was the packer");
        assert_eq!(errno(&Tenure::begin(parts, true)), None);
    }
}
