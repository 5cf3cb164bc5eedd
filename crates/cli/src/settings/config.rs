//! The configuration file: TOML with a key for each option of a job, and a few keys without an option.

use super::capacity::Capacity;
use super::size;
use super::volume::OwnedVolume;
use crate::arguments::{DeviceChoice, JobOptions};
use crate::mirror::target::MirrorTarget;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tameike_agent::control::{AggregateChoice, FabricChoice};
use tameike_core::{CoreSet, Errno, Fault, JobId, Result};

/// Content of a configuration file. Unknown keys are errors.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Config {
    local: Option<u32>,
    hosts: Option<Vec<String>>,
    hostfile: Option<PathBuf>,
    shared: Option<PathBuf>,
    volume: Option<OwnedVolume>,
    mirror: Option<MirrorTarget>,
    mirror_receipt: Option<PathBuf>,
    aggregate: Option<AggregateChoice>,
    #[serde(default, deserialize_with = "memory")]
    aggregate_max: Option<u64>,
    packed_by_others: Option<bool>,
    coherent_mmap: Option<bool>,
    #[serde(default, deserialize_with = "capacity")]
    capacity: Option<Capacity>,
    device: Option<DeviceChoice>,
    #[serde(default, deserialize_with = "memory")]
    memory: Option<u64>,
    #[serde(default, deserialize_with = "memory")]
    region_memory: Option<u64>,
    fabric: Option<FabricChoice>,
    connections: Option<u32>,
    replicas: Option<u32>,
    no_peer_reads: Option<bool>,
    cores: Option<CoreSet>,
    no_ring: Option<bool>,
    job: Option<JobId>,
    verify: Option<bool>,
    grace: Option<u64>,
    /// Lets CMD continue when an agent fails.
    pub keep_going: Option<bool>,
    /// The ssh command for other hosts, with its options.
    pub ssh: Option<Vec<String>>,
    /// Path of `tameike` on other hosts.
    pub remote_program: Option<PathBuf>,
    /// Seconds in which agents must be ready.
    pub start_limit: Option<u64>,
}

/// A size: a number of bytes, or text like `10GiB`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Size {
    Bytes(u64),
    Text(String),
}

impl Size {
    fn bytes(self) -> Result<u64> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Text(text) => size::parse(&text),
        }
    }
}

/// A capacity: one size, or a table with sizes by view.
#[derive(Deserialize)]
#[serde(untagged)]
enum CapacityText {
    Total(Size),
    Views(BTreeMap<String, Size>),
}

fn memory<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    Size::deserialize(deserializer)?.bytes().map(Some).map_err(serde::de::Error::custom)
}

fn capacity<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Capacity>, D::Error> {
    let text = match CapacityText::deserialize(deserializer)? {
        CapacityText::Total(Size::Text(text)) => text,
        CapacityText::Total(Size::Bytes(bytes)) => bytes.to_string(),
        CapacityText::Views(views) => {
            let show = |(view, size): (String, Size)| Ok(format!("{view}={}", size.bytes()?));
            let parts: Result<Vec<_>> = views.into_iter().map(show).collect();
            parts.map_err(serde::de::Error::custom)?.join(",")
        }
    };
    text.parse().map(Some).map_err(serde::de::Error::custom)
}

/// Reads a configuration file.
///
/// # Errors
/// The file cannot be read, or a line is wrong; the fault shows the line.
pub fn read(path: &Path) -> Result<Config> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Fault::from_os(format_args!("reading configuration {}", path.display()), &error))?;
    parse(&text).map_err(|fault| fault.context(format_args!("configuration {}", path.display())))
}

/// Parses the text of a configuration file.
///
/// # Errors
/// A line is wrong; the fault shows the line.
pub fn parse(text: &str) -> Result<Config> {
    let config: Config =
        toml::from_str(text).map_err(|error| Fault::new(Errno::EINVAL, error.to_string()))?;
    let choices = [config.local.is_some(), config.hosts.is_some(), config.hostfile.is_some()];
    if choices.iter().filter(|chosen| **chosen).count() > 1 {
        return Err(Fault::new(Errno::EINVAL, "only one of local, hosts and hostfile can be set"));
    }
    Ok(config)
}

impl Config {
    /// Returns the device of the nodes, if set.
    pub fn device(&self) -> Option<&DeviceChoice> {
        self.device.as_ref()
    }

    /// Adds the file's options to those of the command line, which take precedence.
    pub fn complete(&self, options: &JobOptions) -> JobOptions {
        let has_nodes = options.local.is_some() || options.hosts.is_some() || options.hostfile.is_some();
        let nodes = if has_nodes { &Self::default() } else { self };
        JobOptions {
            local: options.local.or(nodes.local),
            hosts: options.hosts.clone().or_else(|| nodes.hosts.as_ref().map(|hosts| hosts.join(","))),
            hostfile: options.hostfile.clone().or_else(|| nodes.hostfile.clone()),
            shared: options.shared.clone().or_else(|| self.shared.clone()),
            volume: options.volume.clone().or_else(|| self.volume.clone()),
            mirror: options.mirror.clone().or_else(|| self.mirror.clone()),
            mirror_receipt: options.mirror_receipt.clone().or_else(|| self.mirror_receipt.clone()),
            aggregate: options.aggregate.or(self.aggregate),
            aggregate_max: options.aggregate_max.or(self.aggregate_max),
            packed_by_others: options.packed_by_others || self.packed_by_others.unwrap_or(false),
            coherent_mmap: options.coherent_mmap || self.coherent_mmap.unwrap_or(false),
            capacity: options.capacity.clone().or_else(|| self.capacity.clone()),
            device: options.device.clone().or_else(|| self.device.clone()),
            memory: options.memory.or(self.memory),
            region_memory: options.region_memory.or(self.region_memory),
            fabric: options.fabric.or(self.fabric),
            connections: options.connections.or(self.connections),
            replicas: options.replicas.or(self.replicas),
            no_peer_reads: options.no_peer_reads || self.no_peer_reads.unwrap_or(false),
            cores: options.cores.clone().or_else(|| self.cores.clone()),
            no_ring: options.no_ring || self.no_ring.unwrap_or(false),
            job: options.job.clone().or_else(|| self.job.clone()),
            verify: options.verify || self.verify.unwrap_or(false),
            grace: options.grace.or(self.grace),
            config: options.config.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_wins() {
        let config = parse(
            "local = 4\nshared = '/data'\nmirror = 'site:/data'\nmemory = '1GiB'\nverify = true\nconnections = 9\nreplicas = 2\nfabric = 'tcp'\ncores = '0,2-3'\n",
        )
        .expect("a good file");
        let given = JobOptions { hosts: Some("a,b".into()), memory: Some(5), ..JobOptions::default() };
        let options = config.complete(&given);
        assert_eq!((options.local, options.hosts.as_deref()), (None, Some("a,b")));
        assert_eq!((options.memory, options.verify, options.connections), (Some(5), true, Some(9)));
        assert_eq!(options.replicas, Some(2));
        assert_eq!(options.mirror.map(|target| target.to_string()).as_deref(), Some("site:/data"));
        assert_eq!((options.fabric, options.cores), (Some(FabricChoice::Tcp), CoreSet::new([0, 2, 3])));
        assert_eq!(config.complete(&JobOptions::default()).local, Some(4));
    }

    #[test]
    fn capacities_are_sizes_or_tables() {
        let one = parse("capacity = '8G'").expect("a size").capacity.expect("set");
        assert_eq!(one.total, Some(8 << 30));
        let table = parse("[capacity]\ncache = '1G'\nnode-local = 4194304\n").expect("a table");
        assert_eq!(table.capacity.expect("set").views, [Some(4 << 20), None, Some(1 << 30)]);
    }

    #[test]
    fn the_configuration_page_lists_every_key_and_a_valid_example() {
        let page = include_str!("../../../../docs/configuration.md");
        let example =
            page.split("```").nth(1).and_then(|block| block.strip_prefix("toml")).expect("an example");
        parse(example).expect("a good file");
        let known = parse("no-such-key = 1").expect_err("unknown").to_string();
        let (_, expected) = known.split_once("expected one of ").expect("the error lists the keys");
        let keys: Vec<_> = expected.split('`').skip(1).step_by(2).collect();
        assert!(keys.contains(&"start-limit") && keys.len() > 10, "{known}");
        for key in keys {
            assert!(page.contains(&format!("| `{key}` |")), "{key}");
        }
    }

    #[test]
    fn mistakes_name_their_line() {
        for (text, part) in [
            ("local = 2\nlocla = 3\n", "line 2"),
            ("\nmemory = '10Q'", "line 2"),
            ("local = 1\nhosts = ['a']", "only one of"),
            ("[capacity]\ndisk = '1G'", "unknown view"),
            ("job = 'A B'", "job name"),
            ("local = -1", "line 1"),
        ] {
            let message = parse(text).expect_err(text).to_string();
            assert!(message.contains(part), "{text:?}: {message}");
        }
    }
}
