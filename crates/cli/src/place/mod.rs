//! Files of jobs on a host: sockets, logs and mount points, their records, and their removal after crashes.
//!
//! ```text
//! ${TMPDIR:-/tmp}/tameike-UID/          owned by the user, mode 0700
//!   lock                                held while a job directory is created or removed
//!   JOB/                                shared flock: held by the job's driver and agents while they run
//!     job.json                          the job's record (on the driver's host)
//!     control.sock                      the driver's socket for status, drain, exec, down
//!     mnt/{node-local,shared,cache}     mount points, the same on every node
//!     node-K/                           node.json, agent.log, commands/
//!       ctrl                            the socket of a volume's agent for its next driver
//! ```
//!
//! Records and stores of volumes, which outlive jobs, are elsewhere: [`volume`], [`volume_store`].

pub(crate) mod base;
pub(crate) mod janitor;
pub(crate) mod kept;
mod lookup;
pub(crate) mod mount_points;
pub(crate) mod orphans;
pub mod record;
pub(crate) mod stores;
pub(crate) mod tree;
pub mod volume;
pub(crate) mod volume_store;
