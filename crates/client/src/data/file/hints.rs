//! Peer cache holders of an open file, as the open reported them.
//!
//! They are valid for the opened version, until this node writes to the file: its writes reach the homes first.

use super::mark::Mark;
use super::{FileData, FileState};
use tameike_core::wire::holders::Holder;
use tameike_core::{Generation, NodeId};

/// Nodes that may have bytes of an open file in memory.
#[derive(Default)]
pub(super) struct HolderHints {
    mark: Mark,
    holders: Vec<Holder>,
}

impl HolderHints {
    /// The holders, valid only under `mark`.
    fn at(&mut self, mark: Mark) -> &mut Vec<Holder> {
        if self.mark != mark {
            *self = Self::default();
        }
        &mut self.holders
    }
}

impl FileState {
    /// Records the holders that an open of this version reported.
    pub(super) fn learn_holders(&mut self, generation: Generation, holders: Vec<Holder>) {
        let is_as_at_home = self.writes.unknown().is_none() && !self.writes.is_sending();
        let is_valid = self.content.generation() == generation && is_as_at_home;
        self.hints = HolderHints { mark: self.mark(), holders: if is_valid { holders } else { Vec::new() } };
    }

    fn holders(&mut self) -> &mut Vec<Holder> {
        let mark = self.mark();
        self.hints.at(mark)
    }
}

impl FileData {
    /// Returns the nodes that may have bytes of the file in memory.
    pub(in crate::data) fn holding(&self) -> Vec<NodeId> {
        self.state.lock().holders().iter().map(|holder| holder.node).collect()
    }

    pub(in crate::data) fn count_request(&self, node: NodeId, has_delivered: bool) {
        let mut state = self.state.lock();
        if let Some(holder) = state.holders().iter_mut().find(|holder| holder.node == node) {
            holder.requested += 1;
            holder.delivered += u32::from(has_delivered);
        }
    }

    pub(in crate::data) fn forget_holder(&self, node: NodeId) {
        self.state.lock().holders().retain(|holder| holder.node != node);
    }

    /// Draws two of the `eligible` holders with `draw`, distinct if there are two, and returns them with the number of eligible ones.
    pub(in crate::data) fn draw_holders(
        &self,
        eligible: impl Fn(&Holder) -> bool,
        draw: impl FnOnce() -> usize,
    ) -> Option<([Holder; 2], usize, usize)> {
        let mut state = self.state.lock();
        let holders = state.holders();
        let is_eligible = |holder: &&Holder| eligible(holder);
        let count = holders.iter().filter(is_eligible).count();
        if count == 0 {
            return None;
        }
        let draw = draw();
        let pick = |number: usize| holders.iter().filter(is_eligible).nth(number % count).copied();
        let first = draw % count;
        let two = [pick(first)?, pick(first + 1 + (draw >> 32) % (count - 1).max(1))?];
        Some((two, count, draw))
    }
}
