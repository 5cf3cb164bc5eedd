//! Both sides of the ring, in one process and in several, some of which are killed.

mod bed;
mod calls;
mod endings;
mod extent_location;
mod granted;
mod hostile;
mod names;
mod near;
mod regions;
