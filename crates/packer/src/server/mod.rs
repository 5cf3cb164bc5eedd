//! The packer: the one agent that writes the container, and serves the requests of all agents.

mod crash_recovery;
mod directory_rename;
mod directory_snapshots;
mod entries;
mod entry_log;
mod external;
mod external_content;
mod journal;
mod marks;
mod open_files;
mod ownership;
mod packer;
mod pending_promotions;
mod promote;
mod requests;
mod state;
pub mod store;
mod succession;

pub use journal::count_journaled;
pub use packer::{Packer, PackerParts};
pub use pending_promotions::count_pending_promotions;

/// The files on the packer's device.
pub const DEVICE_FILES: [&[u8]; 3] = [journal::NAMES[0], journal::NAMES[1], pending_promotions::NAME];

/// Where the container keeps files whose directory another program has removed.
const APART: &[u8] = b".tameike-apart";
