//! Where the bytes of reads came from.

use std::sync::atomic::{AtomicU64, Ordering};
use tameike_core::wire::admin::{Counter, counters};

#[derive(Default)]
pub(super) struct Counters {
    /// Bytes that were in memory here.
    pub memory: Count,
    /// Bytes that holders brought.
    pub holders: Count,
    /// Bytes that homes brought.
    pub homes: Count,
    /// Questions of other nodes, and those that were answered with bytes.
    pub requested: Count,
    pub delivered: Count,
    /// The same in pages.
    pub requested_pages: Count,
    pub delivered_pages: Count,
    /// Units that had changed by themselves.
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
    /// The view's counters.
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
