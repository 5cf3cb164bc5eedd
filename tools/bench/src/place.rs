//! The place where ranks of a target run, and the limits of a run.

use crate::clock::Stopwatch;
use crate::outcome::{Context, Outcome, output_of};
use crate::servers::Servers;
use crate::wait::Interrupt;
use crate::workload::Step;
use std::process::Command;
use std::time::Duration;

/// Time limits and interrupts of a run.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Runs since the first measurement.
    pub watch: Stopwatch,
    /// The time limit of a step.
    pub step: Duration,
    /// A signal that ends the run.
    pub interrupt: Interrupt,
}

impl Limits {
    /// Handles signals from now on, and limits each step to `seconds`.
    pub fn new(seconds: u64) -> Outcome<Self> {
        let step = Duration::from_secs(seconds);
        Ok(Self { watch: Stopwatch::start(), step, interrupt: Interrupt::listen()? })
    }
}

/// Where ranks run, and in which directory.
#[derive(Clone, Debug)]
pub struct Place {
    /// The command that starts a rank on its node; empty for this machine.
    pub launcher: Vec<String>,
    /// Its directory; `$NAME` is looked up in the rank's environment.
    pub directory: String,
    /// How many nodes there are.
    pub nodes: u32,
    /// The processes that serve it.
    pub servers: Servers,
    /// The command that runs before a step that reads; empty for none.
    pub settle: Vec<String>,
    /// Whether the kernel drops clean pages before a step that reads cold.
    pub drop_caches: bool,
    /// Whether ranks keep their many files in a container, by its library.
    pub in_container: bool,
}

impl Place {
    /// Persists what ranks wrote, as far as a command does it.
    pub fn settle(&self) -> Outcome<()> {
        let Some((program, words)) = self.settle.split_first() else { return Ok(()) };
        output_of(Command::new(program).args(words), "").map(drop)
    }

    /// Prepares a step: settles before a read, and drops the caches before a cold one.
    pub fn prepare(&self, step: Step) -> Outcome<()> {
        if step.reads() {
            self.settle()?;
        }
        if self.drop_caches && step.is_cold() {
            rustix::fs::sync();
            std::fs::write("/proc/sys/vm/drop_caches", "3").context(|| "drop the kernel's caches")?;
        }
        Ok(())
    }
}
