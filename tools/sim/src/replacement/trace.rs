//! Traces: which bytes of which files programs on several nodes have read and written, in one order.
//!
//! A line is `NODE FILE OFFSET LENGTH r|w`. How they are recorded tells `bench/replacement.py`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use tameike_core::limits::UNIT_SIZE;

/// A unit of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unit {
    /// Number of its file.
    pub file: u32,
    /// Its place in the file.
    pub index: u32,
}

/// Bytes of one unit that a program has read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The program's node.
    pub node: usize,
    /// The unit.
    pub unit: Unit,
    /// First byte in the unit.
    pub start: u32,
    /// Number of bytes.
    pub length: u32,
    /// Whether they were written.
    pub is_write: bool,
    /// Number of the node's next access to the unit; of none, `usize::MAX`.
    pub next: usize,
}

/// A trace.
pub struct Trace {
    /// In their order.
    pub accesses: Vec<Access>,
    /// Nodes on which programs were.
    pub nodes: usize,
    /// Bytes of each file.
    pub sizes: BTreeMap<u32, u64>,
}

impl Trace {
    /// The trace in a file.
    ///
    /// # Errors
    /// That the file cannot be read, or which of its lines is none of a trace.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text =
            fs::read_to_string(path).map_err(|error| format!("reading {}: {error}", path.display()))?;
        Self::parse(&text).map_err(|line| {
            format!("line {line} of {} is not NODE FILE OFFSET LENGTH r|w: record it again", path.display())
        })
    }

    /// The trace in a text, or the number of a line that is wrong.
    pub(super) fn parse(text: &str) -> Result<Self, usize> {
        let mut trace = Self { accesses: Vec::new(), nodes: 0, sizes: BTreeMap::new() };
        for (place, line) in text.lines().enumerate() {
            trace.add(line).ok_or(place + 1)?;
        }
        trace.look_ahead();
        Ok(trace)
    }

    fn add(&mut self, line: &str) -> Option<()> {
        let words: Vec<&str> = line.split(' ').collect();
        let [node, file, offset, length, kind] = words.try_into().ok()?;
        let (node, file): (usize, u32) = (node.parse().ok()?, file.parse().ok()?);
        let (offset, length): (u64, u64) = (offset.parse().ok()?, length.parse().ok()?);
        let is_write = match kind {
            "r" => false,
            "w" => true,
            _ => return None,
        };
        let end = offset.checked_add(length)?;
        self.nodes = self.nodes.max(node + 1);
        let size = self.sizes.entry(file).or_default();
        *size = end.max(*size);
        let (unit_size, mut position) = (UNIT_SIZE as u64, offset);
        while position < end {
            let start = position % unit_size;
            let length = (unit_size - start).min(end - position);
            let unit = Unit { file, index: u32::try_from(position / unit_size).ok()? };
            let (start, length) = (start as u32, length as u32);
            self.accesses.push(Access { node, unit, start, length, is_write, next: usize::MAX });
            position += u64::from(length);
        }
        Some(())
    }

    fn look_ahead(&mut self) {
        let mut next = BTreeMap::new();
        for (number, access) in self.accesses.iter_mut().enumerate().rev() {
            access.next = next.insert((access.node, access.unit), number).unwrap_or(usize::MAX);
        }
    }

    /// Bytes that the file has of a unit.
    pub fn bytes_of(&self, unit: Unit) -> u64 {
        let size = self.sizes.get(&unit.file).copied().unwrap_or(0);
        size.saturating_sub(u64::from(unit.index) * UNIT_SIZE as u64).min(UNIT_SIZE as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_where_units_end() {
        let trace = Trace::parse("1 5 1048000 2000000 r\n0 5 0 10 w\n1 5 0 3 r\n").expect("a trace");
        let parts: Vec<_> =
            trace.accesses.iter().map(|one| (one.unit.index, one.start, one.length, one.next)).collect();
        let end = usize::MAX;
        assert_eq!(
            parts,
            [
                (0, 1_048_000, 576, 4),
                (1, 0, 1_048_576, end),
                (2, 0, 950_848, end),
                (0, 0, 10, end),
                (0, 0, 3, end)
            ]
        );
        assert_eq!((trace.nodes, trace.bytes_of(Unit { file: 5, index: 2 })), (2, 950_848));
    }

    #[test]
    fn a_line_that_is_wrong_is_named() {
        for (text, line) in [("0 0 0 1 r\n0 0 0 1", 2), ("0 0 0 1 x", 1), ("0 0 -1 1 r", 1)] {
            assert_eq!(Trace::parse(text).err(), Some(line), "{text:?}");
        }
    }
}
