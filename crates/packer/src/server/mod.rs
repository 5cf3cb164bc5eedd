//! The packer: the one agent that writes the container, and serves the requests of all agents.

mod changes;
mod crash_recovery;
mod create;
mod directory_rename;
mod directory_snapshots;
mod external;
mod group_commit;
mod journal;
mod marks;
mod open_files;
mod ownership;
mod packer;
mod pending_promotions;
mod promote;
pub mod store;

pub use journal::count_noted;
pub use packer::{Packer, PackerParts};
pub use pending_promotions::count_owed;

/// Where, in the container, files are whose directory others have removed.
const APART: &[u8] = b".tameike-apart";
