//! Tests of the unit service and the coordinator together, on real directories.

mod basic;
mod bed;
mod change_detection;
mod client;
mod copies;
mod damaged;
mod ends;
mod faults;
mod faulty;
mod held;
mod late;
mod patches;
mod paths;
mod power;
mod random;
mod replicas;
mod rounds;
mod sparse;
mod times;
