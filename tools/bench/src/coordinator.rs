//! Starts the ranks of one run, sends them the steps, and collects their measurements.
//!
//! This process is the barrier between two steps: it starts a step when all ranks have answered. It kills ranks that still run when a
//! run succeeds or fails.

use crate::clock::Stopwatch;
use crate::outcome::{Context, Outcome};
use crate::place::{Limits, Place};
use crate::rank::{FromRank, Link, ToRank};
use crate::servers::Usage;
use crate::target::Target;
use crate::wait::{self, Process};
use crate::workload::{Measured, Plan, Step};
use std::net::TcpListener;
use std::process::{Command, ExitStatus, Stdio};

/// The measurements of one step.
#[derive(Clone, Debug)]
pub struct Done {
    pub step: Step,
    /// The measurements of each rank.
    pub ranks: Vec<Measured>,
    /// Resources that the servers used: processor time during the step, memory at its end.
    pub servers: Option<Usage>,
    /// The time of its end, in seconds since the first measurement.
    pub at_seconds: f64,
}

/// Runs all steps of `plan` on `target`.
pub fn run(plan: &Plan, target: &mut Target, limits: &Limits) -> Outcome<Vec<Done>> {
    let _pinned = plan.processor.map(|processor| target.place.servers.pin(processor)).transpose()?;
    let listener = TcpListener::bind(("127.0.0.1", 0)).context(|| "listen for ranks")?;
    let mut done = Vec::new();
    for steps in plan.steps.split_inclusive(|step| step.ends_ranks()) {
        let plan = Plan { steps: steps.to_vec(), in_container: target.place.in_container, ..plan.clone() };
        run_ranks(&plan, target, &listener, limits, &mut done)?;
    }
    Ok(done)
}

/// Starts ranks, has them take the steps of `plan`, and waits until they have exited.
fn run_ranks(
    plan: &Plan,
    target: &mut Target,
    listener: &TcpListener,
    limits: &Limits,
    done: &mut Vec<Done>,
) -> Outcome<()> {
    let mut ranks = Ranks::start(plan, &target.place, listener)?;
    let mut links = greet(plan, listener, &mut ranks, limits)?;
    let mut begun = Stopwatch::start();
    for &step in &plan.steps {
        if step.ends_ranks() {
            ranks.finish(limits)?;
            target.persist()?;
            rustix::fs::sync();
            let before = done.last().map_or(&[][..], |done| &done.ranks);
            let persisted = before.iter().map(|rank| rank.persisted(begun.elapsed())).collect();
            target.resume()?;
            let at_seconds = limits.watch.elapsed().as_secs_f64();
            done.push(Done { step, ranks: persisted, servers: None, at_seconds });
            return Ok(());
        }
        let place = &target.place;
        place.prepare(step)?;
        begun = Stopwatch::start();
        let before = place.servers.usage()?;
        for link in &mut links {
            link.send(&ToRank::Go)?;
        }
        let mut measured = Vec::new();
        for link in &mut links {
            measured.push(answer(link, &mut ranks, limits).map_err(|error| format!("{step:?}: {error}"))?);
        }
        let after = place.servers.usage()?;
        let servers = before.zip(after).map(|(before, after)| after.since(before));
        done.push(Done { step, ranks: measured, servers, at_seconds: limits.watch.elapsed().as_secs_f64() });
    }
    ranks.finish(limits)
}

/// Accepts one connection per rank, in the order of ranks, and sends the plan.
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
            // Another process of this machine has connected to the port.
            _ => drop(link),
        }
    }
    Ok(links.into_iter().flatten().collect())
}

fn answer(link: &mut Link, ranks: &mut Ranks, limits: &Limits) -> Outcome<Measured> {
    wait::readable(link.stream(), limits.step, || ranks.check(limits))?;
    match link.receive()? {
        Some(FromRank::Done(measured)) => Ok(measured),
        Some(FromRank::Failed(message)) => Err(message),
        Some(FromRank::Hello { .. }) => Err("a rank connected twice".to_owned()),
        None => Err("a rank exited before the step ended; see its messages above".to_owned()),
    }
}

/// The processes of a run.
#[derive(Debug)]
struct Ranks(Vec<Process>);

impl Ranks {
    fn start(plan: &Plan, place: &Place, listener: &TcpListener) -> Outcome<Self> {
        let address = listener.local_addr().context(|| "listen for ranks")?.to_string();
        let program = std::env::current_exe().context(|| "find this program")?.display().to_string();
        let mut ranks = Self(Vec::new());
        for rank in 0..plan.ranks {
            let fill = |word: &String| {
                word.replace("{node}", &(rank % place.nodes).to_string())
                    .replace("{rank}", &rank.to_string())
                    .replace("{run}", &plan.run)
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
            ranks.0.push(Process(child));
        }
        Ok(ranks)
    }

    /// Returns an error if a rank has exited before it connected.
    fn check_started(&mut self, limits: &Limits) -> Outcome<()> {
        limits.interrupt.check()?;
        self.ended().map_or(Ok(()), |(rank, status)| Err(format!("rank {rank} ended early: {status}")))
    }

    /// Returns an error if a rank has failed. A rank that is done may exit before the other ones.
    fn check(&mut self, limits: &Limits) -> Outcome<()> {
        limits.interrupt.check()?;
        match self.ended() {
            Some((rank, status)) if !status.success() => Err(format!("rank {rank} failed: {status}")),
            _ => Ok(()),
        }
    }

    /// Finds a rank that has exited, a failed one first.
    fn ended(&mut self) -> Option<(usize, ExitStatus)> {
        let ended = |(rank, process): (usize, &mut Process)| Some((rank, process.status().ok()??));
        self.0.iter_mut().enumerate().filter_map(ended).min_by_key(|(_, status)| status.success())
    }

    /// Waits until every rank has exited without an error.
    fn finish(&mut self, limits: &Limits) -> Outcome<()> {
        for rank in 0..self.0.len() {
            wait::until(&format!("the end of rank {rank}"), limits.step, || {
                self.check(limits)?;
                Ok(self.0[rank].status()?.is_some())
            })?;
        }
        Ok(())
    }
}
