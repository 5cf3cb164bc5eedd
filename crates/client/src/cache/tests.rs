//! Lists of open files for the next primary of a home.

use super::*;
use crate::fixtures;
use crate::types::{OpenMode, Opened};
use crate::vfs::{Names, OpenFiles};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tameike_core::{Generation, NodeId};
use tameike_fabric::Answer;
use tameike_io::os::runtime::{Resolver, promise};
use tameike_io::os::simulated::Simulation;
use tameike_io::shared::PosixTree;
use tameike_io::{Frame, Payload, Slab};

const READ: OpenMode = OpenMode {
    read: true,
    write: false,
    append: false,
    truncate: false,
    noatime: false,
    beside_kernel: false,
};
const STATE: CacheState =
    CacheState { generation: Generation(1), newer: None, sparse: false, removing: false };

/// A coordinator whose replies to opens wait.
#[derive(Default)]
struct Coordinator(Mutex<Vec<Resolver<Result<Reply>>>>);

impl Rpc for Coordinator {
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
        let (resolver, reply) = promise();
        match request {
            Request::Cache(CacheRequest::Open { .. }) => self.0.lock().push(resolver),
            Request::Cache(CacheRequest::State { .. }) => {
                resolver.resolve(Ok(Reply::Cache(CacheReply::State(STATE))));
            }
            other => panic!("{other:?}"),
        }
        async move { Ok(Answer { reply: reply.await?, payload: None }) }.boxed()
    }
}

struct Bed {
    simulation: Simulation,
    cluster: Arc<Cluster>,
    coordinator: Arc<Coordinator>,
    view: Arc<CacheView>,
    file: FileNumber,
    inode: InodeId,
}

impl Bed {
    fn new(dir: &std::path::Path) -> Self {
        std::fs::write(dir.join("file"), b"bytes").expect("a file");
        let (simulation, cluster) = (Simulation::new(3), fixtures::cluster(2));
        let (runtime, coordinator) = (simulation.runtime(), Arc::new(Coordinator::default()));
        let pool = Slab::new(1).expect("a frame").pool(1);
        let engine = DataEngine::new(runtime.clone(), cluster.clone(), coordinator.clone(), pool, None);
        let tree = Arc::new(PosixTree::open(dir).expect("a tree"));
        let view = CacheView::new(runtime, cluster.clone(), coordinator.clone(), engine, tree);
        let found = simulation.run(view.lookup(FileNumber::ROOT, b"file")).expect("it is there");
        let (file, inode) = (found.file, found.attr.inode);
        Self { simulation, cluster, coordinator, view: Arc::new(view), file, inode }
    }

    fn open(&self) -> Arc<Mutex<Option<Result<Opened>>>> {
        let (view, file, outcome) = (self.view.clone(), self.file, Arc::new(Mutex::new(None)));
        let result = outcome.clone();
        self.simulation.runtime().spawn(async move {
            let opened = view.open(file, READ).await;
            *result.lock() = Some(opened);
        });
        self.simulation.settle();
        outcome
    }

    fn answer(&self, reply: Result<CacheReply>) {
        let resolver = self.coordinator.0.lock().pop().expect("an open waits");
        resolver.resolve(reply.map(Reply::Cache));
        self.simulation.settle();
    }

    fn open_files(&self) -> Vec<Vec<u8>> {
        let home = self.cluster.inode_home(self.inode);
        assert_eq!(self.view.open_files(|other| other != home), [], "files of other homes");
        let files = self.view.open_files(|other| other == home).into_iter().map(|file| {
            assert_eq!((file.inode, file.stamp.size), (self.inode, 5));
            file.path
        });
        files.collect()
    }
}

#[test]
fn a_file_is_listed_once_from_the_start_of_an_open_until_the_last_close() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let bed = Bed::new(dir.path());
    let opened = CacheReply::Opened { state: STATE, holders: Vec::new() };
    assert!(bed.open_files().is_empty());
    let first = bed.open();
    assert_eq!(bed.open_files(), [b"file"], "the coordinator may already have replied");
    bed.answer(Ok(opened.clone()));
    let second = bed.open();
    assert_eq!(bed.open_files(), [b"file"]);
    bed.answer(Ok(opened));
    let handle = |outcome: &Mutex<Option<Result<Opened>>>| {
        outcome.lock().take().expect("a reply").expect("opened").handle
    };
    for open in bed.view.opens.with_number(bed.inode) {
        *open.path.lock() = b"new name".to_vec();
    }
    assert_eq!(bed.open_files(), [b"new name"]);
    bed.simulation.run(bed.view.release(handle(&first)));
    assert_eq!(bed.open_files().len(), 1);
    for open in bed.view.opens.with_number(bed.inode) {
        open.set_orphan();
    }
    assert!(bed.open_files().is_empty(), "it has no name");
    bed.view.kept(bed.inode);
    assert_eq!(bed.open_files().len(), 1);
    bed.simulation.run(bed.view.release(handle(&second)));
    assert!(bed.open_files().is_empty());
}

#[test]
fn a_failed_open_is_not_listed() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let bed = Bed::new(dir.path());
    let outcome = bed.open();
    bed.answer(Err(Errno::EIO.into()));
    assert!(outcome.lock().take().is_some_and(|opened| opened.is_err()));
    assert!(bed.open_files().is_empty());
}
