//! Terms on which a process takes part in a shared memory region, between programs and agents.

/// How the stores of a process are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Tracking {
    /// By a copy of each page from before its first store, its twin. The processes of a node share the memory.
    #[default]
    Twins,
    /// As [`Self::Twins`], in memory of this process alone.
    OwnTwins,
    /// By the kernel's record of written pages (`PAGEMAP_SCAN`). The processes of a node share the memory. Whole pages are sent, so that no
    /// other node may store to them meanwhile.
    WrittenPages,
}

impl Tracking {
    /// The number in messages between programs and agents.
    pub fn encode(self) -> u64 {
        self as u64
    }

    /// The tracking of a number in a message.
    pub fn decode(number: u64) -> Option<Self> {
        [Self::Twins, Self::OwnTwins, Self::WrittenPages]
            .into_iter()
            .find(|tracking| tracking.encode() == number)
    }
}

/// How a process attaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Number of processes that take part in barriers; all pass the same.
    pub processes: u32,
    /// Two nodes never store to the same page between two synchronizations. All processes pass the same.
    pub one_writer: bool,
    /// How stores of this process are found.
    pub tracking: Tracking,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trackings_have_numbers() {
        for tracking in [Tracking::Twins, Tracking::OwnTwins, Tracking::WrittenPages] {
            assert_eq!(Tracking::decode(tracking.encode()), Some(tracking));
        }
        assert_eq!(Tracking::decode(3), None);
    }
}
