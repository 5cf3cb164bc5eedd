//! The reference model of a view: its tree and the bytes of its files, as `SEMANTICS.md` specifies them.

mod data;
mod expect;
mod names;
pub mod path;

pub use data::{FileData, Moment, Reader, Source, Write, pattern_byte};
pub use names::{Names, ObjectId};
