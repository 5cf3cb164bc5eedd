//! The reference model: what the tree of a view, and the bytes of its files, must be, as `SEMANTICS.md` has it.

pub mod data;
mod expect;
pub mod names;
pub mod path;

pub use data::{FileData, Looker, Moment, Source, Write};
pub use names::{Names, Object, ObjectId};
