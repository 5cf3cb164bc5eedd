use super::*;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use tameike_core::attr::SetTime;

fn tree() -> (tempfile::TempDir, PosixTree) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let tree = PosixTree::open(dir.path()).expect("a tree");
    (dir, tree)
}

#[test]
fn files_are_made_read_renamed_and_removed_below_the_root() {
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
    let names: Vec<_> = tree.read_dir(b"").expect("read").into_iter().map(|file| file.name).collect();
    assert!(names.contains(&b"sub".to_vec()) && names.contains(&b"moved".to_vec()) && names.len() == 2);
    assert_eq!(tree.rmdir(b"sub"), Err(Errno::ENOTEMPTY.into()));
    tree.unlink(b"sub/again").expect("unlink");
    tree.rmdir(b"sub").expect("rmdir");
    assert!(!dir.path().join("sub").exists());
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

#[test]
fn attributes_change_as_asked() {
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
fn a_file_that_took_the_name_is_not_the_same() {
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
fn a_held_file_keeps_its_number() {
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
