//! Countdowns: of all calls that the product makes to its disks, to the network and to the shared file system, the
//! n-th fails once, and everything after it works.
//!
//! A first run counts the calls. They are the same in every run up to the one that fails, so the number of a call and the way in
//! which it fails identify a run.

use parking_lot::Mutex;
use std::fmt::{Display, Formatter};
use std::sync::Arc;
use tameike_core::NodeId;

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// `EIO`, without effect.
    Fails,
    /// `EIO`, and the first half took effect.
    Torn,
    /// `EIO`, though it took effect.
    Done,
    /// `EIO` of a sync, and what was not safe is gone.
    Forgotten,
    /// `ENOSPC`; of a write, the first half took effect.
    Full,
    /// A message is lost without a sign.
    Lost,
    /// The connection breaks, and what is on its way is lost with it.
    Broken,
}

impl Way {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Fails, Self::Torn, Self::Done, Self::Forgotten, Self::Full, Self::Lost, Self::Broken];

    /// One word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fails => "fails",
            Self::Torn => "torn",
            Self::Done => "done",
            Self::Forgotten => "forgotten",
            Self::Full => "full",
            Self::Lost => "lost",
            Self::Broken => "broken",
        }
    }
}

/// What is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Medium {
    /// A disk of a node, with log and table.
    Disk(NodeId),
    /// The network: from whom.
    Network(NodeId),
    /// The shared file system.
    SharedFs,
}

/// A call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// What is called.
    pub medium: Medium,
    /// For what.
    pub call: String,
    /// How it can fail.
    pub ways: &'static [Way],
}

impl Display for Site {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self.medium {
            Medium::Disk(node) => write!(f, "{node}: {}", self.call),
            Medium::Network(node) => write!(f, "{node}: {}", self.call),
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
        way: Way,
    },
    Met(Site, Way),
}

#[derive(Debug, Default)]
struct State {
    mode: Mode,
    /// Calls are those of a check, and do not count.
    paused: bool,
    /// Nobody has asked what was met.
    is_news: bool,
}

/// What all calls of a run go by. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Countdown(Arc<Mutex<State>>);

/// Calls do not count until this is dropped.
pub struct Pause(Countdown);

impl Drop for Pause {
    fn drop(&mut self) {
        self.0.0.lock().paused = false;
    }
}

impl Countdown {
    fn new(mode: Mode) -> Self {
        Self(Arc::new(Mutex::new(State { mode, paused: false, is_news: false })))
    }

    /// Counts calls, and lets all of them work.
    pub fn counting() -> Self {
        Self::new(Mode::Counting(Vec::new()))
    }

    /// Has call `number` (the first is 1) fail.
    pub fn armed(number: u64, way: Way) -> Self {
        Self::new(Mode::Armed { left: number, way })
    }

    /// One call: how it is to fail, if it is.
    pub fn meets(&self, medium: Medium, ways: &'static [Way], call: impl FnOnce() -> String) -> Option<Way> {
        let state = &mut *self.0.lock();
        if state.paused {
            return None;
        }
        match &mut state.mode {
            Mode::Off | Mode::Met(..) => None,
            Mode::Counting(sites) => {
                sites.push(Site { medium, call: call(), ways });
                None
            }
            Mode::Armed { left, way } => {
                *left -= 1;
                if *left > 0 {
                    return None;
                }
                let (way, site) = (*way, Site { medium, call: call(), ways });
                log::trace!("{site}: {}", way.as_str());
                (state.mode, state.is_news) = (Mode::Met(site, way), true);
                Some(way)
            }
        }
    }

    /// Lets calls not count for a while.
    #[must_use]
    pub fn pause(&self) -> Pause {
        self.0.lock().paused = true;
        Pause(self.clone())
    }

    /// What has failed, and how, when it has not been asked for before.
    pub fn news(&self) -> Option<(Site, Way)> {
        let state = &mut *self.0.lock();
        match &state.mode {
            Mode::Met(site, way) if std::mem::take(&mut state.is_news) => Some((site.clone(), *way)),
            _ => None,
        }
    }

    /// What has failed.
    pub fn met(&self) -> Option<Site> {
        match &self.0.lock().mode {
            Mode::Met(site, _) => Some(site.clone()),
            _ => None,
        }
    }

    /// The calls that were counted.
    pub fn counted(&self) -> Vec<Site> {
        match &mut self.0.lock().mode {
            Mode::Counting(sites) => std::mem::take(sites),
            _ => Vec::new(),
        }
    }
}
