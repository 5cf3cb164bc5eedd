//! Ownership of new files: the agent creates them on behalf of the calling user.

use std::sync::Arc;
use tameike_core::attr::{AttrChange, S_ISGID};
use tameike_core::wire::meta::NewInode;
use tameike_core::{Errno, Result};
use tameike_io::shared::{FileStat, SharedFile, SharedFs, split};

/// The user and the group of the calling process.
#[derive(Clone, Copy)]
pub(crate) struct Owner {
    uid: u32,
    gid: u32,
}

impl Owner {
    pub(crate) fn of(new: &NewInode) -> Self {
        Self { uid: new.uid, gid: new.gid }
    }

    pub(crate) fn create(self, fs: &dyn SharedFs, path: &[u8], mode: u16) -> Result<Arc<dyn SharedFile>> {
        let file = fs.create(path, mode)?;
        if let Some(change) = self.missing(fs, path, &file.stat()?, Some(mode)) {
            Self::chown_applied(file.change(&change))?;
        }
        Ok(file)
    }

    /// Returns false if the file system refused to change the owner of a new file. Only an agent with administrator privileges can change
    /// owners; other agents serve one user. A file system with its own users, such as Gfarm, may not know ours.
    pub(crate) fn chown_applied(answer: Result<()>) -> Result<bool> {
        match answer {
            Ok(()) => Ok(true),
            Err(fault) if matches!(fault.errno, Errno::EPERM | Errno::EINVAL) => Ok(false),
            Err(fault) => Err(fault),
        }
    }

    /// Changes that give the new file to the owner. A change of owner clears mode bits, which are then restored.
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
            fs.stat(dir).is_ok_and(|dir| dir.mode & S_ISGID != 0)
        };
        let gid = (stat.gid != self.gid && !inherits()).then_some(self.gid);
        (uid.is_some() || gid.is_some()).then(|| AttrChange {
            uid,
            gid,
            mode: mode.map(|mode| mode | (stat.mode & S_ISGID)),
            ..AttrChange::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tameike_core::Fault;

    #[test]
    fn a_refused_chown_is_ignored_and_an_io_error_is_returned() {
        let answer =
            |errno| Owner::chown_applied(Err(Fault::new(errno, "chown"))).map_err(|fault| fault.errno);
        assert_eq!(Owner::chown_applied(Ok(())).map_err(|fault| fault.errno), Ok(true));
        assert_eq!(answer(Errno::EPERM), Ok(false));
        assert_eq!(answer(Errno::EINVAL), Ok(false), "Gfarm returns it for an unknown user");
        assert_eq!(answer(Errno::EIO), Err(Errno::EIO));
    }
}
