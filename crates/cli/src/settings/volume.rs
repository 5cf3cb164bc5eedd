//! Names of volumes.

use serde::{Deserialize, Serialize};
use tameike_agent::attach;
use tameike_core::JobId;
use tameike_io::os::{process, users};

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

/// A volume of any user of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct OwnedVolume {
    owner: u32,
    name: VolumeName,
}

impl OwnedVolume {
    /// The volume, as agents name it.
    pub fn for_agent(&self) -> attach::VolumeName {
        attach::VolumeName { owner: self.owner, name: self.name.0.clone() }
    }

    /// The source of its mounts.
    pub fn source(&self) -> String {
        format!("tameike-volume:{}:{}", self.owner, self.name)
    }
}

impl TryFrom<String> for OwnedVolume {
    type Error = String;

    /// Parses `NAME`, a volume of this user, or `OWNER:NAME`, where the owner is a name or number of a user.
    fn try_from(text: String) -> Result<Self, String> {
        let Some((owner, name)) = text.split_once(':') else {
            return Ok(Self { owner: process::user(), name: text.try_into()? });
        };
        let by_number = owner.bytes().all(|byte| byte.is_ascii_digit()).then(|| owner.parse().ok());
        let owner = match by_number.flatten() {
            Some(number) => number,
            None => users::by_name(owner)
                .map_err(|fault| fault.to_string())?
                .ok_or_else(|| format!("there is no user {owner:?} on this host"))?,
        };
        Ok(Self { owner, name: name.parse()? })
    }
}

impl From<OwnedVolume> for String {
    fn from(volume: OwnedVolume) -> Self {
        format!("{}:{}", volume.owner, volume.name)
    }
}

impl std::str::FromStr for OwnedVolume {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.to_owned().try_into()
    }
}

impl std::fmt::Display for OwnedVolume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.owner == process::user() {
            write!(f, "{}", self.name)
        } else {
            f.write_str(&String::from(self.clone()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_of_others_are_named_with_their_owner() {
        let parse = |text: &str| text.parse::<OwnedVolume>();
        let own = parse("data").expect("a name");
        assert_eq!((own.owner, own.to_string()), (process::user(), "data".to_owned()));
        assert_eq!(parse("root:data"), parse("0:data"));
        assert_eq!(String::from(parse("4242:data-1").expect("a name")), "4242:data-1");
        assert!(parse("no such user:data").expect_err("bad").contains("no user"));
        assert!(parse("0:Data").expect_err("bad").contains("name of a volume"));
        assert!(parse("a:b:c").is_err() && parse(":data").is_err() && parse("0:").is_err());
    }

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
