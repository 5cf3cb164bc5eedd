//! Runs a program on a simulated cluster, and compares the results of its calls with the model.

mod appends;
mod bytes;
mod check;
mod deadlock;
mod finish;
mod interrupted;
mod locks;
mod opened;
mod orphans;
mod rot;
mod space;
mod step;
mod unknown;
mod unnamed;
mod verify;

use crate::countdown::Countdown;
use crate::kernel::Output;
use crate::model::{Moment, Names, ObjectId};
use crate::op::{Flags, Op};
use crate::program::{Program, Step};
use crate::world::{Canary, Tally, World};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tameike_agent::control::AgentMode;
use tameike_client::vfs::HandleNumber;
use tameike_core::{Errno, Fault, View};

/// The views that programs use.
const VIEWS: [View; 2] = [View::JobShared, View::Cache];
/// After this time a call counts as hung.
const CALL_TIME_MAX: Duration = Duration::from_secs(900);

/// A violation that a run found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The step.
    pub step: usize,
    /// The violation.
    pub message: String,
}

/// Result of a check.
type Checked<T = ()> = Result<T, String>;

/// An open file of a program.
#[derive(Clone, Debug)]
struct Open {
    handle: HandleNumber,
    object: ObjectId,
    opened: Moment,
    flags: Flags,
    /// Another node has removed a name by which this node may refer to the file.
    is_unnamed: bool,
    /// The next close or fsync must report a lost write.
    has_lost: bool,
    /// It has reported a failed sync of the shared file system that another descriptor caused.
    has_reported: bool,
    /// Its node was excluded meanwhile, so that homes have dropped it.
    was_dropped: bool,
    /// Its node made a lock call on the file since the last write: no write is in flight, even if a close or fsync would fail.
    is_committed: bool,
}

impl Open {
    /// Creates one in its initial state.
    fn new(handle: HandleNumber, object: ObjectId, opened: Moment, flags: Flags) -> Self {
        let (is_unnamed, has_lost, has_reported, was_dropped, is_committed) = Default::default();
        Self { handle, object, opened, flags, is_unnamed, has_lost, has_reported, was_dropped, is_committed }
    }
}

/// The outcome of a call.
enum End {
    Returned(Output),
    Failed(Fault),
    /// Its node failed.
    NodeFailed,
}

struct Call {
    node: usize,
    view: View,
    op: Op,
    /// The open file of its slot before the call.
    open: Option<Open>,
    /// The position of an append.
    append_offset: Option<u64>,
    begun: Moment,
    ended: Moment,
    end: End,
}

type SlotName = (usize, usize, u8);

struct Run {
    world: Arc<World>,
    moments: Arc<AtomicU64>,
    models: BTreeMap<usize, Names>,
    slots: BTreeMap<SlotName, Open>,
    /// Files of the cache view that may have been open for writing on a node when it failed.
    interrupted: BTreeSet<ObjectId>,
    /// Files, by view, from which calls of the step remove a name.
    unnamed: BTreeSet<(usize, ObjectId)>,
    /// Locks that an owner holds or may hold.
    locks: Vec<locks::Lock>,
    /// Some nodes are partitioned.
    has_partitions: bool,
    /// Because of partitions or failed agents, a node may have missed the removal of a file.
    was_unreachable: bool,
    /// Programs that wait for a lock got a signal.
    signalled: Arc<AtomicBool>,
    /// Nodes that the authority of the home map has excluded since the last check: their programs may get errors, and lose locks.
    excluded: BTreeSet<usize>,
    /// Errors that the faults since the last check explain, by view.
    explained_errors: BTreeMap<usize, BTreeSet<i32>>,
    /// Failed calls since then that a fault explains.
    explained_failures: usize,
    /// An agent has failed or must be restarted since the last check.
    must_restart: bool,
    power_lost: bool,
    /// A disk lost unsynced bytes.
    bytes_lost: bool,
    /// Power or bytes were lost before the last start of the agents: their journals may lack their tails.
    journal_truncated: bool,
    /// A sync failed: applied changes that were not logged are lost.
    log_broken: bool,
    /// Agents failed before all changes of the job-shared view were durable, and their part of it is lost (S20). The product does not
    /// restart such a view; here, parts on other nodes may be orphans: names without inode, names that a link count lacks, units without
    /// file. Durable state must exist (S7).
    has_orphans: bool,
    /// Files that only an excluded node had open are gone: their space may stay in use.
    has_gone_files: bool,
    volatile: bool,
    disks_failed: bool,
    /// Syncs of the shared file system have failed.
    tree_syncs_failed: bool,
    /// Nodes with bit rot on their disks.
    rotten: BTreeSet<usize>,
    /// Inodes that lost bytes by it.
    lost: BTreeSet<u64>,
    /// Bits have rotted since the last check.
    has_rotted: bool,
    /// Bits rot during the current step.
    rots: bool,
    /// Files, by view, whose read failed at a check because of lost bytes.
    damaged: BTreeSet<(usize, ObjectId)>,
    /// Bytes in use in the job-shared view after the last step.
    used: u64,
    /// The job-shared view may have been full since the last check: a close may still report that.
    was_full: bool,
    /// Power was lost or a disk failed: unsynced data is lost, and a drain may have to report it.
    has_losses: bool,
}

impl Run {
    fn moment(&self) -> Moment {
        self.moments.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn model(&mut self, view: View) -> &mut Names {
        self.models.entry(view.index()).or_default()
    }

    /// Iterates over the descriptors of a file that are open on the node of a call.
    fn descriptors(&mut self, call: &Call, object: ObjectId) -> impl Iterator<Item = &mut Open> {
        let file = (call.node, call.view.index(), object);
        let all = self.slots.iter_mut();
        all.filter(move |((node, view, _), open)| (*node, *view, open.object) == file).map(|(_, open)| open)
    }

    /// Whether a fault explains an error of a call on a node.
    fn is_explained(&self, (node, view): (usize, View), errno: Errno) -> bool {
        let is_unreached = [Errno::EHOSTDOWN, Errno::ETIMEDOUT].contains(&errno);
        is_unreached && self.excluded.contains(&node)
            || self.explained_errors.get(&view.index()).is_some_and(|known| known.contains(&errno.0))
    }

    /// Notes the nodes that are excluded, or were during the calls that have ended.
    fn note_excluded(&mut self) {
        self.excluded.extend(self.world.take_excluded());
    }

    async fn start(&mut self) -> Checked {
        self.start_agents(AgentMode::Serve, false).await?;
        // A countdown may have failed a call of background work of the start, which is repeated, or breaks the log.
        while self.world.countdown.injected().is_some() {
            self.world.runtime().sleep(check::SETTLED).await;
            self.apply_countdown();
            if !self.must_restart {
                break;
            }
            self.restart(AgentMode::Serve).await?;
        }
        let _pause = self.world.countdown.pause();
        for view in VIEWS {
            for dir in crate::op::DIRS {
                let end = self.one(0, view, Op::Mkdir { path: dir.to_owned() }, None).await?.end;
                if let End::Failed(fault) = end {
                    return Err(format!("{} {dir} cannot be created at the start: {fault}", view.as_str()));
                }
            }
            self.model(view);
        }
        self.sync_all().await
    }

    /// Starts all agents. A countdown may make the first attempt fail.
    async fn start_agents(&mut self, mode: AgentMode, power: bool) -> Checked {
        loop {
            let world = self.world.clone();
            let started = self.world.runtime().timeout(CALL_TIME_MAX, world.start_all(mode, power)).await;
            let fault = match started {
                Some(Ok(())) => return Ok(()),
                Some(Err(fault)) => fault,
                None => return Err(format!("the agents do not start within {CALL_TIME_MAX:?}")),
            };
            if !self.apply_countdown() {
                return Err(format!("the agents do not start: {fault}"));
            }
            (0..self.world.count()).for_each(|node| self.world.kill(node, false));
        }
    }

    async fn go(&mut self, program: &Program, at: &AtomicU64) -> Checked {
        // The model finds most injected bugs.
        let checks_stores = program.world.canary.is_none_or(Canary::is_of_stores);
        self.start().await?;
        for (number, step) in program.steps.iter().enumerate() {
            at.store(number as u64, Ordering::Relaxed);
            log::trace!("step {number} at {:?}: {step}", self.world.runtime().clock.monotonic());
            match step {
                Step::Together(actions) => self.together(actions).await?,
                Step::Rest(milliseconds) => {
                    self.world.runtime().sleep(Duration::from_millis(*milliseconds)).await;
                }
                Step::Drain => self.drain().await?,
                Step::Check => self.check().await?,
            }
            let may_lack = self.power_lost || self.disks_failed || self.bytes_lost;
            if checks_stores && !may_lack {
                self.check_stores(true)?;
            }
        }
        at.store(program.steps.len() as u64, Ordering::Relaxed);
        self.finish(program.crashes).await?;
        (0..self.world.count()).for_each(|node| self.world.kill(node, false));
        self.check_stores(true)
    }
}

/// Runs a program.
pub fn run(program: &Program) -> Result<(), Failure> {
    run_counted(program, &Countdown::default())
}

/// Runs a program under a countdown, which counts or fails its calls to disks, network and shared file system.
pub fn run_counted(program: &Program, countdown: &Countdown) -> Result<(), Failure> {
    run_tallied(program, countdown, &Tally::default())
}

/// As [`run_counted`], and counts the outcomes of peer reads.
pub fn run_tallied(program: &Program, countdown: &Countdown, tally: &Tally) -> Result<(), Failure> {
    let at = AtomicU64::new(0);
    let work = || {
        let world = World::counted(program.world.clone(), countdown.clone(), tally.clone());
        let mut run = Run {
            world: world.clone(),
            moments: Arc::default(),
            models: BTreeMap::new(),
            slots: BTreeMap::new(),
            interrupted: BTreeSet::new(),
            unnamed: BTreeSet::new(),
            locks: Vec::new(),
            has_partitions: false,
            was_unreachable: false,
            excluded: BTreeSet::new(),
            signalled: Arc::default(),
            explained_errors: BTreeMap::new(),
            explained_failures: 0,
            must_restart: false,
            power_lost: false,
            journal_truncated: false,
            bytes_lost: false,
            log_broken: false,
            has_orphans: false,
            has_gone_files: false,
            rotten: BTreeSet::new(),
            lost: BTreeSet::new(),
            has_rotted: false,
            rots: false,
            damaged: BTreeSet::new(),
            used: 0,
            was_full: false,
            volatile: program.world.volatile,
            disks_failed: false,
            tree_syncs_failed: false,
            has_losses: false,
        };
        world.simulation.clone().run(run.go(program, &at))
    };
    caught(work, || at.load(Ordering::Relaxed) as usize)
}

/// Runs `work`, and turns its error or panic into a failure in step `at`.
pub(crate) fn caught(work: impl FnOnce() -> Checked, at: impl Fn() -> usize) -> Result<(), Failure> {
    let message = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(message)) => message,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("?");
            format!("panic: {text}")
        }
    };
    Err(Failure { step: at(), message })
}
