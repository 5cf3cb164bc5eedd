//! What the operating system gives: clock, randomness, tasks.

pub mod runtime;
pub mod simulated;
