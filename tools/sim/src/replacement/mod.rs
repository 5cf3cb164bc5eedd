//! Which units of files stay in the memory of nodes: traces of programs are replayed on policies of replacement, one node's or such
//! as know what other nodes hold.
//!
//! It is a model and no part of the product: memory counts whole units, a unit is there at once when it was asked for, and what is
//! written is at its home at once. Where units live, and which of them a node does not keep, is as in the product.

pub mod cluster;
pub mod command;
pub mod policies;
pub mod trace;

use clap::ValueEnum;
use cluster::{Cluster, Outcome};
use policies::Kind;
use trace::Trace;

/// Which uses of a unit count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Uses {
    /// Each read and write.
    Each,
    /// Those that begin before the end of the last one: to go on in a unit is no use of its own.
    Passes,
}

/// What a node knows of other nodes' memory when it has to let a unit go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Knowledge {
    /// Nothing.
    None,
    /// That another node has sent it the unit, or was sent it.
    Learned,
    /// All.
    Exact,
}

/// What becomes of a unit that is to go and is not known to be held elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Last {
    /// It stays where it is for so many rounds more.
    Stays,
    /// It is sent to a node that is drawn, so many times (N-chance: Dahlin et al., OSDI 1994).
    Moves,
}

/// A cluster to replay a trace on.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Nodes; at least as many as the trace has.
    pub nodes: usize,
    /// Units that each node has in memory.
    pub frames: usize,
    /// Clean units that each node keeps on its device.
    pub area: usize,
    /// Of memory.
    pub policy: Kind,
    /// Of devices.
    pub area_policy: Kind,
    /// Which uses count.
    pub uses: Uses,
    /// Of other nodes' memory.
    pub knowledge: Knowledge,
    /// Of the last copies.
    pub last: Last,
    /// How often they stay or move.
    pub rounds: u8,
}

/// Replays a trace.
///
/// # Errors
/// What is wrong with the number of nodes.
pub fn replay(trace: &Trace, setting: Setting) -> Result<Outcome, String> {
    let mut cluster = Cluster::new(trace, setting)?;
    trace.accesses.iter().for_each(|access| cluster.access(access));
    Ok(cluster.outcome)
}
