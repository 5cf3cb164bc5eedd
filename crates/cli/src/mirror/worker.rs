//! The thread that keeps a mirror, and its handle.
//!
//! The thread connects again whenever the connection ends, and repeats what was not committed. At the end it waits until nothing is pending,
//! compares the changed files by checksum, and sends those again that differ.

use super::compare::Compared;
use super::connection::Connection;
use super::known::Known;
use super::pending::Pending;
use super::session::{COMMITS_MAX, Session};
use super::target::MirrorTarget;
use libc::SIGKILL;
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tameike_core::changes::{Change, Changes};
use tameike_core::receipt::{FileOutcome, FileReceipt, Receipt};
use tameike_core::{Errno, Fault, Result};
use tameike_io::os::process::{ProcessId, monotonic, start_thread};
use tameike_io::shared::SharedFs;

/// First and longest time between attempts to connect.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Time for which an idle thread waits, for signs of life and for paths to try again.
const IDLE_STEP: Duration = Duration::from_millis(250);
/// Time for which the replies to commits are waited for before new changes are looked for.
const COMMIT_STEP: Duration = Duration::from_millis(20);
/// Differing paths that may wait while directories are compared.
const WAITING_MAX: usize = 4096;
/// Changed paths that are remembered for the comparison at the end. Beyond that, all files are compared.
const CHANGED_MAX: usize = 1 << 20;
/// Attempts to send a path at the end.
const ATTEMPTS_MAX: u32 = 3;
/// Comparisons at the end, each after the files that differed were sent again.
const VERIFICATIONS_MAX: u32 = 3;
/// Paths in a receipt that lacks files.
const LACKING_MAX: usize = 1000;

/// How to keep a mirror.
pub struct MirrorPlan {
    /// Where it is.
    pub target: MirrorTarget,
    /// Makes the command that starts a receiver.
    pub command: Box<dyn Fn() -> Command + Send + Sync>,
    /// The directory becomes a mirror, whatever is in it, and must be reachable at once.
    pub is_explicit: bool,
    /// Compare files that look equal by checksum.
    pub checks_content: bool,
    /// Time for which an unreachable mirror is waited for at the end.
    pub outage_limit: Duration,
}

/// An event of a mirror.
pub enum MirrorEvent {
    /// A message for the user.
    Message(String),
    /// The mirror is complete, or given up.
    Ended(MirrorEnd),
}

/// The outcome of a mirror.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MirrorEnd {
    /// The files that were compared, and what is missing.
    pub receipt: Receipt,
    /// What comparisons of directories have found.
    pub compared: Compared,
}

/// The state of a mirror, for `status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MirrorStatus {
    /// Where it is.
    pub target: MirrorTarget,
    /// Whether it is connected.
    pub is_connected: bool,
    /// Age of the oldest change that it lacks, in milliseconds; 0 if it lacks none.
    pub lag_ms: u64,
    /// Number of changed paths that it lacks.
    pub paths: u64,
    /// Whether directories are being compared, so that more paths may follow.
    pub is_comparing: bool,
    /// Why it is not connected, or why it lacks a path.
    pub fault: Option<String>,
}

/// The handle of the thread.
#[derive(Clone)]
pub struct Mirror {
    shared: Arc<Shared>,
}

struct Shared {
    plan: MirrorPlan,
    pending: Mutex<Pending>,
    state: Mutex<State>,
    changed: Condvar,
    notify: Box<dyn Fn(MirrorEvent) + Send + Sync>,
}

#[derive(Default)]
struct State {
    /// The changed paths; `None` if there were too many.
    changed_paths: Option<BTreeSet<Vec<u8>>>,
    is_finishing: bool,
    is_aborted: bool,
    has_news: bool,
    is_connected: bool,
    process: Option<ProcessId>,
    /// The begin of the current outage, and its cause.
    outage: Option<(Duration, Fault)>,
}

impl Mirror {
    /// Starts the thread, which first compares the trees.
    pub fn start(
        plan: MirrorPlan,
        source: Arc<dyn SharedFs>,
        notify: impl Fn(MirrorEvent) + Send + Sync + 'static,
    ) -> Result<Self> {
        let state = State { changed_paths: Some(BTreeSet::new()), ..State::default() };
        let shared = Arc::new(Shared {
            plan,
            pending: Mutex::default(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            notify: Box::new(notify),
        });
        shared.pending.lock().add_everything(monotonic());
        let at_work = shared.clone();
        start_thread("mirror", move || {
            let (known, compared) = (Known::default(), Compared::default());
            let worker = Worker { shared: &at_work, known, compared, verified: 0, has_progressed: false };
            let end = worker.run(&*source);
            (at_work.notify)(MirrorEvent::Ended(end));
        })?;
        Ok(Self { shared })
    }

    /// Takes changes of an agent.
    pub fn deliver(&self, node: u32, changes: Changes) {
        if changes.changes.is_empty() {
            return;
        }
        let mut state = self.shared.state.lock();
        for numbered in &changes.changes {
            let path = match &numbered.change {
                Change::Everything => continue,
                Change::Path { path, .. } | Change::Renamed { to: path, .. } => path,
            };
            if let Some(paths) = &mut state.changed_paths {
                paths.insert(path.clone());
            }
        }
        if state.changed_paths.as_ref().is_some_and(|paths| paths.len() > CHANGED_MAX) {
            state.changed_paths = None;
        }
        self.shared.pending.lock().deliver(node, changes, monotonic());
        state.has_news = true;
        drop(state);
        self.shared.changed.notify_all();
    }

    /// An agent has failed, whose last changes are unknown: compares the trees.
    pub fn lose_agent(&self, node: u32) {
        let mut pending = self.shared.pending.lock();
        pending.forget_node(node);
        pending.add_everything(monotonic());
    }

    /// An agent has ended that has reported all its changes.
    pub fn forget_agent(&self, node: u32) {
        self.shared.pending.lock().forget_node(node);
    }

    /// The number up to which the mirror has all changes of an agent.
    pub fn acknowledged(&self, node: u32) -> u64 {
        self.shared.pending.lock().acknowledged(node)
    }

    /// No changes follow: waits for all, compares these files and all that have changed, and ends.
    pub fn finish(&self, paths: impl Iterator<Item = Vec<u8>>) {
        let mut state = self.shared.state.lock();
        if let Some(changed) = &mut state.changed_paths {
            changed.extend(paths);
        }
        state.is_finishing = true;
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Ends at once, with what the mirror has.
    pub fn abort(&self) {
        let mut state = self.shared.state.lock();
        state.is_aborted = true;
        // It may have ended.
        let _ = state.process.map(|process| process.signal(SIGKILL));
        drop(state);
        self.shared.changed.notify_all();
    }

    /// The state of the mirror.
    pub fn status(&self) -> MirrorStatus {
        let state = self.shared.state.lock();
        let pending = self.shared.pending.lock();
        let outage = state.outage.as_ref().map(|(_, fault)| fault.to_string());
        let failed = pending.failed().next().map(|(path, _, fault)| describe(path, fault));
        MirrorStatus {
            target: self.shared.plan.target.clone(),
            is_connected: state.is_connected,
            lag_ms: pending.oldest().map_or(0, |since| {
                monotonic().saturating_sub(since).as_millis().try_into().unwrap_or(u64::MAX)
            }),
            paths: pending.count_paths() as u64,
            is_comparing: pending.is_comparing(),
            fault: outage.or(failed),
        }
    }
}

fn describe(path: &[u8], fault: &Fault) -> String {
    format!("{}: {fault}", String::from_utf8_lossy(path).escape_debug())
}

/// The state of the thread beyond a connection.
struct Worker<'a> {
    shared: &'a Shared,
    known: Known,
    compared: Compared,
    verified: u32,
    /// The last connection has made changes durable.
    has_progressed: bool,
}

impl Worker<'_> {
    /// Keeps the mirror until the end.
    fn run(mut self, source: &dyn SharedFs) -> MirrorEnd {
        let mut pause = PAUSE_MIN;
        loop {
            let begin = monotonic();
            let ended = match self.connect() {
                Ok(connected) => self.serve(source, connected, begin),
                Err(fault) => Err(fault),
            };
            let fault = match ended {
                Ok(files) => return self.end(files),
                Err(fault) => fault,
            };
            self.shared.pending.lock().restore();
            if std::mem::take(&mut self.has_progressed) {
                pause = PAUSE_MIN;
            }
            if self.is_given_up(&fault) || !self.pause(pause) {
                return self.end(Vec::new());
            }
            pause = (2 * pause).min(PAUSE_MAX);
        }
    }

    fn connect(&self) -> Result<(Connection, super::connection::Greeting)> {
        let shared = self.shared;
        let connected = Connection::open((shared.plan.command)(), shared.plan.is_explicit, |process| {
            shared.state.lock().process = process;
        });
        if let Err(fault) = &connected {
            self.note_outage(fault);
        }
        connected
    }

    /// Notes the end of a connection, or that there was none. Only the first one is reported.
    fn note_outage(&self, fault: &Fault) {
        let mut state = self.shared.state.lock();
        (state.is_connected, state.process) = (false, None);
        let is_first = state.outage.is_none();
        let begin = state.outage.as_ref().map_or_else(monotonic, |(begin, _)| *begin);
        state.outage = Some((begin, fault.clone()));
        let is_explicit = self.shared.plan.is_explicit;
        let is_silent = state.is_aborted || is_explicit && self.was_never_reached();
        drop(state);
        if is_first && is_explicit && !is_silent {
            self.say(format!("not reachable ({fault}); trying again"));
        } else if is_first && !is_silent {
            self.say(format!(
                "not reachable ({fault}); the job goes on, and the mirror gets its changes later"
            ));
        }
    }

    fn say(&self, what: String) {
        (self.shared.notify)(MirrorEvent::Message(format!("mirror {}: {what}", self.shared.plan.target)));
    }

    fn was_never_reached(&self) -> bool {
        self.compared == Compared::default()
    }

    /// Whether to end without a connection.
    fn is_given_up(&self, fault: &Fault) -> bool {
        let state = self.shared.state.lock();
        let lasts = state.outage.as_ref().map_or(Duration::ZERO, |(begin, _)| monotonic() - *begin);
        let was_never_reached = self.shared.plan.is_explicit && self.was_never_reached();
        let is_too_long = state.is_finishing && lasts > self.shared.plan.outage_limit;
        let is_source_gone =
            matches!(fault.errno, Errno::EACCES | Errno::EPERM) && self.shared.plan.is_explicit;
        state.is_aborted || was_never_reached || is_too_long || is_source_gone
    }

    /// Waits before the next attempt. False if there is none.
    fn pause(&self, pause: Duration) -> bool {
        let mut state = self.shared.state.lock();
        let end = monotonic() + pause;
        while !state.is_aborted && monotonic() < end {
            self.shared.changed.wait_for(&mut state, end.saturating_sub(monotonic()));
        }
        !state.is_aborted
    }

    /// Serves a connection until the end of the mirror.
    fn serve(
        &mut self,
        source: &dyn SharedFs,
        connected: (Connection, super::connection::Greeting),
        begin: Duration,
    ) -> Result<Vec<FileReceipt>> {
        let outage = {
            let mut state = self.shared.state.lock();
            state.is_connected = true;
            state.outage.take()
        };
        if let Some((since, _)) = outage {
            self.say(format!("reached again after {:.1} s", (begin - since).as_secs_f32()));
        }
        let (shared, mut known, mut compared) = (self.shared, std::mem::take(&mut self.known), self.compared);
        let mut session = Session::new(source, &shared.pending, &mut known, connected);
        let served = self.serve_session(&mut session, &mut compared);
        self.has_progressed = session.has_committed;
        drop(session);
        (self.known, self.compared) = (known, compared);
        served.inspect_err(|fault| self.note_outage(fault))
    }

    fn serve_session(
        &mut self,
        session: &mut Session<'_>,
        compared: &mut Compared,
    ) -> Result<Vec<FileReceipt>> {
        loop {
            let is_finishing = {
                let state = self.shared.state.lock();
                if state.is_aborted {
                    return Err(aborted());
                }
                state.is_finishing
            };
            session.take_commits(Duration::ZERO)?;
            let (has_paths, waiting, is_comparing, is_done) = {
                let pending = self.shared.pending.lock();
                let is_done = pending.is_empty() || is_finishing && is_stuck(&pending);
                (pending.has_paths(monotonic()), pending.count_waiting(), pending.is_comparing(), is_done)
            };
            let mut is_idle = true;
            if has_paths && session.commits() < COMMITS_MAX {
                session.send_batch()?;
                is_idle = false;
            }
            if is_comparing && waiting < WAITING_MAX {
                session.compare_next(compared, self.shared.plan.checks_content)?;
                is_idle = false;
            }
            if is_idle && session.commits() > 0 {
                session.take_commits(COMMIT_STEP)?;
            } else if is_idle && is_finishing && is_done {
                if let Some(files) = self.verify(session)? {
                    session.end()?;
                    return Ok(files);
                }
            } else if is_idle {
                self.await_news();
            }
            session.connection.keep_alive()?;
        }
    }

    fn await_news(&self) {
        let mut state = self.shared.state.lock();
        if !state.has_news && !state.is_aborted && !state.is_finishing {
            self.shared.changed.wait_for(&mut state, IDLE_STEP);
        } else if !state.has_news && !state.is_aborted {
            self.shared.changed.wait_for(&mut state, COMMIT_STEP);
        }
        state.has_news = false;
    }

    /// Compares the changed files by checksum. `None` if some are sent again first.
    fn verify(&mut self, session: &mut Session<'_>) -> Result<Option<Vec<FileReceipt>>> {
        session.await_commits()?;
        if session.known.take_unknown_names() {
            // Other names of changed files may have been missed.
            self.shared.pending.lock().add_everything(monotonic());
            return Ok(None);
        }
        let changed = self.shared.state.lock().changed_paths.clone();
        let is_file = |path: &Vec<u8>| {
            let stat = session.source.stat(path);
            stat.is_ok_and(|stat| stat.kind == tameike_core::FileKind::File)
                && !super::protocol::is_excluded_path(path)
        };
        let paths: Vec<_> = match changed {
            Some(changed) => changed.into_iter().filter(is_file).collect(),
            None => all_files(session.source)?,
        };
        let shared = self.shared;
        let mut step = || if shared.state.lock().is_aborted { Err(aborted()) } else { Ok(()) };
        let files = session.verify(&paths, &mut step)?;
        self.verified += 1;
        let mut pending = shared.pending.lock();
        if self.verified < VERIFICATIONS_MAX {
            let now = monotonic();
            for (path, file) in paths.iter().zip(&files).filter(|(_, file)| !file.is_complete()) {
                log::warn!("the mirror's {} is sent again: {:?}", file.path, file.outcome);
                pending.send_again(path.clone(), now);
            }
        }
        Ok((!pending.has_paths(monotonic())).then_some(files))
    }

    /// The outcome: what was compared, and what the mirror lacks.
    fn end(self, mut files: Vec<FileReceipt>) -> MirrorEnd {
        let state = self.shared.state.lock();
        let pending = self.shared.pending.lock();
        let mut faults = Vec::new();
        if let Some((_, fault)) = &state.outage {
            faults.push(format!("not reachable: {fault}"));
        }
        faults.extend(
            pending.is_comparing().then(|| "the comparison of the directories did not end".to_owned()),
        );
        let failed: std::collections::BTreeMap<_, _> =
            pending.failed().map(|(path, _, fault)| (path, fault.to_string())).collect();
        let lacking = pending.lacking();
        if lacking.len() > LACKING_MAX {
            faults.push(format!("{} more paths are missing", lacking.len() - LACKING_MAX));
        }
        for path in lacking.into_iter().take(LACKING_MAX) {
            let why = failed.get(path).cloned().unwrap_or_else(|| "not sent in time".to_owned());
            let path = String::from_utf8_lossy(path).into_owned();
            files.retain(|file| file.path != path);
            files.push(FileReceipt {
                path,
                size: 0,
                written: 0,
                checksum: String::new(),
                note: String::new(),
                outcome: FileOutcome::Missing(why),
            });
        }
        if state.is_aborted && faults.is_empty() {
            faults.push("ended before all files were compared".to_owned());
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        MirrorEnd { receipt: Receipt { files, faults, storms: Vec::new() }, compared: self.compared }
    }
}

fn aborted() -> Fault {
    Fault::new(Errno::EINTR, "the job has ended")
}

/// Whether only paths are left that the mirror has refused several times.
fn is_stuck(pending: &Pending) -> bool {
    let mut failed = pending.failed().peekable();
    !pending.is_comparing()
        && pending.failed().count() == pending.count_paths()
        && failed.peek().is_some()
        && failed.all(|(_, attempts, _)| attempts >= ATTEMPTS_MAX)
}

/// All regular files of a tree.
fn all_files(source: &dyn SharedFs) -> Result<Vec<Vec<u8>>> {
    let (mut files, mut dirs) = (Vec::new(), vec![Vec::new()]);
    while let Some(dir) = dirs.pop() {
        for (item, stat) in super::source::list(source, &dir)? {
            let path = tameike_io::shared::join(&dir, &item.name);
            match stat.kind {
                tameike_core::FileKind::Directory => dirs.push(path),
                tameike_core::FileKind::File => files.push(path),
                _ => {}
            }
        }
    }
    Ok(files)
}
