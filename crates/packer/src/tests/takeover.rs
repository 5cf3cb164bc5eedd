//! Tests of packers that take over from others of their job, which may be stopped, and of calls that an earlier packer has executed.

use super::{container_in, errno};
use crate::{
    ATTRIBUTE, ContainerDir, ExternalDir, OpenContainer, PackHandler, PackedTree, Packer, PackerClient,
    PackerParts,
};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tameike_core::wire::meta::RenameMode;
use tameike_core::wire::pack::{PACKER_HOME, PackRequest};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Errno, FileKind, NodeId, Result};
use tameike_fabric::{Answer, CallFuture, Destination, Rpc};
use tameike_io::os::system::System;
use tameike_io::shared::{Access, PosixTree, SharedFs, Special, XattrMode};
use tameike_io::{Frame, Payload};
use tempfile::TempDir;

/// The packers of a job. Earlier ones are stopped: they hold their locks.
struct Packers {
    dir: TempDir,
    all: Mutex<Vec<(Arc<Packer>, TempDir)>>,
    /// The next call that changes something is executed, then another packer takes over and gets it again.
    repeats: AtomicBool,
    runtime: tameike_io::Runtime,
}

impl Packers {
    fn container(&self) -> OpenContainer {
        let container = self.dir.path().join(".tameike-packed");
        Box::new(move || {
            let (tree, why_not_own) = PosixTree::open_unfollowed(&container)?;
            Ok(ContainerDir { fs: Arc::new(tree), why_not_own })
        })
    }

    fn plain(&self) -> Arc<dyn SharedFs> {
        Arc::new(PosixTree::open(self.dir.path()).expect("a tree"))
    }

    fn parts(&self, device: &TempDir, job: &str) -> PackerParts {
        PackerParts {
            plain: self.plain(),
            container: self.container(),
            device: Arc::new(PosixTree::open(device.path()).expect("a tree")),
            packs: true,
            size_max: 1 << 16,
            job: Some(job.to_owned()),
        }
    }

    /// Another packer takes over, and has what the last one has kept on its device.
    fn take_over(&self) {
        let device = tempfile::tempdir().expect("a directory");
        let takes_over = match self.all.lock().last() {
            Some((_, last)) => {
                for file in std::fs::read_dir(last.path()).expect("a directory") {
                    let file = file.expect("a file");
                    std::fs::copy(file.path(), device.path().join(file.file_name())).expect("copied");
                }
                true
            }
            None => false,
        };
        let packer = Packer::new(self.parts(&device, "job"), false, takes_over).expect("it takes over");
        self.all.lock().push((Arc::new(packer), device));
    }

    fn current(&self) -> Arc<Packer> {
        self.all.lock().last().expect("a packer").0.clone()
    }
}

impl Rpc for Packers {
    fn local(&self) -> NodeId {
        NodeId(1)
    }

    fn call(&self, to: Destination, request: Request, _: Option<Payload>, _: Option<Frame>) -> CallFuture {
        assert_eq!(to, Destination::Home(PACKER_HOME));
        let Request::Pack(request) = request else { unreachable!("a request to the packer") };
        let mut replied = self.current().serve(request.clone());
        // Closes are sent by a task, at any time: one that was repeated would be so instead of the call that a test means.
        let may_repeat = !request.is_read_only() && !matches!(request, PackRequest::Close { .. });
        if may_repeat && self.repeats.swap(false, Ordering::Relaxed) {
            self.take_over();
            replied = self.current().serve(request);
        }
        let answer = replied.map(|reply| Answer { reply: Reply::Pack(reply), payload: None });
        Box::pin(std::future::ready(answer))
    }
}

struct Bed {
    packers: Arc<Packers>,
    tree: PackedTree,
    system: System,
}

impl Bed {
    fn new() -> Self {
        let system = System::start(2).expect("a thread");
        let runtime = system.runtime().clone();
        let dir = tempfile::tempdir().expect("a directory");
        let packers =
            Arc::new(Packers { dir, all: Mutex::default(), repeats: AtomicBool::new(false), runtime });
        packers.take_over();
        let client = PackerClient::Remote { rpc: packers.clone(), to: Destination::Home(PACKER_HOME) };
        let external = ExternalDir::new(packers.container(), false);
        let runtime = packers.runtime.clone();
        let tree =
            PackedTree::new(runtime, (packers.plain(), external), Some(client), (0, 0), false, 1 << 16);
        Self { packers, tree, system }
    }

    /// The next call gets to two packers.
    fn repeat_next(&self) {
        self.packers.repeats.store(true, Ordering::Relaxed);
    }

    fn content(&self, path: &[u8]) -> Result<Vec<u8>> {
        let file = self.tree.open(path, Access::Read)?;
        let mut bytes = vec![0; file.stat()?.size as usize];
        let count = file.read_at(&mut bytes, 0)?;
        bytes.truncate(count);
        Ok(bytes)
    }

    fn write(&self, path: &[u8], content: &[u8]) {
        let file = self.tree.create(path, 0o644).expect("made");
        file.write_at(content, 0).expect("written");
        file.sync().expect("synced");
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.system.stop();
    }
}

/// S52b.
#[test]
fn a_call_that_an_earlier_packer_has_executed_takes_effect_once() {
    let bed = Bed::new();
    bed.repeat_next();
    bed.tree.make(b"dir", &Special::Directory(0o755)).expect("made once");
    assert_eq!(errno(bed.tree.make(b"dir", &Special::Directory(0o755))), Some(Errno::EEXIST));
    bed.repeat_next();
    let file = bed.tree.create(b"dir/file", 0o644).expect("made once");
    let number = file.stat().expect("attributes").inode;
    assert_eq!(errno(bed.tree.create(b"dir/file", 0o644)), Some(Errno::EEXIST));
    bed.write(b"dir/other", b"other");
    bed.repeat_next();
    bed.tree.rename(b"dir/file", b"dir/other", RenameMode::Replace).expect("renamed once");
    assert_eq!(bed.tree.stat(b"dir/other").expect("it is there").inode, number);
    assert_eq!(errno(bed.tree.rename(b"dir/file", b"dir/other", RenameMode::Replace)), Some(Errno::ENOENT));
    bed.repeat_next();
    bed.tree.rename(b"dir/other", b"dir/third", RenameMode::NoReplace).expect("renamed once");
    bed.repeat_next();
    bed.tree.unlink(b"dir/third").expect("removed once");
    assert_eq!(errno(bed.tree.unlink(b"dir/third")), Some(Errno::ENOENT));
    bed.write(b"dir/fourth", b"four");
    bed.repeat_next();
    bed.tree.rename(b"dir", b"moved", RenameMode::Replace).expect("renamed once");
    assert_eq!(bed.content(b"moved/fourth").expect("it is there"), b"four");
    assert_eq!(errno(bed.tree.stat(b"dir")), Some(Errno::ENOENT));
    bed.tree.unlink(b"moved/fourth").expect("removed");
    bed.tree.make(b"dir", &Special::Directory(0o700)).expect("made");
    bed.repeat_next();
    bed.tree.rename(b"dir", b"moved", RenameMode::Exchange).expect("exchanged once");
    assert_eq!(bed.tree.stat(b"moved").expect("it is there").mode & 0o777, 0o700);
    bed.repeat_next();
    bed.tree.rmdir(b"moved").expect("removed once");
    assert_eq!(errno(bed.tree.rmdir(b"moved")), Some(Errno::ENOENT));
    assert_eq!(bed.packers.all.lock().len(), 9);
}

#[test]
fn a_later_packer_has_all_files_whatever_an_earlier_one_does_since() {
    let bed = Bed::new();
    for round in 0..4 {
        let name = |what: &str| format!("{what}-{round}").into_bytes();
        bed.write(&name("stays"), b"stays");
        bed.write(&name("goes"), b"goes");
        let open = bed.tree.open(&name("stays"), Access::Write).expect("open");
        open.write_at(b"S", 0).expect("written");
        let renamed = bed.tree.open(&name("goes"), Access::Write).expect("open");
        bed.tree.rename(&name("goes"), &name("went"), RenameMode::Replace).expect("renamed");
        let stopped = bed.packers.current();
        bed.packers.take_over();
        assert_eq!(errno(open.sync()), Some(Errno::EREMCHG), "the write may be lost");
        let mut bytes = [0; 4];
        assert_eq!((renamed.read_at(&mut bytes, 0), &bytes), (Ok(4), b"goes"), "it has another path");
        renamed.write_at(b"w", 0).expect("written");
        renamed.sync().expect("synced");
        let again = bed.tree.open(&name("stays"), Access::Write).expect("open");
        again.write_at(b"s", 0).expect("written");
        again.sync().expect("synced");
        assert_eq!(bed.content(&name("stays")).expect("it is there"), b"stays");
        assert_eq!(bed.content(&name("went")).expect("it is there"), b"woes");
        // Without its lease the stopped one changes nothing any more. It only ends.
        drop(stopped);
    }
    bed.packers.current().finish(true).expect("it ends");
    let left = as_left_in(&bed);
    assert_eq!(left.len(), 8, "{left:?}");
}

fn as_left_in(bed: &Bed) -> Vec<String> {
    let container = container_in(bed.packers.dir.path());
    let all = container
        .children(b"")
        .expect("no damage")
        .chain(container.children(b".tameike-packed").expect("no damage"));
    all.map(|entry| String::from_utf8_lossy(&entry.expect("no damage").path).into_owned()).collect()
}

#[test]
fn an_open_file_that_was_removed_stays_readable_at_later_packers() {
    let bed = Bed::new();
    for (name, other) in [(&b"removed"[..], None), (b"replaced", Some(&b"new"[..]))] {
        bed.write(name, b"content");
        let open = bed.tree.open(name, Access::Write).expect("open");
        match other {
            None => bed.tree.unlink(name).expect("removed"),
            Some(other) => {
                bed.write(other, b"other");
                bed.tree.rename(other, name, RenameMode::Replace).expect("renamed");
            }
        }
        open.write_at(b"C", 0).expect("written");
        bed.packers.take_over();
        let mut bytes = [0; 7];
        assert_eq!((open.read_at(&mut bytes, 0), &bytes), (Ok(7), b"Content"));
        assert_eq!(open.stat().expect("attributes").nlink, 0);
        open.write_at(b"c", 0).expect("written");
        assert_eq!((open.read_at(&mut bytes, 0), &bytes), (Ok(7), b"content"));
        // The next packer does not know that it is open.
        bed.packers.take_over();
        assert_eq!(open.read_at(&mut bytes, 0), Ok(7));
    }
    assert_eq!(errno(bed.tree.stat(b"removed")), Some(Errno::ENOENT));
    assert_eq!(bed.content(b"replaced").expect("it is there"), b"other");
    bed.packers.current().finish(true).expect("it ends");
    assert_eq!(as_left_in(&bed), ["replaced"]);
}

/// S36a.
#[test]
fn marks_and_large_files_pass_to_later_packers() {
    let bed = Bed::new();
    bed.tree.make(b"dir", &Special::Directory(0o755)).expect("made");
    bed.tree.set_xattr(b"dir", ATTRIBUTE, b"off", XattrMode::Any).expect("marked");
    let large = bed.tree.create(b"large", 0o644).expect("made");
    large.write_at(&[7; 100_000], 0).expect("written");
    bed.packers.take_over();
    assert_eq!(bed.tree.xattr(b"dir", ATTRIBUTE).expect("a mark"), b"off");
    drop(bed.tree.create(b"dir/plain", 0o644).expect("made"));
    assert!(bed.packers.dir.path().join("dir/plain").exists());
    bed.tree.rename(b"dir", b"moved", RenameMode::Replace).expect("renamed");
    bed.packers.take_over();
    assert_eq!(bed.tree.xattr(b"moved", ATTRIBUTE).expect("a mark"), b"off");
    large.write_at(&[8; 10], 100_000).expect("written");
    large.sync().expect("synced");
    assert_eq!(bed.tree.stat(b"large").expect("it is there").size, 100_010);
    bed.packers.current().finish(true).expect("it ends");
    let promoted = bed.packers.plain().stat(b"large").expect("promoted");
    assert_eq!((promoted.kind, promoted.size), (FileKind::File, 100_010));
    assert!(as_left_in(&bed).is_empty());
}

/// S40a.
#[test]
fn a_packer_takes_over_from_its_own_job_only() {
    let bed = Bed::new();
    bed.write(b"file", b"");
    let device = tempfile::tempdir().expect("a directory");
    for (job, takes_over) in [("other", false), ("other", true), ("job", false)] {
        let opened = Packer::new(bed.packers.parts(&device, job), false, takes_over);
        assert_eq!(errno(opened), Some(Errno::EBUSY), "{job} {takes_over}");
    }
    // The lock passes to the later packer when the stopped one has ended.
    bed.packers.take_over();
    drop(bed.packers.all.lock().remove(0));
    bed.write(b"next", b"");
    let opened = Packer::new(bed.packers.parts(&device, "other"), false, true);
    assert_eq!(errno(opened), Some(Errno::EBUSY));
}
