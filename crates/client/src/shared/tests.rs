//! Opens and cached state of the job-shared view while a home moves.

use super::*;
use crate::fixtures;
use crate::types::Opened;
use crate::vfs::OpenFiles;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tameike_core::wire::meta::{DirStat, Opener};
use tameike_core::{Attr, FileKind, Timestamp};
use tameike_fabric::Answer;
use tameike_io::os::runtime::{Resolver, promise};
use tameike_io::os::simulated::Simulation;
use tameike_io::{Frame, Payload, Slab};

/// Its slot is 3.
const INODE: InodeId = InodeId(3 << 48 | 7);
const READ: OpenMode = OpenMode {
    read: true,
    write: false,
    append: false,
    truncate: false,
    noatime: true,
    beside_kernel: false,
};

/// A home whose replies to opens wait.
#[derive(Default)]
struct Home {
    opens: Vec<(OpenId, Resolver<Result<Reply>>)>,
    closed: Vec<OpenId>,
}

struct HomeRpc(Mutex<Home>);

impl Rpc for HomeRpc {
    fn local(&self) -> NodeId {
        NodeId(0)
    }

    fn call(
        &self,
        _: Destination,
        request: Request,
        _: Option<Payload>,
        _: Option<Frame>,
    ) -> BoxFuture<'static, Result<Answer>> {
        let mut home = self.0.lock();
        let (resolver, reply) = promise();
        match request {
            Request::Meta(MetaRequest::Open { inode: INODE, opener: Opener { open, .. } }) => {
                home.opens.push((open, resolver));
            }
            Request::Meta(MetaRequest::Close { homes, .. }) => {
                home.closed.extend(homes.iter().flat_map(|home| &home.opens).map(|closed| closed.open));
                resolver.resolve(Ok(Reply::Meta(MetaReply::Done)));
            }
            other => panic!("{other:?}"),
        }
        async move { Ok(Answer { reply: reply.await?, payload: None }) }.boxed()
    }
}

struct Bed {
    simulation: Simulation,
    cluster: Arc<Cluster>,
    home: Arc<HomeRpc>,
    view: Arc<SharedView>,
}

impl Bed {
    fn new() -> Self {
        let (simulation, cluster) = (Simulation::new(3), fixtures::cluster(2));
        let (runtime, home) = (simulation.runtime(), Arc::new(HomeRpc(Mutex::default())));
        let pool = Slab::new(1).expect("a frame").pool(1);
        let engine = DataEngine::new(runtime.clone(), cluster.clone(), home.clone(), pool, None);
        let lease = MapLease::unlimited(runtime.clock.clone());
        let view = SharedView::new(runtime, cluster.clone(), home.clone(), engine, InodeId::ROOT, lease);
        Self { simulation, cluster, home, view: Arc::new(view) }
    }

    fn open(&self) -> Arc<Mutex<Option<Result<Opened>>>> {
        let (view, outcome) = (self.view.clone(), Arc::new(Mutex::new(None)));
        let result = outcome.clone();
        self.simulation.runtime().spawn(async move {
            let opened = view.open(FileNumber(INODE.0), READ).await;
            *result.lock() = Some(opened);
        });
        self.simulation.settle();
        outcome
    }

    /// Answers the only open that waits. Returns its number.
    fn answer(&self, reply: Result<()>) -> OpenId {
        let (open, resolver) = self.home.0.lock().opens.pop().expect("an open waits");
        assert!(self.home.0.lock().opens.is_empty());
        resolver.resolve(reply.map(|()| Reply::Meta(MetaReply::Node(Node::of(fixtures::attr(INODE))))));
        self.simulation.settle();
        open
    }

    fn move_home(&self) {
        let home = self.cluster.inode_home(INODE);
        let other = NodeId(1 - self.cluster.primary(home).0);
        assert!(self.cluster.replace_map(self.cluster.map().with_primary(home, other)));
    }

    fn opens(&self) -> Vec<OpenId> {
        let home = self.cluster.inode_home(INODE);
        assert_eq!(self.view.opens(|other| other != home), [], "opens at other homes");
        self.view.opens(|other| other == home).into_iter().map(|(_, open)| open).collect()
    }
}

#[test]
fn opens_are_reclaimed_from_the_reply_of_the_home_until_the_release() {
    let bed = Bed::new();
    let outcome = bed.open();
    assert_eq!(bed.opens(), []);
    let open = bed.answer(Ok(()));
    let opened = outcome.lock().take().expect("a reply").expect("opened");
    assert_eq!((bed.opens(), bed.home.0.lock().opens.len()), (vec![open], 0));
    bed.simulation.run(bed.view.release(opened.handle));
    assert_eq!(bed.opens(), []);
    bed.simulation.finish();
    assert_eq!(bed.home.0.lock().closed, [open]);
}

/// The next primary got the list of opens before the reply of the earlier one arrived: it would free the file once it is unlinked.
#[test]
fn an_open_that_an_earlier_primary_has_counted_is_sent_again() {
    let bed = Bed::new();
    let outcome = bed.open();
    bed.move_home();
    assert_eq!(bed.opens(), []);
    let open = bed.answer(Ok(()));
    assert!(outcome.lock().is_none());
    assert_eq!(bed.opens(), [open], "the next list has it");
    assert_eq!(bed.answer(Ok(())), open, "the same number");
    let opened = outcome.lock().take().expect("a reply").expect("opened");
    assert_eq!(bed.opens(), [open]);
    bed.simulation.run(bed.view.release(opened.handle));
    // Another program has unlinked the file before the next primary knew of the open.
    let outcome = bed.open();
    bed.move_home();
    bed.answer(Ok(()));
    bed.answer(Err(Errno::ESTALE.into()));
    let refused = outcome.lock().take().expect("a reply");
    assert!(refused.is_err_and(|fault| fault.errno == Errno::ESTALE));
    assert_eq!(bed.opens(), []);
    bed.simulation.finish();
}

#[test]
fn state_of_directories_of_homes_that_have_moved_is_dropped() {
    let (cache, now) = (DirectoryCache::default(), std::time::Duration::from_secs(9));
    let dir = |number| Attr { kind: FileKind::Directory, ..fixtures::attr(InodeId(number)) };
    let stat = |sharded| DirStat { sharded, changed: Timestamp::default(), ..DirStat::default() };
    for (number, sharded) in [(2, false), (3, false), (4, true)] {
        cache.learn(&dir(number), now);
        cache.set_part(InodeId(number), NodeId(0), stat(sharded), now);
    }
    cache.homes_moved(|inode| inode == InodeId(2));
    for (number, kept) in [(2, false), (3, true), (4, false)] {
        assert_eq!(cache.fresh_attr(InodeId(number), now).is_some(), kept);
        assert_eq!(cache.fresh_stat(InodeId(number), &[NodeId(0)], now).is_some(), kept);
    }
    assert!(cache.is_sharded(InodeId(4)));
}
