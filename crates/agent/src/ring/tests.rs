//! Programs that use a view through the ring. The tests call the view's arbiter in place of a kernel.

mod hostile;

use super::RingFrontend;
use crate::arbiter::Arbiter;
use crate::fuse::{Tasks, WriteBacklog};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use tameike_client::local::LocalView;
use tameike_client::vfs::{FileNumber, Inodes, OpenFiles, OpenMode};
use tameike_io::os::process::{group, user};
use tameike_io::os::system::System;
use tameike_io::shared::PosixTree;
use tameike_ring::client::{Answer, Client, OpenFile, Start, Status};
use tameike_ring::server::{NameTable, Server};

const ROOT: Start = Start { view: 0, dir: 1 };
const ENOENT: i32 = 2;
const EEXIST: i32 = 17;

struct Bed {
    /// Directory below the view.
    below: PathBuf,
    vfs: Arc<LocalView>,
    arbiter: Arc<Arbiter>,
    frontend: Arc<RingFrontend>,
    server: Arc<Server<RingFrontend>>,
    socket: PathBuf,
    _dir: tempfile::TempDir,
    _system: System,
}

fn bed() -> Bed {
    let dir = tempfile::tempdir().expect("a directory");
    let below = dir.path().join("below");
    std::fs::create_dir(&below).expect("a directory");
    let system = System::start(1).expect("a system");
    let tree = Arc::new(PosixTree::open(&below).expect("a tree"));
    let vfs = Arc::new(LocalView::new(system.runtime().clone(), tree, 1 << 30));
    let arbiter = Arbiter::new(system.runtime().clone(), false);
    let tasks = Tasks::new(system.runtime().clone(), None, 1);
    let names = NameTable::new().expect("memory");
    let mut frontend = RingFrontend::new(names.clone());
    frontend.add(vfs.clone(), tasks, WriteBacklog::new(1 << 20), arbiter.clone());
    let frontend = Arc::new(frontend);
    let server =
        Server::new(frontend.clone(), vec![b"/view".to_vec()], user(), (names, None)).expect("a server");
    let socket = dir.path().join("ring");
    server.listen(&system, UnixListener::bind(&socket).expect("a socket")).expect("it listens");
    Bed { below, vfs, arbiter, frontend, server, socket, _dir: dir, _system: system }
}

impl Bed {
    fn client(&self) -> Client {
        Client::connect(&self.socket, |_| {}).expect("it listens")
    }
}

fn open(client: &Client, path: &str, flags: i32) -> Answer<OpenFile> {
    client.open(ROOT, path.as_bytes(), flags, 0o644)
}

fn opened(client: &Client, path: &str, flags: i32) -> u64 {
    match open(client, path, flags) {
        Answer::Done(open) => open.handle,
        other => panic!("{path}: {other:?}"),
    }
}

fn status(client: &Client, path: &str) -> Answer<Status> {
    client.status_at(ROOT, path.as_bytes(), true)
}

#[test]
fn files_written_through_the_ring_are_on_disk() {
    let bed = bed();
    let client = bed.client();
    assert_eq!(client.make_dir(ROOT, b"dir", 0o755), Answer::Done(()));
    let exclusive = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    let handle = opened(&client, "dir/file", exclusive);
    assert_eq!(open(&client, "dir/file", exclusive), Answer::Failed(EEXIST));
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|place| (place % 253) as u8).collect();
    assert_eq!(client.write(handle, 5, &[&bytes]), Answer::Done(bytes.len()));
    let mut found = vec![0; bytes.len() + 100];
    assert_eq!(client.read(handle, None, 5, &mut [&mut found]), Answer::Done(bytes.len()));
    assert_eq!(found[..bytes.len()], bytes);
    assert_eq!(client.set_size(handle, 100), Answer::Done(()));
    assert_eq!(client.sync(handle), Answer::Done(()));
    assert!(matches!(client.status(handle), Answer::Done(Status { size: 100, .. })));
    assert_eq!(client.close(handle), Answer::Done(()));
    let log = opened(&client, "./dir//file", libc::O_APPEND | 1);
    assert_eq!(client.append(log, &[b"one ", b"line\n"]), Answer::Done((9, 109)));
    assert_eq!(client.rename((ROOT, b"dir/file"), (ROOT, b"log"), 0), Answer::Done(()));
    assert_eq!(status(&client, "dir/file"), Answer::Failed(ENOENT));
    let Answer::Done(shown) = status(&client, "log") else { panic!("it is there") };
    let real = std::fs::metadata(bed.below.join("log")).expect("it is there");
    assert_eq!((shown.size, shown.mode), (109, real.mode()));
    assert_eq!((shown.uid, shown.gid, shown.nlink), (user(), group(), 1));
    assert_eq!((shown.mtime.seconds, i64::from(shown.mtime.nanoseconds)), (real.mtime(), real.mtime_nsec()));
    assert_eq!(client.unlink(ROOT, b"log"), Answer::Done(()));
    assert_eq!(client.append(log, &[b"more"]), Answer::Done((4, 113)), "it is open yet");
    assert_eq!(client.close(log), Answer::Done(()));
    assert_eq!(open(&client, "log", libc::O_RDONLY), Answer::Failed(ENOENT));
    let truncated = opened(&client, "truncated", libc::O_RDWR | libc::O_CREAT);
    assert_eq!(client.write(truncated, 0, &[b"x"]), Answer::Done(1));
    let Answer::Done(again) = open(&client, "truncated", libc::O_RDWR | libc::O_TRUNC) else {
        panic!("it is there")
    };
    assert_eq!(again.attr.size, 0);
}

#[test]
fn unusual_requests_are_declined() {
    let bed = bed();
    let client = bed.client();
    std::fs::create_dir(bed.below.join("dir")).expect("a directory");
    std::fs::write(bed.below.join("dir/file"), "x").expect("a file");
    symlink("dir", bed.below.join("link")).expect("a link");
    for path in ["/dir/file", "dir/../dir/file", "link/file", "link", "dir", "dir/", "dir/file/", ""] {
        assert_eq!(open(&client, path, libc::O_RDONLY), Answer::Declined, "{path}");
    }
    assert_eq!(client.open(ROOT, b"new", libc::O_RDWR | libc::O_CREAT, 0o444), Answer::Declined);
    assert_eq!(status(&client, "link"), Answer::Declined);
    assert!(matches!(client.status_at(ROOT, b"link", false), Answer::Done(_)));
    assert!(matches!(status(&client, "."), Answer::Done(Status { ino: 1, .. })));
    for path in ["dir", "link"] {
        assert_eq!(client.unlink(ROOT, path.as_bytes()), Answer::Declined);
        assert_eq!(client.rename((ROOT, path.as_bytes()), (ROOT, b"other"), 0), Answer::Declined);
        assert_eq!(client.rename((ROOT, b"dir/file"), (ROOT, path.as_bytes()), 0), Answer::Declined);
    }
    let elsewhere = Start { view: 1, dir: 1 };
    assert_eq!(client.rename((ROOT, b"dir/file"), (elsewhere, b"file"), 0), Answer::Declined);
    let no_dir = Start { view: 0, dir: 12345 };
    assert_eq!(client.open(no_dir, b"file", libc::O_RDONLY, 0), Answer::Declined);
    assert_eq!(client.close(77), Answer::Failed(9));
}

/// A ring write did not clear set-ID bits that were set after the file was opened.
#[test]
fn writes_to_set_id_files_are_declined() {
    let bed = bed();
    let client = bed.client();
    let handle = opened(&client, "file", libc::O_RDWR | libc::O_CREAT);
    let Answer::Done(shown) = client.status(handle) else { panic!("it is open") };
    assert_eq!(client.write(handle, 0, &[b"x"]), Answer::Done(1));
    bed.arbiter.access_changed(FileNumber(shown.ino), Some(0o755));
    assert_eq!(client.write(handle, 0, &[b"x"]), Answer::Done(1));
    bed.arbiter.access_changed(FileNumber(shown.ino), Some(0o4755));
    assert_eq!(client.write(handle, 0, &[b"x"]), Answer::Declined);
    assert_eq!(client.set_size(handle, 0), Answer::Declined);
    assert_eq!(client.read(handle, None, 0, &mut [&mut [0]]), Answer::Done(1));
}

/// A program could search a directory without permission as long as it was cached.
#[test]
fn permission_changes_take_effect_at_once() {
    let bed = bed();
    let client = bed.client();
    std::fs::create_dir(bed.below.join("dir")).expect("a directory");
    let file = bed.below.join("dir/file");
    std::fs::write(&file, "x").expect("a file");
    opened(&client, "dir/file", libc::O_RDWR);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o4755)).expect("permissions");
    assert_eq!(open(&client, "dir/file", libc::O_RDWR), Answer::Declined, "a write clears set-ID bits");
    opened(&client, "dir/file", libc::O_RDONLY);
    // As the FUSE frontend does after such a change.
    std::fs::rename(bed.below.join("dir"), bed.below.join("moved")).expect("a name");
    bed.arbiter.directory_changed();
    assert_eq!(open(&client, "dir/file", libc::O_RDONLY), Answer::Failed(ENOENT));
    opened(&client, "moved/file", libc::O_RDONLY);
}

#[test]
fn requests_are_declined_while_the_kernel_has_the_file_open() {
    let bed = bed();
    let client = bed.client();
    let handle = opened(&client, "file", libc::O_RDWR | libc::O_CREAT);
    let Answer::Done(shown) = client.status(handle) else { panic!("it is open") };
    let file = FileNumber(shown.ino);
    pollster::block_on(bed.arbiter.kernel_opens(file)).expect("no kernel is attached");
    assert_eq!(client.write(handle, 0, &[b"x"]), Answer::Declined);
    assert_eq!(client.read(handle, None, 0, &mut [&mut [0]]), Answer::Declined);
    assert_eq!(client.set_size(handle, 0), Answer::Declined);
    assert_eq!(open(&client, "file", libc::O_RDONLY), Answer::Declined);
    assert_eq!(client.unlink(ROOT, b"file"), Answer::Declined);
    let mut name = [0; 64];
    let Answer::Done(size) = client.hand_over(handle, &mut name) else { panic!("it has a name") };
    assert_eq!(bed.arbiter.handed_over(FileNumber::ROOT, &name[..size]), Some(file));
    let found = pollster::block_on(bed.vfs.lookup_again(file)).expect("it is held");
    assert_eq!((found.file, client.close(handle)), (file, Answer::Done(())));
    // The release follows the reply.
    while bed.arbiter.handed_over(FileNumber::ROOT, &name[..size]).is_some() {
        std::thread::yield_now();
    }
    let mode = OpenMode { read: true, ..OpenMode::default() };
    pollster::block_on(bed.vfs.open(file, mode)).expect("the kernel's lookup holds it");
    bed.arbiter.kernel_closed(file);
    opened(&client, "file", libc::O_RDWR);
}

/// A program that read a file by `mmap` or a kernel descriptor saw pages older than ring writes.
#[test]
fn ring_writes_make_the_kernel_drop_pages() {
    let bed = bed();
    let client = bed.client();
    let file = opened(&client, "file", libc::O_RDWR | libc::O_CREAT);
    let Answer::Done(shown) = client.status(file) else { panic!("it is open") };
    let number = FileNumber(shown.ino);
    // The kernel has looked it up.
    pollster::block_on(bed.vfs.lookup_again(number)).expect("it is held");
    let keeps_pages = || {
        let mode = OpenMode { read: true, ..OpenMode::default() };
        let opened = pollster::block_on(bed.vfs.open(number, mode)).expect("it is there");
        pollster::block_on(bed.vfs.release(opened.handle));
        opened.keep_cache
    };
    assert!(keeps_pages());
    assert_eq!(client.write(file, 0, &[b"bytes"]), Answer::Done(5));
    assert!(!keeps_pages() && keeps_pages(), "it drops them once");
    assert_eq!(client.set_size(file, 2), Answer::Done(()));
    assert!(!keeps_pages() && keeps_pages());
    let log = opened(&client, "file", libc::O_RDWR | libc::O_APPEND);
    assert!(keeps_pages(), "an open alone changes nothing");
    assert!(matches!(client.append(log, &[b"bytes"]), Answer::Done(_)));
    assert!(!keeps_pages() && keeps_pages());
    let truncated = opened(&client, "file", libc::O_RDWR | libc::O_TRUNC);
    assert!(!keeps_pages() && keeps_pages());
    assert_eq!(client.write(truncated, 0, &[b"bytes"]), Answer::Done(5));
    for handle in [file, log, truncated] {
        assert_eq!(client.close(handle), Answer::Done(()));
    }
    assert!(!keeps_pages(), "also after the ring has closed it");
}

/// Files of a killed program stayed open, and the space of removed ones was never freed.
#[test]
fn files_of_an_ended_program_are_closed() {
    let bed = bed();
    let client = bed.client();
    let handle = opened(&client, "file", libc::O_RDWR | libc::O_CREAT);
    assert_eq!(client.write(handle, 0, &[&[7; 100_000]]), Answer::Done(100_000));
    assert_eq!(client.unlink(ROOT, b"file"), Answer::Done(()));
    assert!(bed.vfs.usage().used >= 100_000);
    drop(client);
    bed.server.settle();
    pollster::block_on(bed.frontend.settled());
    // A thread that has just replied may still hold the file.
    while bed.vfs.usage().used > 0 {
        std::thread::yield_now();
    }
    assert_eq!(bed.server.usage().clients, 0);
}
