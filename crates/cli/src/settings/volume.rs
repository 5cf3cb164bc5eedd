//! Names of volumes.

use serde::{Deserialize, Serialize};
use tameike_core::JobId;

/// Prefix of the name of the job that serves a volume.
const JOB_PREFIX: &str = "volume-";

/// Name of a volume.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VolumeName(String);

impl VolumeName {
    /// The job that serves the volume.
    pub fn job(&self) -> JobId {
        JobId::new(&format!("{JOB_PREFIX}{}", self.0)).expect("checked when the name was made")
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for VolumeName {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        let longest = JobId::SIZE_MAX - JOB_PREFIX.len();
        let named =
            if name.is_empty() { Err(String::new()) } else { JobId::new(&format!("{JOB_PREFIX}{name}")) };
        named.map_err(|_| {
            format!("the name of a volume is 1 to {longest} of a-z, 0-9 and '-', not {name:?}")
        })?;
        Ok(Self(name))
    }
}

impl From<VolumeName> for String {
    fn from(name: VolumeName) -> Self {
        name.0
    }
}

impl std::str::FromStr for VolumeName {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        name.to_owned().try_into()
    }
}

impl std::fmt::Display for VolumeName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Identity of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeId {
    /// The name, which is unique among the volumes of a user.
    pub name: VolumeName,
    /// A random number, in hexadecimal.
    pub number: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_volumes_are_names_of_jobs_without_the_prefix() {
        let name: VolumeName = "data-1".parse().expect("a name");
        assert_eq!(name.job().as_str(), "volume-data-1");
        let long = "x".repeat(JobId::SIZE_MAX);
        for bad in ["", "A", "a/b", "../x", long.as_str()] {
            assert!(bad.parse::<VolumeName>().expect_err(bad).contains("name of a volume"), "{bad}");
        }
    }
}
