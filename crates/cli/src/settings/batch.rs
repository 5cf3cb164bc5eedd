//! Detection of batch systems, to warn users who give no option for hosts.
//!
//! Nodes start only on the hosts that options name, else on this machine. A user of a batch system may expect nodes on all
//! hosts of the batch job.

use super::hostfile;
use std::path::Path;

/// Reads a variable of the environment.
type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// How a batch system passes the hosts to a job.
struct BatchSystem {
    /// A variable that is set in its jobs.
    variable: &'static str,
    /// The options that start nodes on the job's hosts.
    options: &'static str,
    /// Returns the number of hosts of the job, if known.
    count: fn(&str, Variables<'_>) -> Option<usize>,
}

const SYSTEMS: [BatchSystem; 6] = [
    BatchSystem {
        variable: "SLURM_JOB_ID",
        options: "--hostfile <(scontrol show hostnames)",
        count: |_, variable| variable("SLURM_JOB_NUM_NODES")?.parse().ok(),
    },
    BatchSystem { variable: "PBS_NODEFILE", options: "--hostfile $PBS_NODEFILE", count: hosts_in_file },
    BatchSystem {
        variable: "LSB_DJOB_HOSTFILE",
        options: "--hostfile $LSB_DJOB_HOSTFILE",
        count: hosts_in_file,
    },
    BatchSystem {
        variable: "LSB_HOSTS",
        options: "--hostfile <(printf '%s\\n' $LSB_HOSTS)",
        count: |hosts, _| hostfile::parse(&hosts.replace(' ', "\n")).ok().map(|hosts| hosts.len()),
    },
    BatchSystem {
        variable: "FLUX_URI",
        options: "--hosts $(flux hostlist -ed, instance)",
        count: |_, _| None,
    },
    BatchSystem {
        variable: "PE_HOSTFILE",
        options: "--hostfile <(cut -d' ' -f1 $PE_HOSTFILE)",
        count: |path, _| Some(std::fs::read_to_string(path).ok()?.lines().count()),
    },
];

fn hosts_in_file(path: &str, _: Variables<'_>) -> Option<usize> {
    hostfile::read(Path::new(path)).ok().map(|hosts| hosts.len())
}

/// Returns the warning for a job without options for hosts; none outside of batch jobs and in batch jobs of one host.
/// `variable` reads the environment.
pub fn warning(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let is_set = |system: &&BatchSystem| variable(system.variable).is_some();
    let system = SYSTEMS.iter().find(is_set)?;
    let value = variable(system.variable)?;
    let count = (system.count)(&value, &variable);
    if count == Some(1) {
        return None;
    }
    let hosts = count.map_or_else(|| "its hosts".to_owned(), |count| format!("its {count} hosts"));
    let BatchSystem { variable, options, .. } = system;
    Some(format!(
        "{variable} is set, so this is a batch job, but no option names its hosts: starting one node, on this machine. \
         For a node on each of {hosts}: {options}; for one node without this warning: --local 1"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warned(variables: &[(&str, &str)]) -> Option<String> {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
        warning(|name| find(name).map(|(_, value)| (*value).to_owned()))
    }

    /// One node was started without a warning in a batch job of many hosts.
    #[test]
    fn batch_jobs_of_several_hosts_get_a_warning() {
        let two = warned(&[("SLURM_JOB_ID", "7"), ("SLURM_JOB_NUM_NODES", "2")]).expect("a warning");
        assert!(
            two.contains("SLURM_JOB_ID")
                && two.contains("its 2 hosts: --hostfile <(scontrol show hostnames)"),
            "{two}"
        );
        assert_eq!(warned(&[("SLURM_JOB_ID", "7"), ("SLURM_JOB_NUM_NODES", "1")]), None);
        assert!(warned(&[("LSB_HOSTS", "a a b")]).expect("a warning").contains("LSB_HOSTS"));
        assert_eq!(warned(&[("LSB_HOSTS", "a a a")]), None);
        assert!(warned(&[("FLUX_URI", "local:///run")]).expect("a warning").contains("FLUX_URI"));
        assert_eq!(warned(&[("HOME", "/root")]), None);
    }

    #[test]
    fn hosts_of_a_node_file_are_counted_once() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let path = file.path().to_str().expect("a plain path");
        std::fs::write(file.path(), "a\na\n").expect("written");
        assert_eq!(warned(&[("PBS_NODEFILE", path)]), None);
        std::fs::write(file.path(), "a\na\nb\n").expect("written");
        assert!(warned(&[("PBS_NODEFILE", path)]).expect("a warning").contains("--hostfile $PBS_NODEFILE"));
    }
}
