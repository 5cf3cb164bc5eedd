//! Where a mirror is: a directory of this host, or of another one that ssh reaches.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};
use tameike_core::{Errno, Fault, Result};

/// The place of a mirror.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MirrorTarget {
    /// The host; `None` for this one.
    pub host: Option<String>,
    /// The directory; on another host, a relative one is below the user's home directory.
    pub dir: PathBuf,
}

impl std::str::FromStr for MirrorTarget {
    type Err = String;

    /// Parses `HOST:DIR` or `DIR`. A colon after a slash is a part of the directory.
    fn from_str(text: &str) -> Result<Self, String> {
        let (host, dir) = match text.split_once(':') {
            Some((host, dir)) if !host.contains('/') => (Some(host.to_owned()), dir),
            _ => (None, text),
        };
        if host.as_deref().is_some_and(|host| host.is_empty() || host.starts_with('-')) {
            return Err(format!("{text:?} has no host before the colon"));
        }
        if dir.is_empty() {
            return Err(format!("{text:?} names no directory"));
        }
        Ok(Self { host, dir: dir.into() })
    }
}

impl TryFrom<String> for MirrorTarget {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<MirrorTarget> for String {
    fn from(target: MirrorTarget) -> Self {
        target.to_string()
    }
}

impl fmt::Display for MirrorTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Some(host) => write!(f, "{host}:{}", self.dir.display()),
            None => write!(f, "{}", self.dir.display()),
        }
    }
}

impl MirrorTarget {
    /// Makes a directory of this host absolute, and checks that it is apart from the directory that is mirrored.
    ///
    /// # Errors
    /// `EINVAL` if one of the two contains the other.
    pub fn resolve(mut self, source: &Path) -> Result<Self> {
        if self.host.is_some() {
            return Ok(self);
        }
        let absolute = std::path::absolute(&self.dir).map_err(|error| {
            Fault::from_os(format_args!("finding the directory {}", self.dir.display()), &error)
        })?;
        // It may not exist yet.
        self.dir = absolute.canonicalize().unwrap_or(absolute);
        if self.dir.starts_with(source) || source.starts_with(&self.dir) {
            let message = format!(
                "the mirror {self} must be apart from the directory {}: neither can contain the other",
                source.display()
            );
            return Err(Fault::new(Errno::EINVAL, message));
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_directory_here_or_on_a_host() {
        let parse = |text: &str| text.parse::<MirrorTarget>();
        let target = |host: Option<&str>, dir: &str| {
            Ok(MirrorTarget { host: host.map(str::to_owned), dir: dir.into() })
        };
        assert_eq!(parse("site:/data"), target(Some("site"), "/data"));
        assert_eq!(parse("user@site:data"), target(Some("user@site"), "data"));
        assert_eq!(parse("/data/a:b"), target(None, "/data/a:b"));
        assert_eq!(parse("data"), target(None, "data"));
        for wrong in ["", "site:", ":/data", "-o:/data"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse("site:/data").expect("good").to_string(), "site:/data");
    }

    #[test]
    fn a_mirror_is_apart_from_its_source() {
        let resolve = |text: &str| text.parse::<MirrorTarget>().expect("good").resolve(Path::new("/data/a"));
        assert!(resolve("/data/a/b").is_err() && resolve("/data").is_err() && resolve("/data/a").is_err());
        assert!(resolve("/data/ab").is_ok() && resolve("site:/data/a").is_ok());
    }
}
