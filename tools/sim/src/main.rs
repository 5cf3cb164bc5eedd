//! Command line of the simulator: runs seeds and countdowns, and replays one with its log.
#![forbid(unsafe_code)]

use clap::{Parser, Subcommand};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::process::ExitCode;
use tameike_fabric::socket::CONNECTIONS_DEFAULT;
use tameike_sim::countdown::Site;
use tameike_sim::program::{Program, draw};
use tameike_sim::region;
use tameike_sim::run::{Failure, run};
use tameike_sim::runner::{RunOptions, run_seeds};
use tameike_sim::scale::{BARRIER_HEADING, HEADING, MeasuredBarrier, Scale, measure, measure_barriers};
use tameike_sim::shrink::shrink;
use tameike_sim::trace::traced;
use tameike_sim::walk::{self, Number, Stride, Workload};
use tameike_sim::world::{Canary, Tally};

/// Simulated clusters of Tameike.
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
        #[command(flatten)]
        how: RunOptions,
    },
    /// Repeat the run of one seed.
    Replay {
        /// The seed.
        seed: u64,
        /// Print the log of the run.
        #[arg(long)]
        log: bool,
        /// If it fails, reduce the program first.
        #[arg(long)]
        shrink: bool,
        /// Inject this bug.
        #[arg(long)]
        canary: Option<Canary>,
        /// Replicas of each home.
        #[arg(long, default_value_t = 1)]
        replicas: u32,
    },
    /// Run many seeds of programs on shared memory regions, or repeat one.
    Regions {
        /// First seed and the one after the last, as in 0..1000.
        #[arg(long, value_parser = seeds, required_unless_present = "replay")]
        seeds: Option<Range<u64>>,
        /// Repeat only this seed, and print its program and its log.
        #[arg(long)]
        replay: Option<u64>,
        #[command(flatten)]
        how: RunOptions,
    },
    /// Repeat a mixed workload; in each run another call to a disk, the network or the shared file system fails.
    Countdowns {
        /// Repeat only this countdown, as in serve/1234/torn, and print its log.
        #[arg(long)]
        replay: Option<Number>,
        /// Print the calls and their counts, and run no countdown.
        #[arg(long)]
        list: bool,
        /// Run one of this many countdowns.
        #[arg(long, default_value_t = 1)]
        stride: usize,
        #[command(flatten)]
        how: RunOptions,
    },
    /// Run many small agents that read, and report their connections, memory and load; or barriers of regions, and their messages.
    Scale {
        /// Numbers of agents; each is a separate cluster.
        #[arg(long, num_args = 1.., default_values_t = [10, 100, 1000, 10_000])]
        agents: Vec<u32>,
        /// Maximum number of connected peers of an agent.
        #[arg(long, default_value_t = CONNECTIONS_DEFAULT)]
        connections: usize,
        /// Seed of all random choices.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Measure barriers of a shared memory region with one process on each node, on complete agents.
        #[arg(long)]
        barriers: bool,
        /// Print all results as JSON.
        #[arg(long)]
        json: bool,
    },
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let wrong = || "give seeds as FIRST..END, as in 0..1000".to_owned();
    let (first, end) = text.split_once("..").ok_or_else(wrong)?;
    let number = |text: &str| text.parse::<u64>().map_err(|_| wrong());
    Ok(number(first)?..number(end)?)
}

fn main() -> ExitCode {
    // A panic of a run is a finding, and is printed with its seed.
    std::panic::set_hook(Box::new(|_| {}));
    match Options::parse().command {
        Command::Run { seeds, how } => run_many(seeds, &how),
        Command::Regions { replay: Some(seed), how, .. } => replay_region(seed, how.canary),
        Command::Regions { seeds, how, .. } => run_regions(seeds.unwrap_or_default(), &how),
        Command::Countdowns { replay: Some(number), how, .. } => replay_countdown(&number, how.canary),
        Command::Countdowns { list, stride, how, .. } => match count_all() {
            Err(code) => code,
            Ok(counted) if list => list_sites(&counted),
            Ok(counted) => walk_all(&counted, stride, &how),
        },
        Command::Scale { agents, barriers: true, seed, json, .. } => {
            measure_all_barriers(&agents, seed, json)
        }
        Command::Scale { agents, connections, seed, json, .. } => {
            let scale = |&agents: &u32| Scale { agents, connections, seed };
            measure_all(agents.iter().map(scale), json)
        }
        Command::Replay { seed, log, shrink, canary, replicas } => {
            replay(seed, &draw(seed, canary).replicated(replicas), log, shrink)
        }
    }
}

fn measure_all(all: impl Iterator<Item = Scale>, json: bool) -> ExitCode {
    let mut figures = Vec::new();
    if !json {
        println!("{HEADING}");
    }
    for scale in all {
        match measure(scale) {
            Ok(measured) if json => figures.push(measured.to_json()),
            Ok(measured) => println!("{measured}"),
            Err(fault) => {
                eprintln!("tameike-sim: {} agents: {fault}", scale.agents);
                return ExitCode::FAILURE;
            }
        }
    }
    if json {
        println!("{:#}", serde_json::Value::Array(figures));
    }
    ExitCode::SUCCESS
}

fn measure_all_barriers(agents: &[u32], seed: u64, json: bool) -> ExitCode {
    let mut figures = Vec::new();
    if !json {
        println!("{BARRIER_HEADING}");
    }
    for &agents in agents {
        match measure_barriers(agents, seed) {
            Ok(measured) if json => figures.extend(measured.iter().map(MeasuredBarrier::to_json)),
            Ok(measured) => measured.iter().for_each(|barrier| println!("{barrier}")),
            Err(fault) => {
                eprintln!("tameike-sim: {agents} agents: {fault}");
                return ExitCode::FAILURE;
            }
        }
    }
    if json {
        println!("{:#}", serde_json::Value::Array(figures));
    }
    ExitCode::SUCCESS
}

fn run_many(seeds: Range<u64>, how: &RunOptions) -> ExitCode {
    let report = |seed: &u64, failure: &Failure| {
        println!("seed {seed} fails in step {}: {}", failure.step, failure.message);
    };
    let tally = Tally::default();
    let ended = run_seeds(seeds.clone(), how, tally.clone(), report);
    println!("{}", tally.counts());
    conclude(ended, &format!("seeds {}..{} passed", seeds.start, seeds.end), |count| {
        format!("{count} seeds failed; replay one with: tameike-sim replay SEED --shrink --log")
    })
}

fn conclude<T>(
    failed: tameike_core::Result<Vec<T>>,
    all_passed: &str,
    some_failed: impl Fn(usize) -> String,
) -> ExitCode {
    match failed {
        Ok(failed) if failed.is_empty() => {
            println!("{all_passed}");
            return ExitCode::SUCCESS;
        }
        Ok(failed) => println!("{}", some_failed(failed.len())),
        Err(fault) => eprintln!("tameike-sim: {fault}"),
    }
    ExitCode::FAILURE
}

fn replay(seed: u64, program: &Program, log: bool, smaller: bool) -> ExitCode {
    let (outcome, lines) = traced(|| run(program));
    let outcome = outcome
        .map_err(|failure| if smaller { shrink(program, failure) } else { (program.clone(), failure) });
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

fn run_regions(seeds: Range<u64>, how: &RunOptions) -> ExitCode {
    let report = |seed: &u64, failure: &Failure| {
        println!("seed {seed} of regions fails in round {}: {}", failure.step, failure.message);
    };
    let ended = region::run_seeds(seeds.clone(), how, report);
    conclude(ended, &format!("seeds {}..{} of regions passed", seeds.start, seeds.end), |count| {
        format!("{count} seeds failed; replay one with: tameike-sim regions --replay SEED")
    })
}

fn replay_region(seed: u64, canary: Option<Canary>) -> ExitCode {
    let program = region::draw(seed, canary);
    let (outcome, lines) = traced(|| region::run(&program));
    println!("{program}");
    lines.iter().for_each(|line| println!("{line}"));
    match outcome {
        Ok(()) => {
            println!("seed {seed} of regions passed");
            ExitCode::SUCCESS
        }
        Err(Failure { step, message }) => {
            println!("seed {seed} of regions fails in round {step}: {message}");
            ExitCode::FAILURE
        }
    }
}

fn replay_countdown(number: &Number, canary: Option<Canary>) -> ExitCode {
    let (outcome, lines) = walk::replay(number, canary);
    println!("{}", number.workload.program(canary));
    lines.iter().for_each(|line| println!("{line}"));
    match outcome {
        Ok(()) => {
            println!("countdown {number} passed");
            ExitCode::SUCCESS
        }
        Err(Failure { step, message }) => {
            println!("countdown {number} fails in step {step}: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Counts the calls of all workloads, which must pass without a fault.
fn count_all() -> Result<Vec<(Workload, Vec<Site>)>, ExitCode> {
    let count = |workload: Workload| {
        let sites = walk::count(workload).map_err(|Failure { step, message }| {
            let name = workload.as_str();
            println!("workload {name} fails in step {step} without an injected fault: {message}");
            ExitCode::FAILURE
        });
        Ok((workload, sites?))
    };
    Workload::ALL.into_iter().map(count).collect()
}

fn list_sites(counted: &[(Workload, Vec<Site>)]) -> ExitCode {
    for (workload, sites) in counted {
        let mut counts = BTreeMap::<String, u64>::new();
        sites.iter().for_each(|site| *counts.entry(site.to_string()).or_default() += 1);
        println!("workload {}: {} calls", workload.as_str(), sites.len());
        counts.iter().for_each(|(site, count)| println!("{count:6} {site}"));
    }
    ExitCode::SUCCESS
}

fn walk_all(counted: &[(Workload, Vec<Site>)], stride: usize, how: &RunOptions) -> ExitCode {
    let stride = if stride > 1 { Stride::OneOf(stride) } else { Stride::Every };
    let numbers = walk::numbers(counted, stride);
    let sites: BTreeSet<_> = counted.iter().flat_map(|(_, sites)| sites).map(ToString::to_string).collect();
    let all = format!("{} countdowns over {} sites", numbers.len(), sites.len());
    let report = |number: &Number, failure: &Failure| {
        println!("countdown {number} fails in step {}: {}", failure.step, failure.message);
    };
    conclude(walk::walk(numbers, how, report), &format!("{all} passed"), |count| {
        format!("{count} of {all} failed; replay one with: tameike-sim countdowns --replay NUMBER")
    })
}
