//! Access times of files, which clients send with closes.

use super::client::Client;
use super::run;
use super::world::World;
use tameike_core::attr::{AttrChange, SetTime};
use tameike_core::{FileKind, InodeId, Timestamp};

const ROOT: InodeId = InodeId::ROOT;
const LONG_AGO: Timestamp = Timestamp { seconds: 77, nanoseconds: 5 };

/// Runs `work` on a file that is open as number 1, with the time of a read.
fn with_read(work: impl AsyncFnOnce(&Client, InodeId, Timestamp)) {
    let world = World::new(11, &[true; 3]);
    run(&world, async |client| {
        let inode = client.create(ROOT, "file", FileKind::File).await.unwrap();
        client.open(inode, 1).await.unwrap();
        client.pass_time().await;
        let read = client.now();
        client.pass_time().await;
        work(client, inode, read).await;
    });
}

async fn set_access_time(client: &Client, inode: InodeId, time: Timestamp) {
    let change = AttrChange { atime: Some(SetTime::To(time)), ..AttrChange::default() };
    client.set_attr(inode, change).await.unwrap();
}

#[test]
fn a_read_sets_only_the_access_time() {
    with_read(async |client, inode, read| {
        let before = client.stat(inode).await.unwrap();
        client.close_read(inode, 1, read).await.unwrap();
        let after = client.stat(inode).await.unwrap();
        assert_eq!(after, tameike_core::Attr { atime: read, ..before });
        // The next read does not count (relatime).
        client.open(inode, 2).await.unwrap();
        client.close_read(inode, 2, client.now()).await.unwrap();
        assert_eq!(client.stat(inode).await.unwrap(), after);
    });
}

#[test]
fn a_write_between_read_and_close_does_not_hide_the_read() {
    with_read(async |client, inode, read| {
        client.write_inline(inode, 0, b"changed").await.unwrap();
        client.close_read(inode, 1, read).await.unwrap();
        assert_eq!(client.stat(inode).await.unwrap().atime, read);
    });
}

/// Backup programs restore access times after reading.
#[test]
fn an_access_time_set_after_the_read_remains() {
    for write_after in [false, true] {
        with_read(async |client, inode, read| {
            set_access_time(client, inode, LONG_AGO).await;
            if write_after {
                client.pass_time().await;
                client.write_inline(inode, 0, b"changed").await.unwrap();
            }
            client.close_read(inode, 1, read).await.unwrap();
            assert_eq!(client.stat(inode).await.unwrap().atime, LONG_AGO);
            // A later read counts, also through an earlier open.
            client.open(inode, 2).await.unwrap();
            client.pass_time().await;
            client.close_read(inode, 2, client.now()).await.unwrap();
            assert_eq!(client.stat(inode).await.unwrap().atime, client.now());
        });
    }
}

#[test]
fn repeated_closes_and_closes_of_removed_files_are_ignored() {
    with_read(async |client, inode, read| {
        client.close(inode, 1).await.unwrap();
        let before = client.stat(inode).await.unwrap();
        client.close_read(inode, 1, read).await.unwrap();
        assert_eq!(client.stat(inode).await.unwrap(), before);
        client.open(inode, 2).await.unwrap();
        client.unlink(ROOT, "file").await.unwrap();
        client.close_read(inode, 2, client.now()).await.unwrap();
        assert!(client.stat(inode).await.is_err());
    });
}
