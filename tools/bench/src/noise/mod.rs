//! Measures the slowdown of a program that computes on a separate processor beside agents.
//!
//! Windows without a job, with an idle one, and with one that is read and written take turns. This program, the
//! agents and the ranks keep to the first processor, unless `--anywhere` is given; the compute process has the last.

mod figures;
mod quantum;

pub use quantum::serve;

use crate::coordinator;
use crate::options::NoiseOptions;
use crate::outcome::{Context, Outcome};
use crate::place::Limits;
use crate::report::{self, Machine};
use crate::servers;
use crate::target::{self, Target};
use crate::wait::{self, Process};
use crate::workload::{Sizes, Workload};
use figures::Noise;
use quantum::Window;
use serde::Serialize;
use std::io::Read;
use std::process::{Command, Stdio};

/// Written and read again and again beside the compute process.
const LOAD: Sizes = Sizes { size_bytes: 64 << 20, ..Sizes::USUAL };

/// The load beside the compute process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Beside {
    Nothing,
    IdleJob,
    BusyJob,
}

/// The content of `result.json`.
#[derive(Debug, Serialize)]
struct Report {
    machine: Machine,
    agents_anywhere: bool,
    shortest_ns: u32,
    is_quiet: bool,
    noise: Vec<(Beside, Noise)>,
    /// Of each window alone, in their order.
    windows: Vec<(Beside, Noise)>,
}

/// Measures, and writes the report.
pub fn run(options: &NoiseOptions) -> Outcome<()> {
    let limits = Limits::new(options.report.limit_s)?;
    let (first, last) = servers::first_and_last_processor()?;
    if first == last {
        return Err("noise needs two processors: one for agents, one to compute on".to_owned());
    }
    // Before it is kept to one processor, and sees no other any more.
    let machine = Machine::detect()?;
    if !options.anywhere {
        // Ranks, and the job with its agents, inherit this.
        servers::pin_self(first)?;
    }
    report::in_directory(&options.report.out, &options.name, |place| {
        let report = Report::new(machine, options.anywhere, &measure(options, last, &limits)?)?;
        let raw = serde_json::to_string(&report).context(|| "write the figures")?;
        report::write_files(place, &[("result.json", raw + "\n"), ("report.md", report.markdown())])
    })
}

fn measure(options: &NoiseOptions, processor: usize, limits: &Limits) -> Outcome<Vec<(Beside, Window)>> {
    let mut windows = Vec::new();
    for round in 0..options.rounds {
        windows.push((Beside::Nothing, window(options, processor, None, limits)?));
        let mut job = target::own_job("noise", &options.report.tameike, options.nodes, false)?;
        windows.push((Beside::IdleJob, window(options, processor, None, limits)?));
        windows.push((Beside::BusyJob, window(options, processor, Some(&mut job), limits)?));
        job.stop()?;
        println!("round {} of {}", round + 1, options.rounds);
    }
    Ok(windows)
}

/// One window; `busy` is read and written until it is over.
fn window(
    options: &NoiseOptions,
    processor: usize,
    busy: Option<&mut Target>,
    limits: &Limits,
) -> Outcome<Window> {
    let compute = Compute::start(processor, options.seconds)?;
    let mut turn = 0;
    if let Some(target) = busy {
        while !compute.has_written()? {
            let plan = LOAD.plan(Workload::Sequential, options.nodes, 1, turn)?;
            coordinator::run(&plan, target, limits)?;
            turn += 1;
        }
    }
    compute.finish(limits)
}

/// The compute process; it ends with this value.
struct Compute(Process);

impl Compute {
    fn start(processor: usize, seconds: f64) -> Outcome<Self> {
        let program = std::env::current_exe().context(|| "find this program")?;
        let mut command = Command::new(program);
        command.args(["quantum", "--processor", &processor.to_string(), "--seconds", &seconds.to_string()]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        child.map(|child| Self(Process(child))).context(|| "start the compute process")
    }

    /// Returns true if it has written its result, which a pipe does not hold: it exits only when the result is read.
    fn has_written(&self) -> Outcome<bool> {
        self.0.0.stdout.as_ref().map_or(Ok(true), wait::is_readable)
    }

    fn finish(mut self, limits: &Limits) -> Outcome<Window> {
        let mut said = String::new();
        if let Some(mut output) = self.0.0.stdout.take() {
            wait::readable(&output, limits.step, || limits.interrupt.check())?;
            output.read_to_string(&mut said).context(|| "read from the compute process")?;
        }
        serde_json::from_str(&said).context(|| "parse the result of the compute process")
    }
}

impl Report {
    fn new(machine: Machine, agents_anywhere: bool, windows: &[(Beside, Window)]) -> Outcome<Self> {
        let quanta = windows.iter().flat_map(|(_, window)| &window.quanta_ns);
        let shortest_ns = *quanta.min().ok_or("the compute process did nothing")?;
        let of = |beside: Beside| {
            let windows =
                windows.iter().filter(|(kind, _)| *kind == beside).map(|(_, window)| window.clone());
            Some((beside, Noise::of(&windows.collect::<Vec<_>>(), shortest_ns)?))
        };
        let noise: Vec<(Beside, Noise)> =
            [Beside::Nothing, Beside::IdleJob, Beside::BusyJob].into_iter().filter_map(of).collect();
        let is_quiet = noise.first().is_some_and(|(_, alone)| alone.is_quiet());
        let alone = |(beside, window): &(Beside, Window)| {
            Some((*beside, Noise::of(std::slice::from_ref(window), shortest_ns)?))
        };
        let windows = windows.iter().filter_map(alone).collect();
        Ok(Self { machine, agents_anywhere, shortest_ns, is_quiet, noise, windows })
    }

    fn markdown(&self) -> String {
        let agents = match self.agents_anywhere {
            true => "may run on any processor, also the compute process's",
            false => "keep to the first processor, the compute process has the last",
        };
        let verdict = match self.is_quiet {
            true => {
                "Without a job this machine is quiet (rate up to 5e-5): the figures below are those of agents."
            }
            false => {
                "**Without a job this machine is not quiet** (rate above 5e-5, from its hypervisor or from other programs): \
                 only the difference between the lines is the effect of agents, and the slowdown is that of this machine."
            }
        };
        let mut text = format!(
            "# Noise on a compute processor, {}\n\n    {}\n\nAgents and ranks {agents}. A piece of work takes {:.1} us. {verdict}\n\n\
             {}.\n\n\
             | beside it | noise rate | delays of 10 us or more [1/s] | longest [us] | switches [1/s] | stolen | \
             slowdown on 100,000 nodes, barrier each ms |\n|---|---:|---:|---:|---:|---:|---:|\n",
            self.machine.date,
            self.machine.command,
            f64::from(self.shortest_ns) / 1e3,
            self.machine.summary(),
        );
        for (beside, noise) in &self.noise {
            let name = match beside {
                Beside::Nothing => "nothing",
                Beside::IdleJob => "a job that is idle",
                Beside::BusyJob => "a job that is written and read",
            };
            text += &format!(
                "| {name} | {:.2e} | {:.1} | {:.0} | {:.1} | {:.2} % | {:.1} % |\n",
                noise.rate,
                noise.gaps_per_second,
                noise.longest_us,
                noise.switches_per_second,
                noise.stolen * 100.0,
                (noise.slowdown - 1.0) * 100.0,
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Stopwatch;
    use crate::wait::Interrupt;
    use std::time::Duration;

    /// The result of a long window is larger than a pipe. A caller that waited for the exit before it read the result would block forever.
    #[test]
    fn a_compute_process_that_blocks_on_its_result_has_finished() {
        let mut command = Command::new("head");
        command.args(["--bytes", "1000000", "/dev/zero"]).stdout(Stdio::piped());
        let compute = Compute(Process(command.spawn().expect("head starts")));
        let limit = Duration::from_secs(60);
        wait::until("its result", limit, || compute.has_written()).expect("it writes");
        let limits = Limits { watch: Stopwatch::start(), step: limit, interrupt: Interrupt::default() };
        let message = compute.finish(&limits).expect_err("zeros are no window");
        assert!(message.contains("parse"), "{message}");
    }
}
