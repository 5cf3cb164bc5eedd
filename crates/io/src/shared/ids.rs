//! Files whose owner or group is not mapped in the user namespace.
//!
//! In the user namespace of a plain user (`os/namespace.rs`), only this user and group are mapped; all others appear as the
//! kernel's overflow ids. In a mount of that namespace, the kernel refuses writes to such files and their removal, whatever the
//! permissions are (`inode_permission` and `may_delete` in Linux' `fs/namei.c`), and no process counts as a member of such a
//! group. So this module shows these files as the user's own.

use super::FileStat;
use rustix::fs::Access;
use tameike_core::attr::AttrChange;

/// Access modes, with their mode bits of "others".
const PERMISSIONS: [(u16, Access); 3] = [(4, Access::READ_OK), (2, Access::WRITE_OK), (1, Access::EXEC_OK)];

/// The ids that are mapped in the process's namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ids {
    /// The mapped user and group.
    own: (u32, u32),
    /// The overflow ids.
    overflow: (u32, u32),
    /// No other group is mapped.
    has_one_group: bool,
}

impl Ids {
    /// The ids of this process; `None` if its namespace maps several users.
    pub(super) fn of_process() -> Option<Self> {
        let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let map = std::fs::read_to_string("/proc/self/uid_map").ok()?;
        if !has_one(&map) {
            return None;
        }
        let overflow = |name| {
            let text = std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok();
            text.and_then(|number| number.trim().parse().ok()).unwrap_or(u32::from(u16::MAX) - 1)
        };
        let groups = std::fs::read_to_string("/proc/self/gid_map").ok()?;
        Some(Self {
            own: (user, group),
            overflow: (overflow("overflowuid"), overflow("overflowgid")),
            has_one_group: has_one(&groups),
        })
    }

    /// Whether owner and group of a file are unmapped.
    fn unknown(&self, (uid, gid): (u32, u32)) -> (bool, bool) {
        let is_unknown = |id, own, overflow| id == overflow && own != overflow;
        let no_group = self.has_one_group && is_unknown(gid, self.own.1, self.overflow.1);
        (is_unknown(uid, self.own.0, self.overflow.0), no_group)
    }

    /// Shows an unmapped owner or group as the process's own. The shown owner gets at least the process's permissions. If the
    /// mode bits do not determine them, `may` asks the kernel. If they show too many, the file system below refuses the access.
    pub(super) fn show(&self, stat: &mut FileStat, may: impl Fn(Access) -> bool) {
        let (no_owner, no_group) = self.unknown((stat.uid, stat.gid));
        if no_group {
            stat.gid = self.own.1;
        }
        if no_owner {
            stat.uid = self.own.0;
            let [owner, group, others] = [6, 3, 0].map(|class| stat.mode >> class & 7);
            for (bit, access) in PERMISSIONS.into_iter().filter(|(bit, _)| owner & bit == 0) {
                let is_given = if group & bit == others & bit { group & bit != 0 } else { may(access) };
                stat.mode |= if is_given { bit << 6 } else { 0 };
            }
        }
    }

    /// The group to show for a file whose owner and group are known by their numbers outside of the namespace.
    pub(super) fn group(&self, (uid, gid): (u32, u32)) -> u32 {
        if self.has_one_group && uid == self.own.0 { self.own.1 } else { gid }
    }

    /// The changes to apply to a file of this owner and group. A change to the shown owner or group keeps the real one.
    pub(super) fn effective_change(&self, owner: (u32, u32), change: &AttrChange) -> AttrChange {
        let (no_owner, no_group) = self.unknown(owner);
        let mut change = change.clone();
        change.uid.take_if(|uid| no_owner && *uid == self.own.0);
        change.gid.take_if(|gid| no_group && *gid == self.own.1);
        change
    }
}

/// True if an id map has a single entry of length 1.
fn has_one(map: &str) -> bool {
    map.split_whitespace().skip(2).eq(["1"])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::{PosixTree, SharedFs};
    use std::path::Path;

    const IDS: Ids = Ids { own: (1000, 100), overflow: (65_534, 65_534), has_one_group: true };
    const NOBODY: (u32, u32) = (65_534, 65_534);

    fn shown(owner: (u32, u32), mode: u16, permissions: u16) -> ((u32, u32), u16) {
        let root = PosixTree::open(Path::new("/")).and_then(|tree| tree.stat(b"")).expect("the root");
        let mut stat = FileStat { mode, uid: owner.0, gid: owner.1, ..root };
        let has = |(bit, _): &(u16, Access)| permissions & bit != 0;
        IDS.show(&mut stat, |asked| {
            PERMISSIONS.iter().filter(|one| has(one)).any(|(_, access)| *access == asked)
        });
        ((stat.uid, stat.gid), stat.mode)
    }

    #[test]
    fn a_file_is_shown_so_that_kernel_checks_match_the_file_system() {
        let own = IDS.own;
        // The user's own files, of a mapped group and of an unmapped one.
        assert_eq!(shown(own, 0o750, 0), (own, 0o750));
        assert_eq!(shown((1000, 65_534), 0o2750, 0), (own, 0o2750));
        // Foreign files whose mode bits show more than the user's permissions.
        assert_eq!(shown(NOBODY, 0o755, 0), (own, 0o755));
        assert_eq!(shown(NOBODY, 0o700, 0), (own, 0o700));
        assert_eq!(shown((65_534, 100), 0o2775, 0), (own, 0o2775));
        // Foreign files that show less: the user is a member of their group, or not.
        assert_eq!(shown(NOBODY, 0o2475, 7), (own, 0o2775));
        assert_eq!(shown(NOBODY, 0o2475, 5), (own, 0o2575));
        assert_eq!(shown(NOBODY, 0o060, 6), (own, 0o660));
        assert_eq!(shown(NOBODY, 0o060, 0), (own, 0o060));
        // The bits of group and others agree, so the kernel is not asked.
        assert_eq!(shown(NOBODY, 0o1077, 0), (own, 0o1777));
    }

    #[test]
    fn a_change_to_the_shown_owner_keeps_the_real_one() {
        let give = |uid, gid| AttrChange { uid, gid, ..AttrChange::default() };
        assert_eq!(
            IDS.effective_change((1000, 65_534), &give(Some(1000), Some(100))),
            give(Some(1000), None)
        );
        assert_eq!(IDS.effective_change(NOBODY, &give(Some(1000), Some(100))), give(None, None));
        assert_eq!(IDS.effective_change(NOBODY, &give(Some(7), Some(8))), give(Some(7), Some(8)));
        assert_eq!(IDS.effective_change((1000, 100), &give(None, Some(100))), give(None, Some(100)));
    }

    #[test]
    fn a_group_known_by_its_number_is_shown_as_the_own_group() {
        assert_eq!([(1000, 7), (1000, 100), (7, 8)].map(|owner| IDS.group(owner)), [100, 100, 8]);
        assert_eq!(Ids { has_one_group: false, ..IDS }.group((1000, 7)), 7);
    }

    #[test]
    fn the_overflow_user_is_not_remapped() {
        let ids = Ids { own: NOBODY, ..IDS };
        assert_eq!(ids.unknown(NOBODY), (false, false));
        assert!(has_one("      1000       1000          1\n") && has_one("0 1000 1\n"));
        assert!(!has_one("0 0 4294967295\n") && !has_one("0 1000 1\n1 100000 65536\n"));
    }
}
