//! Results of calls that may be repeated at another primary of the home.
//!
//! The result is stored in the same change as the effect of the call, so that all replicas have both or neither. It goes when the caller
//! reports, with a later call, that the call has ended.

use super::record::{self, CallRecord};
use super::{Shard, key};
use tameike_core::wire::call::NumberedCall;
use tameike_core::{Errno, Fault, Result};

impl Shard<'_> {
    /// Stores the result of a call, if it may be repeated. Refuses a call that its caller has ended.
    pub(super) fn record_call(
        &mut self,
        call: Option<&NumberedCall>,
        result: impl FnOnce() -> CallRecord,
    ) -> Result<()> {
        let Some(call) = call else { return Ok(()) };
        let finished = call.number.finished;
        let known: u64 = record::get(self.table, &key::calls_finished(call))?.unwrap_or_default();
        if call.number.number < known {
            return Err(Fault::new(Errno::ESTALE, "a call arrived after its caller had ended it"));
        }
        if finished > known {
            // From `known` on: earlier results are gone.
            let [start, end] = [known, finished].map(|number| key::call(call, number));
            for (key, _) in self.table.scan(&start, &end, usize::MAX)? {
                self.table.delete(key);
            }
            record::put(self.table, key::calls_finished(call), &finished)?;
        }
        record::put(self.table, key::call(call, call.number.number), &result())
    }
}
