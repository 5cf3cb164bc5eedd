//! The table of `tameike status`.

use super::{plural, printable, storms, table};
use crate::driver::protocol::{JobStatus, NodeLine, ReplicaStatus};
use crate::mirror::MirrorStatus;
use crate::settings::size::show;
use std::io::Write;
use tameike_core::{CoreSet, View};

const HEAD: [&str; 9] =
    ["node", "host", "node-local", "shared", "cache", "to drain", "memory", "cores", "state"];

/// Prints one job.
pub fn write(status: &JobStatus, out: &mut dyn Write) -> std::io::Result<()> {
    let behind = status.shared_dir.as_ref().map(|dir| format!(", cache of {}", dir.display()));
    let what = match &status.volume {
        Some(volume) => format!("volume {}", volume.name),
        None => format!("job {}", status.job),
    };
    writeln!(out, "{what}: {} nodes{}", status.nodes.len(), behind.unwrap_or_default())?;
    let rows: Vec<_> = std::iter::once(HEAD.map(str::to_owned)).chain(status.nodes.iter().map(row)).collect();
    table(&rows, [true, false, true, true, true, true, true, false, false], out)?;
    if let Some(replicas) = &status.replicas {
        writeln!(out, "{}", replica_line(replicas))?;
    }
    if let Some(mirror) = &status.mirror {
        writeln!(out, "{}", mirror_line(mirror))?;
    }
    if status.volume.as_ref().is_some_and(|volume| volume.compares_copies) {
        writeln!(
            out,
            "the copies of all data are being compared, as the agents were killed before the start"
        )?;
    }
    let storms =
        status.nodes.iter().filter_map(|line| line.status.as_ref()).flat_map(|status| &status.storms);
    storms::merge(storms).iter().try_for_each(|storm| writeln!(out, "{}", storms::line(storm)))
}

fn mirror_line(status: &MirrorStatus) -> String {
    let mut line = format!("mirror {}: ", status.target);
    if !status.is_connected {
        line += "not connected, ";
    }
    if status.is_comparing {
        line += "comparing directories, ";
    }
    line += &match (status.paths, status.is_comparing) {
        (0, false) => "no lag".to_owned(),
        (paths, _) => {
            let (seconds, names) = (status.lag_ms as f64 / 1000.0, plural(paths as usize, "path"));
            format!("lag {seconds:.1} s, {paths} {names} to send")
        }
    };
    if let Some(fault) = &status.fault {
        line += &format!(" ({})", printable(fault));
    }
    line
}

fn replica_line(status: &ReplicaStatus) -> String {
    let ReplicaStatus { wanted, excluded, homes, homes_with_one_copy, .. } = status;
    let ReplicaStatus { homes_without_node, homes_being_copied, .. } = status;
    let mut line = format!("replicas: {wanted}");
    if *homes_with_one_copy > 0 {
        line += &format!(", {homes_with_one_copy} of {homes} homes have one copy only");
    }
    if *homes_without_node > 0 {
        line += &format!(", {homes_without_node} of {homes} homes are on excluded nodes only");
    }
    if *homes_being_copied > 0 {
        line += &format!(", {homes_being_copied} of {homes} homes are being copied");
    }
    if !excluded.is_empty() {
        let nodes: Vec<_> = excluded.iter().map(u32::to_string).collect();
        line += &format!(", excluded {}: {}", plural(nodes.len(), "node"), nodes.join(", "));
    }
    line
}

fn row(line: &NodeLine) -> [String; 9] {
    let none = || "-".to_owned();
    let Some(status) = &line.status else {
        let fault = line.fault.clone().unwrap_or_default();
        return [
            line.node.to_string(),
            line.host.clone(),
            none(),
            none(),
            none(),
            none(),
            none(),
            none(),
            fault,
        ];
    };
    let space = |view: View| {
        let space = &status.space[view.index()];
        if space.capacity == 0 { none() } else { format!("{}/{}", show(space.used), show(space.capacity)) }
    };
    let state = if status.unreachable.is_empty() {
        "ok".to_owned()
    } else {
        let nodes: Vec<_> = status.unreachable.iter().map(|node| node.0.to_string()).collect();
        format!("cannot reach {}", nodes.join(", "))
    };
    [
        line.node.to_string(),
        line.host.clone(),
        space(View::NodeLocal),
        space(View::JobShared),
        space(View::Cache),
        show(status.space[View::Cache.index()].dirty),
        show(status.resident_bytes),
        status.cores.as_ref().map_or_else(none, CoreSet::to_string),
        state,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_replicas_names_what_is_missing() {
        let whole = ReplicaStatus {
            wanted: 2,
            excluded: Vec::new(),
            homes: 32,
            homes_with_one_copy: 0,
            homes_without_node: 0,
            homes_being_copied: 0,
        };
        assert_eq!(replica_line(&whole), "replicas: 2");
        let part = ReplicaStatus { homes_with_one_copy: 8, excluded: vec![1], ..whole.clone() };
        assert_eq!(replica_line(&part), "replicas: 2, 8 of 32 homes have one copy only, excluded node: 1");
        let copied = ReplicaStatus { homes_with_one_copy: 8, homes_being_copied: 3, ..whole.clone() };
        assert_eq!(
            replica_line(&copied),
            "replicas: 2, 8 of 32 homes have one copy only, 3 of 32 homes are being copied"
        );
        let lost = ReplicaStatus { homes_without_node: 3, excluded: vec![1, 2], ..whole };
        assert_eq!(
            replica_line(&lost),
            "replicas: 2, 3 of 32 homes are on excluded nodes only, excluded nodes: 1, 2"
        );
    }
}
