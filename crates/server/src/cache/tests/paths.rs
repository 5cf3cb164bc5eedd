//! Files that are not, or no longer, at the path of a request.

use super::bed::Bed;
use super::client::open_request;
use super::faulty::Plan;
use futures_util::future::join3;
use std::time::Duration;
use tameike_core::wire::cache::{CacheReply, CacheRequest, Stamp};
use tameike_core::{Errno, NodeId, Timestamp};

/// Regression: a node had a file open, and another node renamed it. The first write failed with ENOENT, because the coordinator looked it
/// up only at the path that the node sent.
#[test]
fn a_node_with_the_old_path_of_a_renamed_file_can_write() {
    let bed = Bed::new(31, 2);
    let client = bed.client(0);
    bed.run(async move {
        client.create(b"old", b"content").await.expect("write");
        client.write_back(b"old").await.expect("the flush");
        let (inode, stamp) = client.identity(b"old");
        client.rename(b"old", b"new").await.expect("rename");
        let (path, stamp) = (b"old".to_vec(), Stamp { ctime: Timestamp::default(), ..stamp });
        let dirty = CacheRequest::Dirty { inode, path, stamp, writes: true, reach: 1 };
        client.request(inode, dirty).await.expect("the file exists");
        let CacheReply::Located { path } =
            client.request(inode, CacheRequest::Locate { inode }).await.expect("found")
        else {
            panic!("the reply is not Located")
        };
        assert_eq!(path, b"new");
    });
}

/// Regression: an append through an open file made a removed file dirty.
#[test]
fn an_append_to_a_removed_file_leaves_nothing_to_flush() {
    let bed = Bed::new(33, 2);
    let client = bed.client(0);
    bed.run(async move {
        client.create(b"file", b"content").await.expect("write");
        let inode = client.open(b"file", true).await.expect("open").inode;
        client.unlink(b"file").await.expect("unlink");
        for expected in [7, 12] {
            let (offset, state) = client.reserve(inode, 5).await.expect("an offset");
            assert_eq!((offset, state.newer), (expected, None));
        }
        assert_eq!(client.unflushed_files(inode).await, 0);
    });
}

/// Regression: the end of a removal waited for a flush of the file. A client that opened the file meanwhile received no notification of the
/// removal, and its reads failed with ESTALE.
#[test]
fn the_open_of_a_file_reports_a_removal_in_progress() {
    let bed = Bed::new(34, 1);
    bed.delay_flushes(NodeId(0), Duration::from_secs(1));
    let client = bed.client(0);
    bed.run(async move {
        client.create(b"file", b"content").await.expect("write");
        let (inode, stamp) = client.identity(b"file");
        client.request(inode, CacheRequest::Removing { inode }).await.expect("the file is not open");
        let flush = client.request(inode, CacheRequest::Writeback { inode });
        let remove = async {
            client.runtime.sleep(Duration::from_millis(100)).await;
            client.unlink(b"file").await.expect("unlink");
        };
        let open = async {
            client.runtime.sleep(Duration::from_millis(200)).await;
            client.state(inode, open_request(inode, b"file", stamp)).await
        };
        let (_, (), opened) = join3(flush, remove, open).await;
        assert!(opened.expect("the file exists until the flush ends").removing);
        let again = client.request(inode, open_request(inode, b"file", stamp)).await;
        assert_eq!(again.expect_err("the file is removed").errno, Errno::ESTALE);
    });
}

/// Regression: a file renamed while its coordinator stats its paths, one after the other, was at none of them.
#[test]
fn a_file_that_is_being_renamed_is_found() {
    let bed = Bed::new(32, 2);
    let (client, control) = (bed.client(0), bed.control.clone());
    bed.run(async move {
        client.create(b"file", b"content").await.expect("write");
        let (inode, _) = client.identity(b"file");
        control.set(Plan::Once(0, Errno::ENOENT));
        client.request(inode, CacheRequest::Locate { inode }).await.expect("the file exists again");
        assert_eq!(control.failed(), 1);
        client.unlink(b"file").await.expect("unlink");
        let gone =
            client.request(inode, CacheRequest::Locate { inode }).await.expect_err("the file is removed");
        assert_eq!(gone.errno, Errno::ESTALE);
    });
}

/// Regression: each old path of a file followed each rename of the last minute, and these paths displaced the one at which the file was. The
/// receipt reported the file as removed by another program.
#[test]
fn files_are_drained_after_many_renames_of_the_directories_above_them() {
    let bed = Bed::new(36, 2);
    std::fs::create_dir_all(bed.root.join("a/b/c")).expect("mkdir");
    let clients = [bed.client(0), bed.client(1)];
    let path = bed.run(async move {
        clients[0].create(b"a/b/c/early", b"early").await.expect("write");
        let mut path = ["a", "b", "c"].map(str::to_owned);
        for number in 0..60 {
            let (at, client) = (number * number % 3, &clients[number % 2]);
            let from = path[..=at].join("/");
            path[at] = format!("m{number}");
            client.rename(from.as_bytes(), path[..=at].join("/").as_bytes()).await.expect("renamed");
            if number == 30 {
                client.create(&[path.join("/").as_bytes(), b"/late"].concat(), b"late").await.expect("write");
            }
        }
        path.join("/")
    });
    let receipt = bed.drain_completely(true);
    let paths: Vec<_> = receipt.files.iter().map(|file| file.path.clone()).collect();
    assert_eq!(paths, [format!("{path}/early"), format!("{path}/late")]);
}

/// Regression: a program that writes each result into a new directory and then renames it lost the later files: their path was displaced by those of
/// the earlier directories of this name.
#[test]
fn files_of_directories_that_have_had_the_same_name_are_drained() {
    let bed = Bed::new(37, 2);
    let (client, root) = (bed.client(0), bed.root.clone());
    bed.run(async move {
        for number in 0..40 {
            std::fs::create_dir(root.join("new")).expect("mkdir");
            client.create(b"new/file", format!("content {number}").as_bytes()).await.expect("write");
            client.rename(b"new", format!("done-{number}").as_bytes()).await.expect("renamed");
        }
    });
    let receipt = bed.drain_completely(true);
    assert_eq!(receipt.files.len(), 40);
    for number in 0..40 {
        let content = bed.shared_content(&format!("done-{number}/file"));
        assert_eq!(content, format!("content {number}").as_bytes());
    }
}

/// Regression: new paths that failed renames had announced displaced the path of a file.
#[test]
fn files_are_drained_after_many_renames_that_fail() {
    let bed = Bed::new(38, 2);
    std::fs::create_dir(bed.root.join("dir")).expect("mkdir");
    let (client, root) = (bed.client(0), bed.root.clone());
    bed.run(async move {
        client.create(b"dir/file", b"of dir").await.expect("write");
        client.create(b"file", b"content").await.expect("write");
        for number in 0..40 {
            let full = format!("full-{number}");
            std::fs::create_dir_all(root.join(&full).join("sub")).expect("mkdir");
            for from in ["dir", "file"] {
                client.rename(from.as_bytes(), full.as_bytes()).await.expect_err("it is not empty");
            }
        }
        client.rename(b"dir", b"moved").await.expect("renamed");
    });
    let receipt = bed.drain_completely(true);
    let mut paths: Vec<_> = receipt.files.iter().map(|file| file.path.as_str()).collect();
    paths.sort_unstable();
    assert_eq!(paths, ["file", "moved/file"]);
    assert_eq!(bed.shared_content("moved/file"), b"of dir");
}
