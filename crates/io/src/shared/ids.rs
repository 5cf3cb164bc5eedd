//! Owners that a user namespace has no number for.
//!
//! In that of a plain user only this user and group have numbers (`os/namespace.rs`): all others show as the kernel's overflow numbers. In a
//! mount that was made there the kernel lets nobody write to a file whose owner or group has none, or remove it, whatever the permissions are
//! (`inode_permission` and `may_delete` in Linux' `fs/namei.c`), and holds nobody for a member of such a group. So these files are shown as the
//! user's own.

use super::FileStat;
use rustix::fs::Access;
use tameike_core::attr::AttrChange;

/// Permissions, with their bits of others.
const PERMISSIONS: [(u16, Access); 3] = [(4, Access::READ_OK), (2, Access::WRITE_OK), (1, Access::EXEC_OK)];

/// The numbers of the process's namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ids {
    /// The user and the group that have numbers.
    own: (u32, u32),
    /// What stands for all others.
    overflow: (u32, u32),
    /// No other group has a number.
    has_one_group: bool,
}

impl Ids {
    /// Those of this process; nothing where more users than one have numbers.
    pub(super) fn of_process() -> Option<Self> {
        let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let map = std::fs::read_to_string("/proc/self/uid_map").ok()?;
        if !has_one(&map) {
            return None;
        }
        let overflow = |name| {
            let told = std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok();
            told.and_then(|number| number.trim().parse().ok()).unwrap_or(u32::from(u16::MAX) - 1)
        };
        let groups = std::fs::read_to_string("/proc/self/gid_map").ok()?;
        Some(Self {
            own: (user, group),
            overflow: (overflow("overflowuid"), overflow("overflowgid")),
            has_one_group: has_one(&groups),
        })
    }

    /// Which of a file's owner and group have no number.
    fn unknown(&self, (uid, gid): (u32, u32)) -> (bool, bool) {
        let is_unknown = |id, own, overflow| id == overflow && own != overflow;
        let no_group = self.has_one_group && is_unknown(gid, self.own.1, self.overflow.1);
        (is_unknown(uid, self.own.0, self.overflow.0), no_group)
    }

    /// What is shown of a file: an owner and a group without a number are our own, and that owner has at least what we have. Where its bits do not tell
    /// what that is, the system is asked: `may`. If they tell of more than we have, the file system below refuses who makes use of it.
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

    /// The group that is shown of a file whose owner and group are known by their numbers outside of the namespace, and which nobody else may have.
    pub(super) fn group(&self, (uid, gid): (u32, u32)) -> u32 {
        if self.has_one_group && uid == self.own.0 { self.own.1 } else { gid }
    }

    /// What is to be changed of a file that has this owner and group. Who gives it to those that are shown in their place means to keep it as it is.
    pub(super) fn keep(&self, owner: (u32, u32), change: &AttrChange) -> AttrChange {
        let (no_owner, no_group) = self.unknown(owner);
        let mut change = change.clone();
        change.uid.take_if(|uid| no_owner && *uid == self.own.0);
        change.gid.take_if(|gid| no_group && *gid == self.own.1);
        change
    }
}

/// Whether a namespace's map has one number.
fn has_one(map: &str) -> bool {
    map.split_whitespace().skip(2).eq(["1"])
}

#[cfg(test)]
mod tests {
    use super::*;
    use tameike_core::{FileKind, Timestamp};

    const IDS: Ids = Ids { own: (1000, 100), overflow: (65_534, 65_534), has_one_group: true };
    const NOBODY: (u32, u32) = (65_534, 65_534);

    fn shown(owner: (u32, u32), mode: u16, rights: u16) -> ((u32, u32), u16) {
        let time = Timestamp { seconds: 0, nanoseconds: 0 };
        let mut stat = FileStat {
            device: 0,
            inode: 1,
            birth: 0,
            kind: FileKind::Directory,
            mode,
            nlink: 2,
            uid: owner.0,
            gid: owner.1,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
        };
        let has = |(bit, _): &(u16, Access)| rights & bit != 0;
        IDS.show(&mut stat, |asked| {
            PERMISSIONS.iter().filter(|one| has(one)).any(|(_, access)| *access == asked)
        });
        ((stat.uid, stat.gid), stat.mode)
    }

    #[test]
    fn a_file_is_shown_so_that_the_kernel_decides_as_outside() {
        let own = IDS.own;
        // Our own, of our group and of another one.
        assert_eq!(shown(own, 0o750, 0), (own, 0o750));
        assert_eq!(shown((1000, 65_534), 0o2750, 0), (own, 0o2750));
        // Others', whose permissions say more than ours would.
        assert_eq!(shown(NOBODY, 0o755, 0), (own, 0o755));
        assert_eq!(shown(NOBODY, 0o700, 0), (own, 0o700));
        assert_eq!(shown((65_534, 100), 0o2775, 0), (own, 0o2775));
        // Or less: they are of a group whose member we are, or are not.
        assert_eq!(shown(NOBODY, 0o2475, 7), (own, 0o2775));
        assert_eq!(shown(NOBODY, 0o2475, 5), (own, 0o2575));
        assert_eq!(shown(NOBODY, 0o060, 6), (own, 0o660));
        assert_eq!(shown(NOBODY, 0o060, 0), (own, 0o060));
        // Without a question, where all may the same.
        assert_eq!(shown(NOBODY, 0o1077, 0), (own, 0o1777));
    }

    #[test]
    fn who_keeps_the_owner_that_is_shown_changes_none() {
        let give = |uid, gid| AttrChange { uid, gid, ..AttrChange::default() };
        assert_eq!(IDS.keep((1000, 65_534), &give(Some(1000), Some(100))), give(Some(1000), None));
        assert_eq!(IDS.keep(NOBODY, &give(Some(1000), Some(100))), give(None, None));
        assert_eq!(IDS.keep(NOBODY, &give(Some(7), Some(8))), give(Some(7), Some(8)));
        assert_eq!(IDS.keep((1000, 100), &give(None, Some(100))), give(None, Some(100)));
    }

    #[test]
    fn a_group_that_is_known_by_its_number_is_shown_as_ours() {
        assert_eq!([(1000, 7), (1000, 100), (7, 8)].map(|owner| IDS.group(owner)), [100, 100, 8]);
        assert_eq!(Ids { has_one_group: false, ..IDS }.group((1000, 7)), 7);
    }

    #[test]
    fn the_user_that_stands_for_others_is_himself() {
        let ids = Ids { own: NOBODY, ..IDS };
        assert_eq!(ids.unknown(NOBODY), (false, false));
        assert!(has_one("      1000       1000          1\n") && has_one("0 1000 1\n"));
        assert!(!has_one("0 0 4294967295\n") && !has_one("0 1000 1\n1 100000 65536\n"));
    }
}
