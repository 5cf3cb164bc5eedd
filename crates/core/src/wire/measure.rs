//! Measurements of the network between two agents, as the OSU micro-benchmarks make them: what is asked of the agent that
//! measures, what it asks the other one meanwhile, and what it finds.

use crate::ids::NodeId;
use crate::limits::UNIT_SIZE;
use serde::{Deserialize, Serialize};

/// Most messages in flight at the same time.
pub const WINDOW_MAX: u32 = 64;
/// Most repetitions of one measurement.
pub const REPETITIONS_MAX: u32 = 100;
/// Longest time that one repetition is to take, in milliseconds.
pub const REPETITION_MS_MAX: u32 = 1000;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Quantity {
    /// Half the time of a message's way there and back (`osu_latency`).
    Latency,
    /// A window of messages goes to the other node, and is answered (`osu_bw`).
    OneWay,
    /// Both nodes send windows at the same time (`osu_bibw`).
    BothWays,
    /// The other node puts bytes into frames of this one (`osu_put_bw`).
    Put,
    /// This node gets bytes from a frame of the other one (`osu_get_bw`).
    Get,
}

impl Quantity {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Latency, Self::OneWay, Self::BothWays, Self::Put, Self::Get];
}

/// What an agent is to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// What.
    pub quantity: Quantity,
    /// With which other node.
    pub with: NodeId,
    /// Bytes of each message.
    pub size: u32,
    /// Messages in flight at the same time; of no meaning for [`Quantity::Latency`].
    pub window: u32,
    /// How often.
    pub repetitions: u32,
    /// How long each repetition is to take, in milliseconds.
    pub repetition_ms: u32,
}

impl Order {
    /// Whether everything is within its limits.
    ///
    /// # Errors
    /// What is not, for a person.
    pub fn check(&self) -> Result<(), String> {
        let within = |what: &str, value: u32, max: u32| match value {
            0 => Err(format!("{what} 0 is too small: 1 to {max}")),
            value if value > max => Err(format!("{what} {value} is too large: 1 to {max}")),
            _ => Ok(()),
        };
        within("message size", self.size, UNIT_SIZE as u32)?;
        within("window", self.window, WINDOW_MAX)?;
        within("number of repetitions", self.repetitions, REPETITIONS_MAX)?;
        within("time of a repetition (ms)", self.repetition_ms, REPETITION_MS_MAX)
    }
}

/// One repetition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repetition {
    /// Messages of the order's size that arrived, on both nodes together.
    pub messages: u64,
    /// How long that took.
    pub nanoseconds: u64,
}

/// Halves of the times there and back, over all repetitions, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HalfTrips {
    /// Half of them took no longer.
    pub median: u64,
    /// 90 of 100 took no longer.
    pub p90: u64,
    /// 99 of 100 took no longer.
    pub p99: u64,
    /// None took longer.
    pub longest: u64,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// What was measured.
    pub quantity: Quantity,
    /// Bytes of each message.
    pub size: u32,
    /// Messages that were in flight at the same time: fewer than were asked for when frames are few.
    pub window: u32,
    /// Each repetition; what was done to warm up is not among them.
    pub repetitions: Vec<Repetition>,
    /// Of [`Quantity::Latency`].
    pub half_trips: Option<HalfTrips>,
}

/// What an agent that measures asks of the other one. All bytes follow from a number, the session's, and are compared with it
/// where they arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exchange {
    /// Have bytes of a session ready, in the place of those of an earlier one of the same node. Answered by `Begun`.
    Begin {
        /// Their number.
        session: u64,
        /// How many.
        size: u32,
    },
    /// The payload has bytes of the session. Answered by `Done`.
    Take {
        /// Their number.
        session: u64,
        /// How many.
        size: u32,
        /// Whether each of them is compared, and not some alone.
        whole: bool,
    },
    /// As `Take`, and the payload comes back.
    Echo {
        /// Their number.
        session: u64,
        /// How many.
        size: u32,
        /// As in `Take`.
        whole: bool,
    },
    /// The bytes that are ready are wanted. Answered by `Done`, with them.
    Give {
        /// Their number.
        session: u64,
    },
    /// Send windows of them with `Take`. Answered by `Done` when all have arrived.
    Send {
        /// Their number.
        session: u64,
        /// How many windows, one after the other.
        windows: u64,
        /// Messages of a window.
        window: u32,
    },
    /// What is ready for the node that asks is not wanted any more. Answered by `Done`.
    End,
}

impl Exchange {
    /// As [`super::Request::is_read_only`].
    pub(super) fn is_read_only(&self) -> bool {
        match self {
            Self::Take { .. } | Self::Echo { .. } | Self::Give { .. } => true,
            Self::Begin { .. } | Self::Send { .. } | Self::End => false,
        }
    }

    /// As [`super::Request::expects_payload`].
    pub(super) fn expects_payload(&self) -> bool {
        matches!(self, Self::Echo { .. } | Self::Give { .. })
    }
}

/// The answer to an [`Exchange`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExchangeReply {
    /// The bytes are ready.
    Begun {
        /// By which they can be got.
        grant: u64,
    },
    /// Done.
    Done,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_beyond_a_limit_is_refused() {
        let quantity = Quantity::Get;
        let order = Order { quantity, with: NodeId(1), size: 1, window: 1, repetitions: 1, repetition_ms: 1 };
        assert_eq!(order.check(), Ok(()));
        let wrong = [
            Order { size: 0, ..order },
            Order { size: UNIT_SIZE as u32 + 1, ..order },
            Order { window: WINDOW_MAX + 1, ..order },
            Order { repetitions: REPETITIONS_MAX + 1, ..order },
            Order { repetition_ms: REPETITION_MS_MAX + 1, ..order },
        ];
        assert!(wrong.iter().all(|order| order.check().is_err()));
    }
}
