//! Benchmarks of file systems side by side, with a check of every byte read.
//!
//! - `tameike-bench run` measures targets (a plain directory, tmpfs, GlusterFS, Tameike), interleaved in each repetition, and
//!   writes a report. Its ranks are separate processes (`tameike-bench rank`), each started on its node if the target has nodes.
//! - `tameike-bench noise` measures how agents disturb a computing program.
//! - `tameike-bench profile` samples where agents spend their processor time.
#![forbid(unsafe_code)]

mod clock;
mod coordinator;
mod latency;
mod noise;
mod options;
mod outcome;
mod pattern;
mod profile;
mod rank;
mod report;
mod servers;
mod suite;
mod target;
mod wait;
mod workload;

use clap::Parser;
use options::{Command, Options};
use std::process::ExitCode;

fn main() -> ExitCode {
    let outcome = match Options::parse().command {
        Command::Run(options) => suite::run(&options),
        Command::Noise(options) => noise::run(&options),
        Command::Profile(options) => profile::run(&options),
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
