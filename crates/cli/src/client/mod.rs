//! Commands that send requests to the driver of a running job over its socket.

mod bench;
mod check;
mod connection;
mod drain;
mod exec;
mod mount;
mod resize;
mod status;
mod up;
mod warm;

pub use bench::bench_net;
pub use check::check_replicas;
pub use drain::{down, drain, end};
pub use exec::exec;
pub use mount::mount;
pub use resize::{add_nodes, grow, remove_nodes, restart, restart_nodes, shrink};
pub use status::{cache_stat, status, status_of};
pub use up::{supervise, up};
pub use warm::cache_warm;
