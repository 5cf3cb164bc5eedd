//! Options for packing files of the cache view, with their textual forms.

use serde::{Deserialize, Serialize};
use std::path::Path;
use tameike_core::Errno;
use tameike_io::shared::PosixTree;

/// New files that are packed in directories without a layout for packing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum AggregateChoice {
    /// All new files.
    On,
    /// Those in directories in which many files are created within seconds.
    Auto,
    /// None. Files that are packed already stay visible.
    #[default]
    Off,
}

impl std::str::FromStr for AggregateChoice {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "on" => Ok(Self::On),
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            _ => Err("files are aggregated on, auto or off".to_owned()),
        }
    }
}

impl std::fmt::Display for AggregateChoice {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Self::On => "on",
            Self::Auto => "auto",
            Self::Off => "off",
        })
    }
}

impl TryFrom<String> for AggregateChoice {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        text.parse()
    }
}

impl From<AggregateChoice> for String {
    fn from(choice: AggregateChoice) -> Self {
        choice.to_string()
    }
}

/// Packing options of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Aggregate {
    /// New files to pack.
    pub choice: AggregateChoice,
    /// Largest packed file in bytes; larger ones become separate files when the job ends.
    pub size_max: u64,
    /// Shows files that other users packed in the shared directory. A container's owner decides which files it shows, and where.
    pub by_others: bool,
}

impl Aggregate {
    /// Returns why a job without `--aggregate` must ignore the container at `container`: another user controls it, and could show any
    /// files through it, even below directories of others. `None` if the job may use it, or there is none.
    pub fn why_ignored(self, container: &Path) -> Option<String> {
        if self.by_others {
            return None;
        }
        let why = match PosixTree::open_unfollowed(container) {
            Ok((_, why)) => why?,
            Err(fault) if fault.errno == Errno::ENOENT => return None,
            Err(fault) => fault.to_string(),
        };
        let container = container.display();
        Some(format!(
            "{container} {why}: files packed there are not shown; if you trust the owner, use `--packed-by-others`"
        ))
    }
}

impl Default for Aggregate {
    fn default() -> Self {
        Self { choice: AggregateChoice::Off, size_max: 1 << 20, by_others: false }
    }
}
