//! Formats programs for people.

use super::{Action, Injection, Program, Step};
use crate::op::{Flags, Op};
use std::fmt::{Display, Formatter, Result};
use tameike_core::wire::lock::LockRange;
use tameike_core::wire::meta::RenameMode;
use tameike_fabric::simulated::NetworkFaults;

impl Display for Flags {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let words = [
            (true, if self.write { "O_RDWR" } else { "O_RDONLY" }),
            (self.append, "O_APPEND"),
            (self.truncate, "O_TRUNC"),
            (self.create, "O_CREAT"),
            (self.exclusive, "O_EXCL"),
        ];
        let set: Vec<_> = words.into_iter().filter(|(set, _)| *set).map(|(_, word)| word).collect();
        write!(f, "{}", set.join("|"))
    }
}

fn lock_words(range: Option<LockRange>) -> (&'static str, String) {
    match range {
        None => ("flock", String::new()),
        Some(LockRange { start, last }) => ("fcntl", format!(", bytes {start} to {last}")),
    }
}

impl Display for Op {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Open { slot, path, flags } => write!(f, "fd{slot} = open(\"{path}\", {flags})"),
            Self::Read { slot, offset, length } => write!(f, "pread(fd{slot}, {length} bytes at {offset})"),
            Self::Write { slot, offset, length, tag } => {
                write!(f, "pwrite(fd{slot}, {length} bytes at {offset}, pattern {tag})")
            }
            Self::Space { slot, change, offset, length } => {
                write!(f, "fallocate(fd{slot}, {change:?}, {length} bytes at {offset})")
            }
            Self::Lock { slot, range, kind, wait } => {
                let (call, bytes) = lock_words(*range);
                let wait = if *wait { ", waits" } else { "" };
                write!(f, "{call}(fd{slot}, {kind:?}{bytes}{wait})")
            }
            Self::Unlock { slot, range } => {
                let (call, bytes) = lock_words(*range);
                write!(f, "{call}(fd{slot}, unlock{bytes})")
            }
            Self::Fsync { slot } => write!(f, "fsync(fd{slot})"),
            Self::Close { slot } => write!(f, "close(fd{slot})"),
            Self::Truncate { path, size } => write!(f, "truncate(\"{path}\", {size})"),
            Self::Stat { path } => write!(f, "stat(\"{path}\")"),
            Self::List { path } => write!(f, "readdir(\"{path}\")"),
            Self::Mkdir { path } => write!(f, "mkdir(\"{path}\")"),
            Self::Rmdir { path } => write!(f, "rmdir(\"{path}\")"),
            Self::Unlink { path } => write!(f, "unlink(\"{path}\")"),
            Self::Rename { from, to, mode } => {
                let flag = match mode {
                    RenameMode::Replace => "",
                    RenameMode::NoReplace => ", RENAME_NOREPLACE",
                    RenameMode::Exchange => ", RENAME_EXCHANGE",
                };
                write!(f, "rename(\"{from}\", \"{to}\"{flag})")
            }
            Self::Link { from, to } => write!(f, "link(\"{from}\", \"{to}\")"),
            Self::Symlink { path, target } => write!(f, "symlink(\"{target}\", \"{path}\")"),
            Self::Readlink { path } => write!(f, "readlink(\"{path}\")"),
            Self::Chmod { path, mode } => write!(f, "chmod(\"{path}\", {mode:o})"),
            Self::SetXattr { path, value } => write!(f, "setxattr(\"{path}\", {value})"),
            Self::GetXattr { path } => write!(f, "getxattr(\"{path}\")"),
            Self::SyncDir { path } => write!(f, "fsync(directory \"{path}\")"),
        }
    }
}

impl Display for Injection {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Kill { node, power: false } => write!(f, "the agent of node {node} fails"),
            Self::Kill { node, power: true } => write!(f, "node {node} loses power"),
            Self::Hang { node, milliseconds } => {
                write!(f, "the agent of node {node} hangs for {milliseconds} ms")
            }
            Self::Partition { from, to, both: false } => {
                write!(f, "messages from node {from} no longer reach node {to}")
            }
            Self::Partition { from, to, both: true } => write!(f, "nodes {from} and {to} are partitioned"),
            Self::Heal => write!(f, "all partitions end"),
            Self::Network(NetworkFaults { delay_max, lost, duplicated, broken }) => write!(
                f,
                "messages take up to {delay_max:?}; of a million, the network loses {lost}, duplicates {duplicated}, \
                 and breaks the connection at {broken}"
            ),
            Self::Tree(faults) => {
                write!(f, "calls to the shared file system fail (per 1000 calls): {faults:?}")
            }
            Self::Disk(node, faults) => {
                write!(f, "calls to the disks of node {node} fail (per 1000 calls): {faults:?}")
            }
            Self::Rot(node) => write!(f, "a bit flips on the disk of node {node}"),
            Self::Flip(node) => write!(f, "a bit flips in memory of node {node}"),
            Self::Warm(node) => write!(f, "node {node} warms all files of the shared file system"),
            Self::Map(node) => write!(f, "node {node} gets the next home map"),
            Self::Driver => write!(f, "the driver fails"),
            Self::CutDriver { node, milliseconds } => {
                write!(f, "the driver and node {node} are cut off from the others for {milliseconds} ms")
            }
            Self::Leave(node) => write!(f, "all homes leave node {node}, or it may have homes again"),
            Self::Slow(node, limit) => write!(f, "blocking calls on node {node} take up to {limit} ms"),
        }
    }
}

impl Display for Action {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Call { node, view, op } => write!(f, "node {node}, {}: {op}", view.as_str()),
            Self::Injection(0, injection) => write!(f, "{injection}"),
            Self::Injection(after, injection) => write!(f, "after {after} us {injection}"),
        }
    }
}

impl Display for Step {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Together(actions) => {
                let words: Vec<_> = actions.iter().map(ToString::to_string).collect();
                write!(f, "{}", words.join("\n     | "))
            }
            Self::Rest(milliseconds) => write!(f, "{milliseconds} ms pass"),
            Self::Drain => write!(f, "all nodes drain"),
            Self::Check => write!(f, "all faults end, and all nodes are compared with the model"),
        }
    }
}

impl Display for Program {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let world = &self.world;
        let devices: Vec<_> =
            world.devices.iter().map(|&has| if has { "device" } else { "no device" }).collect();
        writeln!(
            f,
            "{} nodes ({}), capacity of each view {} bytes per node, inline payloads of up to {} bytes{}",
            devices.len(),
            devices.join(", "),
            world.capacity,
            world.inline_max,
            if world.volatile { ", disks that lose unsynced writes" } else { "" },
        )?;
        if world.view_frames < u32::MAX {
            writeln!(f, "each view has {} frames", world.view_frames)?;
        }
        if world.service_frames < u32::MAX {
            writeln!(f, "each service pool has {} frames", world.service_frames)?;
        }
        if let Some(canary) = world.canary {
            writeln!(f, "with the injected bug {canary:?}")?;
        }
        for (number, step) in self.steps.iter().enumerate() {
            writeln!(f, "{number:4} {step}")?;
        }
        f.write_str(match self.crashes {
            true => "then all agents fail, and the job is recovered",
            false => "then the job is drained",
        })
    }
}
