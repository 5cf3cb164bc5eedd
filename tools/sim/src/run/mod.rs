//! Runs a program on a cluster and holds what its calls were told against the model.

mod appends;
mod bytes;
mod check;
mod cut_off;
mod deadlock;
mod doubt;
mod finish;
mod hanging;
mod judge;
mod locks;
mod opened;
mod rot;
mod space;
mod step;
mod unnamed;

use crate::countdown::Countdown;
use crate::kernel::Told;
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

/// A call that takes longer never ends.
const STUCK: Duration = Duration::from_secs(300);

/// What a program found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// In which step.
    pub step: usize,
    /// What is wrong.
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
    /// Another node has taken away a name by which this one may know it.
    is_unnamed: bool,
    /// The next close or fsync has to tell that a write was lost.
    has_lost: bool,
    /// It has told of a sync of the shared file system that failed for somebody else.
    has_heard: bool,
    /// Its node has asked for a lock of the file, or given one back, since the last write: nothing is on its way, whatever close or fsync would tell.
    is_committed: bool,
}

impl Open {
    /// One of which nothing has been heard.
    fn new(handle: HandleNumber, object: ObjectId, opened: Moment, flags: Flags) -> Self {
        let (is_unnamed, has_lost, has_heard, is_committed) = (false, false, false, false);
        Self { handle, object, opened, flags, is_unnamed, has_lost, has_heard, is_committed }
    }
}

/// How a call ended.
enum End {
    Told(Told),
    Failed(Fault),
    /// Its node died.
    Died,
}

/// A call that was made.
struct Call {
    node: usize,
    view: View,
    op: Op,
    /// The open file of its slot, before.
    open: Option<Open>,
    /// Where what it appends lands.
    lands: Option<u64>,
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
    /// Files of the cache view that programs may have had open for writing on a node that died.
    cut_off: BTreeSet<ObjectId>,
    /// What calls of the step take a name from, by view.
    unnamed: BTreeSet<(usize, ObjectId)>,
    /// Locks that are held, or may be.
    locks: Vec<locks::Lock>,
    /// Whether messages between some nodes may not arrive.
    links_cut: bool,
    /// Whether they, or agents that were dead, may have kept a node from hearing that a file is removed.
    was_unreachable: bool,
    /// Whether programs that wait for a lock have been sent a signal.
    signalled: Arc<AtomicBool>,
    /// Errors that the troubles since the last check explain, by view.
    excuses: BTreeMap<usize, BTreeSet<i32>>,
    /// Calls that were excused since then.
    excused: usize,
    /// Agents have died or must be started anew since the last check.
    must_restart: bool,
    power_lost: bool,
    /// A disk has forgotten what was not synced.
    bytes_lost: bool,
    /// One of both was so before the agents were last started: their journals may have lost their ends.
    journal_cut: bool,
    /// A sync failed: changes that were made and not logged are gone.
    log_broken: bool,
    /// Agents have died before all that they had changed in the job-shared view was safe. They have taken their part of
    /// it with them (S20); the product does not start such a view again, so that others' parts may hang in the air:
    /// names of no inode, or that their inode does not count, units of no file. What was safe must be there (S7).
    has_orphans: bool,
    volatile: bool,
    disks_failed: bool,
    /// The shared file system has had syncs fail.
    tree_syncs_failed: bool,
    /// Nodes on whose disks something has rotted.
    rotten: BTreeSet<usize>,
    /// Inodes that have lost bytes there.
    lost: BTreeSet<u64>,
    /// Something has since the last check.
    has_rotted: bool,
    /// Something does while the calls run that run now.
    rots: bool,
    /// Files, by view, of which a read has said at a check that bytes are lost.
    damaged: BTreeSet<(usize, ObjectId)>,
    /// Bytes in use in the job-shared view after the last step.
    used: u64,
    /// The job-shared view may have been full since the last check: a close may yet tell of it.
    was_full: bool,
    /// Power was lost, or a disk failed: what was not synced is gone, and a drain may have to say so.
    has_losses: bool,
}

impl Run {
    fn moment(&self) -> Moment {
        self.moments.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn model(&mut self, view: View) -> &mut Names {
        self.models.entry(view.index()).or_default()
    }

    fn is_excused(&self, view: View, errno: Errno) -> bool {
        self.excuses.get(&view.index()).is_some_and(|known| known.contains(&errno.0))
    }

    async fn start(&mut self) -> Checked {
        self.start_agents(AgentMode::Serve, false).await?;
        let _pause = self.world.countdown.pause();
        for view in [View::JobShared, View::Cache] {
            for dir in crate::op::DIRS {
                let end = self.one(0, view, Op::Mkdir { path: dir.to_owned() }, None).await?.end;
                if let End::Failed(fault) = end {
                    return Err(format!("{} {dir} cannot be made at the start: {fault}", view.as_str()));
                }
            }
            self.model(view);
        }
        self.make_safe().await
    }

    /// Starts all agents. A countdown may have it fail, once.
    async fn start_agents(&mut self, mode: AgentMode, power: bool) -> Checked {
        loop {
            let world = self.world.clone();
            let started = self.world.runtime().timeout(STUCK, world.start_all(mode, power)).await;
            let fault = match started {
                Some(Ok(())) => return Ok(()),
                Some(Err(fault)) => fault,
                None => return Err(format!("the agents do not start within {STUCK:?}")),
            };
            if !self.heed_countdown() {
                return Err(format!("the agents do not start: {fault}"));
            }
            (0..self.world.count()).for_each(|node| self.world.kill(node, false));
        }
    }

    async fn go(&mut self, program: &Program, at: &AtomicU64) -> Checked {
        // Most bugs on purpose are the model's to find.
        let looks_into_stores = program.world.canary.is_none_or(Canary::is_of_stores);
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
            if looks_into_stores && !may_lack {
                self.check_stores(true)?;
            }
        }
        at.store(program.steps.len() as u64, Ordering::Relaxed);
        self.finish(program.dies).await?;
        (0..self.world.count()).for_each(|node| self.world.kill(node, false));
        self.check_stores(true)
    }
}

/// Runs a program.
///
/// # Errors
/// What was found.
pub fn run(program: &Program) -> Result<(), Failure> {
    run_counted(program, &Countdown::default())
}

/// Runs a program whose calls to disks, network and shared file system count; in the end, the stores of all nodes are
/// examined.
///
/// # Errors
/// What was found.
pub fn run_counted(program: &Program, countdown: &Countdown) -> Result<(), Failure> {
    run_tallied(program, countdown, &Tally::default())
}

/// As [`run_counted`], and what becomes of requests to holders is counted.
///
/// # Errors
/// What was found.
pub fn run_tallied(program: &Program, countdown: &Countdown, tally: &Tally) -> Result<(), Failure> {
    let at = AtomicU64::new(0);
    let work = || {
        let world = World::counted(program.world.clone(), countdown.clone(), tally.clone());
        let mut run = Run {
            world: world.clone(),
            moments: Arc::default(),
            models: BTreeMap::new(),
            slots: BTreeMap::new(),
            cut_off: BTreeSet::new(),
            unnamed: BTreeSet::new(),
            locks: Vec::new(),
            links_cut: false,
            was_unreachable: false,
            signalled: Arc::default(),
            excuses: BTreeMap::new(),
            excused: 0,
            must_restart: false,
            power_lost: false,
            journal_cut: false,
            bytes_lost: false,
            log_broken: false,
            has_orphans: false,
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
    let outcome = catch_unwind(AssertUnwindSafe(work));
    let message = match outcome {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(message)) => message,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("?");
            format!("panic: {text}")
        }
    };
    Err(Failure { step: at.load(Ordering::Relaxed) as usize, message })
}
