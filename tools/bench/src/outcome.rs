//! Errors of this program: one line for a person, which says what was being done and what went wrong.

use std::fmt::Display;

/// What a step of a measurement gives, or why there is no figure.
pub type Outcome<T> = Result<T, String>;

/// Says what was being done when something failed.
pub trait Context<T> {
    /// `doing` is a verb and what it is done to: "open /x/y".
    fn context<D: Display>(self, doing: impl FnOnce() -> D) -> Outcome<T>;
}

impl<T, E: Display> Context<T> for Result<T, E> {
    fn context<D: Display>(self, doing: impl FnOnce() -> D) -> Outcome<T> {
        self.map_err(|error| format!("cannot {}: {error}", doing()))
    }
}
