//! Shared memory regions on a simulated cluster: random programs, compared with a reference model.
//!
//! [`draw`] generates a program without data races from a seed: processes on several nodes attach to a region, load, store, flush,
//! update, lock, add to sums, and meet at barriers. [`run`] executes it on a [`World`], with the product's agents, and compares every
//! load with the [`model`]. In some programs a process or an agent fails. Then barriers must fail on all other nodes, locks must pass
//! on, and what was flushed must be at its home.

mod cells;
mod draw;
mod model;
mod play;
mod process;
mod program;
mod stage;

pub use cells::{Cell, Kind};
pub use draw::draw;
pub(crate) use process::Process;
pub use program::{Fault, Interval, Op, Place, RegionProgram, Round};
pub(crate) use stage::{Stage, Stop};

use crate::run::{Failure, caught};
use crate::runner::{RUN_TIME_MAX, RunOptions, run_all};
use crate::world::World;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tameike_agent::control::AgentMode;
use tameike_core::Result;
use tameike_fabric::simulated::NetworkFaults;
use tameike_io::os::runtime::promise;

/// Runs a program. The step of a failure is the number of its round.
pub fn run(program: &RegionProgram) -> std::result::Result<(), Failure> {
    let at = AtomicUsize::new(0);
    caught(
        || {
            let world = World::new(program.world.clone());
            world.simulation.clone().run(go(world, program, &at))
        },
        || at.load(Ordering::Relaxed),
    )
}

/// Runs seeds, reports each failure at once through `report`, and returns all failures.
///
/// # Errors
/// A thread cannot be started, or a run does not end.
pub fn run_seeds(
    seeds: Range<u64>,
    how: &RunOptions,
    report: impl Fn(&u64, &Failure) + Clone + Send + 'static,
) -> Result<Vec<(u64, Failure)>> {
    let canary = how.canary;
    run_all(seeds, how, RUN_TIME_MAX, move |&seed: &u64| run(&draw(seed, canary)), report)
}

async fn go(world: Arc<World>, program: &RegionProgram, at: &AtomicUsize) -> std::result::Result<(), String> {
    let started = world.start_all(AgentMode::Serve, false).await;
    started.map_err(|fault| format!("the agents do not start: {fault}"))?;
    let stage = Stage::new(world, program.clone()).await?;
    for (round, number) in program.rounds.iter().zip(0..) {
        at.store(number, Ordering::Relaxed);
        log::trace!("round {number}");
        stage.world.network.set_faults(program.network);
        stage.renew_maps();
        stage.play(round).await?;
        stage.world.network.set_faults(NetworkFaults::NONE);
        stage.settle().await?;
        stage.check_left()?;
        stage.check_file().await?;
        stage.model.lock().check_additions()?;
    }
    Ok(())
}

impl Stage {
    /// Gives new home maps to nodes, at their times.
    fn renew_maps(&self) {
        for &(node, after) in &self.program.maps {
            let (world, wait) = (self.world.clone(), self.runtime().sleep(Duration::from_micros(after)));
            self.runtime().spawn(async move {
                wait.await;
                world.renew_map(node);
            });
        }
    }

    /// Plays a round on all processes at once.
    async fn play(self: &Arc<Self>, round: &Round) -> std::result::Result<(), String> {
        let (memories, count) = self.program.memories();
        self.model.lock().attach(count);
        self.arm(round.fault);
        let intervals = Arc::new(round.intervals.clone());
        let start = |(number, &memory): (usize, &usize)| {
            let (resolver, ended) = promise();
            let playing = play::play(self.clone(), number, memory, intervals.clone());
            self.runtime().spawn(async move { resolver.resolve(playing.await) });
            ended
        };
        let mut playing: Vec<_> = memories.iter().enumerate().map(start).collect();
        while !playing.is_empty() {
            // The first violation, not a call that hangs after it.
            let (ended, number, rest) = futures_util::future::select_all(playing).await;
            playing = rest;
            match ended {
                Ok(()) => {}
                Err(Stop::Violation(why)) => return Err(why),
                Err(Stop::Failed(what, fault)) => return Err(format!("{what} fails: {fault}")),
                Err(Stop::NodeFailed) => return Err(format!("{number}: a node is down without a fault")),
            }
        }
        Ok(())
    }

    /// After all processes have detached, nothing of the region is left on running nodes.
    fn check_left(&self) -> std::result::Result<(), String> {
        for node in 0..self.world.count() {
            let left = self.world.with(node, |node, _, _| {
                let coordinated = node.services().map_or(0, |services| services.regions.count());
                (node.views().regions().count(), coordinated)
            });
            if let Some(left) = left.filter(|left| *left != (0, 0)) {
                return Err(format!(
                    "node {node} has {} regions, and coordinates {}, after all processes have detached",
                    left.0, left.1
                ));
            }
        }
        Ok(())
    }

    /// Compares the file with the model.
    async fn check_file(&self) -> std::result::Result<(), String> {
        let up: Vec<usize> = (0..self.world.count()).filter(|&node| self.world.is_up(node)).collect();
        if up.is_empty() || !self.has_coordinator() {
            return Ok(());
        }
        let node = up[self.world.simulation.draw(up.len() as u64) as usize];
        let pages: BTreeSet<u32> = self.program.cells.iter().map(|cell| cell.page).collect();
        for page in pages.into_iter().filter(|&page| self.has_home(page)) {
            let bytes = match self.read(node, page).await {
                Ok(bytes) => bytes,
                Err(stop) => return Err(format!("a read of page {page} of the file fails: {stop:?}")),
            };
            let of_page = self.program.cells.iter().enumerate().filter(|(_, cell)| cell.page == page);
            for (number, cell) in of_page {
                let oldest = self.oldest_allowed(number);
                let checked = self.model.lock().check(number, oldest, &cell.of_page(&bytes));
                checked.map_err(|why| format!("after round, the file on node {node} {why}"))?;
            }
        }
        Ok(())
    }

    /// The oldest value that a cell of the file may have after a round.
    fn oldest_allowed(&self, cell: usize) -> u64 {
        let model = self.model.lock();
        let Some(Fault::NodeFails { node }) = self.fault() else { return model.latest(cell) };
        let (memories, _) = self.program.memories();
        let processes = self.program.processes.iter().zip(memories);
        let mut survivors = processes.filter(|(place, _)| place.node != node);
        let is_safe = self.program.cells[cell].kind == Kind::Sum
            || survivors.any(|(_, memory)| model.is_last_writer(memory, cell));
        if is_safe { model.latest(cell) } else { model.flushed(cell) }
    }
}
