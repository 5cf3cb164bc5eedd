//! Runs seeds on simulated clusters, and one again with its log.
#![forbid(unsafe_code)]

use clap::{Parser, Subcommand};
use std::ops::Range;
use std::process::ExitCode;
use tameike_sim::program::draw;
use tameike_sim::run::{Failure, run};
use tameike_sim::runner::{Batch, run_batch};
use tameike_sim::shrink::shrink;
use tameike_sim::trace::traced;
use tameike_sim::world::Canary;

/// Simulated clusters of Tameike, each driven by one seed.
#[derive(Parser)]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run many seeds.
    Run {
        /// First seed and the one after the last, as in 0..1000.
        #[arg(long, value_parser = seeds)]
        seeds: Range<u64>,
        /// Seeds that run at the same time.
        #[arg(long, default_value_t = 2)]
        jobs: u32,
        /// A bug on purpose.
        #[arg(long)]
        canary: Option<Canary>,
        /// Go on after a failure.
        #[arg(long)]
        keep_going: bool,
    },
    /// Run one seed again.
    Replay {
        /// The seed.
        seed: u64,
        /// Print the log of the run.
        #[arg(long)]
        log: bool,
        /// Make the program smaller, if it fails.
        #[arg(long)]
        shrink: bool,
        /// A bug on purpose.
        #[arg(long)]
        canary: Option<Canary>,
    },
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let wrong = || "seeds are told as FIRST..END, as in 0..1000".to_owned();
    let (first, end) = text.split_once("..").ok_or_else(wrong)?;
    let number = |text: &str| text.parse::<u64>().map_err(|_| wrong());
    Ok(number(first)?..number(end)?)
}

fn main() -> ExitCode {
    // Panics of a run are its findings, told with its seed.
    std::panic::set_hook(Box::new(|_| {}));
    match Options::parse().command {
        Command::Run { seeds, jobs, canary, keep_going } => {
            run_many(&Batch { seeds, jobs, canary, keep_going })
        }
        Command::Replay { seed, log, shrink, canary } => replay(seed, log, shrink, canary),
    }
}

fn run_many(batch: &Batch) -> ExitCode {
    let tell = |seed, failure: &Failure| {
        println!("seed {seed} fails in step {}: {}", failure.step, failure.message);
    };
    match run_batch(batch, tell) {
        Ok(failed) if failed.is_empty() => {
            println!("seeds {}..{} passed", batch.seeds.start, batch.seeds.end);
            ExitCode::SUCCESS
        }
        Ok(failed) => {
            println!("{} seeds failed; see one with: tameike-sim replay SEED --shrink --log", failed.len());
            ExitCode::FAILURE
        }
        Err(fault) => {
            eprintln!("tameike-sim: {fault}");
            ExitCode::FAILURE
        }
    }
}

fn replay(seed: u64, log: bool, smaller: bool, canary: Option<Canary>) -> ExitCode {
    let program = draw(seed, canary);
    let (outcome, lines) = traced(|| run(&program));
    let outcome =
        outcome.map_err(|failure| if smaller { shrink(&program, failure) } else { (program, failure) });
    let Err((program, Failure { step, message })) = outcome else {
        if log {
            lines.iter().for_each(|line| println!("{line}"));
        }
        println!("seed {seed} passed");
        return ExitCode::SUCCESS;
    };
    let lines = if smaller && log { traced(|| run(&program)).1 } else { lines };
    if log {
        lines.iter().for_each(|line| println!("{line}"));
    }
    println!("{program}\nseed {seed} fails in step {step}: {message}");
    ExitCode::FAILURE
}
