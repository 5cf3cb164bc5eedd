//! What the operating system gives: clock, randomness, tasks, threads.
//!
//! [`runtime`] is the trait side that product code sees; [`system::System`] is the real thing behind it.

mod clock;
mod executor;
mod pool;
pub mod reactor;
pub mod runtime;
pub mod simulated;
pub mod system;
