//! Measures barriers of a region with one process on each of many nodes.
//!
//! The nodes are complete: agents, homes and coordinator of the product. Before each barrier, every process changes two pages of its
//! own. The first barrier has no tree yet.

use crate::region::{Cell, Kind, Place, Process, RegionProgram, Round, Stage, Stop};
use crate::world::{Traffic, World, WorldConfig};
use serde_json::{Value, json};
use std::fmt::{Display, Formatter};
use std::sync::Arc;
use std::time::Duration;
use tameike_agent::control::AgentMode;
use tameike_core::patch::PAGE_SIZE;
use tameike_core::{Fault, NodeId, Result};
use tameike_fabric::simulated::NetworkFaults;
use tameike_io::os::runtime::promise;

/// Barriers of one measurement.
const BARRIERS: usize = 3;
/// Pages that each process changes: one as a whole, and bytes of another.
const PAGES: u32 = 2;
const BYTES: usize = 400;

/// A barrier of all processes.
#[derive(Clone, Debug)]
pub struct MeasuredBarrier {
    /// Number of nodes.
    pub agents: u32,
    /// Its number; the first is 0.
    pub number: usize,
    /// The node of the coordinator.
    pub coordinator: NodeId,
    /// Simulated time from the first call to the last return.
    pub time: Duration,
    /// Traffic of each node.
    pub traffic: Vec<Traffic>,
}

/// The heading for lines of [`MeasuredBarrier`].
pub const BARRIER_HEADING: &str = concat!(
    "                |          | messages of a node  | arrivals at a node    | bytes of all\n",
    "agents  barrier | time, ms | mean           most | coordinator  others   | nodes, MiB",
);

impl MeasuredBarrier {
    fn most(&self, of: impl Fn(&Traffic) -> u64) -> u64 {
        self.traffic.iter().map(of).max().unwrap_or(0)
    }

    fn sum(&self, of: impl Fn(&Traffic) -> u64) -> u64 {
        self.traffic.iter().map(of).sum()
    }

    /// Returns the largest and the mean number of messages that a node sent and received.
    pub fn messages(&self) -> (u64, f64) {
        let mean = self.sum(|traffic| traffic.messages) as f64 / f64::from(self.agents.max(1));
        (self.most(|traffic| traffic.messages), mean)
    }

    /// Returns the number of arrivals that the node of the coordinator received, and the largest of other nodes.
    pub fn arrivals(&self) -> (u64, u64) {
        let coordinator = self.coordinator.0 as usize;
        let others = self.traffic.iter().enumerate().filter(|(node, _)| *node != coordinator);
        let most = others.map(|(_, traffic)| traffic.arrivals).max().unwrap_or(0);
        (self.traffic[coordinator].arrivals, most)
    }

    /// Returns the bytes that all nodes sent.
    pub fn bytes(&self) -> u64 {
        // Each is counted by its sender and its receiver.
        self.sum(|traffic| traffic.bytes) / 2
    }

    /// Returns all results as JSON.
    pub fn to_json(&self) -> Value {
        let ((most, mean), (coordinator, others)) = (self.messages(), self.arrivals());
        json!({
            "agents": self.agents,
            "barrier": self.number,
            "seconds": self.time.as_secs_f64(),
            "messages_most": most,
            "messages_mean": mean,
            "arrivals_at_coordinator": coordinator,
            "arrivals_at_others_most": others,
            "bytes": self.bytes(),
        })
    }
}

impl Display for MeasuredBarrier {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let ((most, mean), (coordinator, others)) = (self.messages(), self.arrivals());
        write!(
            f,
            "{:6} {:8} | {:8.3} | {mean:4.1} {most:14} | {coordinator:11} {others:7}   | {:.2}",
            self.agents,
            self.number,
            self.time.as_secs_f64() * 1000.0,
            self.bytes() as f64 / f64::from(1 << 20),
        )
    }
}

fn program(agents: u32, seed: u64) -> RegionProgram {
    let mut world = WorldConfig::plain(seed, agents as usize);
    world.metered = true;
    let of_node = |node: u32| {
        [(0, PAGE_SIZE), (1, BYTES)].map(|(page, count)| Cell {
            kind: Kind::Data,
            page: node * PAGES + page,
            start: 0,
            count,
            stride: 1,
        })
    };
    RegionProgram {
        world,
        network: NetworkFaults::NONE,
        pages: agents * PAGES,
        cells: (0..agents).flat_map(of_node).collect(),
        processes: (0..agents as usize).map(|node| Place { node, alone: false }).collect(),
        rounds: Vec::<Round>::new(),
        maps: Vec::new(),
    }
}

fn failed(stop: Stop) -> Fault {
    match stop {
        Stop::Failed(_, fault) => fault,
        other => Fault::io(format!("{other:?}")),
    }
}

/// Runs a part of each process at once.
async fn all<T, F>(stage: &Arc<Stage>, count: usize, part: impl Fn(usize, Arc<Stage>) -> F) -> Result<Vec<T>>
where
    T: Send + 'static,
    F: Future<Output = std::result::Result<T, Stop>> + Send + 'static,
{
    let start = |number| {
        let ((resolver, ended), running) = (promise(), part(number, stage.clone()));
        stage.runtime().spawn(async move { resolver.resolve(running.await) });
        ended
    };
    let running: Vec<_> = (0..count).map(start).collect();
    let mut results = Vec::with_capacity(count);
    for ended in running {
        results.push(ended.await.map_err(failed)?);
    }
    Ok(results)
}

/// Starts a cluster with one process on each node, and measures its barriers.
///
/// # Errors
/// A call fails: those of the product, and `EMFILE`, as each node takes several descriptors.
pub fn measure_barriers(agents: u32, seed: u64) -> Result<Vec<MeasuredBarrier>> {
    let program = program(agents, seed);
    let world = World::new(program.world.clone());
    let simulation = world.simulation.clone();
    let stage = simulation.run(async {
        world.start_all(AgentMode::Serve, false).await?;
        Stage::new(world, program).await.map_err(Fault::io)
    })?;
    let count = agents as usize;
    let attached = simulation.run(all(&stage, count, |number, stage| async move {
        let attachment = stage.attach(number).await?;
        Process::map((number, number, number), attachment).map(Arc::new)
    }))?;
    let mut measured = Vec::new();
    for number in 0..BARRIERS {
        simulation.run(all(&stage, count, |process, stage| {
            let process = attached[process].clone();
            async move {
                for cell in &stage.program.cells[process.number * 2..][..2] {
                    process.store(&stage, cell, || number as u64 + 1).await?;
                }
                Ok(())
            }
        }))?;
        let (before, begun) = (stage.world.traffic(), stage.now());
        simulation.run(all(&stage, count, |process, stage| {
            let process = attached[process].clone();
            async move { process.barrier(&stage).await }
        }))?;
        let after = stage.world.traffic();
        measured.push(MeasuredBarrier {
            agents,
            number,
            coordinator: stage.world.cluster.primary(stage.world.cluster.inode_home(stage.file.inode)),
            time: stage.now() - begun,
            traffic: after.iter().zip(&before).map(|(after, before)| after.since(before)).collect(),
        });
    }
    Ok(measured)
}
