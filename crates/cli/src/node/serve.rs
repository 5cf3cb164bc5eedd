//! Executes commands of the driver: one line in, one or more lines out.

use super::cleanup::Belongings;
use super::connection::{Connection, read_line};
use super::drivers::Drivers;
use super::enter::read_command;
use super::parse_start;
use super::prepare::PreparedNode;
use super::standby::Standby;
use super::start::NodeStart;
use crate::place::base::driver_socket;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::ops::ControlFlow;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;
use tameike_agent::control::{
    AgentCommand, AgentControl, AgentReply, AgentRequest, NodeRecord, Secret, Undrained,
};
use tameike_core::{Errno, Fault, NodeId, Result};
use tameike_io::os::process::{monotonic, start_thread, user};
use tameike_io::os::signal;
use tameike_io::os::socket::peer_user;

/// Interval at which the agent of a volume looks whether it has a driver.
const TICK: Duration = Duration::from_millis(250);
/// Time without a driver after which the agent of a volume ends: its mounts answer no program any more.
const DRIVERLESS_MAX: Duration = Duration::from_secs(15 * 60);

/// State that the threads of commands share.
struct Serving<A> {
    agent: A,
    belongings: parking_lot::Mutex<Option<Belongings>>,
    /// Running commands that can be aborted; true if one must abort.
    cancelled: parking_lot::Mutex<BTreeMap<u64, bool>>,
    node_dir: PathBuf,
    record: NodeRecord,
    secret: Secret,
    /// The drivers of a volume.
    drivers: Option<parking_lot::Mutex<Drivers>>,
}

/// Serves until the driver stops the agent or exits. Returns the exit code.
pub fn serve<A: AgentControl>(node: PreparedNode<A>, start: &NodeStart) -> u8 {
    // Batch systems signal every process of a job, but only the driver decides what agents do then.
    if let Err(fault) = signal::watch_ending(|arrived| {
        log::info!("ignoring signal {}: the driver handles it", arrived.signal)
    }) {
        log::warn!("{fault}");
    }
    let parent = Arc::new(Connection::of_parent(start.driver_host.clone(), start.driver_is_here));
    let drivers = node.kept.map(|kept| Drivers::new(kept, parent.clone(), monotonic()));
    let serving = Arc::new(Serving {
        agent: node.agent,
        node_dir: node.belongings.node_dir(),
        belongings: parking_lot::Mutex::new(Some(node.belongings)),
        cancelled: parking_lot::Mutex::default(),
        record: node.record,
        secret: start.start.secret.clone(),
        drivers: drivers.map(parking_lot::Mutex::new),
    });
    parent.reply(0, serving.ready(false));
    let order = match serving.drivers.is_some() {
        true => serve_drivers(&serving, parent),
        false => execute_commands(&serving, &parent, &mut std::io::stdin().lock()),
    };
    let order = order.unwrap_or_else(|| {
        log::warn!("the driver has exited: stopping, dirty data stays in the journal");
        serving.agent.mark_interrupted();
        StopOrder { reply_to: None, grace_ms: start.grace_ms, keep: true, discard: false, packer: None }
    });
    stop(&serving, &order)
}

struct StopOrder {
    /// The command to reply to; `None` if the driver has exited.
    reply_to: Option<(Arc<Connection>, u64)>,
    grace_ms: u64,
    /// Other nodes may have dirty data; true if the driver has exited, because only it knows.
    keep: bool,
    /// Other nodes have all that this node has.
    discard: bool,
    packer: Option<NodeId>,
}

impl StopOrder {
    fn reply(&self, reply: AgentReply) {
        if let Some((connection, id)) = &self.reply_to {
            connection.reply(*id, reply);
        }
    }
}

/// The end of a connection: `None` if the driver has exited or has lost it.
type ConnectionEnd = Option<StopOrder>;

/// Serves one driver of a volume after another; `None` if there is none any more.
fn serve_drivers<A: AgentControl>(serving: &Arc<Serving<A>>, parent: Arc<Connection>) -> Option<StopOrder> {
    let drivers = serving.drivers.as_ref()?;
    let (ends, ended) = channel();
    let begun = listen(serving, ends.clone()).and_then(|()| {
        let at_work = serving.clone();
        start_thread("driver", move || {
            at_work.serve_connection(&parent, &mut BufReader::new(std::io::stdin()), &ends);
        })
    });
    if let Err(fault) = begun {
        log::error!("{fault}");
        return None;
    }
    let mut standby = Standby::new(serving.record.node, serving.node_dir.clone());
    loop {
        match ended.recv_timeout(TICK) {
            Ok(Some(order)) => return Some(order),
            Ok(None) if !drivers.lock().has_joined() => return None,
            Ok(None) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return None,
        }
        let now = monotonic();
        let drivers = drivers.lock();
        match drivers.driverless(now) {
            Some(time) if time > DRIVERLESS_MAX => return None,
            Some(time) => standby.tend(time, drivers.record(), now),
            None => standby.rest(),
        }
    }
}

/// Accepts connections of drivers.
fn listen<A: AgentControl>(serving: &Arc<Serving<A>>, ends: Sender<ConnectionEnd>) -> Result<()> {
    let path = driver_socket(&serving.node_dir);
    let failed = |error| Fault::from_os(format_args!("making the socket {}", path.display()), &error);
    // An agent that was killed has left it.
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let listener = UnixListener::bind(&path).map_err(failed)?;
    let serving = serving.clone();
    start_thread("drivers", move || {
        for socket in listener.incoming().flatten() {
            let (serving, ends) = (serving.clone(), ends.clone());
            if let Err(fault) = start_thread("driver", move || serving.accept(&socket, &ends)) {
                log::warn!("{fault}");
            }
        }
    })
    .map(drop)
}

/// Reads the next command of a driver; `None` at the end of its connection.
fn next_command(input: &mut impl BufRead) -> Result<Option<AgentCommand>> {
    let Some(line) = read_line(input)? else { return Ok(None) };
    let invalid = |error| Fault::new(Errno::EPROTO, format!("invalid command: {error}"));
    serde_json::from_str(&line).map(Some).map_err(invalid)
}

/// Executes commands until `Stop`; `None` if the driver has exited, or has sent something that is no command.
fn execute_commands<A: AgentControl>(
    serving: &Arc<Serving<A>>,
    driver: &Arc<Connection>,
    input: &mut impl BufRead,
) -> ConnectionEnd {
    loop {
        let command = match next_command(input) {
            Ok(command) => command?,
            Err(fault) => {
                log::error!("the connection of a driver ends: {fault}");
                driver.refuse(fault);
                return None;
            }
        };
        let id = command.id;
        let taken = |drivers: &parking_lot::Mutex<Drivers>| {
            drivers.lock().take(driver, &command.request, monotonic())
        };
        if let Some(reply) = serving.drivers.as_ref().and_then(taken) {
            driver.reply(id, reply);
            continue;
        }
        if let AgentRequest::Stop { grace_ms, keep, discard, packer } = command.request {
            return Some(StopOrder { reply_to: Some((driver.clone(), id)), grace_ms, keep, discard, packer });
        }
        if let AgentRequest::Lease(message) = command.request {
            // Here, as leases must not wait for a thread, and keep their order.
            let renewed = serving.agent.renew_lease(message);
            driver.reply(id, renewed.map_or_else(AgentReply::Failed, AgentReply::Leased));
            continue;
        }
        let (at_work, asker) = (serving.clone(), driver.clone());
        let started = start_thread("command", move || {
            let done = at_work.carry_out(&asker, id, command.request);
            asker.reply(id, done.unwrap_or_else(AgentReply::Failed));
        });
        if let Err(fault) = started {
            driver.reply(id, AgentReply::Failed(fault));
        }
    }
}

impl<A: AgentControl> Serving<A> {
    fn ready(&self, is_running: bool) -> AgentReply {
        let running = is_running.then(|| self.secret.clone());
        let keeper = self.drivers.as_ref().and_then(|drivers| drivers.lock().keeper());
        AgentReply::Ready { node: self.record.clone(), address: self.agent.address(), keeper, running }
    }

    /// Takes a connection to the running agent: its first line is that of a start.
    fn accept(self: &Arc<Self>, socket: &UnixStream, ends: &Sender<ConnectionEnd>) {
        let (Some(drivers), Ok(input), Ok(output)) = (&self.drivers, socket.try_clone(), socket.try_clone())
        else {
            return;
        };
        if peer_user(socket).ok() != Some(user()) {
            return;
        }
        let mut input = BufReader::new(input);
        let start = read_line(&mut input).and_then(|line| parse_start(&line.unwrap_or_default()));
        let place = |start: &NodeStart| (start.driver_host.clone(), start.driver_is_here);
        let (host, is_here) = start.as_ref().map_or_else(|_| Default::default(), place);
        let connection = Arc::new(Connection::over(output, host, is_here));
        let connected = start.and_then(|start| drivers.lock().connect(&connection, start.term, monotonic()));
        match connected {
            Ok(()) => {
                connection.reply(0, self.ready(true));
                self.serve_connection(&connection, &mut input, ends);
            }
            Err(fault) => connection.refuse(fault),
        }
    }

    fn serve_connection(
        self: &Arc<Self>,
        connection: &Arc<Connection>,
        input: &mut impl BufRead,
        ends: &Sender<ConnectionEnd>,
    ) {
        let end = execute_commands(self, connection, input);
        if let Some(drivers) = &self.drivers {
            drivers.lock().disconnected(connection, monotonic());
        }
        // The agent may be ending.
        let _ = ends.send(end);
    }

    fn carry_out(&self, driver: &Connection, id: u64, request: AgentRequest) -> Result<AgentReply> {
        Ok(match request {
            AgentRequest::Join { nodes, map } => {
                self.agent.join(nodes, map)?;
                if let Some(drivers) = &self.drivers {
                    drivers.lock().joined();
                }
                AgentReply::Joined { damage: self.agent.damage() }
            }
            AgentRequest::Drain { verify } => {
                let mut progress = |progress| driver.reply(id, AgentReply::Progress(progress));
                AgentReply::Receipt(self.agent.drain(verify, &mut progress))
            }
            AgentRequest::Undrained => AgentReply::Receipt(self.agent.undrained()),
            AgentRequest::SaveRemoved { dir } => AgentReply::Receipt(self.agent.save_removed(&dir)),
            AgentRequest::Status => AgentReply::Status(Box::new(self.agent.status()?)),
            AgentRequest::Warm { paths } => {
                self.cancelled.lock().insert(id, false);
                let mut progress = |so_far| {
                    driver.reply(id, AgentReply::Warming(so_far));
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
            AgentRequest::Promise { .. } | AgentRequest::Keep(_) => {
                return Err(Fault::new(Errno::EINVAL, "this is no agent of a volume"));
            }
            AgentRequest::Lease(_) | AgentRequest::Stop { .. } => AgentReply::Done,
        })
    }
}

/// Stops the agent, cleans up the node, and replies.
fn stop<A: AgentControl>(serving: &Serving<A>, order: &StopOrder) -> u8 {
    serving.agent.end_waits();
    let mut belongings = serving.belongings.lock().take();
    if let Some(belongings) = &mut belongings {
        if let Some((driver, _)) = &order.reply_to {
            belongings.driver_moved(driver.is_here());
        }
        belongings.end_programs();
    }
    let mut stopping = || order.reply(AgentReply::Stopping);
    let grace = Duration::from_millis(order.grace_ms);
    let left = serving.agent.stop(grace, !order.keep, order.packer, &mut stopping);
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
    order.reply(left.clone().map_or_else(AgentReply::Failed, AgentReply::Stopped));
    if left.is_ok() { 0 } else { crate::exit::FAILED }
}

/// Reports the changes of the shared directory that the driver does not know, as those of files that the packer has just promoted.
fn report_last_changes<A: AgentControl>(serving: &Serving<A>, order: &StopOrder) {
    while order.reply_to.is_some() {
        let changes = serving.agent.changes(0);
        if changes.changes.is_empty() {
            return;
        }
        order.reply(AgentReply::Changes(changes));
    }
}
