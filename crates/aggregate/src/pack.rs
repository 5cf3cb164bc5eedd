//! A tree of files goes into a new container.

use crate::Tally;
use crate::content::FileInput;
use crate::indexed::IndexedWriter;
use crate::tree::{Item, walk};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use tameike_core::{Errno, Fault, FileKind, Result};
use tameike_io::shared::{Access, SharedFs};
use tameike_store::container::{
    Codec, Content, Geometry, IndexBuilder, LaneEnd, LaneWriter, Node, Superblock, WriterId, Xattr,
};

/// Items that wait for a writer.
const QUEUE_SIZE: usize = 1024;

/// How a container is made.
#[derive(Clone, Copy, Debug)]
pub struct PackOptions {
    /// A number that no other container has.
    pub container: u64,
    /// The version of all that is packed: nanoseconds since 1970.
    pub version: u64,
    /// Bytes of a block, see [`Geometry::block_size`].
    pub block_size: u32,
    /// Threads that write, each to a lane of its own.
    pub writers: u32,
    /// Files that they share.
    pub subfiles: u32,
    /// What makes data smaller.
    pub codec: Codec,
}

/// Packs all that is below the root of `source` into an empty directory. Files that cannot be read are told of in `tally`, and are not in
/// the container.
///
/// # Errors
/// `EEXIST` when `into` is a container already, `EINVAL` when there can be none of these options, and what the file system says when it
/// cannot be written: then it has no index, and what is in it is not all of it.
pub fn pack(
    source: &dyn SharedFs,
    into: Arc<dyn SharedFs>,
    options: &PackOptions,
    tally: &Tally,
) -> Result<()> {
    if options.writers == 0 || options.subfiles == 0 {
        return Err(Fault::new(Errno::EINVAL, "a container needs a writer and a file"));
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
    let (found, items) = sync_channel(QUEUE_SIZE);
    let items = Mutex::new(Some(items));
    let ends: Result<Vec<Vec<LaneEnd>>> = std::thread::scope(|scope| {
        let writers: Vec<_> = lanes?
            .into_iter()
            .map(|writer| {
                let writer = IndexedWriter::new(writer, &index, tally);
                let packer = Packer { source, writer, tally, version: options.version };
                let items = &items;
                scope.spawn(move || packer.run(items))
            })
            .collect();
        walk(source, b"", |item| found.send(item).is_ok(), &|path, fault| tally.note(path, fault));
        drop(found);
        writers.into_iter().map(|writer| writer.join().unwrap_or_else(|_| Err(died()))).collect()
    });
    // Names of new files, before the index says that they are there.
    into.sync_dir(b"")?;
    index.into_inner().finish(&ends?.concat())
}

fn died() -> Fault {
    Fault::new(Errno::EIO, "a thread that packs has ended with a panic")
}

/// What the walker has found, for all threads that pack. There is no receiver any more when one of them has ended.
type Items = Mutex<Option<Receiver<Item>>>;

/// Drops the receiver when a thread that packs ends, by a fault or a panic too: the walker, which may wait for room in the channel, ends then.
struct Closing<'a>(&'a Items);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.lock().take();
    }
}

/// One thread at work.
struct Packer<'a> {
    source: &'a dyn SharedFs,
    writer: IndexedWriter<'a>,
    tally: &'a Tally,
    version: u64,
}

impl Packer<'_> {
    fn run(mut self, items: &Items) -> Result<Vec<LaneEnd>> {
        let _closing = Closing(items);
        loop {
            let item = items.lock().as_ref().and_then(|items| items.recv().ok());
            let Some(item) = item else { break };
            match self.put(&item)? {
                Ok(()) => self.tally.add_file(),
                Err(fault) => self.tally.note(&item.path, &fault),
            }
        }
        self.writer.finish()
    }

    /// Packs one path. The outer fault is the container's, the inner one that of the source.
    fn put(&mut self, item: &Item) -> Result<Result<()>> {
        let (node, file) = match look(self.source, item) {
            Ok(found) => found,
            Err(fault) => return Ok(Err(fault)),
        };
        let put = match file {
            None => self.writer.put(&item.path, self.version, node).map(Ok),
            Some(mut file) => self.writer.put_file(&item.path, self.version, node, &mut file),
        };
        match put {
            // What no container can have is the fault of the source.
            Err(fault) if matches!(fault.errno, Errno::EINVAL | Errno::ENAMETOOLONG | Errno::EFBIG) => {
                Ok(Err(fault))
            }
            put => put,
        }
    }
}

/// What a container tells of a path, and its content if it is a regular file.
pub fn look(source: &dyn SharedFs, item: &Item) -> Result<(Node, Option<FileInput>)> {
    let (path, stat) = (&item.path, &item.stat);
    let file = match stat.kind {
        FileKind::File => Some(FileInput::new(source.open(path, Access::Read)?, stat)),
        _ => None,
    };
    let target = match stat.kind {
        FileKind::Symlink => source.read_link(path)?,
        _ => Vec::new(),
    };
    let xattrs = match stat.kind {
        FileKind::File | FileKind::Directory => xattrs_of(source, path)?,
        _ => Vec::new(),
    };
    let node = Node {
        kind: stat.kind,
        mode: stat.mode,
        uid: stat.uid,
        gid: stat.gid,
        rdev: stat.rdev,
        atime: stat.atime,
        mtime: stat.mtime,
        target,
        xattrs,
        size: if file.is_some() { stat.size } else { 0 },
        content: Content::Here,
    };
    Ok((node, file))
}

fn xattrs_of(source: &dyn SharedFs, path: &[u8]) -> Result<Vec<Xattr>> {
    let names = match source.xattrs(path) {
        Err(fault) if matches!(fault.errno, Errno::EOPNOTSUPP | Errno::ENOSYS) => Vec::new(),
        names => names?,
    };
    names.into_iter().map(|name| Ok(Xattr { value: source.xattr(path, &name)?, name })).collect()
}
