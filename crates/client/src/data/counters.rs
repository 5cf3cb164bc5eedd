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
        let Counters {
            memory,
            holders,
            homes,
            requested,
            delivered,
            requested_pages,
            delivered_pages,
            damaged,
        } = self;
        let named = [
            (counters::READ_MEMORY, memory),
            (counters::READ_HOLDERS, holders),
            (counters::READ_HOMES, homes),
            (counters::HELD_REQUESTED, requested),
            (counters::HELD_DELIVERED, delivered),
            (counters::HELD_REQUESTED_PAGES, requested_pages),
            (counters::HELD_DELIVERED_PAGES, delivered_pages),
            (counters::DAMAGED, damaged),
        ];
        named.map(|(name, count)| Counter::new(name, count.0.load(Ordering::Relaxed))).into()
    }
}
