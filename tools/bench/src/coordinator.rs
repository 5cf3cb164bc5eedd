//! Starts the ranks of one run, synchronizes them, and collects their results.
//!
//! This process is the barrier between two steps: it starts the next one when all ranks have reported. It kills ranks that remain
//! at the end of a run.

use crate::clock::Stopwatch;
use crate::outcome::{Context, Outcome};
use crate::rank::{FromRank, Link, ToRank};
use crate::servers::{Servers, Usage};
use crate::wait::{self, Interrupt};
use crate::workload::{Measured, Plan, Step};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Where ranks run.
#[derive(Clone, Debug)]
pub struct Place {
    /// The command that starts a rank on its node; empty for this machine.
    pub launcher: Vec<String>,
    /// The directory to measure; `$NAME` is expanded from the rank's environment.
    pub directory: String,
    pub nodes: u32,
    pub servers: Servers,
    /// The command that runs to completion before each reading step; empty for none.
    pub settle: Vec<String>,
}

impl Place {
    fn settle(&self) -> Outcome<()> {
        let Some((program, words)) = self.settle.split_first() else { return Ok(()) };
        let output = Command::new(program).args(words).stdin(Stdio::null()).output();
        let output = output.context(|| format!("start {program}"))?;
        match output.status.success() {
            true => Ok(()),
            false => Err(format!(
                "{} failed ({}): {}",
                self.settle.join(" "),
                output.status,
                String::from_utf8_lossy(&output.stderr)
            )),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Done {
    pub step: Step,
    /// The result of each rank.
    pub ranks: Vec<Measured>,
    /// The servers' processor time during the step, and memory at its end.
    pub servers: Option<Usage>,
    /// The end, in seconds from the start of the measurements.
    pub at_seconds: f64,
}

/// Time limit and interrupt.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Started at the start of the measurements.
    pub watch: Stopwatch,
    /// Time limit of a step.
    pub step: Duration,
    /// Set by a signal.
    pub interrupt: Interrupt,
}

pub fn run(plan: &Plan, place: &Place, limits: &Limits) -> Outcome<Vec<Done>> {
    let _pinned = plan.processor.map(|processor| place.servers.pin(processor)).transpose()?;
    let listener = TcpListener::bind(("127.0.0.1", 0)).context(|| "listen for ranks")?;
    let mut ranks = Ranks::start(plan, place, &listener)?;
    let mut links = greet(plan, &listener, &mut ranks, limits)?;
    let mut done = Vec::new();
    for &step in plan.workload.steps() {
        if step.reads() {
            place.settle()?;
        }
        let before = place.servers.usage()?;
        for link in &mut links {
            link.send(&ToRank::Go)?;
        }
        let mut measured = Vec::new();
        for link in &mut links {
            measured
                .push(await_result(link, &mut ranks, limits).map_err(|error| format!("{step:?}: {error}"))?);
        }
        let after = place.servers.usage()?;
        let servers = before.zip(after).map(|(before, after)| after.since(before));
        done.push(Done { step, ranks: measured, servers, at_seconds: limits.watch.elapsed().as_secs_f64() });
    }
    ranks.finish(limits)?;
    Ok(done)
}

/// Accepts one connection per rank, and sends the plan. Returns them in the order of ranks.
fn greet(plan: &Plan, listener: &TcpListener, ranks: &mut Ranks, limits: &Limits) -> Outcome<Vec<Link>> {
    let mut links: Vec<Option<Link>> = (0..plan.ranks).map(|_| None).collect();
    while links.iter().any(Option::is_none) {
        wait::readable(listener, limits.step, || ranks.check_started(limits))
            .map_err(|error| format!("waiting for ranks to start: {error}"))?;
        let (stream, _) = listener.accept().context(|| "accept a rank")?;
        let mut link = Link::new(stream)?;
        wait::readable(link.stream(), limits.step, || ranks.check_started(limits))?;
        match link.receive()? {
            Some(FromRank::Hello { rank, token }) if token == plan.run && rank < plan.ranks => {
                link.send(&ToRank::Plan(plan.clone()))?;
                links[rank as usize] = Some(link);
            }
            // Not a rank of this run: another process connected to the port.
            _ => drop(link),
        }
    }
    Ok(links.into_iter().flatten().collect())
}

fn await_result(link: &mut Link, ranks: &mut Ranks, limits: &Limits) -> Outcome<Measured> {
    wait::readable(link.stream(), limits.step, || ranks.check(limits))?;
    match link.receive()? {
        Some(FromRank::Done(measured)) => Ok(measured),
        Some(FromRank::Failed(message)) => Err(message),
        Some(FromRank::Hello { .. }) => Err("a rank sent hello twice".to_owned()),
        None => Err("a rank exited during its work; its output is above".to_owned()),
    }
}

/// The rank processes of a run.
#[derive(Debug)]
struct Ranks(Vec<Child>);

impl Ranks {
    fn start(plan: &Plan, place: &Place, listener: &TcpListener) -> Outcome<Self> {
        let address = listener.local_addr().context(|| "listen for ranks")?.to_string();
        let program = std::env::current_exe().context(|| "find this program")?.display().to_string();
        let mut ranks = Self(Vec::new());
        for rank in 0..plan.ranks {
            let fill = |word: &String| {
                word.replace("{node}", &(rank % place.nodes).to_string()).replace("{rank}", &rank.to_string())
            };
            let mut words: Vec<String> = place.launcher.iter().map(fill).collect();
            words.extend([&program, "rank", "--coordinator", &address].map(str::to_owned));
            words.extend(["--rank", &rank.to_string(), "--token", &plan.run].map(str::to_owned));
            words.extend(["--directory".to_owned(), fill(&place.directory)]);
            let child = Command::new(&words[0])
                .args(&words[1..])
                .stdin(Stdio::null())
                .spawn()
                .context(|| format!("start {}", words.join(" ")))?;
            ranks.0.push(child);
        }
        Ok(ranks)
    }

    /// Fails if a rank has exited before its hello.
    fn check_started(&mut self, limits: &Limits) -> Outcome<()> {
        limits.interrupt.check()?;
        self.ended().map_or(Ok(()), |(rank, status)| Err(format!("rank {rank} ended early: {status}")))
    }

    /// Fails if a rank has failed. A rank may complete before others.
    fn check(&mut self, limits: &Limits) -> Outcome<()> {
        limits.interrupt.check()?;
        match self.ended() {
            Some((rank, status)) if !status.success() => Err(format!("rank {rank} failed: {status}")),
            _ => Ok(()),
        }
    }

    /// A rank that has exited, preferably a failed one.
    fn ended(&mut self) -> Option<(usize, std::process::ExitStatus)> {
        let ended = |(rank, child): (usize, &mut Child)| Some((rank, child.try_wait().ok()??));
        self.0.iter_mut().enumerate().filter_map(ended).min_by_key(|(_, status)| status.success())
    }

    /// Waits until every rank has exited successfully.
    fn finish(&mut self, limits: &Limits) -> Outcome<()> {
        for rank in 0..self.0.len() {
            wait::until(&format!("the end of rank {rank}"), limits.step, || {
                self.check(limits)?;
                Ok(self.0[rank].try_wait().context(|| "wait for a rank")?.is_some())
            })?;
        }
        Ok(())
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Both fail only if the process has ended already.
            child.kill().ok();
            child.wait().ok();
        }
    }
}
