//! Requests of one client, on several cluster configurations.

use super::check::{orphans, tables};
use super::client::{Client, new};
use super::world::World;
use super::{check, run};
use std::sync::Arc;
use tameike_core::attr::{AttrChange, SetTime};
use tameike_core::limits::{INLINE_SIZE_MAX, UNSHARDED_ENTRIES_MAX};
use tameike_core::wire::meta::{Command, MetaReply, MetaRequest, RenameMode, Target};
use tameike_core::{Errno, FileKind, InodeId, NodeId, Result, Timestamp, UnitId};

const ROOT: InodeId = InodeId::ROOT;
const FILE: FileKind = FileKind::File;
const DIR: FileKind = FileKind::Directory;

fn clusters() -> [Arc<World>; 3] {
    [World::new(1, &[true]), World::new(2, &[true; 3]), World::new(3, &[false, true, false, true, true])]
}

fn errno<T: std::fmt::Debug>(result: Result<T>) -> Errno {
    result.expect_err("this must fail").errno
}

#[test]
fn names_are_created_found_listed_and_removed() {
    for world in clusters() {
        run(&world, async |client| {
            let dir = client.create(ROOT, "dir", DIR).await.unwrap();
            let mut inodes = Vec::new();
            for number in 0..50 {
                inodes.push(client.create(dir, &format!("file{number}"), FILE).await.unwrap());
            }
            client.create(dir, "sub", DIR).await.unwrap();
            assert_eq!(errno(client.create(dir, "file7", FILE).await), Errno::EEXIST);
            assert_eq!(errno(client.create(dir, "a/b", FILE).await), Errno::EINVAL);
            assert_eq!(errno(client.create(dir, &"x".repeat(256), FILE).await), Errno::ENAMETOOLONG);
            let (found, _, created) = client.create_as(dir, "file7", new(FILE), false, None).await.unwrap();
            assert_eq!((found.inode, created), (inodes[7], false));
            for limit in [1, 7, 51, 500] {
                let names = client.read_dir(dir, limit).await.unwrap();
                assert_eq!(names.len(), 51);
                assert!(names.windows(2).all(|pair| pair[0].offset <= pair[1].offset));
            }
            assert_eq!(client.stat(dir).await.unwrap().nlink, 3);
            assert_eq!(errno(client.unlink(dir, "sub").await), Errno::EISDIR);
            assert_eq!(errno(client.rmdir(dir, "file1").await), Errno::ENOTDIR);
            assert_eq!(errno(client.rmdir(ROOT, "dir").await), Errno::ENOTEMPTY);
            for number in 0..50 {
                client.unlink(dir, &format!("file{number}")).await.unwrap();
            }
            client.rmdir(dir, "sub").await.unwrap();
            client.rmdir(ROOT, "dir").await.unwrap();
            assert_eq!(errno(client.lookup(ROOT, "dir").await), Errno::ENOENT);
            assert_eq!(errno(client.create(dir, "late", FILE).await), Errno::ENOENT);
            assert_eq!(errno(client.stat(inodes[3]).await), Errno::ESTALE);
        });
    }
}

async fn tree(client: &Client) -> Vec<InodeId> {
    let mut dirs = Vec::new();
    for number in 0..8 {
        dirs.push(client.create(ROOT, &format!("dir{number}"), DIR).await.unwrap());
    }
    dirs
}

#[test]
fn links_and_renames_cross_nodes() {
    for world in clusters() {
        run(&world, async |client| {
            let dirs = tree(client).await;
            let inode = client.create(dirs[0], "first", FILE).await.unwrap();
            let target = Target { inode, kind: FILE };
            for (number, &dir) in dirs.iter().enumerate() {
                client.link(target, dir, "link").await.unwrap();
                assert_eq!(client.stat(inode).await.unwrap().nlink as usize, number + 2);
            }
            assert_eq!(errno(client.link(target, dirs[1], "link").await), Errno::EEXIST);
            for pair in dirs.windows(2) {
                // Both names refer to the same inode: the rename does nothing.
                client.rename((pair[0], "link"), (pair[1], "link"), RenameMode::Replace).await.unwrap();
                assert_eq!(client.lookup(pair[0], "link").await.unwrap(), target);
                let other = client.create(pair[1], "other", FILE).await.unwrap();
                let rename = |mode| client.rename((pair[0], "link"), (pair[1], "other"), mode);
                assert_eq!(errno(rename(RenameMode::NoReplace).await), Errno::EEXIST);
                let before =
                    [client.stat(inode).await.unwrap().ctime, client.stat(other).await.unwrap().ctime];
                client.pass_time().await;
                rename(RenameMode::Exchange).await.unwrap();
                assert_eq!(client.lookup(pair[0], "link").await.unwrap().inode, other);
                let swapped =
                    [client.stat(inode).await.unwrap().ctime, client.stat(other).await.unwrap().ctime];
                assert!(before[0] < swapped[0] && before[1] < swapped[1], "{before:?} {swapped:?}");
                client.pass_time().await;
                rename(RenameMode::Replace).await.unwrap();
                assert!(client.stat(other).await.unwrap().ctime > swapped[1], "a rename updates the ctime");
                assert_eq!(client.lookup(pair[1], "other").await.unwrap().inode, other);
                assert_eq!(errno(client.lookup(pair[0], "link").await), Errno::ENOENT);
            }
            for &dir in &dirs {
                for entry in client.read_dir(dir, 100).await.unwrap() {
                    client.unlink(dir, std::str::from_utf8(&entry.name).unwrap()).await.unwrap();
                }
            }
            assert_eq!(errno(client.stat(inode).await), Errno::ESTALE);
        });
    }
}

#[test]
fn directories_move_but_not_below_themselves() {
    for world in clusters() {
        run(&world, async |client| {
            let dirs = tree(client).await;
            for pair in dirs.windows(2).rev() {
                let from = dirs.iter().position(|dir| *dir == pair[1]).unwrap();
                let from = format!("dir{from}");
                client.rename((ROOT, &from), (pair[0], "sub"), RenameMode::Replace).await.unwrap();
            }
            // Now dir0/sub/sub/.../sub.
            for &below in &dirs {
                let rename = client.rename((ROOT, "dir0"), (below, "loop"), RenameMode::Replace);
                assert_eq!(errno(rename.await), Errno::EINVAL);
            }
            let up = client.rename((dirs[3], "sub"), (ROOT, "dir0"), RenameMode::Replace).await;
            assert_eq!(errno(up), Errno::ENOTEMPTY);
            let empty = client.create(ROOT, "empty", DIR).await.unwrap();
            let file = client.create(ROOT, "file", FILE).await.unwrap();
            let onto = |from, to| client.rename((ROOT, from), (ROOT, to), RenameMode::Replace);
            assert_eq!(errno(onto("file", "empty").await), Errno::EISDIR);
            assert_eq!(errno(onto("empty", "file").await), Errno::ENOTDIR);
            client.rename((dirs[3], "sub"), (ROOT, "empty"), RenameMode::Replace).await.unwrap();
            assert_eq!(client.lookup(ROOT, "empty").await.unwrap().inode, dirs[4]);
            assert_eq!(errno(client.create(empty, "x", FILE).await), Errno::ENOENT);
            client.rename((dirs[4], "sub"), (ROOT, "file"), RenameMode::Exchange).await.unwrap();
            assert_eq!(client.lookup(dirs[4], "sub").await.unwrap().inode, file);
            assert_eq!(client.stat(ROOT).await.unwrap().nlink, 2 + 3);
        });
    }
}

#[test]
fn an_open_file_outlives_its_names() {
    for world in clusters() {
        let inode = run_open(&world);
        assert_eq!(orphans(&world), [inode]);
        run(&world, async |client| {
            assert_eq!(client.stat(inode).await.unwrap().nlink, 0);
            assert_eq!(client.open(inode, 2).await.unwrap().content.unwrap().as_slice(), b"still here");
            client.close(inode, 2).await.unwrap();
            assert_eq!(client.content(inode).await.unwrap(), b"still here", "another open remains");
            client.close(inode, 1).await.unwrap();
            assert_eq!(errno(client.stat(inode).await), Errno::ESTALE);
        });
        let inode = run_open(&world);
        (0..world.count()).for_each(|node| world.service(node).peer_failed(NodeId(0)));
        run(&world, async |client| assert_eq!(errno(client.stat(inode).await), Errno::ESTALE));
        let inode = run_open(&world);
        (0..world.count()).for_each(|node| world.kill(node));
        world.heal();
        run(&world, async |client| assert_eq!(errno(client.stat(inode).await), Errno::ESTALE));
    }
}

/// A client repeats a close whose reply was lost. Regression: the home counted it twice.
#[test]
fn a_repeated_close_counts_once() {
    for world in clusters() {
        let inode = run_open(&world);
        run(&world, async |client| {
            client.open(inode, 2).await.unwrap();
            client.close(inode, 2).await.unwrap();
            client.close(inode, 2).await.unwrap();
            assert_eq!(client.stat(inode).await.unwrap().nlink, 0, "one open is left");
            client.send_closes(inode, &[2, 7, 1], &[]).await.unwrap();
            assert_eq!(errno(client.stat(inode).await), Errno::ESTALE);
        });
    }
}

/// Regression: a home counted an open forever if the node had not got the reply, and never freed the file's space.
#[test]
fn a_cancelled_open_is_not_counted() {
    for world in clusters() {
        let inode = run_open(&world);
        run(&world, async |client| {
            client.open(inode, 2).await.unwrap();
            client.send_closes(inode, &[1], &[2, 3]).await.unwrap();
            assert_eq!(errno(client.stat(inode).await), Errno::ESTALE);
            let named = client.create(ROOT, "named", FILE).await.unwrap();
            client.send_closes(named, &[], &[4]).await.unwrap();
            assert_eq!(errno(client.open(named, 4).await), Errno::ESTALE, "its request arrives late");
            client.unlink(ROOT, "named").await.unwrap();
            assert_eq!(errno(client.stat(named).await), Errno::ESTALE);
            let entry = super::client::name(ROOT, "late");
            let home = world.cluster.entry_home(ROOT, entry.offset(), false);
            client.close_at_home(home, Vec::new(), vec![client.opener(5).open]).await.unwrap();
            let late = client.create_as(ROOT, "late", new(FILE), true, Some(client.opener(5))).await;
            assert_eq!(errno(late), Errno::ESTALE);
            assert_eq!(errno(client.lookup(ROOT, "late").await), Errno::ENOENT);
        });
    }
}

fn run_open(world: &Arc<World>) -> InodeId {
    let client = super::client(world);
    let inode = world.machine.run(async {
        let opened = client.create_as(ROOT, "file", new(FILE), true, Some(client.opener(1))).await.unwrap();
        let inode = opened.0.inode;
        assert_eq!(opened.1.unwrap().content.unwrap().len(), 0);
        client.write_inline(inode, 0, b"still here").await.unwrap();
        client.unlink(ROOT, "file").await.unwrap();
        inode
    });
    world.machine.finish();
    inode
}

#[test]
fn small_files_are_inline_until_they_outgrow_the_inode() {
    for world in clusters() {
        run(&world, async |client| {
            let inode = client.create(ROOT, "file", FILE).await.unwrap();
            let attr = client.write_inline(inode, 5, b"hello").await.unwrap();
            assert_eq!((attr.size, attr.blocks, attr.inline), (10, 8, true));
            assert_eq!(client.content(inode).await.unwrap(), b"\0\0\0\0\0hello");
            let size = |size| AttrChange { size: Some(size), ..AttrChange::default() };
            assert_eq!(client.set_attr(inode, size(7)).await.unwrap().size, 7);
            assert_eq!(client.set_attr(inode, size(9)).await.unwrap().size, 9);
            assert_eq!(client.content(inode).await.unwrap(), b"\0\0\0\0\0he\0\0");
            let big = vec![1; INLINE_SIZE_MAX];
            assert_eq!(errno(client.write_inline(inode, 1, &big).await), Errno::EFBIG);
            let reserve = Command::Reserve { inode, length: 5000, now: client.now() };
            match client.change(inode, reserve).await.unwrap() {
                MetaReply::Reserved { offset, attr } => {
                    assert_eq!((offset, attr.size, attr.inline), (9, 5009, false));
                }
                other => panic!("{other:?}"),
            }
            let home = world
                .cluster
                .primary(world.cluster.unit_home(tameike_core::Layout::Striped, UnitId { inode, index: 0 }));
            let unit = &world.units(home.0 as usize)[&inode];
            assert_eq!(unit[..9], *b"\0\0\0\0\0he\0\0");
            assert!(unit[9..].iter().all(|byte| *byte == 0));
            assert_eq!(errno(client.write_inline(inode, 0, b"x").await), Errno::EFBIG);
            world.write_units(home, inode, &vec![7; 5009]);
            client.set_attr(inode, size(100)).await.unwrap();
            assert_eq!(world.units(home.0 as usize)[&inode].len(), 100);
            client.unlink(ROOT, "file").await.unwrap();
        });
        assert!((0..world.count()).all(|node| world.units(node).is_empty()));
    }
}

#[test]
fn attributes_follow_posix() {
    let world = World::new(4, &[true; 2]);
    run(&world, async |client| {
        let inode = client.create(ROOT, "program", FILE).await.unwrap();
        let mode = |mode| AttrChange { mode: Some(mode), ..AttrChange::default() };
        let owner = AttrChange { uid: Some(1), gid: Some(2), ..AttrChange::default() };
        assert_eq!(client.set_attr(inode, mode(0o6755)).await.unwrap().mode, 0o6755);
        let attr = client.set_attr(inode, owner.clone()).await.unwrap();
        assert_eq!((attr.mode, attr.uid, attr.gid), (0o755, 1, 2));
        client.set_attr(inode, mode(0o2644)).await.unwrap();
        assert_eq!(client.set_attr(inode, owner.clone()).await.unwrap().mode, 0o2644);
        let dir = client.create(ROOT, "dir", DIR).await.unwrap();
        client.set_attr(dir, mode(0o2775)).await.unwrap();
        assert_eq!(client.set_attr(dir, owner).await.unwrap().mode, 0o2775);
        let size = AttrChange { size: Some(0), ..AttrChange::default() };
        assert_eq!(errno(client.set_attr(dir, size).await), Errno::EISDIR);
        let time = Timestamp { seconds: 77, nanoseconds: 5 };
        let times =
            AttrChange { atime: Some(SetTime::Now), mtime: Some(SetTime::To(time)), ..AttrChange::default() };
        client.create(dir, "child", FILE).await.unwrap();
        client.set_attr(dir, times).await.unwrap();
        assert_eq!(client.stat(dir).await.unwrap().mtime, time);
        client.unlink(dir, "child").await.unwrap();
        assert_eq!(client.stat(dir).await.unwrap().mtime, client.now());
    });
}

#[test]
fn extended_attributes_are_kept_with_their_inode() {
    let world = World::new(5, &[true; 2]);
    run(&world, async |client| {
        let inode = client.create(ROOT, "file", FILE).await.unwrap();
        let set = |name: &str, value: &str, create, replace| {
            let (name, value) = (name.as_bytes().to_vec(), value.as_bytes().to_vec());
            client.change(inode, Command::SetXattr { inode, name, value, create, replace, now: client.now() })
        };
        assert_eq!(errno(set("user.a", "1", false, true).await), Errno::ENODATA);
        set("user.a", "1", true, false).await.unwrap();
        assert_eq!(errno(set("user.a", "2", true, false).await), Errno::EEXIST);
        set("user.a", "2", false, false).await.unwrap();
        set("user.b", "", false, false).await.unwrap();
        let get = |name: &str| client.on_inode(inode, MetaRequest::GetXattr { inode, name: name.into() });
        assert_eq!(get("user.a").await, Ok(MetaReply::Bytes(b"2".to_vec().into())));
        assert_eq!(errno(get("user").await), Errno::ENODATA);
        let names = client.on_inode(inode, MetaRequest::ListXattr { inode }).await;
        let both = vec![b"user.a".to_vec().into(), b"user.b".to_vec().into()];
        assert_eq!(names, Ok(MetaReply::Names(both)));
        let remove = Command::RemoveXattr { inode, name: b"user.a".to_vec(), now: client.now() };
        client.change(inode, remove.clone()).await.unwrap();
        assert_eq!(errno(client.change(inode, remove).await), Errno::ENODATA);
        client.unlink(ROOT, "file").await.unwrap();
    });
    let xattrs = tables(&world).into_iter().flatten().filter(|(key, _)| key[0] == b'x');
    assert_eq!(xattrs.count(), 0);
}

#[test]
fn a_crowded_directory_is_sharded_and_keeps_all_names() {
    let world = World::new(6, &[true; 3]);
    let dir = run(&world, async |client| {
        let dir = client.create(ROOT, "crowd", DIR).await.unwrap();
        for number in 0..UNSHARDED_ENTRIES_MAX + 50 {
            let kind = if number % 10 == 0 { DIR } else { FILE };
            client.create(dir, &format!("name{number}"), kind).await.unwrap();
        }
        dir
    });
    run(&world, async |client| {
        let stat = client.dir_stat(dir).await.unwrap();
        assert!(stat.sharded);
        assert_eq!(
            (stat.entries, stat.subdirs),
            (UNSHARDED_ENTRIES_MAX + 50, (UNSHARDED_ENTRIES_MAX + 50) / 10)
        );
        for limit in [7, 100, 500] {
            let names = client.read_dir(dir, limit).await.unwrap();
            assert!(names.is_sorted_by(|a, b| a.offset < b.offset));
            assert_eq!(names.len() as u64, UNSHARDED_ENTRIES_MAX + 50, "{limit} at a time");
        }
        for number in 0..UNSHARDED_ENTRIES_MAX + 50 {
            let (name, other) = (format!("name{number}"), format!("other{number}"));
            match number % 4 {
                0 => client.rename((dir, &name), (dir, &other), RenameMode::Replace).await.unwrap(),
                1 => client.rename((dir, &name), (ROOT, &other), RenameMode::Replace).await.unwrap(),
                2 if number % 10 != 0 => client.unlink(dir, &name).await.unwrap(),
                2 => client.rmdir(dir, &name).await.unwrap(),
                _ => {
                    let target = client.lookup(dir, &name).await.unwrap();
                    client.link(target, dir, &other).await.unwrap();
                    client.unlink(dir, &name).await.unwrap();
                }
            }
        }
        assert_eq!(errno(client.rmdir(ROOT, "crowd").await), Errno::ENOTEMPTY);
        for entry in client.read_dir(dir, 100).await.unwrap() {
            let name = String::from_utf8(entry.name).unwrap();
            match entry.target.kind {
                DIR => client.rmdir(dir, &name).await.unwrap(),
                _ => client.unlink(dir, &name).await.unwrap(),
            }
        }
        // Two operations that both seal the directory at all homes end one after the other.
        client.create(ROOT, "empty", DIR).await.unwrap();
        let replace = client.rename((ROOT, "empty"), (ROOT, "crowd"), RenameMode::Replace);
        let (removed, replaced) = futures_util::future::join(client.rmdir(ROOT, "crowd"), replace).await;
        assert_eq!((removed, replaced), (Ok(()), Ok(())));
        assert_eq!(errno(client.create(dir, "late", FILE).await), Errno::ENOENT);
    });
    check::check(&world);
}
