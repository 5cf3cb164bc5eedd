//! The client side: a shared directory merged with its packed files.

mod attributes;
mod create;
mod listing;
pub mod lookup;
mod names;
mod open_file;
pub mod packer_client;
pub mod storms;

use crate::external::ExternalDir;
use crate::negative_lookups::NegativeLookups;
use crate::recent_lookups::RecentLookups;
use crate::{ATTRIBUTE, CONTAINER, unless_missing};
use listing::MergedDir;
use open_file::{ExternalAccess, PackedFile};
use packer_client::{PackerClient, unexpected_reply};
use std::sync::Arc;
use std::time::Duration;
use storms::Storms;
use tameike_container::split_path;
use tameike_core::attr::AttrChange;
use tameike_core::wire::admin::Storm;
use tameike_core::wire::meta::RenameMode;
use tameike_core::wire::pack::{PackReply, PackRequest, PackedOpen, PackedStat};
use tameike_core::{Errno, Fault, FileKind, Result};
use tameike_io::Runtime;
use tameike_io::shared::{
    Access, FileStat, OpenFileCache, Pin, SharedDir, SharedFile, SharedFs, Special, TreeSpace, XattrMode,
};

/// The device number of packed files, which no device of a system has.
const DEVICE: u64 = u64::from_be_bytes(*b"\xffpacked\0");
/// How long a cached path is taken as free in the shared directory: so much later a file that hides a packed one is seen.
const ABSENT_TIME: Duration = Duration::from_secs(1);
/// How long a client may create a file after a lookup without another one.
const MISSING_TIME: Duration = Duration::from_millis(100);
/// Failed lookups in one directory that follow each other within this time belong to one storm.
const NEGATIVE_LOOKUPS_GAP: Duration = Duration::from_millis(250);

/// A shared directory merged with its packed files.
pub struct PackedTree {
    plain: Arc<dyn SharedFs>,
    container: Arc<ExternalDir>,
    /// None where nothing is packed.
    packer: Option<PackerClient>,
    /// Owner and group of new files.
    owner: (u32, u32),
    storms: Storms,
    /// Paths that are free in the shared directory and have a packed file.
    absent: RecentLookups,
    /// Paths that are free.
    missing: RecentLookups,
    /// Directories with many failed lookups.
    negative_lookups: NegativeLookups,
    /// Larger files have external content.
    size_max: u64,
    runtime: Runtime,
}

/// Whether a path is in the container's directory.
fn is_hidden(path: &[u8]) -> bool {
    path.strip_prefix(CONTAINER).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

fn visible(path: &[u8]) -> Result<()> {
    if is_hidden(path) { Err(Errno::ENOENT.into()) } else { Ok(()) }
}

fn free(path: &[u8]) -> Result<()> {
    if !is_hidden(path) {
        return Ok(());
    }
    let name = String::from_utf8_lossy(path);
    Err(Fault::new(Errno::EPERM, format!("{name}: packed files are kept under this name")))
}

impl PackedTree {
    /// A tree over the directory `plain`, which has `container`, and the packed files of `packer`. With `packs_storms`, directories with a
    /// storm of creations pack their files. Content of more than `size_max` bytes is external.
    pub fn new(
        runtime: Runtime,
        (plain, container): (Arc<dyn SharedFs>, ExternalDir),
        packer: Option<PackerClient>,
        owner: (u32, u32),
        packs_storms: bool,
        size_max: u64,
    ) -> Self {
        let (storms, absent) = (Storms::new(packs_storms), RecentLookups::new(ABSENT_TIME));
        let missing = RecentLookups::new(MISSING_TIME);
        Self {
            plain,
            container: Arc::new(container),
            packer,
            owner,
            storms,
            absent,
            missing,
            negative_lookups: NegativeLookups::new(NEGATIVE_LOOKUPS_GAP),
            size_max,
            runtime,
        }
    }

    /// Directories with storms of creations by this node.
    pub fn storms(&self) -> Vec<Storm> {
        self.storms.list()
    }

    fn stat_packed(&self, path: &[u8]) -> Result<PackedStat> {
        let Some(packer) = &self.packer else { return Err(Errno::ENOENT.into()) };
        packer.stat(PackRequest::Stat { path: path.to_vec() })
    }

    fn is_packed(&self, path: &[u8]) -> Result<bool> {
        Ok(unless_missing(self.stat_packed(path))?.is_some())
    }

    /// Wraps a file that the packer of the number `by` has opened.
    fn opened(
        &self,
        packer: &PackerClient,
        path: &[u8],
        (stat, by): (&PackedStat, u64),
        access: Access,
    ) -> Result<Arc<dyn SharedFile>> {
        let (plain, container) = (self.plain.clone(), self.container.clone());
        let external = ExternalAccess { plain, container, access, size_max: self.size_max };
        let open = PackedOpen { file: stat.number, packer: by };
        let file = PackedFile::new((packer.clone(), self.runtime.clone()), open, path, external);
        if stat.is_external {
            file.content()?;
        }
        Ok(Arc::new(file))
    }

    /// Sends a change of names to the packer, whose mount makes it: this node's mount may show stale names.
    fn done_there(&self, packer: &PackerClient, request: PackRequest, names: &[&[u8]]) -> Result<()> {
        let done = packer.done(request);
        if matches!(packer, PackerClient::Remote { .. }) {
            names.iter().for_each(|path| self.plain.revalidate(path));
        }
        done
    }

    /// Counts a creation. In a storm the directory packs its next files, unless it has a mark.
    fn count(&self, path: &[u8], began: tameike_core::Timestamp, is_packed: bool) {
        let (dir, _) = split_path(path);
        let is_storm = self.storms.count(dir, began, self.runtime.now(), is_packed);
        if is_storm && let Some(packer) = &self.packer {
            let mark = PackRequest::Mark { dir: dir.to_vec(), packs: Some(true) };
            if let Err(fault) = packer.done(mark) {
                log::warn!("cannot pack files of a directory with a storm of creations: {fault}");
            }
        }
    }
}

impl SharedFs for PackedTree {
    fn open_file_cache(&self) -> Option<&OpenFileCache> {
        self.plain.open_file_cache()
    }

    fn stat(&self, path: &[u8]) -> Result<FileStat> {
        visible(path)?;
        self.either(path, |plain| plain.stat(path), || self.shown(&self.stat_packed(path)?))
    }

    fn pin(&self, path: &[u8]) -> Result<(FileStat, Pin)> {
        visible(path)?;
        // No other file ever gets the inode number of a packed one.
        let packed = || Ok((self.shown(&self.stat_packed(path)?)?, Box::new(()) as Pin));
        self.either(path, |plain| plain.pin(path), packed)
    }

    fn open_dir(&self, path: &[u8]) -> Result<Arc<dyn SharedDir>> {
        visible(path)?;
        let plain = self.plain.open_dir(path)?;
        Ok(match &self.packer {
            Some(packer) => Arc::new(MergedDir::new(plain, packer.clone(), path.to_vec())),
            None => plain,
        })
    }

    fn read_link(&self, path: &[u8]) -> Result<Vec<u8>> {
        visible(path)?;
        let packed = || self.stat_packed(path).and_then(|_| Err(Errno::EINVAL.into()));
        self.either(path, |plain| plain.read_link(path), packed)
    }

    fn open(&self, path: &[u8], access: Access) -> Result<Arc<dyn SharedFile>> {
        visible(path)?;
        self.either(
            path,
            |plain| plain.open(path, access),
            || {
                let Some(packer) = &self.packer else { return Err(Errno::ENOENT.into()) };
                match packer.call(PackRequest::Open { path: path.to_vec() })? {
                    PackReply::Opened { stat, packer: by } => self.opened(packer, path, (&stat, by), access),
                    other => Err(unexpected_reply(&other)),
                }
            },
        )
    }

    fn create(&self, path: &[u8], mode: u16) -> Result<Arc<dyn SharedFile>> {
        free(path)?;
        let began = self.runtime.now();
        let packed = match &self.packer {
            Some(packer) => self.create_packed(packer, path, mode)?,
            None => None,
        };
        if let Some(packed) = packed {
            self.count(path, began, true);
            return Ok(packed);
        }
        let began = self.runtime.now();
        self.forget(path);
        let file = self.plain.create(path, mode)?;
        self.count(path, began, false);
        self.unless_packed(path, file)
    }

    fn make(&self, path: &[u8], special: &Special) -> Result<FileStat> {
        free(path)?;
        let Some(packer) = &self.packer else { return self.plain.make(path, special) };
        if self.is_packed(path)? {
            return Err(Errno::EEXIST.into());
        }
        self.forget(path);
        let Special::Directory(mode) = special else {
            let stat = self.plain.make(path, special)?;
            return self.unless_packed(path, stat);
        };
        let call = self.runtime.random_u64();
        self.done_there(packer, PackRequest::MakeDir { call, path: path.to_vec(), mode: *mode }, &[path])?;
        self.plain.stat(path)
    }

    fn unlink(&self, path: &[u8]) -> Result<()> {
        visible(path)?;
        self.unlink_both(path)
    }

    fn rmdir(&self, path: &[u8]) -> Result<()> {
        visible(path)?;
        let Some(packer) = &self.packer else { return self.plain.rmdir(path) };
        self.either(
            path,
            |plain| plain.stat(path).map(drop),
            || self.stat_packed(path).and_then(|_| Err(Errno::ENOTDIR.into())),
        )?;
        let call = self.runtime.random_u64();
        self.done_there(packer, PackRequest::RemoveDir { call, path: path.to_vec() }, &[path])
    }

    fn rename(&self, from: &[u8], to: &[u8], mode: RenameMode) -> Result<()> {
        visible(from)?;
        free(to)?;
        [from, to].iter().for_each(|path| self.forget(path));
        match &self.packer {
            Some(packer) => self.rename_either(packer, from, to, mode),
            None => self.plain.rename(from, to, mode),
        }
    }

    fn link(&self, from: &[u8], to: &[u8]) -> Result<()> {
        visible(from)?;
        free(to)?;
        if self.is_packed(to)? {
            return Err(Errno::EEXIST.into());
        }
        self.forget(to);
        let packed = || {
            if !self.is_packed(from)? {
                return Err(Errno::ENOENT.into());
            }
            let name = String::from_utf8_lossy(from);
            Err(Fault::new(Errno::EPERM, format!("link {name}: a packed file has one name")))
        };
        self.either(from, |plain| plain.link(from, to), packed)?;
        self.unless_packed(to, ())
    }

    fn revalidate(&self, path: &[u8]) {
        self.forget(path);
        self.plain.revalidate(path);
    }

    fn check_names(&self, dir: &[u8]) -> Result<()> {
        self.plain.check_names(dir)
    }

    fn check_write(&self, path: &[u8]) -> Result<()> {
        // The packer decides whether a packed file may be written.
        unless_missing(self.plain.check_write(path)).map(drop)
    }

    fn change(&self, path: &[u8], change: &AttrChange) -> Result<()> {
        visible(path)?;
        self.either(path, |plain| plain.change(path, change), || self.change_packed(path, change))
    }

    fn change_made(&self, path: &[u8], kind: FileKind, change: &AttrChange) -> Result<()> {
        visible(path)?;
        // Directories and special files are never packed.
        self.plain.change_made(path, kind, change)
    }

    fn xattr(&self, path: &[u8], name: &[u8]) -> Result<Vec<u8>> {
        visible(path)?;
        if name == ATTRIBUTE {
            return self.packs(path);
        }
        let packed = || self.stat_packed(path).and_then(|_| Err(Errno::ENODATA.into()));
        self.either(path, |plain| plain.xattr(path, name), packed)
    }

    fn xattrs(&self, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        visible(path)?;
        self.either(path, |plain| plain.xattrs(path), || self.stat_packed(path).map(|_| Vec::new()))
    }

    fn set_xattr(&self, path: &[u8], name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        visible(path)?;
        if name == ATTRIBUTE {
            return self.mark(path, Some(value));
        }
        let shown = String::from_utf8_lossy(path);
        let why =
            || Fault::new(Errno::EOPNOTSUPP, format!("{shown}: packed files have no extended attributes"));
        let packed = || self.stat_packed(path).and_then(|_| Err(why()));
        self.either(path, |plain| plain.set_xattr(path, name, value, mode), packed)
    }

    fn remove_xattr(&self, path: &[u8], name: &[u8]) -> Result<()> {
        visible(path)?;
        if name == ATTRIBUTE {
            return self.mark(path, None);
        }
        let packed = || self.stat_packed(path).and_then(|_| Err(Errno::ENODATA.into()));
        self.either(path, |plain| plain.remove_xattr(path, name), packed)
    }

    fn space(&self) -> Result<TreeSpace> {
        self.plain.space()
    }

    fn sync_dir(&self, path: &[u8]) -> Result<()> {
        visible(path)?;
        self.plain.sync_dir(path)?;
        self.sync_name(path)
    }

    fn syncs_name_of(&self, stat: &FileStat) -> bool {
        stat.device == DEVICE || self.plain.syncs_name_of(stat)
    }

    fn shares_syncs(&self) -> bool {
        self.packer.is_some()
    }

    fn sync_name(&self, _: &[u8]) -> Result<()> {
        self.packer.as_ref().map_or(Ok(()), |packer| packer.done(PackRequest::Sync { open: None }))
    }
}
