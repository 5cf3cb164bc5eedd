//! What a program is told.

/// The outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<T> {
    /// Done.
    Done(T),
    /// It fails with this errno, as it would on the mount.
    Failed(i32),
    /// The kernel is to be asked, as if nothing had been asked here: nothing has happened.
    Declined,
    /// The agent is gone, or has gone on without this process. Whether the call has happened is not known; no later one
    /// will be answered.
    Broken,
}

impl<T> Answer<T> {
    /// The same outcome with something else as what was done.
    pub fn map<U>(self, convert: impl FnOnce(T) -> U) -> Answer<U> {
        match self {
            Self::Done(done) => Answer::Done(convert(done)),
            Self::Failed(errno) => Answer::Failed(errno),
            Self::Declined => Answer::Declined,
            Self::Broken => Answer::Broken,
        }
    }
}

/// Where a path starts that does not begin at the root of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// Which view, as an index into [`super::Client::views`].
    pub view: u8,
    /// The directory: `st_ino` of a descriptor of it on the view's mount; 1 is the root.
    pub dir: u64,
}

/// A view that the agent serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewInfo {
    /// Where it is mounted.
    pub mount: Vec<u8>,
}

/// An open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFile {
    /// Stands for it in later calls of this process.
    pub handle: u64,
    /// Its attributes when it was opened.
    pub attr: Status,
}

/// A time since 1970-01-01 UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time {
    /// Whole seconds; negative before 1970.
    pub seconds: i64,
    /// 0 to 999,999,999.
    pub nanoseconds: u32,
}

/// Attributes as `statx` of the mount shows them, but for `st_dev`, which is the mount's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// `st_ino`.
    pub inode: u64,
    /// Size in bytes.
    pub size: u64,
    /// Space taken, in units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of content.
    pub mtime: Time,
    /// Last change of content or attributes.
    pub ctime: Time,
    /// Kind of file and permissions, as in `st_mode`.
    pub mode: u32,
    /// Links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// `st_rdev`, as the kernel encodes it for programs (`makedev`).
    pub rdev: u64,
    /// `st_blksize`.
    pub block_size: u32,
}
