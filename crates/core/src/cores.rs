//! Sets of processor cores, in the notation of the kernel: `0,2-5`.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Limit of core numbers: the size of the kernel's fixed affinity mask.
pub const CORES_MAX: u32 = 1024;

/// Numbers of a host's cores, at least one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CoreSet(BTreeSet<u32>);

impl CoreSet {
    /// A set of these cores; `None` if it is empty or a number is too large.
    pub fn new(cores: impl IntoIterator<Item = u32>) -> Option<Self> {
        let cores: BTreeSet<u32> = cores.into_iter().collect();
        let last = *cores.last()?;
        (last < CORES_MAX).then_some(Self(cores))
    }

    /// The core numbers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// The cores that are not among `others`.
    pub fn without(&self, others: &Self) -> Option<Self> {
        Self::new(self.0.difference(&others.0).copied())
    }
}

impl FromStr for CoreSet {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("cores are numbers below {CORES_MAX} and ranges, like 0,2-5, not {text:?}");
        let mut cores = BTreeSet::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |digits: &str| {
                let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
                digits.parse::<u32>().ok().filter(|core| is_number && *core < CORES_MAX)
            };
            match (number(first), number(last)) {
                (Some(first), Some(last)) if first <= last => cores.extend(first..=last),
                _ => return Err(wrong()),
            }
        }
        Self::new(cores).ok_or_else(wrong)
    }
}

impl fmt::Display for CoreSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for core in self.iter() {
            match runs.last_mut() {
                Some((_, last)) if *last + 1 == core => *last = core,
                _ => runs.push((core, core)),
            }
        }
        for (place, (first, last)) in runs.into_iter().enumerate() {
            let comma = if place > 0 { "," } else { "" };
            match first == last {
                true => write!(f, "{comma}{first}")?,
                false => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

impl TryFrom<String> for CoreSet {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<CoreSet> for String {
    fn from(cores: CoreSet) -> Self {
        cores.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn invalid_sets_of_cores_are_refused() {
        for wrong in ["", ",", "0,", "1-", "-1", "3-2", "+1", "a", "0 1", "1024", "0-99999999999", "1-2-3"] {
            assert!(wrong.parse::<CoreSet>().is_err_and(|why| why.contains("0,2-5")), "{wrong}");
        }
        assert!(CoreSet::new([]).is_none() && CoreSet::new([CORES_MAX]).is_none());
    }

    #[test]
    fn runs_are_written_as_ranges() {
        for (text, shown) in [("0", "0"), ("5,0-2,3,7-7", "0-3,5,7"), ("1022,1023", "1022-1023")] {
            assert_eq!(text.parse::<CoreSet>().map(|cores| cores.to_string()).as_deref(), Ok(shown));
        }
        let cores = |text: &str| text.parse::<CoreSet>().ok();
        assert_eq!(cores("0-3").and_then(|all| all.without(&cores("1-2")?)), cores("0,3"));
        assert_eq!(cores("1-2").and_then(|all| all.without(&cores("0-3")?)), None);
    }

    proptest! {
        #[test]
        fn sets_survive_formatting_and_parsing(cores in proptest::collection::btree_set(0..CORES_MAX, 1..20)) {
            let cores = CoreSet::new(cores);
            prop_assert_eq!(cores.as_ref().and_then(|cores| cores.to_string().parse().ok()), cores);
        }
    }
}
