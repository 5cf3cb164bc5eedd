//! Attributes of files in a session.

use super::state::Existing;
use super::{Brief, OpenFile, Session, WriterFile, Xattr};
use crate::Node;
use tameike_core::attr::{AttrChange, SetTime};
use tameike_core::{Errno, Fault, Result, Timestamp};
use tameike_io::os::process::wall;

/// The kernel's maxima for the name and the value of an extended attribute, in bytes.
const XATTR_NAME_MAX: usize = 255;
const XATTR_SIZE_MAX: usize = 64 << 10;

impl Session {
    /// Changes mode, owner and times of a path, without following a link. The file may be open.
    ///
    /// # Errors
    /// `ENOENT`; `EPERM` for the root, which has no entry; `EINVAL` for a size (see [`Self::truncate`]) or a layout.
    pub fn set_attributes(&self, path: &[u8], change: &AttrChange) -> Result<()> {
        check_change(change)?;
        self.change_node(path, |node| apply(node, change))
    }

    /// As [`Self::set_attributes`], for an open file. A file that is open for reading only is changed by its path. An mtime stays until the
    /// next write.
    pub fn set_file_attributes(&self, file: &OpenFile, change: &AttrChange) -> Result<()> {
        check_change(change)?;
        match file {
            OpenFile::Writer(WriterFile { draft, .. }) => {
                let _state = self.state.lock();
                let mut draft = draft.lock();
                apply(&mut draft.node, change);
                draft.is_changed = true;
            }
            OpenFile::Reader(reader) => {
                let path = reader.lock().path.clone();
                self.set_attributes(&path, change)?;
                let now = self.stat(&path)?;
                let mut reader = reader.lock();
                reader.brief = Brief { size: reader.brief.size, ..now };
            }
        }
        Ok(())
    }

    /// Extended attributes of a path; none for the root. Fails with `ENOENT` if the path does not exist.
    pub fn xattrs(&self, path: &[u8]) -> Result<Vec<Xattr>> {
        if path.is_empty() {
            return Ok(Vec::new());
        }
        let mut state = self.state.lock();
        if let Some(draft) = state.drafts.get(path) {
            return Ok(draft.lock().node.xattrs.clone());
        }
        let entry = state.find(path)?.entry;
        Ok(state.node(&entry)?.xattrs)
    }

    /// Replaces all extended attributes of a path.
    ///
    /// # Errors
    /// `ENOENT`; `EPERM` for the root; `ERANGE` for a name or a value that is too long.
    pub fn set_xattrs(&self, path: &[u8], xattrs: Vec<Xattr>) -> Result<()> {
        for Xattr { name, value } in &xattrs {
            let fault = |errno, why| {
                let name = String::from_utf8_lossy(name);
                Fault::new(errno, format!("the extended attribute {name}: {why}"))
            };
            if !(1..=XATTR_NAME_MAX).contains(&name.len()) {
                return Err(fault(Errno::ERANGE, "a name has 1 to 255 bytes"));
            }
            if value.len() > XATTR_SIZE_MAX {
                return Err(fault(Errno::ERANGE, "a value has up to 64 KiB"));
            }
        }
        self.change_node(path, |node| node.xattrs = xattrs)
    }

    fn change_node(&self, path: &[u8], change: impl FnOnce(&mut Node)) -> Result<()> {
        if path.is_empty() {
            return Err(Fault::new(Errno::EPERM, "the root of a container has no attributes"));
        }
        let mut state = self.state.lock();
        if let Some(draft) = state.drafts.get(path) {
            let mut draft = draft.lock();
            change(&mut draft.node);
            draft.is_changed = true;
            return Ok(());
        }
        let Existing { entry, .. } = state.find(path)?;
        self.begin(&mut state)?;
        let (mut node, _) = state.node_of(&entry)?;
        change(&mut node);
        state.put(path, Some(node), &[]).map(drop)
    }
}

fn check_change(change: &AttrChange) -> Result<()> {
    match change {
        AttrChange { size: None, layout: None, .. } => Ok(()),
        _ => Err(Fault::new(Errno::EINVAL, "size and layout cannot be set as attributes in a container")),
    }
}

fn apply(node: &mut Node, change: &AttrChange) {
    let AttrChange { mode, uid, gid, atime, mtime, .. } = *change;
    let time = |set: Option<SetTime>, before: Timestamp| match set {
        Some(SetTime::Now) => wall(),
        Some(SetTime::To(time)) => time,
        None => before,
    };
    node.mode = mode.map_or(node.mode, |mode| mode & 0o7777);
    (node.uid, node.gid) = (uid.unwrap_or(node.uid), gid.unwrap_or(node.gid));
    (node.atime, node.mtime) = (time(atime, node.atime), time(mtime, node.mtime));
}
