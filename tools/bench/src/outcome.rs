//! Errors of this program: one line with the operation and its failure.

use std::fmt::Display;

/// A result, or the message of the error.
pub type Outcome<T> = Result<T, String>;

/// Adds the operation to an error.
pub trait Context<T> {
    /// `doing` is a verb and its object: "open /x/y".
    fn context<D: Display>(self, doing: impl FnOnce() -> D) -> Outcome<T>;
}

impl<T, E: Display> Context<T> for Result<T, E> {
    fn context<D: Display>(self, doing: impl FnOnce() -> D) -> Outcome<T> {
        self.map_err(|error| format!("cannot {}: {error}", doing()))
    }
}
