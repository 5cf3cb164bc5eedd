//! Trees of files outside of containers: walks through them, their content, and the creation of new files.

pub mod content;
pub(crate) mod create;
pub(crate) mod walk;
