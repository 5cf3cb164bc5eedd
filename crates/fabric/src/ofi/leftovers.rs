//! Cleanup after killed agents: providers within a host keep memory in files of `/dev/shm`, which libfabric removes only when the
//! endpoint is closed.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use tameike_core::{JobId, NodeId};

const DIRECTORY: &str = "/dev/shm";

/// Prefix of the name of an endpoint within a host, and of its file. Job names contain no dot.
fn prefix(job: &JobId, node: NodeId) -> String {
    format!("tameike-fabric-{job}.{}.", node.0)
}

/// The name of the endpoint of this incarnation of an agent.
pub(crate) fn endpoint_name(job: &JobId, node: NodeId, incarnation: u64) -> String {
    format!("{}{incarnation:016x}", prefix(job, node))
}

/// Removes the endpoint files of agents of a job on this host that have ended: of one node, or of all.
pub fn sweep(job: &JobId, node: Option<NodeId>) {
    sweep_in(Path::new(DIRECTORY), job, node);
}

fn sweep_in(directory: &Path, job: &JobId, node: Option<NodeId>) {
    let start = node.map_or_else(|| format!("tameike-fabric-{job}."), |node| prefix(job, node));
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let is_one = entry.file_name().to_str().is_some_and(|name| name.starts_with(&start));
        let is_ours =
            |found: fs::Metadata| found.is_file() && found.uid() == rustix::process::geteuid().as_raw();
        if is_one
            && entry.metadata().is_ok_and(is_ours)
            && let Err(error) = fs::remove_file(entry.path())
        {
            log::warn!("cannot remove {}: {error}", entry.path().display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_the_job_and_node_are_removed() {
        let directory = tempfile::tempdir().expect("a directory");
        let job = |name: &str| JobId::new(name).expect("a valid name");
        let names = ["job.1.a:0:0", "job.10.b:0:0", "job.2.c:0:1", "job-x.1.d:0:0"];
        let path = |name: &str| directory.path().join(format!("tameike-fabric-{name}"));
        names.iter().for_each(|name| fs::write(path(name), "").expect("a file"));
        let left = || names.iter().filter(|name| path(name).exists()).count();
        sweep_in(directory.path(), &job("job"), Some(NodeId(1)));
        assert!(!path("job.1.a:0:0").exists() && left() == 3);
        sweep_in(directory.path(), &job("job"), None);
        assert!(path("job-x.1.d:0:0").exists() && left() == 1);
    }
}
