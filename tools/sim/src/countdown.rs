//! Fault countdowns: the n-th call to a disk, the network or the shared file system fails once; all later calls work.
//!
//! A first run counts the calls. Every run makes the same calls up to the one that fails, so the number of a call and its fault
//! identify a run.

use clap::ValueEnum;
use parking_lot::Mutex;
use std::fmt::{Display, Formatter};
use std::sync::Arc;
use tameike_core::NodeId;

/// A fault that a call can meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum FaultKind {
    /// `EIO`, without effect.
    Fails,
    /// `EIO`, with the first half in effect.
    Torn,
    /// `EIO`, with full effect.
    Done,
    /// `EIO` of a sync, which drops everything that was not durable.
    Forgotten,
    /// `ENOSPC`; of a write, the first half took effect.
    Full,
    /// The network drops a message silently.
    Lost,
    /// The connection breaks and loses the messages in flight.
    Broken,
    /// The agent fails before it sends the message.
    Died,
    /// The agent hangs before it sends the message, until other nodes serve its homes.
    Hung,
}

impl Display for FaultKind {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.to_possible_value().expect("no variant is hidden").get_name())
    }
}

/// The part that a call goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Medium {
    /// A disk of a node, with log and table.
    Disk(NodeId),
    /// The network, with the sending node.
    Network(NodeId),
    /// The shared file system.
    SharedFs,
}

/// A call that can fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// The part that a call goes to.
    pub medium: Medium,
    /// The name of the call.
    pub call: String,
    /// The faults that it can meet.
    pub faults: &'static [FaultKind],
}

impl Display for Site {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self.medium {
            Medium::Disk(node) | Medium::Network(node) => write!(f, "{node}: {}", self.call),
            Medium::SharedFs => write!(f, "shared file system: {}", self.call),
        }
    }
}

#[derive(Debug, Default)]
enum Mode {
    #[default]
    Off,
    Counting(Vec<Site>),
    Armed {
        /// Calls until the one that fails.
        left: u64,
        fault: FaultKind,
    },
    Injected(Site, FaultKind),
}

#[derive(Debug, Default)]
struct State {
    mode: Mode,
    /// Calls of a check do not count.
    paused: bool,
    /// No caller has taken the fault yet.
    is_new: bool,
}

/// The countdown of a run. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct Countdown(Arc<Mutex<State>>);

/// Excludes calls from the count until it is dropped.
pub struct Pause(Countdown);

impl Drop for Pause {
    fn drop(&mut self) {
        self.0.0.lock().paused = false;
    }
}

impl Countdown {
    fn new(mode: Mode) -> Self {
        Self(Arc::new(Mutex::new(State { mode, paused: false, is_new: false })))
    }

    /// Counts calls and fails none.
    pub fn counting() -> Self {
        Self::new(Mode::Counting(Vec::new()))
    }

    /// Fails call `number`; the first call is 1.
    pub fn armed(number: u64, fault: FaultKind) -> Self {
        Self::new(Mode::Armed { left: number, fault })
    }

    /// Registers a call, and returns the fault to inject.
    pub fn register(
        &self,
        medium: Medium,
        faults: &'static [FaultKind],
        call: impl FnOnce() -> String,
    ) -> Option<FaultKind> {
        let state = &mut *self.0.lock();
        if state.paused {
            return None;
        }
        match &mut state.mode {
            Mode::Off | Mode::Injected(..) => None,
            Mode::Counting(sites) => {
                sites.push(Site { medium, call: call(), faults });
                None
            }
            Mode::Armed { left, fault } => {
                *left -= 1;
                if *left > 0 {
                    return None;
                }
                let (fault, site) = (*fault, Site { medium, call: call(), faults });
                log::trace!("{site}: {fault}");
                (state.mode, state.is_new) = (Mode::Injected(site, fault), true);
                Some(fault)
            }
        }
    }

    /// Excludes calls from the count until the guard is dropped.
    #[must_use]
    pub fn pause(&self) -> Pause {
        self.0.lock().paused = true;
        Pause(self.clone())
    }

    /// Returns the injected fault with its site; once.
    pub fn take_injected(&self) -> Option<(Site, FaultKind)> {
        let state = &mut *self.0.lock();
        match &state.mode {
            Mode::Injected(site, fault) if std::mem::take(&mut state.is_new) => Some((site.clone(), *fault)),
            _ => None,
        }
    }

    /// Returns the site of the injected fault.
    pub fn injected(&self) -> Option<Site> {
        match &self.0.lock().mode {
            Mode::Injected(site, _) => Some(site.clone()),
            _ => None,
        }
    }

    /// Takes the counted calls.
    pub fn counted(&self) -> Vec<Site> {
        match &mut self.0.lock().mode {
            Mode::Counting(sites) => std::mem::take(sites),
            _ => Vec::new(),
        }
    }
}
