use super::*;
use crate::os::process::monotonic;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tameike_core::attr::SetTime;

/// A user other than that of any test.
const OTHER_USER: u32 = 65534;

fn tree() -> (tempfile::TempDir, PosixTree) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let tree = PosixTree::open(dir.path()).expect("a tree");
    (dir, tree)
}

#[test]
fn files_are_created_read_renamed_and_removed_below_the_root() {
    let (dir, tree) = tree();
    tree.make(b"sub", &Special::Directory(0o775)).expect("mkdir");
    let file = tree.create(b"sub/file", 0o640).expect("create");
    file.write_at(b"hello", 3).expect("write");
    let stat = tree.stat(b"sub/file").expect("stat");
    assert_eq!((stat.size, stat.mode, stat.device), (8, 0o640, 0));
    assert_eq!(stat, file.stat().expect("stat of the open file"));
    tree.rename(b"sub/file", b"moved", RenameMode::NoReplace).expect("rename");
    let mut buffer = [9; 16];
    let reader = tree.open(b"moved", Access::Read).expect("open");
    assert_eq!(reader.read_at(&mut buffer, 1).expect("read"), 7);
    assert_eq!(&buffer[..7], b"\0\0hello");
    tree.link(b"moved", b"sub/again").expect("link");
    assert_eq!(tree.stat(b"moved").expect("stat").nlink, 2);
    let mut names = names(&*tree.open_dir(b"").expect("open"), 0);
    names.sort();
    assert_eq!(names, [&b"."[..], b"..", b"moved", b"sub"]);
    assert_eq!(tree.rmdir(b"sub"), Err(Errno::ENOTEMPTY.into()));
    tree.unlink(b"sub/again").expect("unlink");
    tree.rmdir(b"sub").expect("rmdir");
    assert!(!dir.path().join("sub").exists());
}

/// S6a.
#[test]
fn concurrent_appends_do_not_overlap() {
    const COUNT: usize = 500;
    const LENGTH: usize = 100;
    let (_dir, tree) = tree();
    let file = tree.create(b"file", 0o600).expect("create");
    std::thread::scope(|scope| {
        for byte in b'a'..b'e' {
            let own = tree.open(b"file", Access::Write).expect("open");
            scope.spawn(move || (0..COUNT).for_each(|_| own.append(&[byte; LENGTH]).expect("append")));
        }
    });
    let mut content = vec![0; 5 * COUNT * LENGTH];
    let size = file.read_at(&mut content, 0).expect("read");
    assert_eq!(size, 4 * COUNT * LENGTH);
    for record in content[..size].chunks(LENGTH) {
        assert!(record.iter().all(|byte| *byte == record[0]), "an append is not whole");
    }
}

/// Names in a directory after a cursor.
fn names(dir: &dyn SharedDir, mut after: u64) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let part = dir.read(after).expect("read");
        let Some(last) = part.last() else { return all };
        after = last.next;
        all.extend(part.into_iter().map(|named| named.name));
    }
}

#[test]
fn a_directory_is_read_in_parts_repeatedly_and_from_any_cursor() {
    let (dir, tree) = tree();
    let name = |number: u32| format!("a file with number {number:05}").into_bytes();
    for number in 0..3000 {
        tree.create(&name(number), 0o600).expect("create");
    }
    let open = tree.open_dir(b"").expect("open");
    assert_eq!(open.stat().expect("stat"), tree.stat(b"").expect("stat"));
    let first = open.read(0).expect("read");
    assert!(first.len() > 100 && first.len() < 3000, "{} names at once", first.len());
    let inode = tree.stat(&first[50].name).expect("stat").inode_id();
    assert_eq!((first[50].inode, first[50].kind), (inode, FileKind::File));
    // Entries that were returned are removed, and others are added: entries that exist throughout are listed once.
    for named in first.iter().filter(|named| named.kind == FileKind::File) {
        tree.unlink(&named.name).expect("unlink");
    }
    tree.create(b"new", 0o600).expect("create");
    let mut rest = names(&*open, first.last().expect("some").next);
    rest.retain(|name| name != b"new");
    let listed: std::collections::BTreeSet<_> =
        rest.iter().chain(first.iter().map(|named| &named.name)).cloned().collect();
    assert_eq!((listed.len(), rest.len() + first.len()), (3002, 3002));
    assert!(open.read(0).expect("read").iter().any(|named| named.name == b"new"), "a new listing");
    let again = names(&*open, 0);
    assert_eq!(again.len(), rest.len() + 3);
    // Any cursor resumes where it was returned.
    let part = open.read(0).expect("read");
    let (middle, at) = (part[part.len() / 2].next, part.len() / 2 + 1);
    assert_eq!(names(&*open, middle), again[at..]);
    assert_eq!(open.read(part.last().expect("some").next).expect("read")[0].name, again[part.len()]);
    std::fs::remove_dir_all(dir.path()).expect("remove");
    assert_eq!(open.read(0), Err(Errno::ENOENT.into()));
}

#[test]
fn no_path_leaves_the_root() {
    let (dir, tree) = tree();
    let outside = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(outside.path().join("secret"), "x").expect("write");
    symlink(outside.path(), dir.path().join("way")).expect("symlink");
    symlink(outside.path().join("secret"), dir.path().join("link")).expect("symlink");
    assert_eq!(tree.stat(b"link").expect("the link itself").kind, FileKind::Symlink);
    for path in [&b"way/secret"[..], b"link"] {
        assert_eq!(tree.open(path, Access::Read).err().map(|fault| fault.errno), Some(Errno::ELOOP));
    }
    for path in [&b"../x"[..], b"a/../../x", b".."] {
        assert!(tree.stat(path).is_err(), "{path:?}");
        assert!(tree.create(path, 0o600).is_err(), "{path:?}");
        assert!(tree.unlink(path).is_err(), "{path:?}");
    }
    assert!(tree.unlink(b"way/secret").is_err());
    assert!(outside.path().join("secret").exists());
}

/// Regression: a path of 4 KiB or more from the root was a single system call. So a program in a deep directory could create no
/// files there, though its relative path was short.
#[test]
fn paths_longer_than_one_system_call_allows_work() {
    let (_dir, tree) = tree();
    let mut path = vec![b'x'; 255];
    while path.len() < 3 * 4096 {
        tree.make(&path, &Special::Directory(0o700)).expect("mkdir");
        path = join(&path, &[b'x'; 255]);
    }
    let (file, moved) = (path.clone(), [&path[..path.len() - 1], b"y"].concat());
    tree.create(&file, 0o600).expect("create").write_at(b"deep", 0).expect("write");
    tree.rename(&file, &moved, RenameMode::NoReplace).expect("rename");
    let node = Special::Node { kind: FileKind::Socket, mode: 0o600, rdev: 0 };
    assert_eq!(tree.make(&file, &node).expect("mknod").kind, FileKind::Socket);
    assert_eq!(tree.open(&moved, Access::Read).expect("open").stat().expect("stat").size, 4);
    let (above, _) = split(&path).expect("a deep path");
    assert_eq!(names(&*tree.open_dir(above).expect("open"), 0).len(), 4);
    let out = [above, b"/", &b"../".repeat(60), b"etc"].concat();
    assert!(tree.stat(&out).is_err(), "the path left the root");
}

#[test]
fn attributes_change_as_requested() {
    let (dir, tree) = tree();
    tree.create(b"file", 0o600).expect("create");
    let to = SetTime::To(Timestamp { seconds: -5, nanoseconds: 7 });
    let change = AttrChange { mode: Some(0o4751), mtime: Some(to), ..AttrChange::default() };
    tree.change(b"file", &change).expect("change");
    let real = std::fs::metadata(dir.path().join("file")).expect("metadata");
    assert_eq!((real.permissions().mode() & 0o7777, real.mtime(), real.mtime_nsec()), (0o4751, -5, 7));
    tree.set_xattr(b"file", b"user.a", b"value", XattrMode::Create).expect("set");
    assert_eq!(tree.xattr(b"file", b"user.a"), Ok(b"value".to_vec()));
    assert_eq!(tree.xattrs(b"file"), Ok(vec![b"user.a".to_vec()]));
    let again = tree.set_xattr(b"file", b"user.a", b"", XattrMode::Create);
    assert_eq!(again.map_err(|fault| fault.errno), Err(Errno::EEXIST));
    tree.remove_xattr(b"file", b"user.a").expect("remove");
    assert_eq!(tree.xattr(b"file", b"user.a"), Err(Errno::ENODATA.into()));
}

/// A user who replaces or renames a directory cannot redirect operations below it.
#[test]
fn a_subtree_stays_with_its_directory() {
    let (dir, tree) = tree();
    tree.make(b"sub", &Special::Directory(0o700)).expect("mkdir");
    tree.create(b"sub/file", 0o640).expect("create").write_at(b"hello", 0).expect("write");
    let attributes = vec![(b"user.large".to_vec(), vec![7; 2000])];
    let (name, value) = &attributes[0];
    tree.set_xattr(b"sub/file", name, value, XattrMode::Any).expect("set");
    let below = tree.below(b"sub").expect("a tree");
    let WholeFile { file, stat, xattrs } = below.open_whole(b"file").expect("open");
    assert_eq!(stat, FileStat { handle_hash: 0, ..tree.stat(b"sub/file").expect("stat") });
    assert_eq!((&xattrs, &xattrs_of(&tree, b"sub/file").expect("attributes")), (&attributes, &attributes));
    assert_eq!(file.read_some(&mut [0; 9], 1), Ok(4));
    symlink("..", dir.path().join("sub/way")).expect("symlink");
    symlink("sub", dir.path().join("link")).expect("symlink");
    assert!(tree.below(b"link").is_err(), "a link is not followed");
    for path in [&b"../x"[..], b"..", b"way/x"] {
        assert!(below.create(path, 0o600).is_err() && below.open_whole(path).is_err(), "{path:?}");
    }
    let fault = below.open_whole(b"way").err().expect("a link is refused");
    assert!(fault.errno == Errno::ELOOP && fault.to_string().contains("sub/way"), "{fault}");
    tree.rename(b"sub", b"moved", RenameMode::NoReplace).expect("rename");
    below.create(b"new", 0o600).expect("create");
    assert!(dir.path().join("moved/new").exists() && !dir.path().join("x").exists());
}

#[test]
fn special_files_keep_their_numbers() {
    let (_dir, tree) = tree();
    let fifo = Special::Node { kind: FileKind::Fifo, mode: 0o622, rdev: 0 };
    let stat = tree.make(b"fifo", &fifo).expect("mkfifo");
    assert_eq!((stat.kind, stat.mode), (FileKind::Fifo, 0o622));
    assert!(tree.open(b"fifo", Access::Read).is_err(), "a pipe is not read through the tree");
    tree.make(b"link", &Special::Symlink(b"a/b".to_vec())).expect("symlink");
    assert_eq!(tree.read_link(b"link"), Ok(b"a/b".to_vec()));
    for rdev in [0x0103, 0x1234_5678] {
        assert_eq!(translate::fuse_device(translate::system_device(rdev)), rdev);
    }
}

#[test]
fn a_file_that_replaced_another_is_not_the_same() {
    let (dir, tree) = tree();
    let first = tree.create(b"file", 0o400).expect("create").stat().expect("stat").inode_id();
    assert!(open_same(&tree, b"file", first, Access::Write).is_ok(), "read-only to its owner, but the same");
    assert_eq!(tree.stat(b"file").expect("stat").mode, 0o400);
    std::fs::write(dir.path().join("new"), "").expect("write");
    std::fs::rename(dir.path().join("new"), dir.path().join("file")).expect("rename");
    let stale = open_same(&tree, b"file", first, Access::Write).map(|_| ());
    assert_eq!(stale.map_err(|fault| fault.errno), Err(Errno::ESTALE));
}

#[test]
fn a_revalidation_changes_nothing() {
    let (dir, tree) = tree();
    let file = tree.create(b"file", 0o600).expect("create");
    tree.make(b"dir", &Special::Directory(0o700)).expect("mkdir");
    let before = [tree.stat(b"file"), tree.stat(b"dir"), tree.stat(b"")];
    for path in ["file", "dir", "none", "dir/none", "none/none", "file/none", ""] {
        tree.revalidate(path.as_bytes());
    }
    file.revalidate().expect("statx");
    assert_eq!([tree.stat(b"file"), tree.stat(b"dir"), tree.stat(b"")], before);
    assert_eq!(std::fs::read_dir(dir.path()).expect("a directory").count(), 2);
    assert_eq!(std::fs::read_dir(dir.path().join("dir")).expect("a directory").count(), 0);
}

#[test]
fn a_pinned_file_keeps_its_inode_number() {
    let (_dir, tree) = tree();
    tree.create(b"file", 0o600).expect("create");
    let (stat, pin) = tree.pin(b"file").expect("pin");
    tree.unlink(b"file").expect("unlink");
    for count in 0..100 {
        let other = tree.create(format!("{count}").as_bytes(), 0o600).expect("create");
        assert_ne!(other.stat().expect("stat").inode, stat.inode);
    }
    drop(pin);
}

/// Keeps a file of the tree. The returned reference shows whether it is still open.
fn keep(tree: &PosixTree, path: &[u8], used: Duration) -> (InodeId, Weak<dyn SharedFile>) {
    let kept = tree.open_file_cache().expect("the tree keeps files");
    let file = tree.open(path, Access::Read).expect("open");
    let (inode, open) = (file.stat().expect("stat").inode_id(), Arc::downgrade(&file));
    let (known, moment) = kept.take(inode, Generation(1));
    assert!(known.is_none());
    kept.keep(CachedFile { inode, generation: Generation(1), used, file }, moment);
    (inode, open)
}

#[test]
fn a_kept_file_is_returned_to_one_reader_of_its_version() {
    let (_dir, tree) = tree();
    tree.create(b"file", 0o600).expect("create");
    let (inode, open) = keep(&tree, b"file", Duration::from_secs(1));
    let kept = tree.open_file_cache().expect("the tree keeps files");
    assert!(kept.take(inode, Generation(2)).0.is_none());
    let (taken, moment) = kept.take(inode, Generation(1));
    let file = taken.expect("the file is kept");
    assert!(kept.take(inode, Generation(1)).0.is_none());
    let used = Duration::from_secs(3);
    kept.keep(CachedFile { inode, generation: Generation(1), used, file }, moment);
    // No reader used it since.
    assert!(kept.close_unused(Duration::from_secs(2)) && open.upgrade().is_some());
    assert!(!kept.close_unused(Duration::from_secs(4)) && open.upgrade().is_none());
}

#[test]
fn a_kept_file_is_closed_before_its_name_is_removed() {
    let (_dir, tree) = tree();
    let names = [&b"one"[..], b"two", b"three"];
    names.iter().for_each(|name| drop(tree.create(name, 0o600).expect("create")));
    let open = names.map(|path| keep(&tree, path, Duration::ZERO).1);
    let are_open = || open.each_ref().map(|open| open.upgrade().is_some());
    tree.unlink(b"one").expect("unlink");
    assert_eq!(are_open(), [false, true, true]);
    // Under any name.
    tree.rename(b"two", b"other", RenameMode::Replace).expect("rename");
    tree.rename(b"three", b"other", RenameMode::Replace).expect("rename");
    assert_eq!(are_open(), [false, false, true]);
}

#[test]
fn a_file_opened_before_a_change_is_not_kept_after_it() {
    let (_dir, tree) = tree();
    tree.create(b"file", 0o600).expect("create");
    let tree: Arc<dyn SharedFs> = Arc::new(tree);
    let kept = tree.open_file_cache().expect("the tree keeps files");
    let file = tree.open(b"file", Access::Read).expect("open");
    let inode = file.stat().expect("stat").inode_id();
    let (_, moment) = kept.take(inode, Generation(1));
    drop(ContentChange::begin(&tree, inode));
    kept.keep(CachedFile { inode, generation: Generation(1), used: Duration::ZERO, file }, moment);
    assert!(kept.take(inode, Generation(1)).0.is_none());
}

/// Other users may be able to rename files in a shared directory.
#[test]
fn permissions_of_a_new_file_never_apply_to_its_replacement() {
    let (dir, tree) = tree();
    let at = |name: &str| dir.path().join(name);
    let mode = |name: &str| std::fs::metadata(at(name)).expect("the file exists").mode() & 0o777;
    std::fs::create_dir(at("outside")).expect("mkdir");
    std::fs::write(at("outside/key"), "private").expect("written");
    std::fs::create_dir(at("private")).expect("mkdir");
    std::fs::write(at("private/file"), "private").expect("written");
    for (name, mode) in [("outside/key", 0o600), ("outside", 0o700), ("private", 0o700)] {
        std::fs::set_permissions(at(name), PermissionsExt::from_mode(mode)).expect("chmod");
    }
    let swaps = AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let swap = |one: &str| {
                renameat_with(CWD, at(one), CWD, at("made"), RenameFlags::EXCHANGE)
                    .and_then(|()| renameat_with(CWD, at("made"), CWD, at(one), RenameFlags::EXCHANGE))
            };
            symlink(at("outside"), at("link")).expect("symlink");
            symlink(at("outside/key"), at("link to key")).expect("symlink");
            while swaps.load(Relaxed) {
                ["link", "link to key", "private"].map(swap).into_iter().for_each(|_| {});
            }
        });
        let end = monotonic() + Duration::from_secs(2);
        while monotonic() < end && mode("outside/key") == 0o600 {
            let made = tree.make(b"made", &Special::Directory(0o777)).map(drop);
            let _ = tree.rmdir(b"made");
            let created = tree.create(b"made", 0o666).map(drop);
            let _ = tree.unlink(b"made");
            let node = Special::Node { kind: FileKind::Fifo, mode: 0o666, rdev: 0 };
            let node = tree.make(b"made", &node).map(drop);
            let _ = tree.unlink(b"made");
            drop((made, created, node));
        }
        swaps.store(false, Relaxed);
    });
    assert_eq!(["outside", "outside/key", "private"].map(mode), [0o700, 0o600, 0o700]);
}

/// An agent of root gives new files to the requesting user. Other users may be able to rename files in a shared directory.
#[test]
fn the_owner_of_a_new_file_never_gets_its_replacement() {
    let (dir, tree) = tree();
    let change = AttrChange {
        uid: Some(OTHER_USER),
        gid: Some(OTHER_USER),
        mode: Some(0o2777),
        ..AttrChange::default()
    };
    let give = |name: &str, kind| {
        let given = tree.change_made(name.as_bytes(), kind, &change);
        (given.map_err(|fault| fault.errno), {
            let found = std::fs::symlink_metadata(dir.path().join(name)).expect("the file exists");
            (found.uid(), found.mode() & 0o7777)
        })
    };
    if rustix::process::geteuid().as_raw() != 0 {
        return;
    }
    let fifo = Special::Node { kind: FileKind::Fifo, mode: 0o600, rdev: 0 };
    tree.make(b"dir", &Special::Directory(0o700)).expect("made");
    tree.make(b"fifo", &fifo).expect("made");
    tree.make(b"link", &Special::Symlink(b"private".to_vec())).expect("made");
    for (name, kind) in [("dir", FileKind::Directory), ("fifo", FileKind::Fifo)] {
        assert_eq!(give(name, kind), (Ok(()), (OTHER_USER, 0o2777)), "{name}");
    }
    assert_eq!(give("link", FileKind::Symlink), (Ok(()), (OTHER_USER, 0o777)));
    // Replacements that another user put in place of the new entries.
    std::fs::create_dir_all(dir.path().join("private/below")).expect("made");
    std::fs::write(dir.path().join("key"), "secret").expect("written");
    std::fs::hard_link(dir.path().join("key"), dir.path().join("key 2")).expect("linked");
    for (name, mode) in [("private", 0o700), ("key", 0o600)] {
        std::fs::set_permissions(dir.path().join(name), PermissionsExt::from_mode(mode)).expect("chmod");
    }
    for kind in [FileKind::Directory, FileKind::Fifo, FileKind::Symlink] {
        assert_eq!(give("key", kind), (Err(Errno::EPERM), (0, 0o600)), "{kind:?}");
        assert_eq!(give("private", kind), (Err(Errno::EPERM), (0, 0o700)), "{kind:?}");
    }
}

#[test]
fn new_files_have_exact_permissions_whatever_the_umask() {
    let (_dir, tree) = tree();
    let node = |kind| Special::Node { kind, mode: 0o666, rdev: 0 };
    assert_eq!(tree.make(b"dir", &Special::Directory(0o777)).expect("mkdir").mode, 0o777);
    assert_eq!(tree.make(b"fifo", &node(FileKind::Fifo)).expect("mkfifo").mode, 0o666);
    assert_eq!(tree.make(b"file", &node(FileKind::File)).expect("mknod").mode, 0o666);
    assert_eq!(tree.create(b"other", 0o622).expect("create").stat().expect("stat").mode, 0o622);
}
