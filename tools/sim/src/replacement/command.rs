//! The command: traces on every mixture of what was asked for, a line of JSON each.

use super::policies::Kind;
use super::trace::Trace;
use super::{Knowledge, Last, Setting, Uses, replay};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use std::path::PathBuf;

/// What to replay, and on what. Of lists, every mixture is replayed.
#[derive(Args)]
pub struct Replays {
    /// Traces, whose lines are NODE FILE OFFSET LENGTH r|w.
    #[arg(long, required = true, num_args = 1..)]
    trace: Vec<PathBuf>,
    /// Nodes; those that the trace has, if it has more.
    #[arg(long, default_value_t = 1)]
    nodes: usize,
    /// Units that each node has in memory.
    #[arg(long, value_delimiter = ',', required = true)]
    frames: Vec<usize>,
    /// Units that each node has of the shared file system on its device.
    #[arg(long, value_delimiter = ',', default_value = "1000000")]
    area: Vec<usize>,
    /// Policies of memory.
    #[arg(long, value_delimiter = ',', default_value = "lru")]
    policy: Vec<Kind>,
    /// Policies of the devices.
    #[arg(long, value_delimiter = ',', default_value = "lru")]
    area_policy: Vec<Kind>,
    /// Which uses count.
    #[arg(long, value_delimiter = ',', default_value = "passes")]
    uses: Vec<Uses>,
    /// What nodes know of each other's memory.
    #[arg(long, value_delimiter = ',', default_value = "none")]
    knowledge: Vec<Knowledge>,
    /// What becomes of last copies.
    #[arg(long, value_delimiter = ',', default_value = "stays")]
    last: Vec<Last>,
    /// How often.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    rounds: Vec<u8>,
}

impl Replays {
    /// Replays all of it; `tell` hears of each as soon as it is done.
    ///
    /// # Errors
    /// That a trace cannot be read, or has no nodes.
    pub fn run(&self, tell: impl Fn(&Value)) -> Result<(), String> {
        for path in &self.trace {
            let trace = Trace::read(path)?;
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            for setting in self.settings(trace.nodes) {
                let outcome = replay(&trace, setting)?;
                tell(&json!({
                    "trace": name, "nodes": setting.nodes, "frames": setting.frames, "area": setting.area,
                    "policy": word(setting.policy), "area_policy": word(setting.area_policy), "uses": word(setting.uses),
                    "knowledge": word(setting.knowledge), "last": word(setting.last), "rounds": setting.rounds,
                    "passes": outcome.passes, "own": outcome.own(), "other": outcome.other,
                    "own_device": outcome.own_device, "devices": outcome.devices, "shared": outcome.shared,
                    "moved": outcome.moved, "seconds": outcome.seconds,
                }));
            }
        }
        Ok(())
    }

    /// Every mixture.
    fn settings(&self, nodes: usize) -> Vec<Setting> {
        let first = Setting {
            nodes: nodes.max(self.nodes),
            frames: 0,
            area: 0,
            policy: Kind::Lru,
            area_policy: Kind::Lru,
            uses: Uses::Each,
            knowledge: Knowledge::None,
            last: Last::Stays,
            rounds: 0,
        };
        let settings = vec![first];
        let settings = mixed(&settings, &self.frames, |setting, &frames| setting.frames = frames);
        let settings = mixed(&settings, &self.area, |setting, &area| setting.area = area);
        let settings = mixed(&settings, &self.policy, |setting, &policy| setting.policy = policy);
        let settings = mixed(&settings, &self.area_policy, |setting, &policy| setting.area_policy = policy);
        let settings = mixed(&settings, &self.uses, |setting, &uses| setting.uses = uses);
        let settings = mixed(&settings, &self.knowledge, |setting, &knowledge| setting.knowledge = knowledge);
        let settings = mixed(&settings, &self.last, |setting, &last| setting.last = last);
        mixed(&settings, &self.rounds, |setting, &rounds| setting.rounds = rounds)
    }
}

/// Each of the settings with each of the values.
fn mixed<T>(settings: &[Setting], values: &[T], set: impl Fn(&mut Setting, &T)) -> Vec<Setting> {
    let with = |setting: &Setting, value| {
        let mut setting = *setting;
        set(&mut setting, value);
        setting
    };
    settings.iter().flat_map(|setting| values.iter().map(|value| with(setting, value))).collect()
}

/// As it is called on the command line.
fn word(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}
