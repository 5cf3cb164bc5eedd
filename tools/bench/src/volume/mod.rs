//! Measures a Tameike volume beside a GlusterFS volume on the disks of three hosts, and beside one of these disks.
//!
//! The first process makes the disks, and starts this program a second time in namespaces that end with it. In there are the hosts, the
//! servers and the mounts, so nothing is left of them, whatever happens.

mod fio;
mod gluster;
mod hosts;
mod ior;
mod plan;
mod report;
mod sample;
mod tameike;
mod tree;

#[cfg(test)]
mod tests;

use crate::loop_disk::LoopDisk;
use crate::options::{VolumeOptions, VolumeTarget, VolumeWorkload};
use crate::outcome::{Context, Outcome, output_of};
use crate::place::Limits;
use crate::report::in_directory;
use crate::sandbox;
use crate::servers::Servers;
use crate::target::{Label, version_of};
use crate::wait::Interrupt;
use hosts::{COUNT, Hosts, processes_of};
use plan::{Sizes, Step, Workload};
use report::{Failure, Figures, Report};
use sample::{Measured, Sample};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Set in the namespaces: the directory of the report, that of the run, and the devices.
const INSIDE: &str = "TAMEIKE_BENCH_VOLUME";
/// Arguments: the directory of the run, and the command.
const ENTER: &str = "ip link set lo up && mount -t tmpfs -o mode=755 tmpfs \"$0\" && exec \"$@\"";

/// Measures, and writes the report.
pub fn run(options: &VolumeOptions) -> Outcome<()> {
    match std::env::var(INSIDE) {
        Ok(given) => {
            let mut places = given.split('\n').map(str::to_owned);
            let mut next = || places.next().ok_or_else(|| format!("{INSIDE} is for this program only"));
            let (place, directory) = (next()?, next()?);
            measure(options, Path::new(&place), Path::new(&directory), &places.collect::<Vec<_>>())
        }
        Err(_) => in_directory(&options.report.out, &options.name, |place| enter(options, place)),
    }
}

/// Makes the disks, and runs this program in namespaces with them.
fn enter(options: &VolumeOptions, place: &Path) -> Outcome<()> {
    if !rustix::process::geteuid().is_root() {
        return Err("run this as root: it makes network namespaces and loop devices".to_owned());
    }
    let interrupt = Interrupt::listen()?;
    let directory = tempfile::Builder::new().prefix("tameike-bench-").tempdir();
    let directory = directory.context(|| "make a directory for the run")?;
    let disks = (0..COUNT).map(|host| LoopDisk::new(&options.image, &format!("-{host}"), options.size_gib));
    let disks = disks.collect::<Outcome<Vec<LoopDisk>>>()?;
    let place = place.canonicalize().context(|| "find the directory of the report")?;
    let mut inside = vec![place.display().to_string(), directory.path().display().to_string()];
    inside.extend(disks.iter().map(|disk| disk.device().to_owned()));
    let mut command = sandbox::command(ENTER);
    command.arg(directory.path()).args(std::env::args_os()).env(INSIDE, inside.join("\n"));
    sandbox::run(&mut command, &interrupt)
}

/// A file system to measure.
struct Target {
    kind: VolumeTarget,
    label: Label,
    /// The same on all hosts.
    directory: String,
    /// Hosts that have it mounted, from the first on.
    hosts: usize,
    /// Those of its processes.
    programs: &'static [&'static str],
}

impl Target {
    /// The processes that serve it now.
    fn servers(&self) -> Outcome<Servers> {
        processes_of(self.programs).map(Servers::new)
    }
}

/// A run in the namespaces.
struct Run<'a> {
    options: &'a VolumeOptions,
    hosts: Hosts,
    limits: Limits,
    sizes: Sizes,
}

fn measure(options: &VolumeOptions, place: &Path, directory: &Path, devices: &[String]) -> Outcome<()> {
    let limits = Limits::new(options.report.limit_s)?;
    let hosts = Hosts::new(directory, devices, options.report.limit_s)?;
    let run = Run { options, hosts, limits, sizes: Sizes::new(options) };
    let mut targets = run.start_all()?;
    let figures = run.measure(&mut targets)?;
    let mut programs = vec![output_of(Command::new("fio").arg("--version"), "")?.trim().to_owned()];
    programs.extend(ior::version(&run.hosts));
    targets.sort_by_key(|target| options.targets.iter().position(|kind| kind.name() == target.label.name));
    let labels = targets.into_iter().map(|target| target.label).collect();
    let failures = figures.failures.clone();
    Report::new(options, labels, programs, figures)?.write(place)?;
    // The peer may fail, which its users want to know. Nothing else may.
    match failures.iter().find(|failure| failure.target != VolumeTarget::Glusterfs.name()) {
        Some(failure) => Err(format!("{} on {}: {}", failure.workload, failure.target, failure.message)),
        None => Ok(()),
    }
}

impl Run<'_> {
    fn start_all(&self) -> Outcome<Vec<Target>> {
        self.options.targets.iter().map(|&kind| self.start(kind)).collect()
    }

    fn start(&self, kind: VolumeTarget) -> Outcome<Target> {
        self.limits.interrupt.check()?;
        let Self { options, hosts, limits, .. } = self;
        let replicas = options.replicas;
        let name = kind.name();
        println!("starting {name}");
        let (version, mount, count, programs) = match kind {
            VolumeTarget::Disk => ("xfs".to_owned(), "disk", 1, [].as_slice()),
            VolumeTarget::Glusterfs => {
                gluster::start(hosts, replicas, limits)?;
                let version = version_of(Path::new("glusterfs"))?;
                (version, gluster::MOUNT, COUNT, gluster::PROGRAMS)
            }
            VolumeTarget::Tameike => {
                let program = &options.report.tameike;
                tameike::start(hosts, program, replicas, options.memory_mib)?;
                (version_of(program)?, tameike::MOUNT, COUNT, tameike::PROGRAMS)
            }
        };
        let directory = hosts.text(&format!("{mount}/measured"));
        hosts.shell(0, "mkdir \"$0\"", &[&directory])?;
        let label = Label { name: name.to_owned(), version };
        Ok(Target { kind, label, directory, hosts: count, programs })
    }

    /// All workloads, each in rounds in which the targets take turns.
    fn measure(&self, targets: &mut [Target]) -> Outcome<Figures> {
        let mut figures = Figures::default();
        let mut processes = self.options.processes.as_slice();
        if self.options.ior.is_none() && self.options.workloads.contains(&VolumeWorkload::Ior) {
            let why = "IOR was not measured: --ior names its program, which Debian does not package.";
            println!("{why}");
            figures.skipped = Some(why.to_owned());
            processes = &[];
        }
        ior::Job::prepare(&self.hosts)?;
        let rounds = if self.options.tiny { 1 } else { self.options.rounds };
        let workloads = Workload::all(&self.options.workloads, processes);
        let turns = workloads.len() * rounds as usize * targets.len();
        let mut turn = 0;
        for workload in workloads {
            for round in 0..rounds {
                // Each target comes first, second and third.
                targets.rotate_left(1);
                for target in &*targets {
                    turn += 1;
                    self.limits.interrupt.check()?;
                    print!(
                        "{turn}/{turns}, {:.0} s: {workload:?} ",
                        self.limits.watch.elapsed().as_secs_f64()
                    );
                    self.turn(workload, target, round, turn, &mut figures);
                }
            }
        }
        Ok(figures)
    }

    /// One target in one workload. After a failure, the target has no figures of this workload.
    fn turn(&self, workload: Workload, target: &Target, round: u32, turn: u32, figures: &mut Figures) {
        let (name, group) = (&target.label.name, workload.group());
        if figures.failures.iter().any(|failure| failure.target == *name && failure.workload == group) {
            println!("{name}: failed before");
            return;
        }
        match self.steps(workload, target, round, turn) {
            Ok(samples) => {
                let rates: Vec<String> = samples
                    .iter()
                    .map(|sample| format!("{:.0} {}", sample.rate(), sample.unit.name()))
                    .collect();
                println!("{name}: {}", rates.join(", "));
                figures.samples.extend(samples);
            }
            Err(message) => {
                println!("{name}: {message}");
                figures.samples.retain(|sample| sample.target != *name || sample.group != group);
                figures.failures.push(Failure { workload: group, target: name.clone(), message });
            }
        }
    }

    fn steps(&self, workload: Workload, target: &Target, round: u32, turn: u32) -> Outcome<Vec<Sample>> {
        let (group, unit) = (workload.group(), workload.unit());
        let mut samples = Vec::new();
        for step in workload.steps(&self.sizes, turn) {
            self.limits.interrupt.check()?;
            self.settle(&step)?;
            let servers = target.servers()?;
            let before = servers.usage()?;
            let measured = self.step(&step, target)?;
            let Some((title, measured)) = step.title().zip(measured) else { continue };
            // A repair ends some of them.
            let after = if matches!(step, Step::Repair { .. }) { None } else { servers.usage()? };
            samples.push(Sample {
                group,
                title: title.to_owned(),
                unit,
                target: target.label.name.clone(),
                round,
                at_seconds: self.limits.watch.elapsed().as_secs_f64(),
                measured,
                servers: after.zip(before).map(|(after, before)| after.since(before)),
            });
        }
        Ok(samples)
    }

    /// Waits until earlier writes have reached the disks, and drops the kernel's caches before a read.
    fn settle(&self, step: &Step) -> Outcome<()> {
        rustix::fs::sync();
        if step.reads() {
            std::fs::write("/proc/sys/vm/drop_caches", "3").context(|| "drop the kernel's caches")?;
        }
        Ok(())
    }

    /// Takes a step, and returns its figures if it has any.
    fn step(&self, step: &Step, target: &Target) -> Outcome<Option<Measured>> {
        let Self { hosts, options, .. } = self;
        match step {
            Step::Fio { job, .. } => job.run(hosts, 0, &target.directory).map(Some),
            Step::Fill(job) => job.fill(hosts, 0, &target.directory).map(|()| None),
            Step::Verify(job) => job.verify(hosts, 0, &target.directory).map(|()| None),
            Step::Clear => {
                hosts.shell(0, "find \"$0\" -mindepth 1 -delete", &[&target.directory]).map(|_| None)
            }
            Step::Unpack(tree) => tree.unpack(hosts, 0, &target.directory).map(Some),
            Step::Compare(tree) => tree.compare(hosts, 0, &target.directory).map(|()| None),
            Step::Repair { bytes, files } => self.repair(target, *bytes as f64, *files as f64),
            Step::Ior { job, pass, .. } => {
                let program: &PathBuf = options.ior.as_ref().ok_or("there is no --ior")?;
                job.run(program, hosts, target.hosts, &target.directory, *pass)
            }
        }
    }

    /// The last host loses its store. Returns nothing for targets without copies.
    fn repair(&self, target: &Target, bytes: f64, files: f64) -> Outcome<Option<Measured>> {
        let Self { options, hosts, limits, .. } = self;
        let seconds = match target.kind {
            _ if options.replicas == 1 => return Ok(None),
            VolumeTarget::Disk => return Ok(None),
            VolumeTarget::Glusterfs => gluster::repair(hosts, limits)?,
            VolumeTarget::Tameike => tameike::repair(hosts, &options.report.tameike, limits)?,
        };
        // Each host has this part of all files.
        let lost = f64::from(options.replicas) / COUNT as f64;
        let (operations, bytes) = (files * lost, bytes * lost);
        Ok(Some(Measured { seconds, operations, bytes, latency_us: None, programs_seconds: None }))
    }
}
