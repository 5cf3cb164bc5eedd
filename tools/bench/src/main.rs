//! Measures file systems side by side, and checks every byte it reads.
//!
//! - `run` measures targets (a plain directory, tmpfs, GlusterFS, MooseFS, Gfarm, Tameike) alternately, and writes a report. Its ranks are
//!   processes (`tameike-bench rank`), which it starts on the nodes of the target.
//! - `volume` measures a volume of three hosts beside GlusterFS and beside one of their disks, with fio and IOR.
//! - `slow-server` gives a run a disk of limited speed.
//! - `noise` measures the slowdown of a program that computes beside agents, `profile` the functions that agents spend time in.
//! - `dsm` measures shared memory regions.
//! - `picture` draws the measurements of `tameike bench net`.
#![forbid(unsafe_code)]

mod clock;
mod coordinator;
mod dsm;
mod latency;
mod loop_disk;
mod noise;
mod options;
mod outcome;
mod pattern;
mod picture;
mod place;
mod profile;
mod rank;
mod report;
mod sandbox;
mod servers;
mod slow_server;
mod suite;
mod target;
mod volume;
mod wait;
mod workload;

use clap::Parser;
use options::{Command, Options};
use std::process::ExitCode;

fn main() -> ExitCode {
    let outcome = match Options::parse().command {
        Command::Run(options) => suite::run(&options),
        Command::Dsm(options) => dsm::run(&options),
        Command::Noise(options) => noise::run(&options),
        Command::Volume(options) => volume::run(&options),
        Command::Profile(options) => profile::run(&options),
        Command::Picture(options) => picture::run(&options),
        Command::SlowServer(options) => slow_server::run(&options),
        Command::Rank(options) => rank::serve(&options),
        Command::Quantum(options) => noise::serve(&options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("tameike-bench: {message}");
            ExitCode::FAILURE
        }
    }
}
