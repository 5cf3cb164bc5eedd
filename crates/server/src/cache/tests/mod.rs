//! Tests of unit service and coordinator together, on real directories.

mod basic;
mod bed;
mod damaged;
mod faults;
mod faulty;
mod held;
mod paths;
mod random;
mod rounds;
mod sparse;
mod times;
