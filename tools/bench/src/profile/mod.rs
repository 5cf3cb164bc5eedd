//! Flame graphs of agents: repeats workloads on a job, and samples its agents with `perf`.

mod flame;
mod stacks;

use crate::clock::Stopwatch;
use crate::coordinator;
use crate::options::ProfileOptions;
use crate::outcome::{Context, Outcome, output_of};
use crate::place::Limits;
use crate::report::{self, Machine};
use crate::target::{self, Target};
use crate::wait::{self, Process};
use crate::workload::{Sizes, Workload};
use clap::ValueEnum;
use rustix::process::{Pid, Signal, kill_process};
use stacks::Frame;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// Samples a second; no divisor of the kernel's own clocks.
const FREQUENCY: &str = "499";
/// Stacks are unwound from copies of this size: code without frame pointers has no other.
const UNWIND: &str = "dwarf,16384";
const INSTALL: &str = " (perf is Debian's linux-perf)";
/// Lines in a table of each workload.
const SHOWN: usize = 12;

/// Samples, and writes the report.
pub fn run(options: &ProfileOptions) -> Outcome<()> {
    let limits = Limits::new(options.report.limit_s)?;
    report::in_directory(&options.report.out, &options.name, |place| {
        write(place, options, &sample_all(options, &limits)?)
    })
}

fn sample_all(options: &ProfileOptions, limits: &Limits) -> Outcome<Vec<(Workload, Frame)>> {
    let mut job = target::own_job("profile", &options.report.tameike, options.nodes, options.preload)?;
    let mut profiles = Vec::new();
    for &workload in &options.workloads {
        let root = sample(options, workload, &mut job, limits)?;
        println!("{workload:?}: {} samples", root.samples);
        profiles.push((workload, root));
    }
    job.stop()?;
    Ok(profiles)
}

/// Repeats `workload` for some seconds while the agents are sampled.
fn sample(options: &ProfileOptions, workload: Workload, job: &mut Target, limits: &Limits) -> Outcome<Frame> {
    let agents = job.place.servers.numbers();
    let perf = Perf::start(Some(agents.as_str()).filter(|_| !options.machine))?;
    let (begun, mut turn) = (Stopwatch::start(), 0);
    while begun.elapsed().as_secs_f64() < options.seconds {
        let plan = Sizes::USUAL.plan(workload, options.ranks, 1, turn)?;
        coordinator::run(&plan, job, limits)?;
        turn += 1;
    }
    perf.stop(limits)
}

/// A running `perf record`; it ends with this value.
struct Perf {
    process: Process,
    directory: TempDir,
}

impl Perf {
    /// Samples these processes, or all.
    fn start(processes: Option<&str>) -> Outcome<Self> {
        let directory = tempfile::Builder::new().prefix("tameike-bench-").tempdir_in("/var/tmp");
        let directory = directory.context(|| "make a directory in /var/tmp")?;
        let mut command = Command::new("perf");
        command.args(["record", "--quiet", "--event", "cpu-clock"]);
        command.args(["--freq", FREQUENCY, "--call-graph", UNWIND]);
        match processes {
            Some(processes) => command.args(["--pid", processes]),
            None => command.arg("--all-cpus"),
        };
        command.arg("--output").arg(data(&directory));
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let process = process.context(|| format!("start perf{INSTALL}"))?;
        Ok(Self { process: Process(process), directory })
    }

    /// Stops it, and merges its samples.
    fn stop(mut self, limits: &Limits) -> Outcome<Frame> {
        kill_process(Pid::from_child(&self.process.0), Signal::INT).context(|| "stop perf")?;
        wait::until("the end of perf", limits.step, || {
            limits.interrupt.check()?;
            Ok(self.process.status()?.is_some())
        })?;
        let mut command = Command::new("perf");
        command.args(["script", "--no-inline", "--fields", "comm,ip,sym", "--input"]);
        let script = output_of(command.arg(data(&self.directory)), INSTALL)?;
        Ok(Frame::of_script(&script))
    }
}

fn data(directory: &TempDir) -> PathBuf {
    directory.path().join("perf.data")
}

fn write(place: &Path, options: &ProfileOptions, profiles: &[(Workload, Frame)]) -> Outcome<()> {
    let (spender, sampled) = match options.machine {
        false => {
            ("agents spend their", "running thread of the agents, kernel included; the ranks are not sampled")
        }
        true => ("all that runs spends its", "processor, ranks and idle time included"),
    };
    let machine = Machine::detect()?;
    let mut text = format!(
        "# Where {spender} processor time, {}\n\n    {}\n\n{FREQUENCY} samples a second of each {sampled}.\n\n{}.\n",
        machine.date,
        machine.command,
        machine.summary()
    );
    let mut files = Vec::new();
    for (workload, root) in profiles {
        let name = workload.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        text += &format!("\n## {name}\n\n![Flame graph](./{name}.svg)\n");
        let by_thread = if options.machine { root.by_thread() } else { Vec::new() };
        for (what, shares) in [("thread", by_thread), ("function", root.by_function())] {
            if shares.is_empty() {
                continue;
            }
            text += &format!("\n| share | {what} |\n|---:|---|\n");
            for (name, samples) in shares.iter().take(SHOWN) {
                let share = *samples as f64 * 100.0 / root.samples as f64;
                text += &format!("| {share:.1} % | `{}` |\n", name.replace('|', "\\|"));
            }
        }
        files.push((format!("{name}.svg"), flame::svg(&name, root)));
    }
    files.push(("report.md".to_owned(), text));
    report::write_files(place, &files)
}
