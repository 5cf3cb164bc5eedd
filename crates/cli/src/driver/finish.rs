//! Ends a job, and removes everything except journals with dirty data.

use super::Driver;
use super::event::GatherId;
use super::event::Notice;
use crate::mirror::MirrorEnd;
use crate::place::record::JobState;
use crate::place::{base, janitor};
use std::time::Duration;
use tameike_agent::control::{AgentControl, AgentMode, AgentReply, AgentRequest, Undrained};
use tameike_core::wire::pack::PACKER_HOME;
use tameike_core::{Errno, Fault, NodeId};
use tameike_fabric::ofi::leftovers;
use tameike_io::os::process::monotonic;

/// Time for agents to exit after their grace time.
const STOP_LIMIT: Duration = Duration::from_secs(30);
/// Time for agents to exit after a failed start.
const FAILED_STOP_LIMIT: Duration = Duration::from_secs(5);
/// Time for killed agents to exit.
const KILL_LIMIT: Duration = Duration::from_secs(5);
/// Time for agents to terminate programs that still run on their nodes.
const END_COMMANDS_LIMIT: Duration = Duration::from_secs(20);

/// Leftovers of a job that has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remains {
    /// Dirty data in journals.
    pub left: Undrained,
    /// Messages on parts that could not be removed or examined.
    pub faults: Vec<String>,
    /// The outcome of the mirror, if the job has one.
    pub mirror: Option<MirrorEnd>,
}

impl Remains {
    /// Returns true if nothing is left.
    pub fn is_nothing(&self) -> bool {
        self.left.is_nothing() && self.faults.is_empty()
    }
}

impl Driver {
    /// Terminates programs that still run on the nodes. The nodes then report files that programs outside the job wrote below
    /// their mount points.
    pub(super) fn end_commands(&mut self) {
        let id = self.ask(&AgentRequest::EndCommands, None);
        self.await_gather(id, monotonic() + END_COMMANDS_LIMIT);
        for answer in self.take_gather(id).answers.into_values() {
            if let AgentReply::CommandsEnded { strays } = answer {
                self.strays.extend(strays);
            }
        }
    }

    /// Ends the agents, removes everything that is not needed, and returns the rest. With `keep`, because the drain was
    /// incomplete, the job's record stays for `recover`.
    pub(super) fn take_down<A: AgentControl>(mut self, grace: Duration, keep: bool) -> Remains {
        let faults = self.stop_agents(grace, STOP_LIMIT, keep);
        let mut remains = Remains { left: Undrained::default(), faults, mirror: self.finish_mirror() };
        for (_, left) in self.left.iter().filter(|(node, _)| !self.is_stale(**node)) {
            remains.left += *left;
        }
        let dir = self.job_dir.path().to_owned();
        janitor::unmount_below(&dir, &mut remains.faults);
        self.sweep_stale_nodes(&mut remains, keep);
        self.sweep_failed_nodes::<A>(&mut remains, keep);
        let kept = if keep || !remains.is_nothing() {
            self.record.state = JobState::Interrupted;
            self.record.write(&dir).err()
        } else {
            let locked = self.base.lock();
            locked.and_then(|_lock| janitor::remove_job_dir(&dir)).err()
        };
        // The receipt already lists files of other programs on the mount points.
        let is_reported = |fault: &Fault| fault.errno == Errno::ENOTEMPTY && !self.strays.is_empty();
        remains.faults.extend(kept.filter(|fault| !is_reported(fault)).map(|fault| fault.to_string()));
        remains
    }

    /// Stops the agents and waits until they exit; returns the faults.
    pub(super) fn stop_agents(&mut self, grace: Duration, limit: Duration, keep: bool) -> Vec<String> {
        self.stopping = true;
        let grace_ms = grace.as_millis().try_into().unwrap_or(u64::MAX);
        let packer = self.record.map.as_ref().map(|map| map.primary(PACKER_HOME));
        let stop = self.ask(&AgentRequest::Stop { grace_ms, keep, discard: false, packer }, None);
        let deadline = self.await_stop(stop, grace + limit);
        for link in &mut self.links {
            link.hang_up();
        }
        self.await_ends(deadline, true);
        // Excluded nodes may not answer at all.
        self.await_ends(deadline.min(monotonic() + FAILED_STOP_LIMIT), false);
        for link in self.links.iter().filter(|link| !self.lost.contains_key(&link.node())) {
            link.kill();
        }
        self.await_ends(monotonic() + KILL_LIMIT, false);
        let answers = self.take_gather(stop).answers;
        let fault = |(node, reply): (u32, AgentReply)| match reply {
            // `sweep_failed_nodes` examines the stores of failed agents.
            AgentReply::Failed(fault) if fault.errno != Errno::EHOSTDOWN => {
                Some(format!("node {node}: {fault}"))
            }
            _ => None,
        };
        answers.into_iter().filter_map(fault).collect()
    }

    /// Waits until the agents have stopped. Each progress message extends the deadline by `limit`, until a first signal; a second
    /// signal ends the wait. Returns the deadline.
    fn await_stop(&mut self, id: GatherId, limit: Duration) -> Duration {
        let (mut deadline, mut may_extend) = (monotonic() + limit, true);
        while !self.is_gathered(id) {
            match self.next(Some(deadline)) {
                Notice::TimedOut => break,
                Notice::Progress(of) if of == id && may_extend => deadline = monotonic() + limit,
                Notice::Signal(_) if may_extend => {
                    may_extend = false;
                    crate::report::say(format_args!(
                        "agents have at most {} s more to exit; another signal stops at once and leaves the journals",
                        limit.as_secs()
                    ));
                }
                Notice::Signal(_) => deadline = monotonic(),
                Notice::Message(text) => crate::report::say(format_args!("{text}")),
                _ => {}
            }
        }
        deadline
    }

    /// Waits for the ends of all agents, or of those that reply to requests.
    fn await_ends(&mut self, deadline: Duration, only_running: bool) {
        let is_awaited = |driver: &Self, node: u32| match only_running {
            true => driver.absence(node).is_none(),
            false => !driver.lost.contains_key(&node),
        };
        while self.links.iter().any(|link| is_awaited(self, link.node())) {
            match self.next(Some(deadline)) {
                Notice::TimedOut => return,
                Notice::Message(text) => crate::report::say(format_args!("{text}")),
                _ => {}
            }
        }
    }

    /// Removes the stores with old copies of what other nodes have drained, on this host only. After an incomplete drain they stay.
    fn sweep_stale_nodes(&self, remains: &mut Remains, keep: bool) {
        for (&node, _) in self.lost.iter().filter(|(node, _)| !keep && self.is_stale(**node)) {
            let host = &self.record.plan.nodes[node as usize];
            if host.is_here() {
                leftovers::sweep(&self.record.plan.job, Some(NodeId(node)));
                let removed = janitor::discard_node(self.job_dir.path(), node);
                remains.faults.extend(removed.err().map(|fault| format!("node {node}: {fault}")));
            } else if !self.left.contains_key(&node) {
                crate::report::say(format_args!(
                    "node {node} on {} may have kept its store, which has only old copies of data that is drained",
                    host.host
                ));
            }
        }
    }

    /// Examines the stores of agents that did not stop regularly, on this host only.
    fn sweep_failed_nodes<A: AgentControl>(&self, remains: &mut Remains, keep: bool) {
        let failed = |node: &u32| !self.left.contains_key(node) && !self.is_stale(*node);
        for (&node, how) in self.lost.iter().filter(|(node, _)| failed(node)) {
            let host = &self.record.plan.nodes[node as usize];
            if !host.is_here() {
                let message = format!("dirty data of node {node} on {} is unknown ({how})", host.host);
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

    /// Waits for the replies to a request until `deadline`.
    pub(super) fn await_gather(&mut self, id: GatherId, deadline: Duration) {
        while !self.is_gathered(id) {
            match self.next(Some(deadline)) {
                Notice::TimedOut => return,
                Notice::Message(text) => crate::report::say(format_args!("{text}")),
                _ => {}
            }
        }
    }

    /// Ends everything after a failed start, which has produced no dirty data.
    pub(super) fn take_down_failed_start(mut self) {
        if self.adopts() {
            // The agents run on without a driver.
            return;
        }
        let keep = self.mode == AgentMode::Recover;
        let mut faults = self.stop_agents(Duration::ZERO, FAILED_STOP_LIMIT, keep);
        let dir = self.job_dir.path();
        let cleared = if self.mode == AgentMode::Serve {
            // Agents that failed have cleaned up; killed ones have not.
            janitor::unmount_below(dir, &mut faults);
            let discard = base::nodes_in(dir).into_iter().map(|node| janitor::discard_node(dir, node));
            faults.extend(discard.filter_map(Result::err).map(|fault| fault.to_string()));
            self.base.lock().and_then(|_lock| janitor::remove_job_dir(dir))
        } else {
            self.record.state = JobState::Interrupted;
            self.record.write(dir)
        };
        faults.extend(cleared.err().map(|fault| fault.to_string()));
        for fault in faults {
            crate::report::say(format_args!("after the failed start: {fault}"));
        }
    }
}
