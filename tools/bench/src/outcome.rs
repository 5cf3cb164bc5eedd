//! Errors of this program: one line that states the failed operation and the cause.

use std::fmt::Display;

/// The result of a step, or the reason that there is none.
pub type Outcome<T> = Result<T, String>;

/// Adds the failed operation to an error.
pub trait Context<T> {
    /// `doing` is a verb with its object: "open /x/y".
    fn context<D: Display>(self, doing: impl FnOnce() -> D) -> Outcome<T>;
}

impl<T, E: Display> Context<T> for Result<T, E> {
    fn context<D: Display>(self, doing: impl FnOnce() -> D) -> Outcome<T> {
        self.map_err(|error| format!("cannot {}: {error}", doing()))
    }
}
