//! `tameike mount`: prints the paths of the views of a running job.

use crate::arguments::JobChoice;
use crate::place::record::JobRecord;
use crate::report;
use std::path::PathBuf;
use tameike_agent::control::{Isolation, NodeRecord};
use tameike_core::{Fault, Result};

/// Lists the views. Returns the exit code.
pub fn mount(choice: &JobChoice) -> u8 {
    let listed = rows(choice).and_then(|rows| {
        report::table(&rows, [true, false, false, false, false], &mut std::io::stdout().lock())
            .map_err(|error| Fault::from_os("printing the views", &error))
    });
    report::exit_code(listed.map(|()| 0))
}

fn rows(choice: &JobChoice) -> Result<Vec<[String; 5]>> {
    let (_, record) = JobRecord::find(choice.job.as_ref())?;
    let head = ["node", "host", "view", "for programs of the job", "for your other programs on the host"];
    let mut rows = vec![head.map(str::to_owned)];
    for node in &record.nodes {
        let host = &record.plan.nodes[node.node.0 as usize].host;
        let views = node.mounts.iter().map(|(view, path)| (view.as_str(), path));
        for (name, path) in views.chain(node.volume.iter().map(|path| ("volume", path))) {
            let outside = outside(node, path).display().to_string();
            let inside = path.display().to_string();
            rows.push([node.node.0.to_string(), host.clone(), name.to_owned(), inside, outside]);
        }
    }
    Ok(rows)
}

/// Returns the path of a mount for programs outside the node's namespaces.
fn outside(node: &NodeRecord, path: &std::path::Path) -> PathBuf {
    match node.isolation {
        Isolation::None => path.to_owned(),
        Isolation::MountNamespace | Isolation::UserNamespace => {
            let root = PathBuf::from(format!("/proc/{}/root", node.pid));
            root.join(path.strip_prefix("/").unwrap_or(path))
        }
    }
}
