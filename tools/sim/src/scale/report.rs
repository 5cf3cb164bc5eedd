//! Results of a scale run.

use serde_json::{Value, json};
use std::fmt::{Display, Formatter};
use tameike_core::{Errno, Fault, Result};

/// The load of one agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Opens of files whose home it is. Each is one lookup in the cache table; no other message needs one.
    pub opens: u64,
    /// Units that it sent as their home.
    pub as_home: u64,
    /// Units that it sent as a cache holder.
    pub as_holder: u64,
    /// Peer reads that it refused, since it did not hold the unit or was busy.
    pub refused: u64,
    /// Units that it read from the shared file system.
    pub shared: u64,
}

impl Load {
    pub(super) fn since(&self, before: &Self) -> Self {
        Self {
            opens: self.opens - before.opens,
            as_home: self.as_home - before.as_home,
            as_holder: self.as_holder - before.as_holder,
            refused: self.refused - before.refused,
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
    /// Number of agents.
    pub agents: u32,
    /// Maximum number of connected peers of an agent.
    pub bound: usize,
    /// For each agent, its final and its maximum number of connections.
    pub links: Vec<(usize, usize)>,
    /// Connections opened by all agents.
    pub opened: u64,
    /// Memory of all agents without frames in bytes: after the start, and at the end.
    pub heap_bytes: [u64; 2],
    /// Load of each agent while all read one file.
    pub hot: Vec<Load>,
    /// Load of each agent while each reads several of many files.
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
    /// Returns the maximum number of units that an agent sent, divided by the mean: for the one file, and for the many.
    pub fn spread(&self) -> [f64; 2] {
        [&self.hot, &self.many].map(|loads| {
            let mean = ratio(sum(loads, Load::sent), u64::from(self.agents));
            most(loads, Load::sent) as f64 / mean.max(f64::MIN_POSITIVE)
        })
    }

    /// Returns cache table lookups per unit read, for the one file and for the many: of all nodes, and of the busiest node.
    pub fn table_per_read(&self) -> [[f64; 2]; 2] {
        [&self.hot, &self.many].map(|loads| {
            let reads = sum(loads, Load::sent);
            let opens = |load: &Load| load.opens;
            [ratio(sum(loads, opens), reads), ratio(most(loads, opens), reads)]
        })
    }

    /// Returns the memory of an agent without frames in bytes: after the start, and at the end.
    pub fn heap_per_agent(&self) -> [u64; 2] {
        self.heap_bytes.map(|bytes| bytes / u64::from(self.agents.max(1)))
    }

    /// Returns the maximum number of connections of an agent: over the whole run, and at the end.
    pub fn most_peers(&self) -> [usize; 2] {
        let most = |of: fn(&(usize, usize)) -> usize| self.links.iter().map(of).max().unwrap_or(0);
        [most(|(_, most)| *most), most(|(now, _)| *now)]
    }

    fn part(loads: &[Load]) -> Value {
        let sent = sum(loads, Load::sent);
        json!({
            "units_read": sent,
            "of_holders": sum(loads, |load| load.as_holder),
            "asked_in_vain": sum(loads, |load| load.refused),
            "read_of_shared": sum(loads, |load| load.shared),
            "opens": sum(loads, |load| load.opens),
            "busiest_opens": most(loads, |load| load.opens),
            "busiest_sent": most(loads, Load::sent),
        })
    }

    /// Returns all results as JSON.
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

/// The heading for lines of [`Measured`].
pub const HEADING: &str = "\
       | connected with        | heap, KiB       | busiest/mean    | cache table lookups per read
agents |  most   end opened/agent | started  end | one file   many | one: busiest  many: all  busiest";

/// Returns the anonymous memory of this process, which excludes frames, in bytes.
pub(super) fn heap_bytes() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")
        .map_err(|error| Fault::from_os("reading /proc/self/status", &error))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().split(' ').next()?.parse::<u64>().ok());
    kib.map(|kib| kib * 1024).ok_or_else(|| Fault::new(Errno::EIO, "/proc/self/status has no RssAnon"))
}
