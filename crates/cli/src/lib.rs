//! The program `tameike`: commands for users, drivers of jobs, and the processes of agents.
//!
//! The crate starts, connects and ends processes, and prints for users. It controls agents through the trait
//! [`tameike_agent::control::AgentControl`], whose implementation `main` chooses.
#![forbid(unsafe_code)]

mod aggregate;
mod arguments;
mod check;
mod client;
mod doctor;
pub mod driver;
mod exit;
mod layout;
mod manual;
pub mod mirror;
mod node;
pub mod place;
mod report;
pub mod settings;
mod volume;

use arguments::{Action, BenchAction, CacheAction, Cli};
use clap::Parser;
use std::process::ExitCode;
use tameike_agent::control::AgentControl;

/// Executes the command line with agents of type `A`.
pub fn main<A: AgentControl>() -> ExitCode {
    if let Some(code) = manual::complete() {
        return ExitCode::from(code);
    }
    ExitCode::from(act::<A>(Cli::parse().command))
}

fn act<A: AgentControl>(action: Action) -> u8 {
    match action {
        Action::Run(arguments) => match &arguments.aggregate_only.aggregate_only {
            Some(container) => aggregate::run(&arguments, container),
            None => driver::run::<A>(&arguments),
        },
        Action::Exec(arguments) => client::exec(&arguments),
        Action::Agg { action } => aggregate::aggregate(&action),
        Action::Up(arguments) => client::up(&arguments.job),
        Action::Mount(choice) => client::mount(&choice),
        Action::Status(arguments) => client::status::<A>(&arguments),
        Action::Cache { action: CacheAction::Warm(arguments) } => client::cache_warm(&arguments),
        Action::Cache { action: CacheAction::Stat(arguments) } => client::cache_stat::<A>(&arguments),
        Action::Drain(arguments) => client::drain(&arguments),
        Action::Grow(arguments) => client::grow(&arguments),
        Action::Shrink(arguments) => client::shrink(&arguments),
        Action::Restart(arguments) => client::restart(&arguments),
        Action::Recover(arguments) => driver::recover::<A>(&arguments),
        Action::Down(arguments) => client::down(&arguments),
        Action::Mirror(arguments) => mirror::mirror(&arguments),
        Action::Receive(place) => mirror::receive(&place.dir),
        Action::Volume { action } => volume::volume::<A>(&action),
        Action::Doctor(arguments) => doctor::doctor(&arguments),
        Action::Bench { action: BenchAction::Net(arguments) } => client::bench_net(&arguments),
        Action::Check(arguments) => match &arguments.dir {
            Some(dir) => check::check(dir, &arguments),
            None => client::check_replicas(&arguments),
        },
        Action::Layout { action } => layout::layout(&action),
        Action::Completions { shell } => manual::completions(shell),
        Action::Man { directory } => manual::man(&directory),
        Action::Agent => node::run::<A>(),
        Action::Supervise => driver::supervise::<A>(),
        Action::Enter(arguments) => node::enter::run(&arguments),
        Action::KeepVariables(place) => node::enter::keep(&place),
        Action::RemoveStore(place) => volume::remove::store(&place),
        Action::SurveyStore(place) => volume::survey::print(&place),
        Action::Probe => node::probe::run(),
    }
}
