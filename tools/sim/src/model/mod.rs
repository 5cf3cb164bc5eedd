//! The reference model of a view: its tree and the bytes of its files, as `SEMANTICS.md` specifies them.

pub mod data;
mod expect;
pub mod names;
pub mod path;

pub use data::{FileData, Moment, Reader, Source, Write};
pub use names::{Names, Object, ObjectId};
