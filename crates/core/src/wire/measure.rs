//! Network measurements between two agents, modelled on the OSU micro-benchmarks: orders to the measuring agent, its
//! messages to the other agent, and results.

use crate::ids::NodeId;
use crate::limits::UNIT_SIZE;
use serde::{Deserialize, Serialize};

/// Largest number of messages in flight.
pub const WINDOW_MAX: u32 = 64;
/// Largest number of repetitions of a measurement.
pub const REPETITIONS_MAX: u32 = 100;
/// Largest duration of a repetition, in milliseconds.
pub const REPETITION_MS_MAX: u32 = 1000;

/// The measured quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Quantity {
    /// One-way latency: half of the round-trip time (`osu_latency`).
    Latency,
    /// Bandwidth of windows of messages to the other node (`osu_bw`).
    OneWay,
    /// Bandwidth of windows in both directions at once (`osu_bibw`).
    BothWays,
    /// Bandwidth of puts by the other node into frames of this one (`osu_put_bw`).
    Put,
    /// Bandwidth of gets by this node from a frame of the other one (`osu_get_bw`).
    Get,
}

impl Quantity {
    /// All quantities.
    pub const ALL: [Self; 5] = [Self::Latency, Self::OneWay, Self::BothWays, Self::Put, Self::Get];
}

/// Order to an agent to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// The quantity.
    pub quantity: Quantity,
    /// The other node.
    pub with: NodeId,
    /// Size of each message, in bytes.
    pub size: u32,
    /// Number of messages in flight; unused for [`Quantity::Latency`].
    pub window: u32,
    /// Number of repetitions.
    pub repetitions: u32,
    /// Duration of each repetition, in milliseconds.
    pub repetition_ms: u32,
}

impl Order {
    /// Validates all values.
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

/// Result of a repetition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repetition {
    /// Number of messages of the order's size that arrived, on both nodes together.
    pub messages: u64,
    /// Duration, in nanoseconds.
    pub nanoseconds: u64,
}

/// One-way latencies over all repetitions, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OneWayLatency {
    /// Median of the latencies.
    pub median: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile.
    pub p99: u64,
    /// Maximum of the latencies.
    pub longest: u64,
}

/// Result of a measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// The quantity.
    pub quantity: Quantity,
    /// Size of each message, in bytes.
    pub size: u32,
    /// Number of messages in flight: fewer than ordered if frames are short.
    pub window: u32,
    /// The repetitions, without warm-up.
    pub repetitions: Vec<Repetition>,
    /// Latencies, for [`Quantity::Latency`].
    pub one_way: Option<OneWayLatency>,
}

/// A message of the measuring agent to the other one. A session number determines all bytes, and the receiver verifies
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exchange {
    /// Prepares bytes of a session, replacing those of an earlier one of the same node. The reply is `Begun`.
    Begin {
        /// Session number.
        session: u64,
        /// Number of bytes.
        size: u32,
    },
    /// Receives bytes of the session as payload. The reply is `Done`.
    Take {
        /// Session number.
        session: u64,
        /// Number of bytes.
        size: u32,
        /// Whether to verify all bytes, or samples.
        whole: bool,
    },
    /// As `Take`; the reply returns the payload.
    Echo {
        /// Session number.
        session: u64,
        /// Number of bytes.
        size: u32,
        /// As in `Take`.
        whole: bool,
    },
    /// Requests the prepared bytes. The reply is `Done` with them.
    Give {
        /// Session number.
        session: u64,
    },
    /// Sends windows of the bytes with `Take`. The reply is `Done` when all have arrived.
    Send {
        /// Session number.
        session: u64,
        /// Number of windows, sent one after the other.
        windows: u64,
        /// Number of messages of a window.
        window: u32,
    },
    /// Drops the bytes prepared for the sender. The reply is `Done`.
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

/// The reply to an [`Exchange`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExchangeReply {
    /// The bytes are ready.
    Begun {
        /// Grant for reading them.
        grant: u64,
    },
    /// The request was carried out.
    Done,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_beyond_a_limit_are_refused() {
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
