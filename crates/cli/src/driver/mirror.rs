//! The mirror of a job: the driver collects changes from the agents, and gives them to the thread that keeps the mirror.

use super::Driver;
use super::event::{Event, Notice};
use crate::mirror::{Mirror, MirrorEnd, MirrorPlan, MirrorStatus, advice, receiver};
use crate::report;
use std::collections::BTreeMap;
use std::time::Duration;
use tameike_agent::control::AgentRequest;
use tameike_core::Result;
use tameike_core::changes::Changes;
use tameike_core::receipt::Receipt;
use tameike_io::os::process::monotonic;
use tameike_io::shared::PosixTree;

/// Interval of requests to each agent.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Time after which an agent that has not answered is asked again.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Time for the thread to end after it was aborted.
const ABORT_LIMIT: Duration = Duration::from_secs(5);

/// The mirror of a running job.
pub(super) struct MirrorLink {
    mirror: Mirror,
    next_poll: Duration,
    /// Agents that were asked and have not answered, with the time.
    asked: BTreeMap<u32, Duration>,
    /// Files of the drain's receipt, which are compared at the end.
    drained: Vec<Vec<u8>>,
    /// Time at which the mirror is given up.
    deadline: Option<Duration>,
    end: Option<MirrorEnd>,
}

impl Driver {
    /// Starts the mirror if the job has one.
    pub(super) fn start_mirror(&mut self) -> Result<()> {
        let plan = &self.record.plan;
        let (Some(target), Some(dir)) = (plan.mirror.clone(), &plan.shared_dir) else { return Ok(()) };
        let source = std::sync::Arc::new(PosixTree::open(dir)?);
        let (ssh, program, place) = (plan.ssh.clone(), plan.remote_program.clone(), target.clone());
        let mirror_plan = MirrorPlan {
            target,
            command: Box::new(move || receiver(&place, &ssh, &program)),
            is_explicit: false,
            checks_content: false,
            outage_limit: Duration::from_secs(plan.grace_s),
        };
        let sender = self.sender.clone();
        // The receiver lives until the process exits.
        let mirror =
            Mirror::start(mirror_plan, source, move |event| drop(sender.send(Event::Mirror(event))))?;
        let (next_poll, (asked, drained, end)) = (monotonic(), Default::default());
        // Unless the job drains, it ends without waiting for the mirror.
        let deadline = Some(Duration::ZERO);
        self.mirror = Some(MirrorLink { mirror, next_poll, asked, drained, deadline, end });
        Ok(())
    }

    /// The time at which [`Self::poll_changes`] is due; `None` without a mirror, and when agents stop, which report by themselves.
    pub(super) fn changes_due(&self) -> Option<Duration> {
        self.mirror.as_ref().filter(|_| !self.stopping).map(|link| link.next_poll)
    }

    /// Asks the agents for changes if that is due.
    pub(super) fn poll_changes(&mut self) {
        let now = monotonic();
        if self.changes_due().is_none_or(|due| now < due) {
            return;
        }
        let Some(link) = &mut self.mirror else { return };
        link.next_poll = now + POLL_INTERVAL;
        for agent in &mut self.links {
            let node = agent.node();
            let is_asked = link.asked.get(&node).is_some_and(|asked| now < *asked + ANSWER_LIMIT);
            if is_asked || self.lost.contains_key(&node) || self.arriving.contains(&node) {
                continue;
            }
            link.asked.insert(node, now);
            let acknowledged = link.mirror.acknowledged(node);
            agent.send(self.next_id, &AgentRequest::Changes { acknowledged });
            self.next_id += 1;
        }
    }

    pub(super) fn take_changes(&mut self, node: u32, changes: Changes) {
        let Some(link) = &mut self.mirror else { return };
        link.asked.remove(&node);
        if changes.has_more {
            link.next_poll = monotonic();
        }
        link.mirror.deliver(node, changes);
    }

    /// Notes that an agent has ended. If it has not reported its last changes, the trees are compared.
    pub(super) fn note_end_of_reports(&mut self, node: u32) {
        let Some(link) = &mut self.mirror else { return };
        link.asked.remove(&node);
        if self.left.contains_key(&node) {
            link.mirror.forget_agent(node)
        } else {
            link.mirror.lose_agent(node)
        }
    }

    pub(super) fn take_mirror_end(&mut self, end: MirrorEnd) -> Option<Notice> {
        self.mirror.as_mut()?.end = Some(end);
        Some(Notice::Mirrored)
    }

    /// Sets what is compared at the end, and how long it may take. An aborted drain leaves no time.
    pub(super) fn limit_mirror(&mut self, receipt: &Receipt, deadline: Option<Duration>, is_cancelled: bool) {
        let Some(link) = &mut self.mirror else { return };
        // Bytes that are not UTF-8 are replaced in the receipt; the agents have reported the path.
        let paths = receipt.files.iter().filter(|file| !file.path.contains(char::REPLACEMENT_CHARACTER));
        link.drained = paths.map(|file| file.path.clone().into_bytes()).collect();
        link.deadline = if is_cancelled { Some(monotonic()) } else { deadline };
    }

    /// Waits until the mirror has everything, and has compared it. `None` without a mirror.
    pub(super) fn finish_mirror(&mut self) -> Option<MirrorEnd> {
        let link = self.mirror.as_mut()?;
        let (mirror, mut deadline) = (link.mirror.clone(), link.deadline);
        mirror.finish(std::mem::take(&mut link.drained).into_iter());
        let mut is_aborted = false;
        loop {
            if let Some(end) = self.mirror.as_mut().and_then(|link| link.end.take()) {
                return Some(end);
            }
            let is_signal = match self.next(deadline) {
                Notice::TimedOut if is_aborted => {
                    let faults = vec!["its thread does not end".to_owned()];
                    let receipt = Receipt { faults, ..Receipt::default() };
                    return Some(MirrorEnd { receipt, ..MirrorEnd::default() });
                }
                Notice::TimedOut => false,
                Notice::Signal(_) => true,
                Notice::Message(text) => {
                    report::say(format_args!("{text}"));
                    continue;
                }
                _ => continue,
            };
            if is_signal && deadline.is_none() {
                deadline = Some(self.grace_deadline());
                report::say(format_args!(
                    "waiting for the mirror for at most {} s more; another signal stops at once",
                    self.record.plan.grace_s
                ));
                continue;
            }
            mirror.abort();
            (is_aborted, deadline) = (true, Some(monotonic() + ABORT_LIMIT));
        }
    }

    /// What to do after a job that has ended at once; `None` without a mirror.
    pub(super) fn mirror_advice(&self) -> Option<String> {
        let plan = &self.record.plan;
        Some(advice(plan.mirror.as_ref()?, plan.shared_dir.as_deref()?))
    }

    /// The state of the mirror, for `status`.
    pub(super) fn mirror_status(&self) -> Option<Box<MirrorStatus>> {
        self.mirror.as_ref().map(|link| Box::new(link.mirror.status()))
    }
}
