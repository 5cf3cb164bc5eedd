use super::*;
use futures_util::FutureExt;
use std::sync::mpsc::channel;
use std::time::Duration;
use tameike_core::Layout;
use tameike_io::os::simulated::Simulation;
use tameike_io::shared::PosixTree;

const ROOT: FileNumber = FileNumber::ROOT;

fn view(capacity: u64) -> (tempfile::TempDir, LocalView) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let tree = Arc::new(PosixTree::open(dir.path()).expect("a tree"));
    let view = LocalView::new(Simulation::new(1).runtime(), tree, capacity);
    (dir, view)
}

/// Result of a call on the node's own disk, which completes at once.
fn now<T>(call: impl Future<Output = Result<T>>) -> Result<T> {
    call.now_or_never().expect("nothing waits")
}

fn new(kind: FileKind) -> NewInode {
    NewInode { kind, mode: 0o700, uid: 0, gid: 0, rdev: 0, layout: Layout::default(), symlink: b"x".to_vec() }
}

fn read_write() -> OpenMode {
    OpenMode { read: true, write: true, ..OpenMode::default() }
}

fn create(view: &LocalView, name: &[u8], mode: OpenMode) -> (FileNumber, HandleNumber) {
    let (found, opened) = now(view.create(ROOT, name, new(FileKind::File), false, mode)).expect("a file");
    (found.file, opened.handle)
}

/// A lock of the view was held during every write and serialised writers of all files.
#[test]
fn writers_of_two_files_do_not_wait_for_each_other() {
    let (_dir, view) = view(1 << 20);
    let ((_, one), (_, two)) = (create(&view, b"one", read_write()), create(&view, b"two", read_write()));
    let open = view.handle(one).expect("open");
    let (sender, receiver) = channel();
    std::thread::scope(|threads| {
        let in_the_middle = |()| {
            threads.spawn(|| {
                sender.send(view.write_now(two, WriteAt::Offset(0), b"two")).expect("the receiver exists")
            });
            assert_eq!(receiver.recv_timeout(Duration::from_secs(20)), Ok(Ok(3)), "the write is blocked");
            open.file.write_at(b"one", 0)
        };
        view.change_content(&open, |_| Ok((3, ())), in_the_middle)
    })
    .expect("the write");
    assert_eq!(&*now(view.read(one, 0, 9)).expect("read"), b"one");
    assert_eq!(&*now(view.read(two, 0, 9)).expect("read"), b"two");
}

/// The end of the file was read before the writer got the lock: concurrent appends were overwritten.
#[test]
fn concurrent_appends_do_not_overwrite_each_other() {
    let (_dir, view) = view(1 << 30);
    let append = OpenMode { append: true, ..read_write() };
    let (file, first) = create(&view, b"log", append);
    let line = |writer: usize, number: usize| format!("{writer} {number} {}\n", "x".repeat(number % 50));
    std::thread::scope(|threads| {
        for writer in 0..4 {
            let handle = now(view.open(file, append)).expect("open").handle;
            let view = &view;
            threads.spawn(move || {
                for number in 0..500 {
                    let line = line(writer, number);
                    assert_eq!(view.write_now(handle, WriteAt::End, &line), Ok(line.len()));
                }
            });
        }
    });
    let text = now(view.read(first, 0, 1 << 20)).expect("read").to_vec();
    let mut lines: Vec<_> = text.split_inclusive(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect();
    let mut expected: Vec<_> =
        (0..4).flat_map(|writer| (0..500).map(move |number| line(writer, number).into_bytes())).collect();
    lines.sort();
    expected.sort();
    assert!(lines == expected, "{} lines of {}", lines.len(), expected.len());
}

#[test]
fn writes_get_enospc_at_the_capacity_until_space_is_freed() {
    let (_dir, view) = view(1 << 20);
    let (file, handle) = create(&view, b"file", read_write());
    assert_eq!(view.write_now(handle, WriteAt::Offset(0), &[1; 1 << 20]), Ok(1 << 20));
    assert_eq!(view.write_now(handle, WriteAt::Offset(1 << 20), b"x"), Err(Errno::ENOSPC.into()));
    assert_eq!(
        view.write_now(handle, WriteAt::Offset(0), &[2; 1 << 20]),
        Ok(1 << 20),
        "an overwrite needs no space"
    );
    let change = AttrChange { size: Some(0), ..AttrChange::default() };
    now(view.setattr(file, change)).expect("the truncation");
    assert_eq!(view.usage().used, 0);
    // Concurrent writers together get the whole capacity, and no more.
    let handles: Vec<_> = (0..8_u8).map(|number| create(&view, &[b'a' + number], read_write()).1).collect();
    let view = &view;
    let write = |handle| {
        (0..64).filter(|at| view.write_now(handle, WriteAt::Offset(at * 4096), &[7; 4096]).is_ok()).count()
    };
    let written: usize = std::thread::scope(|threads| {
        let writers: Vec<_> = handles.iter().map(|&handle| threads.spawn(move || write(handle))).collect();
        writers.into_iter().map(|writer| writer.join().expect("no panic")).sum()
    });
    assert_eq!((written, view.usage().used), (256, 1 << 20));
}

/// `df -i` reported no inodes in use.
#[test]
fn an_inode_counts_until_its_last_name_and_handle_are_gone() {
    let (_dir, view) = view(1 << 20);
    let count = || now(view.space()).expect("the space").inodes;
    assert_eq!(count(), 1, "the root");
    let (file, handle) = create(&view, b"file", read_write());
    assert_eq!(create(&view, b"file", read_write()).0, file);
    let dir = now(view.make(ROOT, b"dir", new(FileKind::Directory))).expect("a directory").file;
    now(view.make(ROOT, b"empty", new(FileKind::Directory))).expect("a directory");
    now(view.make(dir, b"link", new(FileKind::Symlink))).expect("a link");
    now(view.link(file, dir, b"again")).expect("a name");
    assert_eq!(count(), 5);
    now(view.unlink(ROOT, b"file")).expect("unlink");
    now(view.unlink(dir, b"again")).expect("unlink");
    assert_eq!(count(), 5, "the file is still open");
    view.release(handle).now_or_never().expect("nothing waits");
    view.release(HandleNumber(handle.0 + 1)).now_or_never().expect("nothing waits");
    assert_eq!(count(), 4);
    now(view.unlink(dir, b"link")).expect("unlink");
    now(view.rename((ROOT, b"dir"), (ROOT, b"empty"), RenameMode::Replace)).expect("rename");
    assert_eq!(count(), 2, "the replaced directory is gone");
    now(view.rmdir(ROOT, b"empty")).expect("rmdir");
    let space = now(view.space()).expect("the space");
    assert_eq!((space.inodes, space.inodes_free), (1, (1 << 20) / 4096));
}
