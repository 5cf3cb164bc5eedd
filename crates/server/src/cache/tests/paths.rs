//! Files that are not, or not any more, at the path by which they are asked for.

use super::bed::Bed;
use super::faulty::Plan;
use futures_util::future::join3;
use std::time::Duration;
use tameike_core::wire::cache::{CacheReply, CacheRequest};
use tameike_core::{Errno, NodeId, Timestamp};

/// A node that had a file open, and wrote to it for the first time after another node had renamed it, was told that it
/// was gone: its coordinator looked for it only at the path that this node knew.
#[test]
fn who_knows_a_file_by_an_old_path_writes_to_it() {
    let bed = Bed::new(31, 2);
    let client = bed.client(0);
    bed.run(async move {
        client.create(b"old", b"content").await.expect("write");
        client.write_back(b"old").await.expect("the flush");
        let stat = client.shared.stat(b"old").expect("a file");
        let (inode, path, before) = (stat.inode_id(), b"old".to_vec(), Timestamp::default());
        client.rename(b"old", b"new").await.expect("rename");
        let stamp = tameike_core::wire::cache::Stamp { ctime: before, ..stat.stamp() };
        client
            .ask(inode, CacheRequest::Dirty { inode, path, stamp, writes: true, reach: 1 })
            .await
            .expect("it is there");
        let CacheReply::Located { path } =
            client.ask(inode, CacheRequest::Locate { inode }).await.expect("found")
        else {
            panic!("a path was asked for")
        };
        assert_eq!(path, b"new");
    });
}

/// An append of a node that still had it open made a removed file one that the shared file system lacked something of.
#[test]
fn an_append_to_a_removed_file_leaves_nothing_to_flush() {
    let bed = Bed::new(33, 2);
    let client = bed.client(0);
    bed.run(async move {
        client.create(b"file", b"content").await.expect("write");
        let inode = client.open(b"file", true).await.expect("open").inode;
        client.unlink(b"file").await.expect("unlink");
        let reserve =
            || client.ask(inode, CacheRequest::Reserve { inode, length: 5, now: Timestamp::default() });
        for expected in [7, 12] {
            let CacheReply::Reserved { offset, state } = reserve().await.expect("a place") else {
                panic!("a reservation was asked for")
            };
            assert_eq!((offset, state.newer), (expected, None));
        }
        let CacheReply::Progress { files, .. } =
            client.ask(inode, CacheRequest::Progress).await.expect("progress")
        else {
            panic!("progress was asked for")
        };
        assert_eq!(files, 0);
    });
}

/// The end of a removal waited for a flush of the file. Who opened it meanwhile was not told of the removal, and of nothing
/// after it: its reads failed with ESTALE.
#[test]
fn who_opens_a_file_while_its_removal_ends_hears_of_it() {
    let bed = Bed::new(34, 1);
    bed.flush_slowly(NodeId(0), Duration::from_secs(1));
    let client = bed.client(0);
    bed.run(async move {
        client.create(b"file", b"content").await.expect("write");
        let stat = client.shared.stat(b"file").expect("a file");
        let (inode, stamp) = (stat.inode_id(), stat.stamp());
        client.ask(inode, CacheRequest::Removing { inode }).await.expect("nobody has it open");
        let flush = client.ask(inode, CacheRequest::Writeback { inode });
        let remove = async {
            client.runtime.sleep(Duration::from_millis(100)).await;
            client.unlink(b"file").await.expect("unlink");
        };
        let open = async {
            client.runtime.sleep(Duration::from_millis(200)).await;
            client
                .state(
                    inode,
                    CacheRequest::Open {
                        inode,
                        path: b"file".to_vec(),
                        stamp,
                        asked: Vec::new(),
                        holds: true,
                        made: false,
                    },
                )
                .await
        };
        let (_, (), opened) = join3(flush, remove, open).await;
        assert!(opened.expect("it is there until the flush ends").removing);
        let again = CacheRequest::Open {
            inode,
            path: b"file".to_vec(),
            stamp,
            asked: Vec::new(),
            holds: true,
            made: false,
        };
        assert_eq!(client.ask(inode, again).await.expect_err("it is gone").errno, Errno::ESTALE);
    });
}

/// A file that was renamed just while its coordinator looked at its paths, one after the other, was at none of them.
#[test]
fn a_file_on_its_way_to_another_path_is_not_gone() {
    let bed = Bed::new(32, 2);
    let (client, control) = (bed.client(0), bed.control.clone());
    bed.run(async move {
        client.create(b"file", b"content").await.expect("write");
        let inode = client.shared.stat(b"file").expect("a file").inode_id();
        control.set(Plan::Once(0, Errno::ENOENT));
        client.ask(inode, CacheRequest::Locate { inode }).await.expect("it is there again");
        assert_eq!(control.failed(), 1);
        client.unlink(b"file").await.expect("unlink");
        let gone = client.ask(inode, CacheRequest::Locate { inode }).await.expect_err("it is gone");
        assert_eq!(gone.errno, Errno::ESTALE);
    });
}
