//! Which files of the cache view go to the shared file system packed, as people write it.

use serde::{Deserialize, Serialize};
use std::path::Path;
use tameike_core::Errno;
use tameike_io::shared::PosixTree;

/// Which new files are packed, where nothing was said of their directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum AggregateChoice {
    /// All.
    On,
    /// Those of directories in which many are made fast.
    Auto,
    /// None. What is packed already is there all the same.
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

/// What a job packs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Aggregate {
    /// Which new files.
    pub choice: AggregateChoice,
    /// Files that are larger when the job ends become files of their own, in bytes.
    pub size_max: u64,
    /// Files that other users have packed in the shared directory are shown. Whoever owns a container decides which files it shows
    /// and where.
    pub by_others: bool,
}

impl Aggregate {
    /// Why a job without `--aggregate` ignores the container that lies at `container`: it is not this user's alone, and whoever owns it
    /// could show any files by it, below directories of others, too. None where it does not, or nothing lies there.
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
            "{container} {why}: files that are packed there are not shown; if you trust the owner, `--packed-by-others` shows them"
        ))
    }
}

impl Default for Aggregate {
    fn default() -> Self {
        Self { choice: AggregateChoice::Off, size_max: 1 << 20, by_others: false }
    }
}
