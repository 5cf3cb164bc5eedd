//! The processes that serve a target: their processor time and memory, and their processors.
//!
//! The figures come from `/proc`; its times have a resolution of 10 ms.

use crate::outcome::{Context, Outcome};
use rustix::io::Errno;
use rustix::param::clock_ticks_per_second;
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;

/// Process IDs on this host; none if the kernel or another host serves the target.
#[derive(Clone, Debug, Default)]
pub struct Servers(Vec<u32>);

/// Resources that they use together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Usage {
    /// In user and in system mode.
    pub processor_seconds: f64,
    /// Resident now.
    pub resident_bytes: u64,
    /// The most that was ever resident, summed over processes.
    pub peak_bytes: u64,
}

impl Servers {
    /// These processes.
    pub fn new(processes: Vec<u32>) -> Self {
        Self(processes)
    }

    /// Their process IDs, separated by commas.
    pub fn numbers(&self) -> String {
        self.0.iter().map(u32::to_string).collect::<Vec<String>>().join(",")
    }

    /// Their usage so far; `None` if there are none.
    pub fn usage(&self) -> Outcome<Option<Usage>> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let mut all = Usage { processor_seconds: 0.0, resident_bytes: 0, peak_bytes: 0 };
        for process in &self.0 {
            let read = |name: &str| {
                let path = format!("/proc/{process}/{name}");
                fs::read_to_string(&path).context(|| format!("read {path} (has that server ended?)"))
            };
            let (stat, status) = (read("stat")?, read("status")?);
            all.processor_seconds += processor_seconds(&stat).ok_or("cannot understand /proc/PID/stat")?;
            all.resident_bytes += bytes(&status, "VmRSS:");
            all.peak_bytes += bytes(&status, "VmHWM:");
        }
        Ok(Some(all))
    }

    /// Keeps all their threads on one processor until the result is dropped.
    pub fn pin(&self, processor: usize) -> Outcome<Pinned> {
        let mut pinned = Pinned { servers: self.clone(), before: BTreeMap::new() };
        for thread in self.threads() {
            // A thread that has ended meanwhile needs no pinning.
            let set = match sched_getaffinity(Some(thread)) {
                Err(Errno::SRCH) => continue,
                other => other.context(|| "ask where a server runs")?,
            };
            pinned.before.insert(thread.as_raw_nonzero().get(), set);
            match sched_setaffinity(Some(thread), &only(processor)) {
                Ok(()) | Err(Errno::SRCH) => {}
                Err(error) => return Err(format!("cannot keep a server on processor {processor}: {error}")),
            }
        }
        Ok(pinned)
    }

    fn threads(&self) -> Vec<Pid> {
        let tasks = |process: &u32| fs::read_dir(format!("/proc/{process}/task"));
        let entries = self.0.iter().filter_map(|process| tasks(process).ok()).flatten().flatten();
        entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)).collect()
    }
}

impl Usage {
    /// With the processor time since `before`.
    pub fn since(self, before: Self) -> Self {
        Self { processor_seconds: self.processor_seconds - before.processor_seconds, ..self }
    }
}

/// Servers that are kept on one processor.
#[derive(Debug)]
pub struct Pinned {
    servers: Servers,
    /// Where each thread ran, by its number.
    before: BTreeMap<i32, CpuSet>,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        for thread in self.servers.threads() {
            // A thread that started later gets the processors of another one.
            let before = self.before.get(&thread.as_raw_nonzero().get());
            if let Some(set) = before.or_else(|| self.before.values().next()) {
                // It fails only for a thread that has ended.
                sched_setaffinity(Some(thread), set).ok();
            }
        }
    }
}

/// The first and the last processor that this process may run on.
pub fn first_and_last_processor() -> Outcome<(usize, usize)> {
    let allowed = sched_getaffinity(None).context(|| "ask where this process runs")?;
    let mut allowed = (0..CpuSet::MAX_CPU).filter(|&at| allowed.is_set(at));
    let first = allowed.next().ok_or("there is no processor")?;
    Ok((first, allowed.next_back().unwrap_or(first)))
}

/// Steal time of `processor` so far: it had work, and the hypervisor did not run it.
pub fn stolen_seconds(processor: usize) -> Outcome<f64> {
    let stat = fs::read_to_string("/proc/stat").context(|| "read /proc/stat")?;
    stolen_ticks(&stat, processor)
        .map(|ticks| ticks as f64 / clock_ticks_per_second() as f64)
        .ok_or_else(|| format!("/proc/stat has no processor {processor}"))
}

/// The eighth figure in the line of `processor`.
fn stolen_ticks(stat: &str, processor: usize) -> Option<u64> {
    let name = format!("cpu{processor} ");
    let line = stat.lines().find_map(|line| line.strip_prefix(&name))?;
    line.split_ascii_whitespace().nth(7)?.parse().ok()
}

/// Keeps this process on one processor from now on.
pub fn pin_self(processor: usize) -> Outcome<()> {
    sched_setaffinity(None, &only(processor)).context(|| format!("stay on processor {processor}"))
}

fn only(processor: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(processor);
    set
}

/// User and system time from `/proc/PID/stat`: its fields 14 and 15, of which the second is the name in brackets.
fn processor_seconds(stat: &str) -> Option<f64> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some((ticks()? + ticks()?) as f64 / clock_ticks_per_second() as f64)
}

/// The figure of a line of `/proc/PID/status`, which is in KiB.
fn bytes(status: &str, name: &str) -> u64 {
    let figure = status.lines().find_map(|line| line.strip_prefix(name));
    figure.and_then(|text| text.split_ascii_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use std::process::{Command, Stdio};

    #[test]
    fn times_are_found_behind_any_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 5 6 7 8 250 50 0 0 20 0 1 0 9";
        assert_eq!(processor_seconds(stat), Some(300.0 / clock_ticks_per_second() as f64));
        assert_eq!(processor_seconds("7 (a) S 1"), None);
        let stat = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu1 1 2 3 4 5 6 7 8 0 0\ncpu11 9 9 9 9 9 9 9 9 9 9\n";
        assert_eq!((stolen_ticks(stat, 1), stolen_ticks(stat, 2)), (Some(8), None));
    }

    #[test]
    fn the_usage_of_this_process_is_plausible() {
        assert_eq!(Servers::default().usage(), Ok(None));
        let own = Servers::new(vec![std::process::id()]);
        let before = own.usage().expect("own usage").expect("a process");
        while clock::processor_seconds() < before.processor_seconds + 0.1 {}
        let after = own.usage().expect("own usage").expect("a process");
        let taken = after.since(before).processor_seconds;
        assert!((0.05..60.0).contains(&taken), "{taken}");
        assert!(after.resident_bytes > 1 << 20 && after.peak_bytes >= after.resident_bytes, "{after:?}");
    }

    #[test]
    fn servers_are_pinned_and_released() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("cat starts");
        let thread = Pid::from_raw(child.id() as i32);
        let (before, processor) =
            (sched_getaffinity(thread).expect("a mask"), first_and_last_processor().expect("one").0);
        let pinned = Servers::new(vec![child.id()]).pin(processor).expect("pinned");
        assert_eq!(sched_getaffinity(thread).expect("a mask"), only(processor));
        drop(pinned);
        assert_eq!(sched_getaffinity(thread).expect("a mask"), before);
        drop(child.stdin.take());
        assert!(child.wait().expect("it ends").success());
        assert!(Servers::new(vec![child.id()]).usage().is_err(), "it has ended");
    }
}
