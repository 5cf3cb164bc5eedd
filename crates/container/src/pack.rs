//! Packs a tree of files into a new container.

use crate::tree::content::FileInput;
use crate::tree::walk::{Item, Walk, Within};
use crate::writer::indexed::IndexedWriter;
use crate::{Codec, Geometry, IndexBuilder, LaneEnd, LaneWriter, Node, Superblock, Tally, WriterId, Xattr};
use parking_lot::Mutex;
use std::sync::Arc;
use tameike_core::{Errno, Fault, FileKind, Result};
use tameike_io::shared::{FileStat, NamedXattr, SharedFs, WholeFile, xattrs_of};

/// Parameters of a new container.
#[derive(Clone, Copy, Debug)]
pub struct PackOptions {
    /// Container number; unique.
    pub container: u64,
    /// Version of all packed entries: nanoseconds since 1970.
    pub version: u64,
    /// Block size in bytes, see [`Geometry::block_size`].
    pub block_size: u32,
    /// Writer threads, one lane each.
    pub writers: u32,
    /// Subfiles that the writers share.
    pub subfiles: u32,
    /// Compression of data.
    pub codec: Codec,
}

/// Packs everything below the root of `source` into an empty directory. Files that cannot be read are left out and noted in `tally`.
///
/// # Errors
/// `EEXIST` if `into` is a container already, `EINVAL` if the options are invalid, and errors of the file system. After such an error
/// the container has no index and is incomplete.
pub fn pack(
    source: &dyn SharedFs,
    into: Arc<dyn SharedFs>,
    options: &PackOptions,
    tally: &Tally,
) -> Result<()> {
    if options.writers == 0 || options.subfiles == 0 {
        return Err(Fault::new(Errno::EINVAL, "a container needs at least one writer and one subfile"));
    }
    let lanes = options.writers.div_ceil(options.subfiles);
    let geometry = Geometry { block_size: options.block_size, lanes };
    let superblock = Superblock { container: options.container, geometry };
    superblock.create(&*into)?;
    let begin = |rank| {
        let mut writer =
            LaneWriter::begin(&*into, superblock, &WriterId::Rank { rank, size: options.writers })?;
        writer.set_codec(options.codec)?;
        Ok(writer)
    };
    let lanes: Result<Vec<_>> = (0..options.writers).map(begin).collect();
    let index = Mutex::new(IndexBuilder::new(into.clone(), options.container)?);
    let note = |path: &[u8], fault: &Fault| tally.note(path, fault);
    let items = Mutex::new(Some(Walk::new(source, b"", &note)));
    let ends: Result<Vec<Vec<LaneEnd>>> = std::thread::scope(|scope| {
        let writers: Vec<_> = lanes?
            .into_iter()
            .map(|writer| {
                let writer = IndexedWriter::new(writer, &index, tally);
                let packer = Packer { writer, tally, version: options.version };
                let items = &items;
                scope.spawn(move || packer.run(items))
            })
            .collect();
        writers.into_iter().map(|writer| writer.join().unwrap_or_else(|_| Err(panicked()))).collect()
    });
    // The names of subfiles must be durable before an index refers to them.
    into.sync_dir(b"")?;
    index.into_inner().finish(&ends?.concat())
}

fn panicked() -> Fault {
    Fault::new(Errno::EIO, "a packing thread panicked")
}

/// The walk that all packing threads take items from; `None` once a thread has ended.
type Items<'a> = Mutex<Option<Walk<'a>>>;

/// Stops the other packing threads when one ends, also by an error or a panic.
struct Closing<'a, 'b>(&'a Items<'b>);

impl Drop for Closing<'_, '_> {
    fn drop(&mut self) {
        self.0.lock().take();
    }
}

/// One packing thread.
struct Packer<'a> {
    writer: IndexedWriter<'a>,
    tally: &'a Tally,
    version: u64,
}

impl Packer<'_> {
    fn run(mut self, items: &Items<'_>) -> Result<Vec<LaneEnd>> {
        let _closing = Closing(items);
        loop {
            let item = items.lock().as_mut().and_then(Iterator::next);
            let Some((within, item)) = item else { break };
            let put = self.put(&within, &item)?;
            self.tally.count(&item.path, put);
        }
        self.writer.finish()
    }

    /// Packs one path. The outer error is the container's, the inner one the source's.
    fn put(&mut self, within: &Within<'_>, item: &Item) -> Result<Result<()>> {
        let (node, file) = match read_node(within, item) {
            Ok(found) => found,
            Err(fault) => return Ok(Err(fault)),
        };
        let put = match file {
            None => self.writer.put(&item.path, self.version, node).map(Ok),
            Some(mut file) => self.writer.put_file(&item.path, self.version, node, &mut file),
        };
        match put {
            // A path or size that no container can hold is an error of the source.
            Err(fault) if matches!(fault.errno, Errno::EINVAL | Errno::ENAMETOOLONG | Errno::EFBIG) => {
                Ok(Err(fault))
            }
            put => put,
        }
    }
}

/// Reads the attributes of a path, and opens its content if it is a regular file.
pub fn read_node(within: &Within<'_>, item: &Item) -> Result<(Node, Option<FileInput>)> {
    let (fs, path) = within.at(&item.path);
    let stat = match item.kind {
        FileKind::File => None,
        _ => Some(fs.stat(path)?).filter(|stat| stat.kind != FileKind::File),
    };
    let Some(stat) = stat else {
        let WholeFile { file, stat, xattrs } = fs.open_whole(path)?;
        let node = Node { size: stat.size, ..node_of(&stat, xattrs) };
        return Ok((node, Some(FileInput::new(file, &stat))));
    };
    let (xattrs, target) = match stat.kind {
        FileKind::Directory => (xattrs_of(fs, path)?, Vec::new()),
        FileKind::Symlink => (Vec::new(), fs.read_link(path)?),
        _ => Default::default(),
    };
    Ok((Node { target, ..node_of(&stat, xattrs) }, None))
}

fn node_of(stat: &FileStat, xattrs: Vec<NamedXattr>) -> Node {
    let FileStat { kind, mode, uid, gid, rdev, atime, mtime, .. } = *stat;
    let xattrs = xattrs.into_iter().map(|(name, value)| Xattr { name, value }).collect();
    Node { rdev, atime, xattrs, ..Node::new(kind, mode, (uid, gid), mtime) }
}
