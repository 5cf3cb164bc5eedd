//! Both ends together: in one process, and in several of which some are killed.

mod bed;
mod calls;
mod endings;
mod hostile;
mod lent;
mod names;
mod near;
mod placed;
