//! `tameike agg cp`: copies between containers and files.

use super::{codec, inner, of_path, open, preserve, report_damage, report_tally, threads, tree};
use crate::arguments::CopyArguments;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tameike_container::Superblock;
use tameike_container::session::{Permissions, Refresh, Session, SessionOptions};
use tameike_container::{ContainerTree, Destination, Tally};
use tameike_core::{Errno, Fault, FileKind, Result};
use tameike_io::os::process::{group, user};
use tameike_io::shared::{SharedFs, join, split};

enum Place {
    /// A path in a container.
    Inside { container: PathBuf, path: Vec<u8> },
    /// A path outside of containers.
    File(PathBuf),
}

impl Place {
    /// Splits at the first colon that follows the path of a container.
    fn of(argument: &Path) -> Self {
        let bytes = argument.as_os_str().as_bytes();
        let colons = bytes.iter().enumerate().filter(|(_, byte)| **byte == b':').map(|(at, _)| at);
        for at in colons {
            let container = Path::new(OsStr::from_bytes(&bytes[..at]));
            if tree(container).is_ok_and(|tree| Superblock::read(&*tree).is_ok()) {
                let path = inner(Path::new(OsStr::from_bytes(&bytes[at + 1..]))).to_vec();
                return Self::Inside { container: container.to_path_buf(), path };
            }
        }
        Self::File(argument.to_path_buf())
    }
}

/// A source: a tree and a path in it; an empty path is the root.
type Source = (Arc<dyn SharedFs>, Vec<u8>);

/// Copies the sources. Returns the exit code.
pub fn copy(arguments: &CopyArguments) -> Result<u8> {
    let sources: Vec<_> = arguments.sources.iter().map(|source| Place::of(source)).collect();
    let into = Place::of(&arguments.into);
    if sources.iter().chain([&into]).all(|place| matches!(place, Place::File(_))) {
        let message = "none of the paths is in a container: use CONTAINER:PATH with an existing container";
        return Err(Fault::new(Errno::EINVAL, message));
    }
    let mut code = 0;
    let sources = trees(sources, &mut code)?;
    let tally = Tally::default();
    match into {
        Place::File(path) => copy_out(&sources, &path, arguments, &tally)?,
        Place::Inside { container, path } => copy_in(&sources, (&container, &path), arguments, &tally)
            .map_err(|fault| of_path(&arguments.into, &fault))?,
    }
    let copied = report_tally(&tally, "copied");
    Ok(if code == 0 { copied } else { code })
}

/// Opens each container once. Sets `code` to the exit code if files of one may be missing.
fn trees(places: Vec<Place>, code: &mut u8) -> Result<Vec<Source>> {
    let mut containers = BTreeMap::<PathBuf, Arc<dyn SharedFs>>::new();
    let mut sources = Vec::with_capacity(places.len());
    for place in places {
        sources.push(match place {
            Place::File(path) => beside(&path)?,
            Place::Inside { container, path } => match containers.get(&container) {
                Some(tree) => (tree.clone(), path),
                None => {
                    let opened = open(&container)?;
                    *code = report_damage(&container, &opened, *code)?;
                    let tree: Arc<dyn SharedFs> = Arc::new(ContainerTree::new(opened, (user(), group())));
                    containers.insert(container, tree.clone());
                    (tree, path)
                }
            },
        });
    }
    Ok(sources)
}

/// Returns the parent of a file as a tree, and its name; for a path without a name, the tree itself.
fn beside(path: &Path) -> Result<Source> {
    let Some(name) = path.file_name() else { return Ok((tree(path)?, Vec::new())) };
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((tree(parent)?, name.as_bytes().to_vec()))
}

/// Returns the last name of a path; the root has none.
fn name_of(path: &[u8]) -> &[u8] {
    split(path).map_or(b"", |(_, name)| name)
}

/// Returns the path of a copy in a directory; a source without a name becomes the directory itself.
fn within(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if name.is_empty() { dir.to_vec() } else { join(dir, name) }
}

fn copy_out(sources: &[Source], into: &Path, arguments: &CopyArguments, tally: &Tally) -> Result<()> {
    let has_whole = sources.iter().any(|(_, path)| path.is_empty());
    if has_whole && !into.exists() {
        std::fs::create_dir(into)
            .map_err(|error| Fault::from_os(format_args!("creating {}", into.display()), &error))?;
    }
    let is_dir = into.is_dir();
    refuse_many(sources, is_dir).map_err(|fault| of_path(into, &fault))?;
    let (tree, name) = if is_dir { (tree(into)?, Vec::new()) } else { beside(into)? };
    let files = Destination::Files { tree: &*tree, preserve: preserve(arguments.same_permissions) };
    for (source, from) in sources {
        let to = if is_dir { within(b"", name_of(from)) } else { name.clone() };
        tameike_container::copy((&**source, from), (&files, &to), arguments.recursive, threads(), tally);
    }
    Ok(())
}

fn copy_in(
    sources: &[Source],
    (container, path): (&Path, &[u8]),
    arguments: &CopyArguments,
    tally: &Tally,
) -> Result<()> {
    let options = SessionOptions {
        rank: None,
        is_collective: false,
        create: false,
        permissions: Permissions::ByUmask,
        is_read_only: false,
        refresh: Refresh::OnRequest,
        block_size: None,
        subfiles: None,
        codec: codec(arguments.compress),
        streams: 0,
        umask: 0,
        uid: user(),
        gid: group(),
    };
    let session = Session::open(tree(container)?, options)?;
    let to = session.resolve(path)?;
    let has_whole = sources.iter().any(|(_, path)| path.is_empty());
    let is_dir = match session.stat(&to) {
        Ok(there) => there.kind == FileKind::Directory,
        Err(fault) if fault.errno == Errno::ENOENT && has_whole => {
            session.make_dir(&to, 0o755)?;
            true
        }
        Err(fault) if fault.errno == Errno::ENOENT => false,
        Err(fault) => return Err(fault),
    };
    refuse_many(sources, is_dir)?;
    let added = Destination::Container(&session);
    for (source, from) in sources {
        let to = if is_dir { within(&to, name_of(from)) } else { to.clone() };
        tameike_container::copy((&**source, from), (&added, &to), arguments.recursive, threads(), tally);
    }
    session.finish()
}

/// Several sources require a directory as target.
fn refuse_many(sources: &[Source], is_dir: bool) -> Result<()> {
    if is_dir || sources.len() == 1 {
        return Ok(());
    }
    Err(Fault::new(Errno::ENOTDIR, "not a directory, but there are several sources"))
}
