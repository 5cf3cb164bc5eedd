//! What was measured, in figures.

use serde_json::{Value, json};
use std::fmt::{Display, Formatter};
use tameike_core::{Errno, Fault, Result};

/// What one agent was asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Opens of files at home there: each is one look into the cache table, and no other message is.
    pub opens: u64,
    /// Units that it sent as their home.
    pub as_home: u64,
    /// Units that it sent from memory.
    pub as_holder: u64,
    /// Questions for what it did not have, or while it served others.
    pub in_vain: u64,
    /// Units that it read of the shared file system.
    pub shared: u64,
}

impl Load {
    pub(super) fn since(&self, before: &Self) -> Self {
        Self {
            opens: self.opens - before.opens,
            as_home: self.as_home - before.as_home,
            as_holder: self.as_holder - before.as_holder,
            in_vain: self.in_vain - before.in_vain,
            shared: self.shared - before.shared,
        }
    }

    fn sent(&self) -> u64 {
        self.as_home + self.as_holder
    }
}

/// A measured cluster.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Agents.
    pub agents: u32,
    /// Peers that each may stay connected with.
    pub bound: usize,
    /// For each agent the peers that it is connected with at the end, and the most there were.
    pub links: Vec<(usize, usize)>,
    /// Connections that were opened, by all.
    pub opened: u64,
    /// Memory of all agents but for frames: when they were started, and at the end.
    pub heap_bytes: [u64; 2],
    /// What each was asked while all read one file.
    pub hot: Vec<Load>,
    /// What each was asked while each read some of many files.
    pub many: Vec<Load>,
}

fn sum(loads: &[Load], of: impl Fn(&Load) -> u64) -> u64 {
    loads.iter().map(of).sum()
}

fn most(loads: &[Load], of: impl Fn(&Load) -> u64) -> u64 {
    loads.iter().map(of).max().unwrap_or(0)
}

fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

impl Measured {
    /// The most units that an agent sent, by the mean of all: of the file that all read, and of the many.
    pub fn spread(&self) -> [f64; 2] {
        [&self.hot, &self.many].map(|loads| {
            let mean = ratio(sum(loads, Load::sent), u64::from(self.agents));
            most(loads, Load::sent) as f64 / mean.max(f64::MIN_POSITIVE)
        })
    }

    /// Looks into the cache table for each unit that is read: on all nodes, and on the one that is asked most.
    pub fn table_per_read(&self) -> [[f64; 2]; 2] {
        [&self.hot, &self.many].map(|loads| {
            let reads = sum(loads, Load::sent);
            let opens = |load: &Load| load.opens;
            [ratio(sum(loads, opens), reads), ratio(most(loads, opens), reads)]
        })
    }

    /// Memory of an agent but for frames, when it is started and at the end, in bytes.
    pub fn heap_per_agent(&self) -> [u64; 2] {
        self.heap_bytes.map(|bytes| bytes / u64::from(self.agents.max(1)))
    }

    /// The most peers that an agent was connected with at a time, and at the end.
    pub fn most_peers(&self) -> [usize; 2] {
        let most = |of: fn(&(usize, usize)) -> usize| self.links.iter().map(of).max().unwrap_or(0);
        [most(|(_, most)| *most), most(|(now, _)| *now)]
    }

    fn part(loads: &[Load]) -> Value {
        let sent = sum(loads, Load::sent);
        json!({
            "units_read": sent,
            "of_holders": sum(loads, |load| load.as_holder),
            "asked_in_vain": sum(loads, |load| load.in_vain),
            "read_of_shared": sum(loads, |load| load.shared),
            "opens": sum(loads, |load| load.opens),
            "busiest_opens": most(loads, |load| load.opens),
            "busiest_sent": most(loads, Load::sent),
        })
    }

    /// All figures.
    pub fn to_json(&self) -> Value {
        let ([most, now], [started, ended]) = (self.most_peers(), self.heap_per_agent());
        let ([hot_spread, many_spread], [hot_table, many_table]) = (self.spread(), self.table_per_read());
        json!({
            "agents": self.agents,
            "bound": self.bound,
            "peers_most": most,
            "peers_at_the_end": now,
            "connections_opened_per_agent": self.opened as f64 / f64::from(self.agents.max(1)),
            "heap_bytes_per_agent_started": started,
            "heap_bytes_per_agent": ended,
            "hot": Self::part(&self.hot),
            "hot_busiest_by_mean": hot_spread,
            "hot_table_per_read": hot_table,
            "many": Self::part(&self.many),
            "many_busiest_by_mean": many_spread,
            "many_table_per_read": many_table,
        })
    }
}

impl Display for Measured {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let ([most, now], [started, ended]) = (self.most_peers(), self.heap_per_agent());
        let ([hot, many], [[_, hot_table], [all_table, many_table]]) = (self.spread(), self.table_per_read());
        write!(
            f,
            "{:6} | {most:5} {now:5} {:7.1} | {:7.1} {:7.1} | {hot:7.2} {many:7.2} | {hot_table:9.6} {all_table:7.3} {many_table:9.6}",
            self.agents,
            self.opened as f64 / f64::from(self.agents.max(1)),
            started as f64 / 1024.0,
            ended as f64 / 1024.0,
        )
    }
}

/// Above lines of [`Measured`].
pub const HEADING: &str = "\
       | connected with        | heap, KiB       | busiest/mean    | looks into the cache table per read
agents |  most   end opened/agent | started  end | one file   many | one: busiest  many: all  busiest";

/// Memory of this process that is no frame, in bytes.
pub(super) fn heap_bytes() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")
        .map_err(|error| Fault::from_os("reading /proc/self/status", &error))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().split(' ').next()?.parse::<u64>().ok());
    kib.map(|kib| kib * 1024).ok_or_else(|| Fault::new(Errno::EIO, "/proc/self/status has no RssAnon"))
}
