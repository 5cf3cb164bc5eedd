//! Checks of concurrent appends: each must land whole at a distinct offset (S6), in an order that only the file shows.

use super::{Call, Checked, End, Run};
use crate::kernel::Output;
use crate::model::ObjectId;
use crate::model::pattern_byte;
use crate::op::Op;
use std::collections::BTreeMap;
use tameike_core::View;

/// Maximum number of concurrent appends to one file; the check tries all their orders.
pub(super) const APPENDS_MAX: usize = 4;

struct Racer {
    call: usize,
    tag: u64,
    length: u64,
    is_acknowledged: bool,
    /// The bytes that its node reads behind the old end afterwards.
    seen: Option<Vec<u8>>,
}

impl Racer {
    /// Returns true if it may have landed `at` bytes behind the old end.
    fn may_be_at(&self, at: u64) -> bool {
        let Some(seen) = &self.seen else { return true };
        let Some(found) = seen.get(at as usize..(at + self.length) as usize) else { return false };
        found.iter().zip(0..).all(|(&found, index)| found == pattern_byte(self.tag, index))
    }
}

/// Finds all orders in which the appends may have landed, one behind the other, from `at` on. A failed append may have taken space
/// or not.
fn find_orders(
    racers: &[Racer],
    taken: &mut Vec<(usize, u64)>,
    at: u64,
    orders: &mut Vec<Vec<(usize, u64)>>,
) {
    let is_taken = |index: usize, taken: &[(usize, u64)]| taken.iter().any(|(other, _)| *other == index);
    let left = (0..racers.len()).filter(|&index| !is_taken(index, taken));
    if left.clone().all(|index| !racers[index].is_acknowledged) {
        orders.push(taken.clone());
    }
    for index in left.collect::<Vec<_>>() {
        if racers[index].may_be_at(at) {
            taken.push((index, at));
            find_orders(racers, taken, at + racers[index].length, orders);
            taken.pop();
        }
    }
}

impl Run {
    /// Determines where concurrent appends landed.
    pub(super) async fn locate_appends(&mut self, calls: &mut [Call]) -> Checked {
        let mut races = BTreeMap::<(usize, ObjectId), Vec<usize>>::new();
        for (number, call) in calls.iter().enumerate() {
            if let (Op::Write { .. }, Some(open), true) = (&call.op, &call.open, call.append_offset.is_some())
                && open.flags.append
            {
                races.entry((call.view.index(), open.object)).or_default().push(number);
            }
        }
        for ((view, object), numbers) in races {
            let (view, first) = (View::ALL[view], &calls[numbers[0]]);
            if numbers.len() > 1 {
                self.locate_race(view, object, &numbers, calls).await?;
            } else if self.may_have_lost(first.node, view)
                && let (node, Some(end)) = (first.node, first.append_offset)
                && self.model(view).object(object).data.ends_with_unpublished(node, end)
            {
                // If an earlier unpublished write was lost, the append landed before its end.
                self.model(view).object_mut(object).data.forget();
            }
        }
        Ok(())
    }

    async fn locate_race(
        &mut self,
        view: View,
        object: ObjectId,
        numbers: &[usize],
        calls: &mut [Call],
    ) -> Checked {
        let end = calls[numbers[0]].append_offset.unwrap_or_default();
        let length = |call: &Call| if let Op::Write { length, .. } = call.op { length } else { 0 };
        let total = numbers.iter().map(|&number| length(&calls[number])).sum();
        let mut racers = Vec::new();
        for &number in numbers {
            let call = &calls[number];
            let Op::Write { slot, length, tag, .. } = call.op else { continue };
            let is_acknowledged = call.has_returned();
            let read = Op::Read { slot, offset: end, length: total };
            let seen = if is_acknowledged { self.read_back(call, read).await? } else { None };
            racers.push(Racer { call: number, tag, length: u64::from(length), is_acknowledged, seen });
        }
        let mut orders = Vec::new();
        find_orders(&racers, &mut Vec::new(), 0, &mut orders);
        if orders.is_empty() && !numbers.iter().any(|&number| self.may_have_lost(calls[number].node, view)) {
            let words: Vec<_> = numbers.iter().map(|&number| calls[number].op.to_string()).collect();
            return Err(format!(
                "{}: concurrent appends are not all found whole, each once, behind byte {end}: {}",
                view.as_str(),
                words.join(" | ")
            ));
        }
        match &orders[..] {
            [order] if racers.iter().all(|racer| racer.is_acknowledged) => {
                for &(racer, at) in order {
                    calls[racers[racer].call].append_offset = Some(end + at);
                }
            }
            // The order is ambiguous.
            _ => self.model(view).object_mut(object).data.forget(),
        }
        Ok(())
    }

    /// Reads through the descriptor of a call. `None` if its node has failed or a fault explains an error.
    async fn read_back(&mut self, call: &Call, read: Op) -> Checked<Option<Vec<u8>>> {
        if !self.world.is_up(call.node) {
            return Ok(None);
        }
        let read = self.one(call.node, call.view, read, call.open.clone()).await?;
        self.verify_failure(&read, &[])?;
        Ok(match read.end {
            End::Returned(Output::Bytes(bytes)) => Some(bytes),
            End::Returned(_) | End::Failed(_) | End::NodeFailed => None,
        })
    }
}
