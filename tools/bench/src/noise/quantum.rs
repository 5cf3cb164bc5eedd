//! The compute process: repeats one piece of work on its processor, and times each.
//!
//! As the benchmark FWQ (fixed work quanta): undisturbed, every piece takes as long as the shortest one.

use crate::clock::Stopwatch;
use crate::options::QuantumOptions;
use crate::outcome::{Context, Outcome};
use crate::servers;
use serde::{Deserialize, Serialize};
use std::fs;
use std::hint::black_box;

/// Additions of one piece of work.
const WORK: u32 = 1 << 18;

/// The measurements of one window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// How long each piece of work took.
    pub quanta_ns: Vec<u32>,
    /// Involuntary context switches.
    pub switches: u64,
    /// Steal time of its processor, in seconds.
    pub stolen_seconds: f64,
}

/// Works for some seconds, and prints the measurements.
pub fn serve(options: &QuantumOptions) -> Outcome<()> {
    servers::pin_self(options.processor)?;
    let (switches, stolen) = (switches()?, servers::stolen_seconds(options.processor)?);
    let watch = Stopwatch::start();
    let mut quanta_ns = Vec::new();
    let mut last = watch.elapsed();
    while last.as_secs_f64() < options.seconds {
        work();
        let now = watch.elapsed();
        quanta_ns.push(u32::try_from((now - last).as_nanos()).unwrap_or(u32::MAX));
        last = now;
    }
    let window = Window {
        quanta_ns,
        switches: self::switches()? - switches,
        stolen_seconds: servers::stolen_seconds(options.processor)? - stolen,
    };
    println!("{}", serde_json::to_string(&window).context(|| "write what was seen")?);
    Ok(())
}

fn work() {
    let mut count = 0;
    while count < WORK {
        count = black_box(count + 1);
    }
}

/// Involuntary context switches of this process so far.
fn switches() -> Outcome<u64> {
    let status = fs::read_to_string("/proc/self/status").context(|| "read /proc/self/status")?;
    let figure = status.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"));
    figure.and_then(|text| text.trim().parse().ok()).ok_or_else(|| "no count of switches".to_owned())
}
