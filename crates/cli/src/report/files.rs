//! The table of `tameike cache stat --files`: the nodes that cache each file.

use super::cache::hit_rate;
use super::table;
use crate::settings::size::show;
use std::io::Write;
use tameike_agent::files::{FileLine, NodeBytes};
use tameike_core::wire::holders::Holder;

/// Holders of a file that the table lists; JSON has all that are known.
const HOLDERS_SHOWN_MAX: usize = 8;
const HEAD: [&str; 8] =
    ["file", "generation", "requests", "delivered", "hit rate", "in memory", "on devices", "cache holders"];

/// Prints a line for each file.
pub fn write(lines: &[FileLine], out: &mut dyn Write) -> std::io::Result<()> {
    if lines.is_empty() {
        return writeln!(out, "no node of the job has opened a file yet");
    }
    let rows: Vec<_> = std::iter::once(HEAD.map(str::to_owned)).chain(lines.iter().map(row)).collect();
    table(&rows, [false, true, true, true, true, true, true, false], out)
}

fn row(line: &FileLine) -> [String; 8] {
    let none = || "-".to_owned();
    if let Some(fault) = &line.fault {
        return [line.file.clone(), none(), none(), none(), none(), none(), none(), fault.clone()];
    }
    let sum = |of: fn(&Holder) -> u32| line.holders.iter().map(|holder| u64::from(of(holder))).sum::<u64>();
    let bytes = |of: fn(&NodeBytes) -> u64| line.nodes.iter().map(of).sum::<u64>();
    let (requested, delivered) = (sum(|holder| holder.requested), sum(|holder| holder.delivered));
    let at_least = if line.nodes.iter().any(|node| node.is_partial) { ">= " } else { "" };
    let named = line.holders.iter().take(HOLDERS_SHOWN_MAX);
    let mut holders: Vec<_> =
        named.map(|one| format!("{} ({}/{})", one.node.0, one.requested, one.delivered)).collect();
    if line.holders.len() > HOLDERS_SHOWN_MAX {
        holders.push(format!("{} more", line.holders.len() - HOLDERS_SHOWN_MAX));
    }
    [
        line.file.clone(),
        line.generation.map_or_else(none, |generation| generation.to_string()),
        requested.to_string(),
        delivered.to_string(),
        hit_rate(requested, delivered),
        show(bytes(|node| node.memory_bytes)),
        format!("{at_least}{}", show(bytes(|node| node.device_bytes))),
        if holders.is_empty() { none() } else { holders.join(", ") },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use tameike_core::NodeId;

    #[test]
    fn a_line_has_sums_and_the_first_holders() {
        let holders: Vec<_> =
            (0..10).map(|node| Holder { node: NodeId(node), requested: 4, delivered: 3 }).collect();
        let part = |node, is_partial| NodeBytes {
            node: NodeId(node),
            memory_bytes: 1 << 20,
            device_bytes: 1 << 21,
            is_partial,
        };
        let line = FileLine {
            file: "tree/file".to_owned(),
            inode: 7,
            generation: Some(12),
            holders,
            nodes: vec![part(0, false), part(1, true)],
            fault: None,
        };
        let gone = FileLine { fault: Some("ENOENT: gone".to_owned()), ..line.clone() };
        let mut out = Vec::new();
        write(&[line, gone], &mut out).expect("memory takes it");
        let text = String::from_utf8(out).expect("text");
        let second = text.lines().nth(1).expect("a line of the file");
        assert!(
            second.starts_with("tree/file          12        40         30    75.0 %   2.00 MiB"),
            "{text}"
        );
        assert!(
            second.contains(">= 4.00 MiB  0 (4/3), 1 (4/3)") && second.ends_with("7 (4/3), 2 more"),
            "{text}"
        );
        assert!(text.lines().nth(2).is_some_and(|line| line.ends_with("ENOENT: gone")), "{text}");
    }
}
