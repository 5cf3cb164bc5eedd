//! Executes planned operations across homes.
//!
//! The order of events makes every crash harmless:
//! 1. The intent is persisted before the coordinator sends the first step.
//! 2. Each home persists its step before it replies.
//! 3. The decision is one logged change, persisted before the coordinator sends the steps that follow from it.
//!
//! Recovery undoes an operation without a decision, and completes one with a decision.

use super::MetaService;
use super::leases::Revocation;
use super::plan::{Plan, Planned};
use super::recovery::Resolution;
use super::single::is_busy;
use futures_util::future::join_all;
use std::time::Duration;
use tameike_core::wire::call::NumberedCall;
use tameike_core::wire::meta::{Command, EntryName, MetaReply, MetaRequest, NameOperation, Step};
use tameike_core::{Errno, Fault, HomeId, NodeId, OperationId, Result, Timestamp};
use tameike_io::os::runtime::promise;
use tameike_store::meta::LogCommand;
use tameike_store::meta::record::{Decision, Intent, PlacedStep};

/// Bounds of the random pause before an operation that met a conflict is planned again.
const CONFLICT_TIME_MIN: Duration = Duration::from_millis(1);
const CONFLICT_TIME_MAX: Duration = Duration::from_millis(100);
/// Maximum number of attempts: several seconds of continuous conflicts.
const CONFLICTS_MAX: u32 = 200;

enum Prepared {
    /// This home must decide the operation.
    Undecided,
    /// The reply to the commit step was lost, but recovery found it applied and completed the operation.
    Completed,
}

struct Unprepared {
    fault: Fault,
    /// A step was applied, or may have been.
    applied: bool,
}

/// An operation with steps at other homes, while it runs.
struct Running {
    sequence: u64,
    plan: Plan,
    decision: Decision,
    by: NodeId,
    call: Option<NumberedCall>,
    now: Timestamp,
}

impl MetaService {
    pub(super) async fn names(
        &self,
        operation: NameOperation,
        sharded: bool,
        (by, call): (NodeId, Option<NumberedCall>),
        now: Timestamp,
    ) -> Result<MetaReply> {
        if self.has_decided(call).await? {
            return self.children_stat(operation.coordinator().dir).map(MetaReply::DirChanged);
        }
        let mut pause = CONFLICT_TIME_MIN;
        for _ in 0..CONFLICTS_MAX {
            let done = match self.plan(&operation, sharded).await {
                Ok(Planned::Nothing) => Ok(MetaReply::Done),
                Ok(Planned::Sharding(sharded)) => Ok(MetaReply::Sharding { sharded }),
                Ok(Planned::Steps(plan)) => match self.run(*plan, (by, call), now).await {
                    Ok(()) => self.children_stat(operation.coordinator().dir).map(MetaReply::DirChanged),
                    Err(fault) => Err(fault),
                },
                Err(fault) => Err(fault),
            };
            match done {
                Err(fault) if fault.errno == Errno::EAGAIN => self.conflict_pause(&mut pause).await,
                done => return done,
            }
        }
        Err(Fault::new(Errno::EBUSY, "too many conflicts with other operations on the same names; retry"))
    }

    async fn conflict_pause(&self, pause: &mut Duration) {
        let random = self.parts.runtime.random_u64() % pause.as_micros().max(1) as u64;
        self.parts.runtime.sleep(Duration::from_micros(random)).await;
        *pause = (*pause * 2).min(CONFLICT_TIME_MAX);
    }

    fn operation(&self, sequence: u64) -> OperationId {
        OperationId { home: self.home, sequence }
    }

    async fn run(
        &self,
        plan: Plan,
        (by, call): (NodeId, Option<NumberedCall>),
        now: Timestamp,
    ) -> Result<()> {
        let plan = self.move_to_decision(plan);
        let sequence = self.state.lock().begin();
        let before = plan.prepare.len() as u32;
        let placed = plan.redo.iter().zip(before + 1..);
        let redo =
            placed.map(|((home, step), number)| PlacedStep { home: *home, number, step: step.clone() });
        let decision = Decision { local: plan.local.clone(), redo: redo.collect() };
        if plan.prepare.is_empty() && plan.commit.is_none() && decision.redo.is_empty() {
            let decided = self.decide(sequence, &decision, None, (Some(by), call), now);
            if decided.is_err() {
                self.state.lock().ended(sequence);
            }
            self.revoke(decided?).await;
            return Ok(());
        }
        // A separate task: the operation ends even if the caller stops waiting.
        let (resolver, done) = promise();
        let running = Running { sequence, plan, decision, by, call, now };
        self.spawn(|service| async move {
            let Some(this) = service.upgrade() else { return };
            resolver.resolve(this.run_with_others(&running).await);
        });
        done.await
    }

    async fn run_with_others(&self, running: &Running) -> Result<()> {
        let &Running { sequence, ref plan, ref decision, by, call, now } = running;
        if !plan.prepare.is_empty() || plan.commit.is_some() {
            match self.prepare(running).await? {
                Prepared::Undecided => (),
                Prepared::Completed => return Ok(()),
            }
        }
        let decided = self.decide(sequence, decision, plan.busy.as_ref(), (Some(by), call), now);
        if decided.is_err() || !decision.redo.is_empty() {
            self.settle_or_later(sequence, Some(by)).await;
        }
        self.revoke(decided?).await;
        Ok(())
    }

    /// Moves steps at this home into the decision where possible.
    fn move_to_decision(&self, mut plan: Plan) -> Plan {
        let here = |home: &HomeId| *home == self.home;
        if plan.commit.is_none() {
            // Of several seals, the first one must exclude other operations, wherever their coordinator is.
            let seals = plan.prepare.iter().filter(|(_, step)| matches!(step, Step::Seal { .. })).count();
            let stays = |step: &Step| match step {
                Step::LockTree => true,
                Step::Seal { .. } => seals > 1,
                _ => false,
            };
            let (home, away): (Vec<_>, Vec<_>) =
                plan.prepare.into_iter().partition(|(home, step)| here(home) && !stays(step));
            plan.prepare = away;
            plan.local.splice(0..0, home.into_iter().map(|(_, step)| step));
        }
        let (home, away): (Vec<_>, Vec<_>) =
            plan.redo.into_iter().partition(|(home, step)| here(home) && *step != Step::UnlockTree);
        plan.redo = away;
        plan.local.extend(home.into_iter().map(|(_, step)| step));
        plan
    }

    /// Logs the intent and executes all steps before the decision. On an error, undoes everything, now or once the nodes are reachable.
    async fn prepare(&self, running: &Running) -> Result<Prepared> {
        let &Running { sequence, ref plan, ref decision, by, call, .. } = running;
        let prepared = plan.prepare.iter().zip(0..).map(|((home, _), number)| (*home, number)).collect();
        let number = plan.prepare.len() as u32;
        let commit = plan.commit.as_ref().map(|(home, _)| (*home, number));
        let (decision, busy) = (decision.clone(), plan.busy.clone());
        let intent = Intent::Open { prepared, commit, decision, busy, call };
        self.begin(sequence, intent, plan.busy.as_ref())?;
        match self.try_prepare(running).await {
            Ok(()) => Ok(Prepared::Undecided),
            Err(Unprepared { fault, applied: false }) => {
                self.end(sequence, plan.busy.as_ref())?;
                Err(fault)
            }
            Err(Unprepared { fault, applied: true }) => {
                match self.settle_or_later(sequence, Some(by)).await {
                    Some(Resolution::Completed) => Ok(Prepared::Completed),
                    Some(Resolution::Undone) => Err(fault),
                    None => Err(fault.context("the names may have been changed or not")),
                }
            }
        }
    }

    fn begin(&self, sequence: u64, intent: Intent, busy: Option<&EntryName>) -> Result<()> {
        let mut state = self.state.lock();
        let begun = match busy {
            Some(name) if state.is_busy(name) => Err(Errno::EAGAIN.into()),
            _ => self.execute(&LogCommand::Begin { sequence, intent }),
        };
        match (begun, busy) {
            (Ok(_), Some(name)) => state.make_busy(name.clone()),
            (Ok(_), None) => (),
            (Err(fault), _) => {
                state.ended(sequence);
                return Err(fault);
            }
        }
        Ok(())
    }

    async fn try_prepare(&self, running: &Running) -> Result<(), Unprepared> {
        let &Running { sequence, ref plan, by, now, .. } = running;
        let mut applied = false;
        let unprepared = |fault, applied| Unprepared { fault, applied };
        self.persist().await.map_err(|fault| unprepared(fault, false))?;
        // A directory that is sharded is sealed at many homes: at the first one alone, to exclude others, then at all others together.
        let is_seal = |(_, step): &(HomeId, Step)| matches!(step, Step::Seal { .. });
        let alone = plan.prepare.iter().position(is_seal).map_or(plan.prepare.len(), |first| first + 1);
        let (first, others) = plan.prepare.split_at(alone);
        let first = first.chunks(1).zip((0..).map(|number| number..));
        for (steps, numbers) in first.chain([(others, alone as u32..)]) {
            let step = |((home, step), number): (&(HomeId, Step), u32)| {
                self.step(*home, (sequence, number), step.clone(), Some(by), now)
            };
            let done = join_all(steps.iter().zip(numbers).map(step)).await;
            let failed = done.iter().find_map(|done| done.as_ref().err()).cloned();
            applied |=
                done.iter().any(|done| done.as_ref().map_or_else(|fault| !is_refusal(fault.errno), |_| true));
            if let Some(fault) = failed {
                return Err(unprepared(fault, applied));
            }
        }
        for &(dir, ancestor) in &plan.not_below {
            let checked = self.check_not_below(dir, ancestor).await;
            checked.map_err(|fault| unprepared(fault, applied))?;
        }
        let Some((home, step)) = &plan.commit else { return Ok(()) };
        let number = plan.prepare.len() as u32;
        let done = self.step(*home, (sequence, number), step.clone(), Some(by), now).await;
        done.map(drop).map_err(|fault| {
            let unsure = !is_refusal(fault.errno);
            unprepared(fault, applied || unsure)
        })
    }

    pub(super) fn decide(
        &self,
        sequence: u64,
        decision: &Decision,
        busy: Option<&EntryName>,
        (by, call): (Option<NodeId>, Option<NumberedCall>),
        now: Timestamp,
    ) -> Result<Vec<Revocation>> {
        let mut state = self.state.lock();
        let mut others = decision.local.iter().filter(|step| !touches(step, busy));
        if others.any(|step| is_busy(&state, step)) {
            return Err(Errno::EAGAIN.into());
        }
        let operation = self.operation(sequence);
        let held = state.held(&decision.local);
        let decide = LogCommand::Decide { operation, decision: decision.clone(), held, now, call };
        let applied = self.execute(&decide)?;
        if decision.redo.is_empty() {
            state.ended(sequence);
        }
        let revocations = self.revocations(&mut state, &decision.local, by);
        let waiting = busy.map(|name| state.free(name)).unwrap_or_default();
        drop(state);
        waiting.into_iter().for_each(|waiting| waiting.resolve(()));
        self.follow(&applied);
        Ok(revocations)
    }

    pub(super) fn end(&self, sequence: u64, busy: Option<&EntryName>) -> Result<()> {
        let mut state = self.state.lock();
        self.execute(&LogCommand::End { sequence })?;
        state.ended(sequence);
        let waiting = busy.map(|name| state.free(name)).unwrap_or_default();
        drop(state);
        waiting.into_iter().for_each(|waiting| waiting.resolve(()));
        Ok(())
    }

    /// Persists everything executed so far, so that it survives the agent.
    pub(super) async fn persist(&self) -> Result<()> {
        let ended = self.state.lock().ended_operations();
        self.parts.ledger.sync(false).await?;
        self.state.lock().forget(&ended);
        Ok(())
    }

    pub(super) async fn step(
        &self,
        home: HomeId,
        (sequence, number): (u64, u32),
        step: Step,
        by: Option<NodeId>,
        now: Timestamp,
    ) -> Result<MetaReply> {
        let finished = self.state.lock().finished();
        let operation = self.operation(sequence);
        let command = Command::Step { operation, number, step, by, finished, now };
        self.ask(home, MetaRequest::Execute(command)).await
    }
}

fn touches(step: &Step, name: Option<&EntryName>) -> bool {
    match step {
        Step::Attach { entry, .. } | Step::Detach { entry, .. } => Some(entry) == name,
        _ => false,
    }
}

/// Returns true if the error proves that the home refused the step. After any other error it may have applied it.
fn is_refusal(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::EAGAIN
            | Errno::EEXIST
            | Errno::EINVAL
            | Errno::EISDIR
            | Errno::EMLINK
            | Errno::ENAMETOOLONG
            | Errno::ENOENT
            | Errno::ENOTDIR
            | Errno::ENOTEMPTY
            | Errno::EPERM
    )
}
