//! Replies that do not belong to their requests.

use std::fmt::Debug;
use tameike_core::{Errno, Fault};

pub(crate) fn unexpected_reply(reply: &impl Debug) -> Fault {
    Fault::new(Errno::EPROTO, format!("an agent sent an unexpected reply: {reply:?}"))
}
