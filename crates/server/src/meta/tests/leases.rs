//! Leases: a change returns only after stale leases on other nodes are revoked or have expired.

use super::client::{Client, name};
use super::world::World;
use super::{client, run};
use std::sync::Arc;
use std::time::Duration;
use tameike_core::attr::{AttrChange, SetTime};
use tameike_core::limits::{DIRECTORY_CACHE_TIME, NAME_LEASE, UNSHARDED_ENTRIES_MAX};
use tameike_core::wire::meta::*;
use tameike_core::{FileKind, InodeId, NodeId};

const NODES: [bool; 3] = [true; 3];

fn other(world: &Arc<World>, node: u32) -> Client {
    Client { node: NodeId(node), ..client(world) }
}

impl Client {
    /// Looks up a name as a view does. Returns the inode, and whether the view got a lease.
    async fn view(&self, dir: InodeId, entry: &str) -> Option<(InodeId, bool)> {
        let entry = name(dir, entry);
        let request = |sharded| MetaRequest::Lookup { entry: entry.clone(), sharded, view: true };
        match self.ask_home(&entry, request).await {
            Ok(MetaReply::Entry { target, lease, .. }) => Some((target.inode, lease)),
            _ => None,
        }
    }

    async fn chmod(&self, inode: InodeId) {
        let change = AttrChange { mode: Some(0o600), ..AttrChange::default() };
        self.set_attr(inode, change).await.unwrap();
    }
}

/// Runs `work` on a new file whose lease node 1 has, and expects it to revoke that lease.
fn revokes_on(work: impl AsyncFnOnce(&Client, InodeId)) {
    let world = World::new(7, &NODES);
    run(&world, async |client| {
        let inode = client.create(InodeId::ROOT, "file", FileKind::File).await.unwrap();
        // Until then its creator has the lease.
        let holder = other(&world, 1);
        world.machine.runtime_of(0).sleep(NAME_LEASE).await;
        assert_eq!(holder.view(InodeId::ROOT, "file").await, Some((inode, true)));
        assert_eq!(*world.revoked.lock(), []);
        holder.chmod(inode).await;
        assert_eq!(*world.revoked.lock(), [], "its own change revokes no lease");
        work(client, inode).await;
        assert_eq!(*world.revoked.lock(), [(NodeId(1), inode)]);
    });
}

#[test]
fn each_kind_of_change_revokes_the_lease() {
    let (file, new) = ((InodeId::ROOT, "file"), (InodeId::ROOT, "new"));
    revokes_on(async |client, inode| client.chmod(inode).await);
    revokes_on(async |client, _| client.unlink(InodeId::ROOT, "file").await.unwrap());
    revokes_on(async |client, _| {
        client.rename(file, new, RenameMode::Replace).await.unwrap();
    });
    revokes_on(async |client, inode| {
        let target = Target { inode, kind: FileKind::File };
        client.link(target, InodeId::ROOT, "link").await.unwrap();
    });
    revokes_on(async |client, inode| {
        client.open(inode, 1).await.unwrap();
        client.pass_time().await;
        client.close_read(inode, 1, client.now()).await.unwrap();
    });
    revokes_on(async |client, _| {
        client.create(InodeId::ROOT, "new", FileKind::File).await.unwrap();
        client.rename(new, file, RenameMode::Replace).await.unwrap();
    });
}

#[test]
fn a_rename_from_another_directory_revokes_the_lease() {
    for seed in 0..20 {
        let world = World::new(seed, &NODES);
        run(&world, async |client| {
            let dir = client.create(InodeId::ROOT, "dir", FileKind::Directory).await.unwrap();
            let made = client.create(dir, "file", FileKind::File).await.unwrap();
            client.create(InodeId::ROOT, "file", FileKind::File).await.unwrap();
            world.machine.runtime_of(0).sleep(NAME_LEASE).await;
            assert_eq!(other(&world, 1).view(dir, "file").await, Some((made, true)));
            client.rename((InodeId::ROOT, "file"), (dir, "file"), RenameMode::Replace).await.unwrap();
            assert!(world.revoked.lock().contains(&(NodeId(1), made)));
        });
    }
}

#[test]
fn leases_are_revoked_before_the_entries_of_a_directory_move() {
    let world = World::new(5, &NODES);
    run(&world, async |client| {
        let holder = other(&world, 1);
        let dir = client.create(InodeId::ROOT, "dir", FileKind::Directory).await.unwrap();
        let held = holder.create(dir, "held", FileKind::File).await.unwrap();
        for number in 0..=UNSHARDED_ENTRIES_MAX {
            if number % 1000 == 0 && number < UNSHARDED_ENTRIES_MAX {
                assert_eq!(holder.view(dir, "held").await, Some((held, true)));
            }
            client.create(dir, &number.to_string(), FileKind::Symlink).await.unwrap();
        }
        world.machine.runtime_of(0).sleep(Duration::from_secs(1)).await;
        assert!(client.dir_stat(dir).await.unwrap().sharded, "the directory is sharded");
        assert!(world.revoked.lock().contains(&(NodeId(1), held)));
    });
}

#[test]
fn a_change_waits_until_the_lease_of_an_unreachable_holder_expires() {
    let world = World::new(3, &[true, true, false]);
    run(&world, async |client| {
        client.create(InodeId::ROOT, "file", FileKind::File).await.unwrap();
        world.machine.runtime_of(0).sleep(NAME_LEASE).await;
        let (inode, lease) = other(&world, 2).view(InodeId::ROOT, "file").await.unwrap();
        assert!(lease);
        world.kill(2);
        let clock = &world.machine.runtime_of(0).clock;
        let start = clock.monotonic();
        client.chmod(inode).await;
        let took = clock.monotonic() - start;
        assert!(took > NAME_LEASE - Duration::from_millis(10), "{took:?}");
        assert!(took < NAME_LEASE + Duration::from_millis(10), "{took:?}");
        world.heal();
    });
}

#[test]
fn a_change_of_a_directory_waits_for_caches_of_other_nodes() {
    let world = World::new(4, &NODES);
    run(&world, async |client| {
        let clock = world.machine.runtime_of(0).clock.clone();
        let dir = client.create(InodeId::ROOT, "dir", FileKind::Directory).await.unwrap();
        // Its creator need not wait.
        let start = clock.monotonic();
        client.chmod(dir).await;
        assert!(clock.monotonic() - start < DIRECTORY_CACHE_TIME / 4);
        assert!(other(&world, 1).view(InodeId::ROOT, "dir").await.is_some());
        let shown = clock.monotonic();
        // Nor a change of its times, which are not coherent.
        let change = AttrChange { mtime: Some(SetTime::Now), ..AttrChange::default() };
        client.set_attr(dir, change).await.unwrap();
        assert!(clock.monotonic() - shown < DIRECTORY_CACHE_TIME / 4);
        client.rmdir(InodeId::ROOT, "dir").await.unwrap();
        let took = clock.monotonic() - shown;
        assert!(took > DIRECTORY_CACHE_TIME - Duration::from_millis(10), "{took:?}");
        assert!(took < DIRECTORY_CACHE_TIME + Duration::from_millis(10), "{took:?}");
    });
}
