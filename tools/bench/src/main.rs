//! Measures file systems side by side, and checks every byte it reads.
//!
//! `tameike-bench run` measures one or more targets (a plain directory, tmpfs, GlusterFS, Tameike) in turn,
//! repetition by repetition, and writes a report. The ranks that do the reading and writing are processes of
//! their own (`tameike-bench rank`), each started on a node of its own where the target has nodes.
//! `tameike-bench noise` measures what agents take from a program that computes, and
//! `tameike-bench profile` where agents spend their time. `tameike-bench slow-server` gives a run a disk of limited speed.
#![forbid(unsafe_code)]

mod clock;
mod coordinator;
mod latency;
mod noise;
mod options;
mod outcome;
mod pattern;
mod picture;
mod place;
mod profile;
mod rank;
mod report;
mod servers;
mod slow_server;
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
