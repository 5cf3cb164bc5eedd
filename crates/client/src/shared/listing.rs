//! Directory listings of the job-shared view, from one home or merged from all.

use super::SharedView;
use super::names::CORRECTIONS_MAX;
use crate::replies::unexpected_reply;
use crate::types::ListedEntry;
use futures_util::future::try_join_all;
use tameike_core::limits::READDIR_ENTRIES_MAX;
use tameike_core::wire::meta::{DirEntry, MetaReply, MetaRequest};
use tameike_core::{DirOffset, Errno, Fault, FileKind, InodeId, Result};
use tameike_fabric::{Destination, under_one_map};

/// Cursors after `.` and after `..`. Cursors of entries are larger ([`DirOffset`]).
const AFTER_DOT: u64 = 1;
const AFTER_DOTDOT: u64 = 2;
/// Fewest entries per request to a node for a sharded directory. Entries past another node's last one are dropped and requested again;
/// larger requests reduce that share.
const SHARDED_ENTRIES_MIN: u32 = 128;

impl SharedView {
    /// Returns entries after a cursor in the order of their offsets, `.` and `..` first.
    pub(super) async fn list(&self, dir: InodeId, after: u64) -> Result<Vec<ListedEntry>> {
        let own = self.number(dir).0;
        let dot = |next, name: &[u8]| {
            let (kind, name) = (FileKind::Directory, name.to_vec());
            ListedEntry { next, inode: own, kind, name }
        };
        let dots = [dot(AFTER_DOT, b"."), dot(AFTER_DOTDOT, b"..")];
        let mut listed: Vec<_> = dots.into_iter().filter(|dot| dot.next > after).collect();
        listed.extend(self.list_names(dir, if after <= AFTER_DOTDOT { 0 } else { after }).await?);
        Ok(listed)
    }

    async fn list_names(&self, dir: InodeId, after: u64) -> Result<Vec<ListedEntry>> {
        for _ in 0..CORRECTIONS_MAX {
            let sharded = self.directories.is_sharded(dir) && dir.pinned_node().is_none();
            let replies = under_one_map(&self.cluster, |map| {
                let all: Vec<Destination> = match sharded {
                    true => map.nodes().iter().map(|&node| Destination::Primary(node, map.epoch)).collect(),
                    false => vec![self.cluster.children_home(dir).into()],
                };
                let limit = 2 * READDIR_ENTRIES_MAX / all.len() as u32;
                let limit = limit.clamp(SHARDED_ENTRIES_MIN, READDIR_ENTRIES_MAX);
                let request = MetaRequest::ReadDir { dir, after: DirOffset(after), limit, sharded };
                try_join_all(all.into_iter().map(|to| self.ask(to, request.clone())).collect::<Vec<_>>())
            });
            let replies = replies.await?;
            let corrected = replies.iter().find_map(|reply| match reply {
                MetaReply::Sharding { sharded } => Some(*sharded),
                _ => None,
            });
            match corrected {
                Some(sharded) => self.directories.set_sharded(dir, sharded),
                None => return merge(replies),
            }
        }
        Err(Fault::new(Errno::EIO, format!("the sharding of {dir} changes too often: retry")))
    }
}

/// Merges the parts of a directory, up to the smallest last offset of a home that has more entries.
fn merge(replies: Vec<MetaReply>) -> Result<Vec<ListedEntry>> {
    let mut all: Vec<DirEntry> = Vec::new();
    let mut bound = DirOffset(u64::MAX);
    for reply in replies {
        let MetaReply::Entries { entries, end } = reply else { return Err(unexpected_reply(&reply)) };
        if let (false, Some(last)) = (end, entries.last()) {
            bound = bound.min(last.offset);
        }
        all.extend(entries);
    }
    all.retain(|entry| entry.offset <= bound);
    all.sort_by(|a, b| (a.offset, &a.name).cmp(&(b.offset, &b.name)));
    let mut last = 0;
    let listed = all.into_iter().map(|entry| {
        // Entries with equal offsets get distinct cursors, so that a reader may stop between them.
        last = entry.offset.0.max(last + 1);
        ListedEntry { next: last, inode: entry.target.inode.0, kind: entry.target.kind, name: entry.name }
    });
    Ok(listed.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::DataEngine;
    use crate::fixtures;
    use crate::types::FileNumber;
    use crate::vfs::Directories;
    use futures_util::FutureExt;
    use futures_util::future::BoxFuture;
    use parking_lot::Mutex;
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::Arc;
    use tameike_core::NodeId;
    use tameike_core::wire::meta::{DirStat, EntryName, Target};
    use tameike_core::wire::{Reply, Request};
    use tameike_fabric::{Answer, MapLease, Rpc};
    use tameike_io::os::simulated::Simulation;
    use tameike_io::{Frame, Payload, Slab};

    /// The homes of one sharded directory.
    #[derive(Default)]
    struct Homes {
        parts: BTreeMap<NodeId, BTreeMap<DirOffset, Vec<u8>>>,
        returned: Mutex<usize>,
    }

    impl Homes {
        fn part(&self, home: NodeId, after: DirOffset, limit: u32) -> MetaReply {
            let from = DirOffset(after.0 + 1);
            let mut rest = self.parts[&home].range(from..);
            let target = Target { inode: InodeId(99), kind: FileKind::File };
            let entries: Vec<_> = rest
                .by_ref()
                .take(limit as usize)
                .map(|(&offset, name)| DirEntry { offset, name: name.clone(), target })
                .collect();
            *self.returned.lock() += entries.len();
            MetaReply::Entries { entries, end: rest.next().is_none() }
        }
    }

    impl Rpc for Homes {
        fn local(&self) -> NodeId {
            NodeId(0)
        }

        fn call(
            &self,
            to: Destination,
            request: Request,
            _: Option<Payload>,
            _: Option<Frame>,
        ) -> BoxFuture<'static, Result<Answer>> {
            let reply = match request {
                Request::Meta(MetaRequest::ReadDir { sharded: false, .. }) => {
                    MetaReply::Sharding { sharded: true }
                }
                Request::Meta(MetaRequest::ReadDir { after, limit, .. }) => {
                    let Destination::Primary(node, _) = to else { panic!("{to:?}") };
                    self.part(node, after, limit)
                }
                Request::Meta(MetaRequest::DirStat { .. }) => MetaReply::DirStat(DirStat::default()),
                other => panic!("{other:?}"),
            };
            async move { Ok(Answer { reply: Reply::Meta(reply), payload: None }) }.boxed()
        }
    }

    fn view(nodes: u32, names: u32) -> (SharedView, Arc<Homes>) {
        let cluster = fixtures::cluster(nodes);
        let mut homes = Homes::default();
        (0..nodes).for_each(|id| drop(homes.parts.insert(NodeId(id), BTreeMap::new())));
        for number in 0..names {
            let entry = EntryName { dir: InodeId::ROOT, name: format!("file {number}").into_bytes() };
            let home = cluster.entry_home(InodeId::ROOT, entry.offset(), true);
            homes.parts.entry(cluster.primary(home)).or_default().insert(entry.offset(), entry.name);
        }
        let homes = Arc::new(homes);
        let (runtime, pool) = (Simulation::new(1).runtime(), Slab::new(1).expect("a frame").pool(1));
        let engine = DataEngine::new(runtime.clone(), cluster.clone(), homes.clone(), pool, None);
        let lease = MapLease::unlimited(runtime.clock.clone());
        (SharedView::new(runtime, cluster, homes.clone(), engine, InodeId::ROOT, lease), homes)
    }

    /// Regression: a large directory was fetched five times over, and more often on many nodes.
    #[test]
    fn entries_of_a_sharded_directory_are_returned_once_and_fetched_about_once() {
        for (nodes, most) in [(1, 1.0), (4, 1.15), (32, 1.35)] {
            let (view, homes) = view(nodes, 100_000);
            let dir = view.open_dir(FileNumber::ROOT).now_or_never().expect("nothing waits").expect("open");
            let (mut after, mut names, mut portions) = (0, BTreeSet::new(), 0);
            loop {
                let entries = view.readdir(dir, after).now_or_never().expect("nothing waits").expect("read");
                let before = names.len();
                // The kernel's one-page buffer holds about 100 entries.
                for (next, _, _, name) in entries.iter().take(100) {
                    assert!(names.insert(name.to_vec()), "returned twice");
                    after = next;
                }
                portions += 1;
                if names.len() == before {
                    break;
                }
            }
            assert_eq!(names.len(), 100_002);
            assert!(portions > 1000);
            let returned = *homes.returned.lock();
            assert!(returned as f64 <= 100_000.0 * most, "{nodes} nodes returned {returned} entries");
        }
    }

    #[test]
    fn entries_with_equal_offsets_have_distinct_cursors() {
        let entry = |offset, name: &[u8]| DirEntry {
            offset: DirOffset(offset),
            name: name.to_vec(),
            target: Target { inode: InodeId(1), kind: FileKind::File },
        };
        let one = MetaReply::Entries { entries: vec![entry(20, b"b"), entry(30, b"c")], end: false };
        let two = MetaReply::Entries { entries: vec![entry(20, b"a"), entry(31, b"d")], end: true };
        let listed = merge(vec![one, two]).expect("a listing");
        let cursors: Vec<_> = listed.iter().map(|entry| (entry.next, &entry.name[..])).collect();
        assert_eq!(cursors, [(20, &b"a"[..]), (21, b"b"), (30, b"c")], "more entries may precede 31");
    }
}
