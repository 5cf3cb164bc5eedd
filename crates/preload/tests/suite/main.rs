//! The library in programs, before an agent whose view is a plain directory: no mount is needed.

mod calls;
mod directory;
mod endings;
mod programs;
mod symbols;
