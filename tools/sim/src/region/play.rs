//! What one process does in a round.

use super::cells::Kind;
use super::process::Process;
use super::program::{Fault, Interval, Op};
use super::stage::{Holder, Stage, Stop};
use futures_util::future::{Either, select};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tameike_io::os::runtime::yield_now;

/// Processes attach within this time.
const ATTACH_MICROS: u64 = 3000;
/// After this time every node knows of a fault.
const KNOWN: Duration = Duration::from_secs(12);

/// A process in a round.
struct Player<'a> {
    stage: &'a Arc<Stage>,
    process: &'a Process,
}

fn draw(stage: &Stage, bound: u64) -> Duration {
    Duration::from_micros(stage.world.simulation.draw(bound))
}

/// A process attaches, runs its intervals, and detaches.
pub(super) async fn play(
    stage: Arc<Stage>,
    number: usize,
    memory: usize,
    intervals: Arc<Vec<Interval>>,
) -> Result<(), Stop> {
    let place = stage.program.processes[number];
    stage.runtime().sleep(draw(&stage, ATTACH_MICROS)).await;
    let attached = stage.attach(number).await;
    stage.tried_to_attach(number, attached.is_ok());
    let attachment = match attached {
        Ok(attachment) => attachment,
        Err(Stop::NodeFailed) if !stage.world.is_up(place.node) => return Ok(()),
        Err(Stop::Failed(what, fault)) if stage.explains(what, fault.errno) => return Ok(()),
        Err(other) => return Err(other),
    };
    let process = Process::map((number, place.node, memory), attachment)?;
    let player = Player { stage: &stage, process: &process };
    match player.go(&intervals).await {
        Err(Stop::NodeFailed) if !stage.world.is_up(place.node) => Ok(()),
        other => other,
    }
}

impl Player<'_> {
    async fn go(&self, intervals: &[Interval]) -> Result<(), Stop> {
        let number = self.process.number;
        let (ends, claims, detaches) = match self.stage.fault() {
            Some(Fault::Ends { process, claims }) if process == number => (true, claims, false),
            Some(Fault::Detaches { process }) if process == number => (false, false, true),
            _ => (false, false, false),
        };
        if !ends && !detaches {
            self.run(intervals).await?;
            if self.stage.fault().is_some() {
                self.after_fault(intervals.len() - 1).await?;
            }
            return self.tolerated(self.process.detach(self.stage, false).await);
        }
        {
            let running = pin!(self.run(intervals));
            match select(running, self.stage.strikes()).await {
                Either::Left((result, struck)) => {
                    result?;
                    struck.await;
                }
                // Its calls in flight go on in the agent.
                Either::Right(((), _)) => {}
            }
        }
        if claims {
            self.process.claim();
            self.stage.runtime().sleep(draw(self.stage, 500)).await;
        }
        {
            // The detach flushes, and then releases the locks.
            let holders = self.stage.holders.lock();
            let held = holders.iter().filter(|(_, holder)| holder.process == number);
            let mut model = self.stage.model.lock();
            held.for_each(|(lock, _)| model.release(self.process.memory, *lock));
        }
        self.process.detach(self.stage, ends).await
    }

    /// Accepts an error that the fault of the round explains.
    fn tolerated(&self, result: Result<(), Stop>) -> Result<(), Stop> {
        match result {
            Err(Stop::Failed(what, fault)) if self.stage.explains(what, fault.errno) => Ok(()),
            other => other,
        }
    }

    async fn run(&self, intervals: &[Interval]) -> Result<(), Stop> {
        for (interval, number) in intervals.iter().zip(0..) {
            if number + 1 == intervals.len() {
                self.stage.begin_last_interval();
            }
            for &op in &interval[self.process.number] {
                log::trace!("process {}: {op:?}", self.process.number);
                self.tolerated(self.step(op).await)?;
            }
            self.stage.model.lock().call_barrier(number, self.stage.program.processes.len());
            log::trace!("process {}: barrier {number}", self.process.number);
            let ended = self.process.barrier(self.stage).await;
            if let Err(Stop::Failed(what, fault)) = &ended
                && self.stage.explains(what, fault.errno)
            {
                return Ok(());
            }
            ended?;
            let memory = self.process.memory;
            self.stage.model.lock().barrier_ended(memory, number).map_err(Stop::Violation)?;
        }
        Ok(())
    }

    async fn step(&self, op: Op) -> Result<(), Stop> {
        let Self { stage, process } = *self;
        let (model, memory, cells) = (&stage.model, process.memory, &stage.program.cells);
        match op {
            Op::Load { cell } => {
                let bytes = process.load(stage, &cells[cell]).await?;
                // At once after the load: nothing else happens in between. Stores to a home that has failed may be lost.
                if stage.has_home(cells[cell].page) {
                    model.lock().load(memory, cell, &bytes).map_err(Stop::Violation)?;
                }
            }
            Op::Store { cell } => {
                process.store(stage, &cells[cell], || model.lock().store(memory, cell)).await?;
            }
            Op::Flush => {
                let own = model.lock().own(memory);
                process.flush(stage).await?;
                model.lock().flush_ended(&own);
            }
            Op::Update => {
                let visible = model.lock().before_update(memory);
                process.update(stage).await?;
                model.lock().updated(memory, &visible);
            }
            Op::Count { cell, pause } => self.count(cell, pause, false).await?,
            Op::Add { cell, addend } => {
                model.lock().begin_add(cell, addend);
                let before = process.fetch_add(stage, &cells[cell], addend).await?;
                model.lock().added(memory, cell, addend, before).map_err(Stop::Violation)?;
            }
            Op::Read { cell } => {
                let oldest = model.lock().flushed(cell);
                let page = stage.read(process.node, cells[cell].page).await?;
                let checked = model.lock().check(cell, oldest, &cells[cell].of_page(&page));
                checked.map_err(|why| Stop::Violation(format!("a read of the file {why}")))?;
            }
            Op::Rest { time } => stage.runtime().sleep(Duration::from_micros(time)).await,
        }
        Ok(())
    }

    /// Adds one to a counter under its lock. `failed`: the lock must report a failed process.
    async fn count(&self, cell: usize, pause: u64, failed: bool) -> Result<(), Stop> {
        let Self { stage, process } = *self;
        let (model, memory, cells) = (&stage.model, process.memory, &stage.program.cells);
        let Kind::Counter(lock) = cells[cell].kind else { return Ok(()) };
        let visible = model.lock().before_update(memory);
        let reported = process.lock(stage, lock).await?;
        let holder = Holder { process: process.number, releases: false };
        let before = stage.holders.lock().insert(lock, holder);
        self.check_report(before, reported, failed)?;
        {
            let mut model = model.lock();
            if before.is_some_and(|before| !stage.world.is_up(stage.program.processes[before.process].node)) {
                // Its stores may be lost.
                model.forget_release(lock);
            }
            model.acquired(memory, lock, &visible);
        }
        let counted = self.add_one(cell, pause).await;
        let own = {
            let mut model = model.lock();
            model.release(memory, lock);
            model.own(memory)
        };
        let releases = Holder { releases: true, ..holder };
        stage.holders.lock().insert(lock, releases);
        process.unlock(stage, lock).await?;
        model.lock().flush_ended(&own);
        let mut holders = stage.holders.lock();
        // Another process may have taken it since.
        if holders.get(&lock) == Some(&releases) {
            holders.remove(&lock);
        }
        counted
    }

    async fn add_one(&self, cell: usize, pause: u64) -> Result<(), Stop> {
        let Self { stage, process } = *self;
        let (model, memory, cells) = (&stage.model, process.memory, &stage.program.cells);
        let bytes = process.load(stage, &cells[cell]).await?;
        if !stage.has_home(cells[cell].page) {
            return Ok(());
        }
        let (seen, latest) = {
            let mut model = model.lock();
            (model.load(memory, cell, &bytes).map_err(Stop::Violation)?, model.latest(cell))
        };
        let may_lack = stage.has_struck() && matches!(stage.fault(), Some(Fault::NodeFails { .. }));
        if seen != latest && !may_lack {
            let why = format!("process {} counts {seen} under the lock, not {latest}", process.number);
            return Err(Stop::Violation(why));
        }
        if pause > 0 {
            stage.runtime().sleep(Duration::from_micros(pause)).await;
        } else {
            yield_now().await;
        }
        if seen == latest {
            process.store(stage, &cells[cell], || model.lock().store(memory, cell)).await?;
        }
        Ok(())
    }

    /// Checks what the grant of a lock reports. `before` held it, and did not release it.
    fn check_report(&self, before: Option<Holder>, reported: bool, failed: bool) -> Result<(), Stop> {
        let stage = self.stage;
        let may_fail = stage.has_struck() && !matches!(stage.fault(), Some(Fault::Detaches { .. }));
        let held = before.filter(|before| !before.releases);
        let has_held = held.is_some_and(|holder| stage.has_struck() && stage.is_doomed(holder.process));
        if held.is_some() && !has_held {
            return Err(Stop::Violation(format!("two processes hold a lock: {before:?} does too")));
        }
        let must = failed || (has_held && may_fail);
        if (must && !reported) || (reported && !may_fail) {
            let why = format!("a lock reports a failed process: {reported}, after {:?}", stage.fault());
            return Err(Stop::Violation(why));
        }
        Ok(())
    }

    /// Barriers must fail, and locks pass on. `last` is the number of the last barrier, which may have been complete.
    async fn after_fault(&self, last: usize) -> Result<(), Stop> {
        let Self { stage, process } = *self;
        stage.strikes().await;
        match process.barrier(stage).await {
            Err(Stop::Failed(what, fault)) if stage.explains(what, fault.errno) => {}
            Err(other) => return Err(other),
            Ok(()) => {
                let why = format!("barrier {} returns, although a process has ended", last + 1);
                return Err(Stop::Violation(why));
            }
        }
        let counters = stage.program.cells.iter().zip(0..);
        let counters: Vec<_> = counters
            .filter(|(cell, _)| matches!(cell.kind, Kind::Counter(_)))
            .map(|(_, cell)| cell)
            .collect();
        let knows = process.number.is_multiple_of(2);
        if knows {
            stage.runtime().sleep(KNOWN).await;
        }
        if let Some(&cell) = counters.get(process.number % counters.len().max(1)) {
            let fails = !matches!(stage.fault(), Some(Fault::Detaches { .. }));
            self.tolerated(self.count(cell, 0, knows && fails).await)?;
        }
        for op in [Op::Flush, Op::Update] {
            self.tolerated(self.step(op).await)?;
        }
        stage.all_tried().await;
        Ok(())
    }
}
