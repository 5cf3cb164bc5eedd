use super::super::protocol::Attributes;
use super::*;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use tameike_core::{FileKind, Timestamp};

fn attributes(kind: FileKind, mode: u16, size: u64) -> Attributes {
    let mtime = Timestamp { seconds: 1_000_000, nanoseconds: 5 };
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    Attributes { kind, mode, uid, gid, rdev: 0, size, mtime, xattrs: Vec::new() }
}

fn put(path: &str, data: &[u8]) -> (Order, Vec<u8>) {
    let attributes = attributes(FileKind::File, 0o640, data.len() as u64);
    (Order::Put { path: path.into(), attributes }, data.to_vec())
}

fn plain(order: Order) -> (Order, Vec<u8>) {
    (order, Vec::new())
}

/// Executes orders on a directory, and returns the replies after the first.
fn execute_all(dir: &Path, orders: Vec<(Order, Vec<u8>)>) -> Result<Vec<Reply>> {
    let mut input = Vec::new();
    write_frame(&mut input, &Order::Hello { version: VERSION, makes_mirror: false }, &[]).expect("written");
    for (order, data) in &orders {
        write_frame(&mut input, order, data).expect("written");
    }
    let mut out = Vec::new();
    serve(PosixTree::open(dir).expect("a tree"), &mut input.as_slice(), &mut out)?;
    let mut replies = &out[MAGIC.len()..];
    let mut all = Vec::new();
    while let Some((reply, _)) = read_frame(&mut replies).expect("replies") {
        all.push(reply);
    }
    assert!(matches!(all.remove(0), Reply::Hello { version: VERSION, .. }));
    Ok(all)
}

fn commit() -> (Order, Vec<u8>) {
    plain(Order::Commit { number: 1 })
}

#[test]
fn orders_change_the_mirror() {
    let dir = tempfile::tempdir().expect("a directory");
    let make = |path: &str, kind, mode, target: &str| {
        plain(Order::Make { path: path.into(), attributes: attributes(kind, mode, 0), target: target.into() })
    };
    let name = |path: &str| path.as_bytes().to_vec();
    let finished = Order::Finish { path: name("d/f"), attributes: attributes(FileKind::File, 0o400, 7) };
    let orders = vec![
        make("d", FileKind::Directory, 0o750, ""),
        put("d/f", b"content"),
        make("d/l", FileKind::Symlink, 0o777, "/nowhere"),
        (Order::Write { path: name("d/f"), is_staged: false, offset: 3 }, b"TE".to_vec()),
        plain(Order::Clear { path: name("d/f"), is_staged: false, offset: 0, length: 2 }),
        plain(finished),
        plain(Order::Stage { path: name("big"), size: 10 }),
        (Order::Write { path: name("big"), is_staged: true, offset: 8 }, b"ab".to_vec()),
        plain(Order::Publish { path: name("big"), attributes: attributes(FileKind::File, 0o600, 10) }),
        put("gone", b"x"),
        plain(Order::Rename { from: name("big"), to: name("d/big") }),
        plain(Order::Remove { path: name("gone") }),
        make("d", FileKind::Directory, 0o550, ""),
        commit(),
        plain(Order::Checksum { path: name("d/f") }),
        plain(Order::End),
    ];
    let replies = execute_all(dir.path(), orders).expect("executed");
    let hash = *blake3::hash(b"\0\0nTEnt").as_bytes();
    assert_eq!(
        replies,
        [Reply::Committed { number: 1 }, Reply::Checksum { file: Some((7, hash)) }, Reply::Ended]
    );
    let stat = |path: &str| dir.path().join(path).symlink_metadata().expect("a file");
    assert_eq!((stat("d").mode() & 0o7777, stat("d/f").mode() & 0o7777), (0o550, 0o400));
    assert_eq!((stat("d/f").mtime(), stat("d/f").mtime_nsec(), stat("d").mtime()), (1_000_000, 5, 1_000_000));
    assert_eq!(fs::read(dir.path().join("d/big")).expect("a file"), b"\0\0\0\0\0\0\0\0ab");
    assert_eq!(fs::read_link(dir.path().join("d/l")).expect("a link"), Path::new("/nowhere"));
    assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 1);
    fs::set_permissions(dir.path().join("d"), PermissionsExt::from_mode(0o750)).expect("ours");
}

/// S57e.
#[test]
fn orders_outside_of_the_mirror_are_refused() {
    let base = tempfile::tempdir().expect("a directory");
    let [dir, outside] = ["mirror", "outside"].map(|name| {
        fs::create_dir(base.path().join(name)).expect("made");
        base.path().join(name)
    });
    fs::write(outside.join("file"), "outside").expect("written");
    for path in ["../outside/file", "/etc/x", "a/../../outside/file", "", "a//b", "./a"] {
        let refused = execute_all(&dir, vec![put(path, b"x"), commit()]);
        assert_eq!(refused.map_err(|fault| fault.errno), Err(Errno::EINVAL), "{path}");
        let remove = plain(Order::Remove { path: path.into() });
        assert!(execute_all(&dir, vec![remove, commit()]).is_err(), "{path}");
        let rename = plain(Order::Rename { from: path.into(), to: b"a".to_vec() });
        assert!(execute_all(&dir, vec![rename, commit()]).is_err(), "{path}");
    }
    symlink(&outside, dir.join("link")).expect("made");
    symlink(outside.join("file"), dir.join("to-file")).expect("made");
    let write =
        |path: &str| (Order::Write { path: path.into(), is_staged: false, offset: 0 }, b"inside".to_vec());
    let orders = vec![put("link/new", b"x"), write("link/file"), write("to-file"), commit()];
    let replies = execute_all(&dir, orders).expect("valid paths");
    let Reply::Faults { faults } = &replies[0] else { panic!("{replies:?}") };
    assert_eq!(faults.len(), 3, "{faults:?}");
    // Only the links themselves are removed and replaced.
    let orders = vec![
        plain(Order::Remove { path: b"link/file".to_vec() }),
        plain(Order::Remove { path: b"link".to_vec() }),
        put("to-file", b"new"),
        commit(),
    ];
    execute_all(&dir, orders).expect("executed");
    assert_eq!(fs::read_to_string(outside.join("file")).expect("a file"), "outside");
    assert_eq!(fs::read_dir(&outside).expect("a directory").count(), 1);
    assert!(dir.join("to-file").symlink_metadata().expect("a file").is_file() && !dir.join("link").exists());
}

#[test]
fn a_failed_order_spoils_only_its_path() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = b"missing/file".to_vec();
    let orders = vec![
        (Order::Write { path: path.clone(), is_staged: false, offset: 0 }, b"x".to_vec()),
        plain(Order::Finish { path: path.clone(), attributes: attributes(FileKind::File, 0o600, 1) }),
        put("good", b"y"),
        commit(),
        commit(),
    ];
    let replies = execute_all(dir.path(), orders).expect("executed");
    let Reply::Faults { faults } = &replies[0] else { panic!("{replies:?}") };
    assert!(faults.len() == 1 && faults[0].0 == path && faults[0].1.errno == Errno::ENOENT, "{faults:?}");
    assert_eq!(replies[1..], [Reply::Committed { number: 1 }, Reply::Committed { number: 1 }]);
    assert_eq!(fs::read(dir.path().join("good")).expect("a file"), b"y");
}

#[test]
fn another_version_or_first_order_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    for first in [Order::Ping, Order::Hello { version: VERSION + 1, makes_mirror: false }] {
        let (mut input, mut out) = (Vec::new(), Vec::new());
        write_frame(&mut input, &first, &[]).expect("written");
        let tree = PosixTree::open(dir.path()).expect("a tree");
        let refused = serve(tree, &mut input.as_slice(), &mut out);
        assert_eq!(refused.map_err(|fault| fault.errno), Err(Errno::EPROTO));
    }
}

#[test]
fn a_second_receiver_is_refused() {
    let base = tempfile::tempdir().expect("a directory");
    let dir = base.path().join("new");
    let first = open(&dir).expect("made and locked");
    assert_eq!(open(&dir).map(drop).map_err(|fault| fault.errno), Err(Errno::EBUSY));
    drop(first);
    assert!(open(&dir).is_ok() && open(&base.path().join("no/such")).is_err());
}
