//! Executes commands of the driver: one line in, one or more lines out.

use super::answer;
use super::cleanup::Belongings;
use super::enter::read_command;
use super::prepare::PreparedNode;
use std::collections::BTreeMap;
use std::io::BufRead;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tameike_agent::control::{AgentAnswer, AgentCommand, AgentControl, AgentReply, AgentRequest, Undrained};
use tameike_core::{Fault, Result};
use tameike_io::os::process::start_thread;
use tameike_io::os::signal;

/// State that the threads of commands share.
struct Serving<A> {
    agent: A,
    belongings: parking_lot::Mutex<Option<Belongings>>,
    /// Running commands that can be aborted; true if one must abort.
    cancelled: parking_lot::Mutex<BTreeMap<u64, bool>>,
    node_dir: PathBuf,
}

/// Serves until the driver stops the agent or exits. Returns the exit code.
pub fn serve<A: AgentControl>(node: PreparedNode<A>) -> u8 {
    // Batch systems signal every process of a job, but only the driver decides what agents do then.
    if let Err(fault) = signal::watch_ending(|arrived| {
        log::info!("ignoring signal {}: the driver handles it", arrived.signal)
    }) {
        log::warn!("{fault}");
    }
    let ready = AgentReply::Ready { node: node.record, address: node.agent.address() };
    let grace_ms = node.grace_ms;
    let serving = Arc::new(Serving {
        agent: node.agent,
        node_dir: node.belongings.node_dir(),
        belongings: parking_lot::Mutex::new(Some(node.belongings)),
        cancelled: parking_lot::Mutex::default(),
    });
    reply(0, ready);
    let order = execute_commands(&serving).unwrap_or_else(|| {
        log::warn!("the driver has exited: stopping, dirty data stays in the journal");
        serving.agent.mark_interrupted();
        StopOrder { id: None, grace_ms, keep: true, discard: false }
    });
    stop(&serving, &order)
}

struct StopOrder {
    /// The command to reply to; `None` if the driver has exited.
    id: Option<u64>,
    grace_ms: u64,
    /// Other nodes may have dirty data; true if the driver has exited, because only it knows.
    keep: bool,
    /// Other nodes have all that this node has.
    discard: bool,
}

/// Executes commands until `Stop`; `None` if the driver has exited.
fn execute_commands<A: AgentControl>(serving: &Arc<Serving<A>>) -> Option<StopOrder> {
    for line in std::io::stdin().lock().lines() {
        let command: AgentCommand = match serde_json::from_str(&line.ok()?) {
            Ok(command) => command,
            Err(error) => {
                reply(0, AgentReply::Failed(Fault::io(format!("invalid command: {error}"))));
                continue;
            }
        };
        if let AgentRequest::Stop { grace_ms, keep, discard } = command.request {
            return Some(StopOrder { id: Some(command.id), grace_ms, keep, discard });
        }
        let at_work = serving.clone();
        let id = command.id;
        if let AgentRequest::Lease(message) = command.request {
            // Here, as leases must not wait for a thread, and keep their order.
            let renewed = serving.agent.renew_lease(message);
            reply(id, renewed.map_or_else(AgentReply::Failed, AgentReply::Leased));
            continue;
        }
        let started = start_thread("command", move || {
            reply(
                command.id,
                at_work.carry_out(command.id, command.request).unwrap_or_else(AgentReply::Failed),
            );
        });
        if let Err(fault) = started {
            reply(id, AgentReply::Failed(fault));
        }
    }
    None
}

impl<A: AgentControl> Serving<A> {
    fn carry_out(&self, id: u64, request: AgentRequest) -> Result<AgentReply> {
        Ok(match request {
            AgentRequest::Join { nodes, map } => {
                self.agent.join(nodes, map)?;
                AgentReply::Joined { damage: self.agent.damage() }
            }
            AgentRequest::Drain { verify } => {
                let mut progress = |progress| reply(id, AgentReply::Progress(progress));
                AgentReply::Receipt(self.agent.drain(verify, &mut progress))
            }
            AgentRequest::Undrained => AgentReply::Receipt(self.agent.undrained()),
            AgentRequest::SaveRemoved { dir } => AgentReply::Receipt(self.agent.save_removed(&dir)),
            AgentRequest::Status => AgentReply::Status(Box::new(self.agent.status()?)),
            AgentRequest::Warm { paths } => {
                self.cancelled.lock().insert(id, false);
                let mut progress = |so_far| {
                    reply(id, AgentReply::Warming(so_far));
                    if self.cancelled.lock().get(&id) == Some(&true) {
                        return ControlFlow::Break(());
                    }
                    ControlFlow::Continue(())
                };
                let warmed = self.agent.warm(paths, &mut progress);
                self.cancelled.lock().remove(&id);
                AgentReply::Warmed(warmed?)
            }
            AgentRequest::CancelWarm { command } => {
                // It may have ended.
                self.cancelled.lock().entry(command).and_modify(|is_cancelled| *is_cancelled = true);
                AgentReply::Done
            }
            AgentRequest::Files(asked) => AgentReply::Files(self.agent.files(asked)?),
            AgentRequest::Changes { acknowledged } => AgentReply::Changes(self.agent.changes(acknowledged)),
            AgentRequest::Measure(order) => AgentReply::Measured(self.agent.measure(order)?),
            AgentRequest::CheckCopies => AgentReply::CopiesChecked(self.agent.check_copies()?),
            AgentRequest::Signal { command, signal } => {
                read_command(&self.node_dir, &command)?.signal(signal)?;
                AgentReply::Done
            }
            AgentRequest::EndCommands => {
                self.agent.end_waits();
                let belongings = self.belongings.lock();
                belongings.iter().for_each(Belongings::end_programs);
                AgentReply::CommandsEnded { strays: belongings.iter().flat_map(Belongings::strays).collect() }
            }
            AgentRequest::Lease(_) | AgentRequest::Stop { .. } => AgentReply::Done,
        })
    }
}

/// Stops the agent, cleans up the node, and replies.
fn stop<A: AgentControl>(serving: &Serving<A>, order: &StopOrder) -> u8 {
    serving.agent.end_waits();
    let belongings = serving.belongings.lock().take();
    if let Some(belongings) = &belongings {
        belongings.end_programs();
    }
    let mut stopping = || order.id.into_iter().for_each(|id| reply(id, AgentReply::Stopping));
    let left = serving.agent.stop(Duration::from_millis(order.grace_ms), !order.keep, &mut stopping);
    report_last_changes(serving, order);
    if let Some(belongings) = belongings {
        if order.discard {
            belongings.remove_volume_store();
        }
        match (&left, order.discard) {
            (Ok(_), true) => belongings.clean_up(&Ok(Undrained::default()), false),
            _ => belongings.clean_up(&left, order.keep),
        }
    }
    if let Some(id) = order.id {
        reply(id, left.clone().map_or_else(AgentReply::Failed, AgentReply::Stopped));
    }
    if left.is_ok() { 0 } else { crate::exit::FAILED }
}

/// Reports the changes of the shared directory that the driver does not know, as those of files that the packer has just promoted.
fn report_last_changes<A: AgentControl>(serving: &Serving<A>, order: &StopOrder) {
    let Some(id) = order.id else { return };
    loop {
        let changes = serving.agent.changes(0);
        if changes.changes.is_empty() {
            return;
        }
        reply(id, AgentReply::Changes(changes));
    }
}

/// Replies to the driver. If it has exited, the other pipe closes too, and `execute_commands` handles that.
fn reply(id: u64, reply: AgentReply) {
    if let Err(fault) = answer(&AgentAnswer { id, reply }) {
        log::warn!("{fault}");
    }
}
