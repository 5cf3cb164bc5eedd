//! Taking a job down, so that nothing is left but a journal that is needed.

use super::Driver;
use super::event::GatherId;
use super::event::Notice;
use crate::place::record::JobState;
use crate::place::{base, janitor};
use std::time::Duration;
use tameike_agent::control::{AgentControl, AgentMode, AgentReply, AgentRequest, Left};
use tameike_core::{Errno, Fault, NodeId};
use tameike_fabric::ofi::leftovers;
use tameike_io::os::process::monotonic;

/// How long agents may take to end beyond the grace they are given.
const STOP_LIMIT: Duration = Duration::from_secs(30);
/// How long they may take when the job never ran.
const FAILED_STOP_LIMIT: Duration = Duration::from_secs(5);
/// How long the end of killed agents may take.
const KILL_LIMIT: Duration = Duration::from_secs(5);
/// How long agents may take to end programs that still run in their nodes.
const END_COMMANDS_LIMIT: Duration = Duration::from_secs(20);

/// What is left of a job when it has been taken down.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remains {
    /// Dirty data in journals.
    pub left: Left,
    /// What could not be taken down, or is not known, in plain words.
    pub faults: Vec<String>,
}

impl Remains {
    /// Whether nothing is left.
    pub fn is_nothing(&self) -> bool {
        self.left.is_nothing() && self.faults.is_empty()
    }
}

impl Driver {
    /// Ends programs that still run in the nodes, which then say what programs outside of the job have written below their mounts.
    pub(super) fn end_commands(&mut self) {
        let id = self.ask(&AgentRequest::EndCommands, None);
        self.await_gather(id, monotonic() + END_COMMANDS_LIMIT);
        for answer in self.take_gather(id).answers.into_values() {
            if let AgentReply::CommandsEnded { strays } = answer {
                self.strays.extend(strays);
            }
        }
    }

    /// Ends the agents, gives up everything that is not needed, and says what is. With `keep`, the job's
    /// record stays for `recover`, because the drain before was incomplete.
    pub(super) fn take_down<A: AgentControl>(mut self, grace: Duration, keep: bool) -> Remains {
        let faults = self.stop_agents(grace, STOP_LIMIT, keep);
        let mut remains = Remains { left: Left::default(), faults };
        for left in self.left.values() {
            remains.left += *left;
        }
        let dir = self.job_dir.path().to_owned();
        janitor::unmount_below(&dir, &mut remains.faults);
        self.look_after_the_dead::<A>(&mut remains, keep);
        let kept = if keep || !remains.is_nothing() {
            self.record.state = JobState::CutOff;
            self.record.write(&dir).err()
        } else {
            let locked = self.base.lock();
            locked.and_then(|_lock| janitor::remove_job_dir(&dir)).err()
        };
        // The receipt names what other programs have written to the mount points.
        let is_told = |fault: &Fault| fault.errno == Errno::ENOTEMPTY && !self.strays.is_empty();
        remains.faults.extend(kept.filter(|fault| !is_told(fault)).map(|fault| fault.to_string()));
        remains
    }

    /// Stops the agents and waits for their end; returns what went wrong.
    fn stop_agents(&mut self, grace: Duration, limit: Duration, keep: bool) -> Vec<String> {
        self.stopping = true;
        let grace_ms = grace.as_millis().try_into().unwrap_or(u64::MAX);
        let stop = self.ask(&AgentRequest::Stop { grace_ms, keep }, None);
        let deadline = self.await_stop(stop, grace + limit);
        for link in &mut self.links {
            link.hang_up();
        }
        self.await_ends(deadline);
        for link in self.links.iter().filter(|link| !self.lost.contains_key(&link.node())) {
            link.kill();
        }
        self.await_ends(monotonic() + KILL_LIMIT);
        let answers = self.take_gather(stop).answers;
        let fault = |(node, reply): (u32, AgentReply)| match reply {
            // What one that died holds is looked into later.
            AgentReply::Failed(fault) if fault.errno != Errno::EHOSTDOWN => {
                Some(format!("node {node}: {fault}"))
            }
            _ => None,
        };
        answers.into_iter().filter_map(fault).collect()
    }

    /// Waits for agents that end, as long as one of them gets on at least every `limit`; no longer than that once a signal has come, and not after a
    /// second one. Returns when their time is over.
    fn await_stop(&mut self, id: GatherId, limit: Duration) -> Duration {
        let (mut deadline, mut may_get_on) = (monotonic() + limit, true);
        while !self.is_gathered(id) {
            match self.next(Some(deadline)) {
                Notice::TimedOut => break,
                Notice::Progress(of) if of == id && may_get_on => deadline = monotonic() + limit,
                Notice::Signal(_) if may_get_on => {
                    may_get_on = false;
                    crate::report::say(format_args!(
                        "agents have {} s more at most to end; once more to stop at once and leave a journal",
                        limit.as_secs()
                    ));
                }
                Notice::Signal(_) => deadline = monotonic(),
                _ => {}
            }
        }
        deadline
    }

    fn await_ends(&mut self, deadline: Duration) {
        while self.lost.len() < self.links.len() {
            if let Notice::TimedOut = self.next(Some(deadline)) {
                return;
            }
        }
    }

    /// Looks into what agents that did not end in order left: here, by looking; elsewhere it is not known.
    fn look_after_the_dead<A: AgentControl>(&self, remains: &mut Remains, keep: bool) {
        for (&node, how) in self.lost.iter().filter(|(node, _)| !self.left.contains_key(node)) {
            let host = &self.record.plan.nodes[node as usize];
            if !host.is_here() {
                let message = format!("what node {node} on {} holds is not known ({how})", host.host);
                remains.faults.push(message);
                continue;
            }
            leftovers::sweep(&self.record.plan.job, Some(NodeId(node)));
            match janitor::sweep_node::<A>(self.job_dir.path(), node, keep) {
                Ok(left) => {
                    remains.left += left;
                }
                Err(fault) => remains.faults.push(format!("node {node}: {fault}")),
            }
        }
    }

    /// Waits for the answers to a question, not beyond `deadline`.
    pub(super) fn await_gather(&mut self, id: GatherId, deadline: Duration) {
        while !self.is_gathered(id) {
            if let Notice::TimedOut = self.next(Some(deadline)) {
                return;
            }
        }
    }

    /// Takes everything down after a failed start. Nothing is dirty that was not before.
    pub(super) fn take_down_failed_start(mut self) {
        let keep = self.mode == AgentMode::Recover;
        let mut faults = self.stop_agents(Duration::ZERO, FAILED_STOP_LIMIT, keep);
        let dir = self.job_dir.path();
        let cleared = if self.mode == AgentMode::Serve {
            // Agents that failed have cleared away; those that had to be killed have not.
            janitor::unmount_below(dir, &mut faults);
            let discard = base::nodes_in(dir).into_iter().map(|node| janitor::discard_node(dir, node));
            faults.extend(discard.filter_map(Result::err).map(|fault| fault.to_string()));
            self.base.lock().and_then(|_lock| janitor::remove_job_dir(dir))
        } else {
            self.record.state = JobState::CutOff;
            self.record.write(dir)
        };
        faults.extend(cleared.err().map(|fault| fault.to_string()));
        for fault in faults {
            crate::report::say(format_args!("after the failed start: {fault}"));
        }
    }
}
