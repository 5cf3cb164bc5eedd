//! The number of a countdown: `WORKLOAD/CALL/FAULT`, as in `serve/1234/torn`.

use super::workload::Workload;
use crate::countdown::FaultKind;
use clap::ValueEnum;
use std::fmt::{Display, Formatter};
use std::str::FromStr;

/// Identifies a run of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Number {
    /// The workload.
    pub workload: Workload,
    /// The call that fails; the first is 1.
    pub call: u64,
    /// The fault.
    pub fault: FaultKind,
}

impl Display for Number {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}/{}", self.workload.as_str(), self.call, self.fault)
    }
}

impl FromStr for Number {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "give a countdown as WORKLOAD/CALL/FAULT, as in serve/1234/torn".to_owned();
        let [workload, call, fault] = text.split('/').collect::<Vec<_>>()[..] else { return Err(wrong()) };
        let workload = Workload::ALL.into_iter().find(|known| known.as_str() == workload);
        Ok(Self {
            workload: workload.ok_or_else(wrong)?,
            call: call.parse().ok().filter(|&call| call > 0).ok_or_else(wrong)?,
            fault: FaultKind::from_str(fault, false).map_err(|_| wrong())?,
        })
    }
}
