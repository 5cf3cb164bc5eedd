//! Measures connections, memory per agent and the distribution of read load with thousands of agents.
//!
//! Complete nodes would not fit into one machine. Each is reduced to the code that selects sources for reads ([`agent`]), over the
//! simulated network with connections as in the socket fabric ([`links`]). First, all agents read one file at almost the same time;
//! then each reads several of many files that have few readers each. Barriers of regions ([`barrier`]) run on complete nodes.

mod agent;
mod barrier;
mod links;
mod report;

pub use barrier::{BARRIER_HEADING, MeasuredBarrier, measure_barriers};
pub use report::{HEADING, Load, Measured};

use agent::{Agent, Dispatcher, Parts};
use links::{LinkedFabric, Links};
use std::sync::Arc;
use std::time::Duration;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::{Cluster, Fault, InodeId, JobId, NodeId, NodeInfo, Result};
use tameike_fabric::rpc::RpcNode;
use tameike_fabric::simulated::{NetworkFaults, SimulatedConfig, SimulatedNetwork};
use tameike_io::Slab;
use tameike_io::os::runtime::promise;
use tameike_io::os::simulated::Simulation;

/// Units of the file that all agents read.
const HOT_UNITS: u64 = 8;
/// The agents begin at random times within this duration.
const HOT_TIME: Duration = Duration::from_millis(50);
/// Files that each agent reads of the many, and readers of each file.
const FILES_READ: u64 = 4;
const READERS: u64 = 4;
/// Units of each of these files.
const FILE_UNITS: u64 = 2;
/// The agents begin to read them at random times within this duration.
const MANY_TIME: Duration = Duration::from_millis(200);
/// Frames of an agent: enough for all units that it reads.
const FRAMES: u32 = (HOT_UNITS + FILES_READ * FILE_UNITS) as u32 + 8;
/// Frames for messages in flight of all agents.
const SPARE_FRAMES: u32 = 4096;

/// A cluster to measure.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Number of agents.
    pub agents: u32,
    /// Maximum number of connected peers of an agent.
    pub connections: usize,
    /// Seed of all random choices.
    pub seed: u64,
}

struct Agents {
    simulation: Simulation,
    all: Vec<Arc<Agent>>,
    links: Arc<Links>,
}

fn cluster(agents: u32) -> Result<Arc<Cluster>> {
    let node =
        |id| NodeInfo { id: NodeId(id), host: String::new(), address: String::new(), group: 0, device: true };
    let job = JobId::new("scale").map_err(Fault::io)?;
    Cluster::new(job, (0..agents).map(node).collect(), 1).map(Arc::new).map_err(Fault::io)
}

impl Agents {
    fn start(scale: Scale) -> Result<Self> {
        let simulation = Simulation::new(scale.seed);
        let network = SimulatedNetwork::new(simulation.clone(), NetworkFaults::NONE);
        let cluster = cluster(scale.agents)?;
        let links = Links::new(&cluster, scale.connections);
        let slab = Slab::new(scale.agents * FRAMES + 3 * SPARE_FRAMES)
            .map_err(|error| Fault::from_os("memory for frames", &error))?;
        let [requests, replies, answers] = [(); 3].map(|()| slab.pool(SPARE_FRAMES));
        let start = |info: &NodeInfo| {
            let runtime = simulation.runtime_of(info.id.0 as usize + 1);
            let inner = network.start(SimulatedConfig {
                node: info.id,
                runtime: runtime.clone(),
                inline_max: UNIT_SIZE,
                peer_limit: Duration::from_secs(10),
                request_frames: requests.clone(),
                reply_frames: replies.clone(),
            });
            let fabric = Arc::new(LinkedFabric { inner, links: links.clone() });
            let rpc = Arc::new(RpcNode::new(fabric, runtime.clone(), replies.clone()));
            let dispatcher = Arc::new(Dispatcher::default());
            rpc.attach(dispatcher.clone(), cluster.clone());
            let (cluster, answers) = (cluster.clone(), answers.clone());
            let agent = Agent::new(Parts { cluster, runtime, rpc, own: slab.pool(FRAMES), answers });
            dispatcher.set(&agent);
            agent
        };
        let all = cluster.nodes().iter().map(start).collect();
        Ok(Self { simulation, all, links })
    }

    /// Lets every agent read its files, from a random time within `within` on.
    fn read(&self, within: Duration, files: impl Fn(u64) -> Vec<(InodeId, u64)>) -> Result<()> {
        let mut ends = Vec::new();
        for (number, agent) in self.all.iter().enumerate() {
            let (resolver, end) = promise();
            ends.push(end);
            let runtime = self.simulation.runtime_of(number + 1);
            let start = Duration::from_nanos(self.simulation.draw(within.as_nanos() as u64));
            let plan: Vec<_> = files(number as u64)
                .into_iter()
                .map(|(inode, units)| (inode, shuffled(&self.simulation, units), units))
                .collect();
            let (agent, task) = (agent.clone(), runtime.clone());
            runtime.spawn(async move {
                task.sleep(start).await;
                let mut read = Ok(());
                for (inode, order, units) in plan {
                    read = read.and(agent.read(inode, &order, units * UNIT_SIZE as u64).await);
                }
                resolver.resolve(read);
            });
        }
        // One run for each agent: a run has a limit of steps.
        ends.into_iter().try_for_each(|end| self.simulation.run(end))
    }

    fn loads(&self) -> Vec<Load> {
        self.all.iter().map(|agent| *agent.load.lock()).collect()
    }
}

/// Returns the units of a file in random order, so that no agent detects sequential access.
fn shuffled(simulation: &Simulation, units: u64) -> Vec<u64> {
    let mut order: Vec<u64> = (0..units).collect();
    for place in (1..order.len()).rev() {
        order.swap(place, simulation.draw(place as u64 + 1) as usize);
    }
    order
}

/// Runs the reads on a cluster, and measures it. Fails if a read fails or returns wrong bytes.
pub fn measure(scale: Scale) -> Result<Measured> {
    let before = report::heap_bytes()?;
    let agents = Agents::start(scale)?;
    let started = report::heap_bytes()?;
    let hot = InodeId::cached(1, scale.seed);
    agents.read(HOT_TIME, |_| vec![(hot, HOT_UNITS)])?;
    let loads_hot = agents.loads();
    let files = u64::from(scale.agents) * FILES_READ / READERS;
    let drawn = |_| {
        (0..FILES_READ)
            .map(|_| (InodeId::cached(2, agents.simulation.draw(files.max(1))), FILE_UNITS))
            .collect()
    };
    agents.read(MANY_TIME, drawn)?;
    let loads_all = agents.loads();
    let ended = report::heap_bytes()?;
    agents.links.settle();
    let loads_many: Vec<_> = loads_all.iter().zip(&loads_hot).map(|(all, hot)| all.since(hot)).collect();
    Ok(Measured {
        agents: scale.agents,
        bound: scale.connections,
        links: agents.links.counts(),
        opened: agents.links.opened(),
        heap_bytes: [started.saturating_sub(before), ended.saturating_sub(before)],
        hot: loads_hot,
        many: loads_many,
    })
}
