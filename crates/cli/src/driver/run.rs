//! `tameike run`: a job with one command, from start to receipt.

use super::Driver;
use super::drain::Drained;
use super::event::{Event, Notice};
use super::launch::{self, Prepared};
use super::protocol::{DriverReply, Launch, Mirrored};
use super::start::Starting;
use crate::arguments::RunArguments;
use crate::exit;
use crate::mirror::{self, MirrorEnd};
use crate::place::base::{Base, JobDir, JobDirUse};
use crate::place::record::JobRecord;
use crate::place::{janitor, orphans, stores};
use crate::report;
use crate::settings::JobPlan;
use libc::{SIGINT, SIGKILL, SIGTERM};
use std::ffi::OsStr;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::Duration;
use tameike_agent::control::{AgentControl, AgentMode, AgentRequest, AggregateChoice, Undrained};
use tameike_core::receipt::FileReceipt;
use tameike_core::{Errno, Fault, Result};
use tameike_io::os::process::{ProcessId, ask_until, monotonic, start_thread};
use tameike_packer::CONTAINER;

/// A second Ctrl-C within this time ends the job at once.
const REPEAT: Duration = Duration::from_secs(2);

/// Time for clients to get the outcome of the mirror, and the interval of checks.
const REPLY_LIMIT: Duration = Duration::from_secs(1);
const REPLY_STEP: Duration = Duration::from_millis(2);

/// Runs the command as a job. Returns the exit code.
pub fn run<A: AgentControl>(arguments: &RunArguments) -> u8 {
    let with_command = |(driver, launch)| with_command::<A>(driver, &launch, arguments.receipt.as_deref());
    report::exit_code(start::<A>(arguments).map(with_command))
}

fn start<A: AgentControl>(arguments: &RunArguments) -> Result<(Driver, Launch)> {
    report::receipt::check_place(arguments.receipt.as_deref())?;
    let plan = JobPlan::new(&arguments.job, arguments.keep_going)?;
    if arguments.preload && plan.no_ring {
        let message = "--preload needs the ring of the agents, which --no-ring (or no-ring = true in the \
                       configuration) turns off: drop one of them";
        return Err(Fault::new(Errno::EINVAL, message));
    }
    let cwd =
        std::env::current_dir().map_err(|error| Fault::from_os("finding the current directory", &error))?;
    let launch = Launch::here(0, cwd, arguments.command.clone(), Vec::new());
    let launch = Launch { preload: arguments.preload, ..launch };
    Ok((start_job::<A>(plan)?, launch))
}

/// Removes leftovers of crashed jobs, and starts a new job.
pub(super) fn start_job<A: AgentControl>(plan: JobPlan) -> Result<Driver> {
    let base = Base::open(&plan.base_dir)?;
    let roots = stores::roots(&base, std::slice::from_ref(&plan.device_root))?;
    for kept in janitor::sweep::<A>(&base, None)? {
        report::say(format_args!("{}", kept.describe()));
    }
    for message in orphans::sweep::<A>(&roots) {
        report::say(format_args!("{message}"));
    }
    if let (Some(dir), AggregateChoice::Off) = (&plan.shared_dir, plan.aggregate.choice)
        && let Some(why) = plan.aggregate.why_ignored(&dir.join(OsStr::from_bytes(CONTAINER)))
    {
        report::say(format_args!("{why}"));
    }
    let begin = monotonic();
    let job_dir = JobDir::open(&base, &plan.job, JobDirUse::New)?;
    let record = JobRecord::new(plan)?;
    let driver = Driver::start(Starting { base, job_dir, record, mode: AgentMode::Serve, volume: None })?;
    driver.open_socket()?;
    let seconds = (monotonic() - begin).as_secs_f32();
    let (job, nodes) = (&driver.record.plan.job, driver.links.len());
    report::say(format_args!("job {job}: {nodes} {} ready in {seconds:.2} s", report::plural(nodes, "node")));
    Ok(driver)
}

pub(super) struct Ended {
    /// Everything is on the shared file system, and the receipt reports no fault.
    pub(super) is_complete: bool,
    /// The receipt was written to its file.
    pub(super) is_kept: bool,
    /// An agent had failed when the drain ended.
    agent_lost: bool,
    /// The outcome of the mirror, if the job has one.
    mirror: Option<Mirrored>,
}

/// Says how the mirror of a job has ended, and writes its receipt. Also returns whether that was written, if it is wanted.
fn report_mirror(plan: &JobPlan, end: Option<&MirrorEnd>) -> (Option<Mirrored>, bool) {
    let (Some(target), Some(dir), Some(end)) = (&plan.mirror, &plan.shared_dir, end) else {
        return (None, true);
    };
    let messages = mirror::messages(target, dir, end);
    messages.iter().for_each(|message| report::say(format_args!("{message}")));
    let is_kept = report::receipt::keep(&end.receipt, plan.mirror_receipt.as_deref());
    (Some(Mirrored { is_complete: end.receipt.is_complete(), messages }), is_kept)
}

struct Command {
    process: Option<ProcessId>,
    name: String,
    is_remote: bool,
    /// Time of the first signal of the user or the batch system.
    signalled: Option<Duration>,
    /// Time at which the driver kills the command.
    kill_at: Option<Duration>,
    drain_until: Option<Duration>,
    /// An agent has failed.
    agent_lost: bool,
    /// Clients that wait for the receipt, with their `verify`.
    down: Vec<(bool, Sender<DriverReply>)>,
}

fn with_command<A: AgentControl>(mut driver: Driver, launch: &Launch, receipt: Option<&Path>) -> u8 {
    let (code, command) = match driver.start_command(launch) {
        Ok(mut command) => match driver.await_command(&mut command) {
            Some(code) => (code, command),
            None => return driver.abandon(),
        },
        Err(fault) => {
            report::say(format_args!("{fault}"));
            driver.take_down::<A>(Duration::ZERO, false);
            return exit::FAILED;
        }
    };
    driver.end_commands();
    let verify = driver.record.plan.verify || command.down.iter().any(|(verify, _)| *verify);
    let clients: Vec<_> = command.down.into_iter().map(|(_, client)| client).collect();
    match driver.drain_and_end::<A>(verify, command.drain_until, clients, receipt) {
        Ended { is_complete: false, .. } => exit::DRAIN_INCOMPLETE,
        Ended { agent_lost, .. } if agent_lost || command.agent_lost => exit::AGENT_LOST,
        Ended { is_kept: false, .. } if code == 0 => exit::FAILED,
        _ => code,
    }
}

impl Driver {
    /// Opens the job's socket for other commands.
    pub(super) fn open_socket(&self) -> Result<()> {
        let sender = self.sender.clone();
        super::clients::listen(super::clients::ClientContext {
            job_dir: self.job_dir.path().to_owned(),
            events: self.sender.clone(),
            mirrored: self.mirrored.clone(),
            // The receiver lives until the process exits.
            remote_signal: Box::new(move |node, command, signal| {
                drop(sender.send(Event::SignalCommand { node: node.0, command, signal }));
            }),
        })
    }

    fn start_command(&mut self, launch: &Launch) -> Result<Command> {
        let terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        let Prepared { mut command, name, is_remote } =
            launch::prepare(&self.record, self.job_dir.path(), launch, terminal)?;
        let mut child =
            command.spawn().map_err(|error| Fault::from_os("starting the command on node 0", &error))?;
        let process = ProcessId::now(child.id());
        let sender = self.sender.clone();
        start_thread("command", move || {
            let code = child.wait().map_or(exit::FAILED, exit::of_status);
            // The driver may have exited.
            let _ = sender.send(Event::CommandEnded(code));
        })?;
        Ok(Command {
            process,
            name,
            is_remote,
            signalled: None,
            kill_at: None,
            drain_until: None,
            agent_lost: false,
            down: Vec::new(),
        })
    }

    /// Waits for the command to exit; `None` if the user ends the job at once.
    fn await_command(&mut self, command: &mut Command) -> Option<u8> {
        loop {
            match self.next(command.kill_at) {
                Notice::CommandEnded(code) => {
                    self.limit_drain(command);
                    return Some(code);
                }
                Notice::Signal(arrived) => {
                    let now = monotonic();
                    if command
                        .signalled
                        .is_some_and(|earlier| arrived.signal != SIGINT || now - earlier < REPEAT)
                    {
                        return None;
                    }
                    command.signalled = Some(now);
                    if arrived.from_process || command.is_remote {
                        self.signal_command(command, arrived.signal);
                    }
                    if arrived.signal != SIGINT {
                        self.end_command(command, None);
                    }
                }
                Notice::AgentLost(node) => {
                    self.report_lost_agent(node);
                    // Node 0 runs the command.
                    if self.survives_losses() && node != 0 {
                        continue;
                    }
                    command.agent_lost = true;
                    if !self.record.plan.keep_going && command.kill_at.is_none() {
                        report::say(format_args!("terminating the command (--keep-going lets it continue)"));
                        self.end_command(command, Some(SIGTERM));
                    }
                }
                Notice::Down { verify, reply } => {
                    command.down.push((verify, reply));
                    self.end_command(command, Some(SIGTERM));
                }
                Notice::TimedOut => {
                    report::say(format_args!("the command did not exit in time; killing it"));
                    command.kill_at = None;
                    self.signal_command(command, SIGKILL);
                }
                Notice::Message(text) => report::say(format_args!("{text}")),
                Notice::Gathered
                | Notice::AgentEnded
                | Notice::Progress(_)
                | Notice::Mirrored
                | Notice::Superseded(_) => {}
            }
        }
    }

    /// Gives the command half of the grace time, and leaves the rest to the drain.
    fn end_command(&mut self, command: &mut Command, signal: Option<i32>) {
        let grace = Duration::from_secs(self.record.plan.grace_s);
        command.kill_at.get_or_insert(monotonic() + grace / 2);
        if command.signalled.is_some() {
            command.drain_until.get_or_insert(monotonic() + grace);
        }
        if let Some(signal) = signal {
            self.signal_command(command, signal);
        }
    }

    /// If the command exited soon after a Ctrl-C, the signal ended it: the drain has the rest of the grace time. An earlier
    /// Ctrl-C does not limit the drain.
    fn limit_drain(&self, command: &mut Command) {
        let grace = Duration::from_secs(self.record.plan.grace_s);
        if let Some(signalled) = command.signalled.filter(|signalled| monotonic() - *signalled < grace) {
            command.drain_until.get_or_insert(signalled + grace);
        }
    }

    fn signal_command(&mut self, command: &Command, signal: i32) {
        if command.is_remote {
            self.signal_remote(0, command.name.clone(), signal);
        } else if let Some(process) = command.process {
            // It may have exited.
            let _ = process.signal(signal);
        }
    }

    pub(super) fn signal_remote(&mut self, node: u32, command: String, signal: i32) {
        let id = self.next_id;
        self.next_id += 1;
        if let Some(link) = self.links.get_mut(node as usize) {
            link.send(id, &AgentRequest::Signal { command, signal });
        }
    }

    /// Ends at once: agents see the pipes close, keep dirty data in their journals, and exit.
    fn abandon(mut self) -> u8 {
        report::say(format_args!(
            "ended at once; data that is not on the shared file system is in journals; run: \
             tameike recover --job {}",
            self.record.plan.job
        ));
        if let Some(advice) = self.mirror_advice() {
            report::say(format_args!("the mirror may lack changes; after that, run: {advice}"));
        }
        self.links.iter_mut().for_each(super::link::AgentLink::hang_up);
        exit::SIGNAL_BASE + SIGINT as u8
    }

    /// Drains, sends the receipt to clients, and ends the job.
    pub(super) fn drain_and_end<A: AgentControl>(
        mut self,
        verify: bool,
        deadline: Option<Duration>,
        clients: Vec<Sender<DriverReply>>,
        receipt: Option<&Path>,
    ) -> Ended {
        let mirrored = self.mirrored.clone();
        let drained = self.drain(verify, deadline, &clients);
        for client in &clients {
            // A client may have disconnected. Others see the connection end when the job has ended.
            let _ = client.send(DriverReply::Receipt(drained.receipt.clone()));
        }
        let ended = self.end_after_drain::<A>(&drained, deadline, receipt);
        if let Some(outcome) = &ended.mirror {
            let sent =
                clients.iter().filter(|client| client.send(DriverReply::Mirrored(outcome.clone())).is_ok());
            let count = sent.count();
            // The process ends next.
            ask_until(REPLY_LIMIT, REPLY_STEP, || (mirrored.load(Ordering::SeqCst) >= count).then_some(()));
        }
        // The connections end with the process: when a client sees that, nothing of the job is left.
        std::mem::forget(clients);
        ended
    }

    /// Prints and writes the receipt, and ends the job.
    pub(super) fn end_after_drain<A: AgentControl>(
        mut self,
        drained: &Drained,
        deadline: Option<Duration>,
        receipt: Option<&Path>,
    ) -> Ended {
        self.limit_mirror(&drained.receipt, deadline, drained.cancelled);
        let plan = self.record.plan.clone();
        let agent_lost = !self.survives_losses() || self.lost.contains_key(&0);
        let (job, has_cache) = (plan.job.clone(), plan.shared_dir.is_some());
        let mut complete = drained.is_complete;
        if has_cache || !drained.receipt.is_complete() {
            report::receipt::show(&drained.receipt, &mut std::io::stderr().lock());
        }
        let is_kept = report::receipt::keep(&drained.receipt, receipt);
        let grace = if drained.cancelled { Duration::ZERO } else { super::drain::CLOSE_GRACE };
        let strays = !self.strays.is_empty();
        let remains = self.take_down::<A>(grace, !complete);
        if !remains.is_nothing() {
            complete = false;
            remains.faults.iter().for_each(|fault| report::say(format_args!("{fault}")));
        }
        if !complete {
            let left = match remains.left {
                Undrained { bytes: 0, names: 0, .. } => String::new(),
                Undrained { bytes: 0, .. } => " (names of packed files left in a journal)".to_owned(),
                Undrained { bytes, .. } => {
                    format!(" ({} left in journals)", crate::settings::size::show(bytes))
                }
            };
            report::say(format_args!(
                "the drain is incomplete{left}; when the cause is fixed, run: tameike recover --job {job}"
            ));
            if drained.receipt.files.iter().any(FileReceipt::is_gone) {
                report::say(format_args!(
                    "to write journaled data of files that are missing in the shared directory below another directory DIR, run: \
                     tameike recover --job {job} --to DIR"
                ));
            }
        } else if strays {
            report::say(format_args!(
                "the directory of job {job} is kept; after the files named above have been moved, `tameike recover --job \
                 {job}` removes it"
            ));
        }
        let (mirror, is_mirror_kept) = report_mirror(&plan, remains.mirror.as_ref());
        let is_mirrored = mirror.as_ref().is_none_or(|mirrored| mirrored.is_complete);
        Ended {
            is_complete: complete && drained.receipt.is_complete() && is_mirrored,
            is_kept: is_kept && is_mirror_kept,
            agent_lost,
            mirror,
        }
    }
}
