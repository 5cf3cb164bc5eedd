//! Trees of files outside of containers: walk, content, creation.

pub mod content;
pub(crate) mod create;
pub(crate) mod walk;
