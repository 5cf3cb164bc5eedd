//! Counters of where the bytes of reads came from.

use std::sync::atomic::{AtomicU64, Ordering};
use tameike_core::wire::admin::{Counter, counters};

#[derive(Default)]
pub(super) struct Counters {
    /// Bytes found in this node's memory.
    pub memory: Count,
    /// Bytes that peer cache holders sent.
    pub holders: Count,
    /// Bytes that homes sent.
    pub homes: Count,
    /// Peer requests received from other nodes, and those answered with bytes.
    pub requested: Count,
    pub delivered: Count,
    /// The same in pages.
    pub requested_pages: Count,
    pub delivered_pages: Count,
    /// Units whose bytes failed their checksum in this node's memory.
    pub damaged: Count,
}

#[derive(Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) fn add(&self, count: usize) {
        self.0.fetch_add(count as u64, Ordering::Relaxed);
    }
}

impl Counters {
    pub(super) fn report(&self) -> Vec<Counter> {
        let named = [
            (counters::READ_MEMORY, &self.memory),
            (counters::READ_PEER_MEMORY, &self.holders),
            (counters::READ_HOMES, &self.homes),
            (counters::PEER_READS_REQUESTED, &self.requested),
            (counters::PEER_READS_SERVED, &self.delivered),
            (counters::PEER_READ_REQUESTED_PAGES, &self.requested_pages),
            (counters::PEER_READ_SERVED_PAGES, &self.delivered_pages),
            (counters::DAMAGED, &self.damaged),
        ];
        named.map(|(name, count)| Counter::new(name, count.0.load(Ordering::Relaxed))).into()
    }
}
