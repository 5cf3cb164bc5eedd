//! A program at a view, through the ring alone; what the kernel would do is done to the view's custody.

mod hostile;

use super::RingDoor;
use crate::custody::Custody;
use crate::fuse::{Tasks, WaitingRoom};
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
    /// What the view lies over.
    below: PathBuf,
    vfs: Arc<LocalView>,
    custody: Arc<Custody>,
    door: Arc<RingDoor>,
    server: Arc<Server<RingDoor>>,
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
    let custody = Custody::new(system.runtime().clone());
    let tasks = Tasks::new(system.runtime().clone(), None, 1);
    let names = NameTable::new().expect("memory");
    let mut door = RingDoor::new(names.clone());
    door.add(vfs.clone(), tasks, WaitingRoom::new(1 << 20), custody.clone());
    let door = Arc::new(door);
    let server = Server::new(door.clone(), vec![b"/view".to_vec()], user(), (names, None)).expect("a server");
    let socket = dir.path().join("ring");
    server.listen(&system, UnixListener::bind(&socket).expect("a socket")).expect("it listens");
    Bed { below, vfs, custody, door, server, socket, _dir: dir, _system: system }
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
fn a_program_finds_its_files_as_it_left_them() {
    let bed = bed();
    let client = bed.client();
    assert_eq!(client.make_dir(ROOT, b"dir", 0o755), Answer::Done(()));
    let handle = opened(&client, "dir/file", libc::O_RDWR | libc::O_CREAT | libc::O_EXCL);
    assert_eq!(
        open(&client, "dir/file", libc::O_RDWR | libc::O_CREAT | libc::O_EXCL),
        Answer::Failed(EEXIST)
    );
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
    let cut = opened(&client, "cut", libc::O_RDWR | libc::O_CREAT);
    assert_eq!(client.write(cut, 0, &[b"x"]), Answer::Done(1));
    let Answer::Done(again) = open(&client, "cut", libc::O_RDWR | libc::O_TRUNC) else {
        panic!("it is there")
    };
    assert_eq!(again.attr.size, 0);
}

#[test]
fn what_is_not_plain_is_left_to_the_kernel() {
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
    assert!(matches!(status(&client, "."), Answer::Done(Status { inode: 1, .. })));
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

/// A write through the ring left the bits by which a file runs as its owner, when they had been set after it was opened.
#[test]
fn who_writes_to_a_file_that_gives_rights_is_sent_to_the_kernel() {
    let bed = bed();
    let client = bed.client();
    let handle = opened(&client, "file", libc::O_RDWR | libc::O_CREAT);
    let Answer::Done(shown) = client.status(handle) else { panic!("it is open") };
    assert_eq!(client.write(handle, 0, &[b"x"]), Answer::Done(1));
    bed.custody.access_changed(FileNumber(shown.inode), Some(0o755));
    assert_eq!(client.write(handle, 0, &[b"x"]), Answer::Done(1));
    bed.custody.access_changed(FileNumber(shown.inode), Some(0o4755));
    assert_eq!(client.write(handle, 0, &[b"x"]), Answer::Declined);
    assert_eq!(client.set_size(handle, 0), Answer::Declined);
    assert_eq!(client.read(handle, None, 0, &mut [&mut [0]]), Answer::Done(1));
}

/// A directory that a program may not search any more was searched for as long as it was kept.
#[test]
fn rights_are_those_of_the_moment() {
    let bed = bed();
    let client = bed.client();
    std::fs::create_dir(bed.below.join("dir")).expect("a directory");
    let file = bed.below.join("dir/file");
    std::fs::write(&file, "x").expect("a file");
    opened(&client, "dir/file", libc::O_RDWR);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o4755)).expect("it is ours");
    assert_eq!(open(&client, "dir/file", libc::O_RDWR), Answer::Declined, "a write takes rights away");
    opened(&client, "dir/file", libc::O_RDONLY);
    // As the other door does when it has changed them.
    std::fs::rename(bed.below.join("dir"), bed.below.join("moved")).expect("a name");
    bed.custody.directory_changed();
    assert_eq!(open(&client, "dir/file", libc::O_RDONLY), Answer::Failed(ENOENT));
    opened(&client, "moved/file", libc::O_RDONLY);
}

#[test]
fn while_the_kernel_has_a_file_its_users_are_sent_there() {
    let bed = bed();
    let client = bed.client();
    let handle = opened(&client, "file", libc::O_RDWR | libc::O_CREAT);
    let Answer::Done(shown) = client.status(handle) else { panic!("it is open") };
    let file = FileNumber(shown.inode);
    pollster::block_on(bed.custody.admit(file)).expect("no kernel is attached");
    assert_eq!(client.write(handle, 0, &[b"x"]), Answer::Declined);
    assert_eq!(client.read(handle, None, 0, &mut [&mut [0]]), Answer::Declined);
    assert_eq!(client.set_size(handle, 0), Answer::Declined);
    assert_eq!(open(&client, "file", libc::O_RDONLY), Answer::Declined);
    assert_eq!(client.unlink(ROOT, b"file"), Answer::Declined);
    let mut name = [0; 64];
    let Answer::Done(size) = client.hand_over(handle, &mut name) else { panic!("it has a name") };
    assert_eq!(bed.custody.handed(FileNumber::ROOT, &name[..size]), Some(file));
    let found = pollster::block_on(bed.vfs.find_again(file)).expect("it is held");
    assert_eq!((found.file, client.close(handle)), (file, Answer::Done(())));
    // The release follows the answer.
    while bed.custody.handed(FileNumber::ROOT, &name[..size]).is_some() {
        std::thread::yield_now();
    }
    let mode = OpenMode { read: true, ..OpenMode::default() };
    pollster::block_on(bed.vfs.open(file, mode)).expect("the look-up of the kernel holds it");
    bed.custody.closed(file);
    opened(&client, "file", libc::O_RDWR);
}

/// A program that read a file by `mmap` or a descriptor of the kernel saw pages of before what another had written through the
/// ring.
#[test]
fn the_kernel_keeps_no_pages_that_lack_what_was_written_through_the_ring() {
    let bed = bed();
    let client = bed.client();
    let file = opened(&client, "file", libc::O_RDWR | libc::O_CREAT);
    let Answer::Done(shown) = client.status(file) else { panic!("it is open") };
    let number = FileNumber(shown.inode);
    // The kernel knows it.
    pollster::block_on(bed.vfs.find_again(number)).expect("it is held");
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
    let cut = opened(&client, "file", libc::O_RDWR | libc::O_TRUNC);
    assert!(!keeps_pages() && keeps_pages());
    assert_eq!(client.write(cut, 0, &[b"bytes"]), Answer::Done(5));
    for handle in [file, log, cut] {
        assert_eq!(client.close(handle), Answer::Done(()));
    }
    assert!(!keeps_pages(), "also after the ring has closed it");
}

/// What a program that was killed had open stayed open, and the space of what was removed was never given back.
#[test]
fn files_of_a_program_that_is_gone_are_closed() {
    let bed = bed();
    let client = bed.client();
    let handle = opened(&client, "file", libc::O_RDWR | libc::O_CREAT);
    assert_eq!(client.write(handle, 0, &[&[7; 100_000]]), Answer::Done(100_000));
    assert_eq!(client.unlink(ROOT, b"file"), Answer::Done(()));
    assert!(bed.vfs.usage().used >= 100_000);
    drop(client);
    bed.server.settle();
    pollster::block_on(bed.door.settled());
    // A thread that has just answered may still have the file in its hands.
    while bed.vfs.usage().used > 0 {
        std::thread::yield_now();
    }
    assert_eq!(bed.server.usage().clients, 0);
}
