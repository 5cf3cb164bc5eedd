//! Programs with the library preloaded, and an agent whose view is a plain directory, so that no mount is needed.

mod calls;
mod directory;
mod endings;
mod programs;
mod symbols;
