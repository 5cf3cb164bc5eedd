//! Who owns a new file: the agent makes it, for whoever asked.

use std::sync::Arc;
use tameike_core::attr::AttrChange;
use tameike_core::wire::meta::NewInode;
use tameike_core::{Errno, Result};
use tameike_io::shared::{FileStat, SharedFile, SharedFs, split};

/// Set-group-ID bit of a mode: on a directory, files born in it take its group.
const SETGID: u16 = 0o2000;

/// The user and the group that ask for a new file.
#[derive(Clone, Copy)]
pub(crate) struct Owner {
    uid: u32,
    gid: u32,
}

impl Owner {
    pub(crate) fn of(new: &NewInode) -> Self {
        Self { uid: new.uid, gid: new.gid }
    }

    /// Makes a regular file for the owner.
    pub(crate) fn create(self, fs: &dyn SharedFs, path: &[u8], mode: u16) -> Result<Arc<dyn SharedFile>> {
        let file = fs.create(path, mode)?;
        if let Some(change) = self.missing(fs, path, &file.stat()?, Some(mode)) {
            Self::was_given(file.change(&change))?;
        }
        Ok(file)
    }

    /// Whether the file system has given a new file to its owner, or keeps to one of its own choice. Only a system
    /// administrator's agent can give files away, and the others serve one user; and a file system with users of its own,
    /// as Gfarm is, does not know all of ours.
    pub(crate) fn was_given(answer: Result<()>) -> Result<bool> {
        match answer {
            Ok(()) => Ok(true),
            Err(fault) if matches!(fault.errno, Errno::EPERM | Errno::EINVAL) => Ok(false),
            Err(fault) => Err(fault),
        }
    }

    /// What must change for the new file to be the owner's; changing the owner takes bits of the mode away,
    /// which are given again.
    pub(crate) fn missing(
        self,
        fs: &dyn SharedFs,
        path: &[u8],
        stat: &FileStat,
        mode: Option<u16>,
    ) -> Option<AttrChange> {
        let uid = (stat.uid != self.uid).then_some(self.uid);
        let inherits = || {
            let dir = split(path).map_or(&b""[..], |(dir, _)| dir);
            fs.stat(dir).is_ok_and(|dir| dir.mode & SETGID != 0)
        };
        let gid = (stat.gid != self.gid && !inherits()).then_some(self.gid);
        (uid.is_some() || gid.is_some()).then(|| AttrChange {
            uid,
            gid,
            mode: mode.map(|mode| mode | (stat.mode & SETGID)),
            ..AttrChange::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tameike_core::Fault;

    #[test]
    fn a_refused_owner_is_no_error_and_a_failing_disk_is() {
        let answer = |errno| Owner::was_given(Err(Fault::new(errno, "chown"))).map_err(|fault| fault.errno);
        assert_eq!(Owner::was_given(Ok(())).map_err(|fault| fault.errno), Ok(true));
        assert_eq!(answer(Errno::EPERM), Ok(false));
        assert_eq!(answer(Errno::EINVAL), Ok(false), "as Gfarm says of a user it does not know");
        assert_eq!(answer(Errno::EIO), Err(Errno::EIO));
    }
}
