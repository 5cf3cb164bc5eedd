//! Changes of a shared directory, as the agents of a job with a mirror report them to the driver.
//!
//! A change names a path, not a new value: the mirror gets the state that the shared directory has when the change is mirrored.

use crate::ids::InodeId;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Ranges of one file that are remembered. Beyond that, the whole file counts as changed.
pub const RANGES_MAX: usize = 128;

/// Sorted, disjoint, non-adjacent, non-empty ranges of bytes of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRanges(Vec<Range<u64>>);

impl FileRanges {
    /// The ranges in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.0.iter().cloned()
    }

    /// Number of ranges.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Adds a range.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let first = self.0.partition_point(|old| old.end < range.start);
        let last = self.0.partition_point(|old| old.start <= range.end);
        let joined = match self.0.get(first..last) {
            Some([head, .., tail]) => head.start.min(range.start)..tail.end.max(range.end),
            Some([only]) => only.start.min(range.start)..only.end.max(range.end),
            _ => range,
        };
        self.0.splice(first..last, [joined]);
    }
}

/// What may have changed of the content of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Content {
    /// No byte.
    #[default]
    Unchanged,
    /// These ranges, as far as the file has them. A truncated file has changed from its shorter end on.
    Ranges(FileRanges),
    /// Any byte.
    Whole,
}

impl Content {
    /// One range.
    pub fn range(range: Range<u64>) -> Self {
        let mut content = Self::Unchanged;
        content.insert(range);
        content
    }

    /// Adds a range.
    pub fn insert(&mut self, range: Range<u64>) {
        if let Self::Unchanged = self {
            *self = Self::Ranges(FileRanges::default());
        }
        if let Self::Ranges(ranges) = self {
            ranges.insert(range);
            if ranges.count() > RANGES_MAX {
                *self = Self::Whole;
            }
        }
    }

    /// Adds another change of the same file.
    pub fn merge(&mut self, other: Self) {
        match other {
            Self::Unchanged => {}
            Self::Ranges(ranges) => ranges.iter().for_each(|range| self.insert(range)),
            Self::Whole => *self = Self::Whole,
        }
    }
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// More changes were made than could be remembered: any path may have changed.
    Everything,
    /// The name, attributes or content of a file.
    Path {
        /// The path, relative to the shared directory.
        #[serde(with = "path_text")]
        path: Vec<u8>,
        /// The file whose content changed; `None` if only name or attributes did. Another file may have the path by now.
        inode: Option<InodeId>,
        /// What changed of the content.
        content: Content,
    },
    /// A file or a directory has another path.
    Renamed {
        /// The path that it had.
        #[serde(with = "path_text")]
        from: Vec<u8>,
        /// The path that it has.
        #[serde(with = "path_text")]
        to: Vec<u8>,
    },
}

/// A change with its number and age.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumberedChange {
    /// Number of the change; numbers of an agent grow.
    pub number: u64,
    /// Time since the first of the changes that this one combines, in milliseconds.
    pub age_ms: u64,
    /// The change.
    pub change: Change,
}

/// Changes that an agent reports, each once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// The changes, by ascending number.
    pub changes: Vec<NumberedChange>,
    /// The agent has more.
    pub has_more: bool,
}

/// Paths as text, with a character from U+0000 to U+00FF for each byte. Readable for ASCII, and exact for all others.
mod path_text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(path: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        let text: String = path.iter().map(|&byte| char::from(byte)).collect();
        serializer.serialize_str(&text)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        let byte =
            |c: char| u8::try_from(c).map_err(|_| D::Error::custom("a path has characters up to U+00FF"));
        String::deserialize(deserializer)?.chars().map(byte).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_joined() {
        let mut content = Content::range(10..20);
        for range in [30..40, 20..25, 41..50, 5..6, 0..0] {
            content.insert(range);
        }
        let Content::Ranges(ranges) = &content else { panic!("not ranges: {content:?}") };
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [5..6, 10..25, 30..40, 41..50]);
        content.insert(0..u64::MAX);
        assert_eq!(content, Content::range(0..u64::MAX));
    }

    #[test]
    fn many_ranges_are_the_whole_file() {
        let mut content = Content::Unchanged;
        (0..=RANGES_MAX as u64).for_each(|number| content.insert(2 * number..2 * number + 1));
        assert_eq!(content, Content::Whole);
        content.insert(0..1);
        assert_eq!(content, Content::Whole);
        let mut other = Content::range(0..1);
        other.merge(Content::Unchanged);
        other.merge(Content::range(7..8));
        assert!(matches!(&other, Content::Ranges(ranges) if ranges.count() == 2));
        other.merge(content);
        assert_eq!(other, Content::Whole);
    }
}
