//! The coordinator on a simulated machine, with requests of several nodes.

use super::changes::{ENTRIES_MAX, RANGES_MAX};
use super::*;
use crate::meta::tests::client::Client;
use crate::meta::tests::world::World;
use futures_util::future::{BoxFuture, FutureExt, ready};
use std::time::Duration;
use tameike_core::FileKind;
use tameike_core::ranges::RangeSet;
use tameike_core::wire::Reply;
use tameike_core::wire::client::ClientReply;
use tameike_core::wire::region::{Changes, Members, NodeChanges, PAGE_RANGES_MAX, Release};
use tameike_fabric::{Answer, Destination};
use tameike_io::{Frame, Payload};

/// Records notifications, with the barrier from which on all fail. Node 3 cannot be reached.
struct Notified(Mutex<Vec<(NodeId, u64)>>);

impl Rpc for Notified {
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
        let Request::Client(ClientRequest::RegionBroken { barrier, .. }) = request else {
            panic!("{request:?}");
        };
        let Destination::Node(to) = to else { panic!("{to:?}") };
        self.0.lock().push((to, barrier));
        let reply = Answer { reply: Reply::Client(ClientReply::Done), payload: None };
        ready(if to == NodeId(3) { Err(Errno::EHOSTDOWN.into()) } else { Ok(reply) }).boxed()
    }
}

struct Bed {
    world: Arc<World>,
    service: Arc<RegionService>,
    rpc: Arc<Notified>,
    region: InodeId,
}

impl Bed {
    /// The home of an empty file, in a cluster of four nodes.
    fn new(seed: u64) -> Self {
        let world = World::new(seed, &[true, false, false, false]);
        let rpc = Arc::new(Notified(Mutex::default()));
        let service = RegionService::new(RegionParts {
            runtime: world.machine.runtime(),
            cluster: world.cluster.clone(),
            rpc: Arc::downgrade(&(rpc.clone() as Arc<dyn Rpc>)),
            node: NodeId(0),
            meta: world.service(0),
        });
        let client = Client { world: world.clone(), node: NodeId(1) };
        let region = world.machine.run(client.create(InodeId::ROOT, "region", FileKind::File)).unwrap();
        Self { world, service, rpc, region }
    }

    fn serve(&self, node: u32, request: RegionRequest) -> Result<RegionReply> {
        self.world.machine.run(self.service.serve(NodeId(node), request))
    }

    fn attach(&self, node: u32, processes: u32) -> Result<RegionReply> {
        self.serve(
            node,
            RegionRequest::Attach { region: self.region, processes, one_writer: false, rank: None },
        )
    }

    fn detach(&self, node: u32, failed: bool) -> Result<RegionReply> {
        self.serve(node, RegionRequest::Detach { region: self.region, failed })
    }

    fn publish(&self, node: u32, pages: RangeSet) -> Result<RegionReply> {
        self.serve(node, RegionRequest::Publish { region: self.region, memory: 1, pages })
    }

    fn changes(&self, node: u32, after: u64) -> RegionReply {
        self.serve(node, RegionRequest::Changes { region: self.region, after }).expect("a member")
    }

    fn arrive(
        &self,
        node: u32,
        barrier: u64,
        processes: u32,
        changes: &[NodeChanges],
    ) -> BoxFuture<'static, Result<RegionReply>> {
        let (service, changes) = (self.service.clone(), changes.to_vec());
        let arrival = Arrival { region: self.region, barrier, processes, changes, version: 1 };
        async move { service.serve(NodeId(node), RegionRequest::Arrive(arrival)).await }.boxed()
    }

    /// Polls an arrival, and again once leases have been revoked.
    fn poll(&self, arrival: &mut BoxFuture<'static, Result<RegionReply>>) -> Option<Result<RegionReply>> {
        let early = arrival.now_or_never();
        self.world.machine.rest(Duration::from_millis(10));
        early.or_else(|| arrival.now_or_never())
    }

    fn notified(&self) -> Vec<NodeId> {
        self.notified_of().into_iter().map(|(node, _)| node).collect()
    }

    fn notified_of(&self) -> Vec<(NodeId, u64)> {
        self.world.machine.settle();
        let mut notified = std::mem::take(&mut *self.rpc.0.lock());
        notified.sort();
        notified
    }

    fn generation(&self) -> u64 {
        let client = Client { world: self.world.clone(), node: NodeId(1) };
        self.world.machine.run(client.stat(self.region)).expect("the file exists").generation.0
    }

    fn is_forgotten(&self) -> bool {
        self.service.count() == 0
    }
}

fn writer(node: u32) -> Writer {
    Writer { node: NodeId(node), memory: 1 }
}

fn entry(node: u32, pages: &[(u32, u32)]) -> NodeChanges {
    NodeChanges { writer: writer(node), pages: pages.iter().map(|&(start, end)| start..end).collect() }
}

/// `count` pages with gaps between them.
fn scattered(count: u32) -> RangeSet {
    (0..count).map(|page| 2 * page..2 * page + 1).collect()
}

fn errno(result: Result<RegionReply>) -> Errno {
    result.expect_err("an error").errno
}

fn released(reply: Result<RegionReply>) -> Release {
    match reply {
        Ok(RegionReply::Released(release)) => release,
        other => panic!("{other:?}"),
    }
}

fn pages_of(changes: Changes) -> Vec<NodeChanges> {
    match changes {
        Changes::Pages(pages) => pages,
        Changes::Any => panic!("the changes are known"),
    }
}

#[test]
fn processes_attach_and_detach() {
    let bed = Bed::new(1);
    let attached = |version, nodes: std::ops::Range<u32>, barrier| {
        let members = Members { version, nodes: nodes.into() };
        Ok(RegionReply::Attached { barrier, sequence: 0, members })
    };
    assert_eq!(errno(bed.attach(1, 0)), Errno::EINVAL);
    assert!(bed.is_forgotten());
    assert_eq!(bed.attach(1, 3), attached(1, 1..2, 0));
    assert_eq!(errno(bed.attach(2, 4)), Errno::EINVAL, "all have the same number of processes");
    assert_eq!(bed.attach(1, 3), attached(1, 1..2, 0), "a second process of the node");
    assert_eq!(bed.attach(2, 3), attached(2, 1..3, 0));
    assert_eq!(errno(bed.attach(3, 3)), Errno::EBUSY);
    assert_eq!(errno(bed.detach(3, false)), Errno::EINVAL, "no process of it is attached");
    assert_eq!(bed.detach(1, false), Ok(RegionReply::Done));
    assert_eq!(bed.notified(), [NodeId(2)]);
    assert_eq!(errno(bed.attach(3, 3)), Errno::EPIPE, "the region is broken");
    assert_eq!(bed.detach(2, false), Ok(RegionReply::Done));
    assert_eq!(errno(bed.attach(3, 3)), Errno::EPIPE, "a process is left");
    assert_eq!(bed.detach(1, false), Ok(RegionReply::Done));
    assert_eq!(bed.notified(), [], "only the first end is news");
    assert!(bed.is_forgotten());
    assert_eq!(errno(bed.detach(1, false)), Errno::EINVAL);
    assert_eq!(bed.attach(3, 1), attached(1, 3..4, 1), "as a new region, with other numbers");
    assert_eq!(errno(bed.arrive(3, 0, 1, &[]).now_or_never().unwrap()), Errno::ESTALE, "of the old one");
}

#[test]
fn requests_to_the_wrong_node_or_for_other_views_are_refused() {
    let bed = Bed::new(2);
    let attach =
        |region| bed.serve(1, RegionRequest::Attach { region, processes: 1, one_writer: false, rank: None });
    assert_eq!(errno(attach(InodeId::cached(1, 1))), Errno::EINVAL);
    let elsewhere = RegionService::new(RegionParts {
        runtime: bed.world.machine.runtime(),
        cluster: bed.world.cluster.clone(),
        rpc: Arc::downgrade(&(bed.rpc.clone() as Arc<dyn Rpc>)),
        node: NodeId(1),
        meta: bed.world.service(0),
    });
    let request = RegionRequest::Attach { region: bed.region, processes: 1, one_writer: false, rank: None };
    assert_eq!(errno(bed.world.machine.run(elsewhere.serve(NodeId(1), request))), Errno::EPROTO);
    bed.attach(1, 2).unwrap();
    for request in [
        RegionRequest::Publish { region: bed.region, memory: 1, pages: RangeSet::new() },
        RegionRequest::Changes { region: bed.region, after: 0 },
    ] {
        assert_eq!(errno(bed.serve(2, request)), Errno::EINVAL, "a node without an attached process");
    }
    assert_eq!(errno(bed.arrive(2, 0, 1, &[]).now_or_never().unwrap()), Errno::EINVAL);
    for processes in [0, 3] {
        assert_eq!(errno(bed.arrive(1, 0, processes, &[]).now_or_never().unwrap()), Errno::EINVAL);
    }
}

#[test]
fn published_changes_are_listed_and_raise_the_generation() {
    let bed = Bed::new(3);
    bed.attach(1, 2).unwrap();
    bed.attach(2, 2).unwrap();
    let before = bed.generation();
    assert_eq!(bed.publish(1, RangeSet::new()), Ok(RegionReply::Published(0)));
    assert_eq!(bed.generation(), before, "nothing has changed");
    assert_eq!(bed.publish(1, (3..5).into()), Ok(RegionReply::Published(1)));
    assert!(bed.generation() > before);
    assert_eq!(bed.publish(2, (5..6).into()), Ok(RegionReply::Published(2)));
    assert_eq!(bed.publish(1, (5..7).into()), Ok(RegionReply::Published(3)));
    let listed = |pages| RegionReply::Changes { sequence: 3, changes: Changes::Pages(pages), failed: false };
    assert_eq!(bed.changes(2, 0), listed(vec![entry(1, &[(3, 7)]), entry(2, &[(5, 6)])]));
    assert_eq!(bed.changes(2, 1), listed(vec![entry(1, &[(5, 7)]), entry(2, &[(5, 6)])]));
    assert_eq!(bed.changes(2, 3), listed(Vec::new()));
    let unknown = RegionReply::Changes { sequence: 3, changes: Changes::Any, failed: false };
    assert_eq!(bed.changes(2, 4), unknown, "of another region with this inode");
    // A removed file can still be shared.
    let client = Client { world: bed.world.clone(), node: NodeId(1) };
    bed.world.machine.run(client.unlink(InodeId::ROOT, "region")).unwrap();
    assert_eq!(bed.publish(2, (1..2).into()), Ok(RegionReply::Published(4)));
}

#[test]
fn the_log_drops_its_oldest_changes() {
    let bed = Bed::new(4);
    bed.attach(1, 1).unwrap();
    let publish = |pages| match bed.publish(1, pages) {
        Ok(RegionReply::Published(sequence)) => sequence,
        other => panic!("{other:?}"),
    };
    let is_known = |after| match bed.changes(1, after) {
        RegionReply::Changes { changes, .. } => changes != Changes::Any,
        other => panic!("{other:?}"),
    };
    for _ in 0..ENTRIES_MAX {
        publish((1..2).into());
    }
    assert!(is_known(0));
    assert_eq!(publish((1..2).into()), ENTRIES_MAX as u64 + 1);
    assert!(!is_known(0) && is_known(1));
    let last = publish(scattered(RANGES_MAX as u32));
    assert!(!is_known(last - 2) && is_known(last - 1));
    let RegionReply::Changes { changes, .. } = bed.changes(1, last - 1) else { panic!("changes") };
    let pages = &pages_of(changes)[0].pages;
    assert_eq!(pages.count(), PAGE_RANGES_MAX);
    assert!(scattered(RANGES_MAX as u32).iter().step_by(997).all(|page| pages.contains(&page)));
    assert!(publish(scattered(RANGES_MAX as u32 + 1)) > last);
    assert!(!is_known(last) && is_known(last + 1));
    // The release would need the dropped ones as well.
    assert_eq!(released(bed.world.machine.run(bed.arrive(1, 0, 1, &[]))).changes, Changes::Any);
    let next = released(bed.world.machine.run(bed.arrive(1, 1, 1, &[])));
    assert_eq!(next.changes, Changes::Pages(Vec::new()));
}

#[test]
fn a_barrier_ends_when_all_processes_have_arrived() {
    let bed = Bed::new(5);
    for node in [0, 1, 1, 2, 3] {
        bed.attach(node, 5).unwrap();
    }
    bed.publish(2, (50..51).into()).unwrap();
    let before = bed.generation();
    let mut first = bed.arrive(2, 0, 1, &[entry(2, &[(7, 9)])]);
    // Node 1 has collected the arrivals of its own processes and of node 3.
    let mut second = bed.arrive(1, 0, 3, &[entry(1, &[(1, 2)]), entry(3, &[(2, 3)])]);
    assert!(bed.poll(&mut first).is_none() && bed.poll(&mut second).is_none());
    assert_eq!(errno(bed.arrive(0, 1, 1, &[]).now_or_never().unwrap()), Errno::ESTALE);
    assert_eq!(errno(bed.arrive(0, 0, 2, &[]).now_or_never().unwrap()), Errno::EINVAL, "one is missing");
    assert_eq!(bed.generation(), before);
    let mut third = bed.arrive(0, 0, 1, &[]);
    let release = released(bed.poll(&mut third).expect("the last arrival"));
    let expected = vec![entry(1, &[(1, 2)]), entry(2, &[(7, 9), (50, 51)]), entry(3, &[(2, 3)])];
    let members = Members { version: 4, nodes: (0..4).into() };
    assert_eq!(release, Release { barrier: 1, sequence: 2, changes: Changes::Pages(expected), members });
    assert!(
        [first, second]
            .iter_mut()
            .all(|arrival| bed.poll(arrival) == Some(Ok(RegionReply::Released(release.clone()))))
    );
    let raised = bed.generation();
    assert!(raised > before, "later opens see the changes");
    let unknown = RegionReply::Changes { sequence: 2, changes: Changes::Any, failed: false };
    assert_eq!(bed.changes(1, 1), unknown, "all nodes have received the changes");
    let none = RegionReply::Changes { sequence: 2, changes: Changes::Pages(Vec::new()), failed: false };
    assert_eq!(bed.changes(1, 2), none);
    assert_eq!(errno(bed.arrive(0, 0, 1, &[]).now_or_never().unwrap()), Errno::ESTALE);
    let mut first = bed.arrive(0, 1, 4, &[]);
    assert!(bed.poll(&mut first).is_none());
    let release = released(bed.poll(&mut bed.arrive(2, 1, 1, &[])).expect("the last arrival"));
    assert_eq!((release.barrier, release.sequence), (2, 3));
    assert_eq!(release.changes, Changes::Pages(Vec::new()));
    assert!(bed.poll(&mut first).is_some());
    assert_eq!(bed.generation(), raised, "nothing has changed");
}

#[test]
fn changes_of_many_arrivals_are_coarsened() {
    let bed = Bed::new(6);
    for node in 0..4 {
        bed.attach(node, 40).unwrap();
    }
    let changes =
        |node: u32| NodeChanges { writer: writer(node % 4), pages: scattered(PAGE_RANGES_MAX as u32) };
    let mut waiting: Vec<_> = (0..39).map(|node| bed.arrive(node % 4, 0, 1, &[changes(node)])).collect();
    assert!(waiting.iter_mut().all(|arrival| bed.poll(arrival).is_none()));
    let release = released(bed.poll(&mut bed.arrive(0, 0, 1, &[])).expect("the last arrival"));
    let pages = pages_of(release.changes);
    assert_eq!(pages.len(), 4);
    assert_eq!(pages.iter().map(|changes| changes.pages.count()).sum::<usize>(), PAGE_RANGES_MAX);
    assert!(pages.iter().all(|found| {
        scattered(PAGE_RANGES_MAX as u32).iter().step_by(101).all(|page| found.pages.contains(&page))
    }));
}

#[test]
fn barriers_fail_once_a_process_has_ended() {
    type Work = fn(&Bed);
    let cases: [(Work, Errno, &str); 3] = [
        (|bed| drop(bed.detach(2, false).unwrap()), Errno::EPIPE, "a process on node 2 has detached"),
        (|bed| drop(bed.detach(2, true).unwrap()), Errno::EOWNERDEAD, "has ended without detaching"),
        (|bed| bed.service.peer_failed(NodeId(2)), Errno::EOWNERDEAD, "node 2 has failed"),
    ];
    for (end, expected, why) in cases {
        let bed = Bed::new(7);
        for node in [0, 1, 2, 3] {
            bed.attach(node, 4).unwrap();
        }
        let mut waiting = [bed.arrive(1, 0, 1, &[]), bed.arrive(2, 0, 1, &[])];
        assert!(waiting.iter_mut().all(|arrival| bed.poll(arrival).is_none()));
        end(&bed);
        waiting.iter_mut().for_each(|arrival| {
            let fault = bed.poll(arrival).expect("the barrier has failed").expect_err("no release");
            assert_eq!(fault.errno, expected);
            assert!(fault.to_string().contains(why), "{fault}");
        });
        assert_eq!(bed.notified(), [NodeId(0), NodeId(1), NodeId(3)]);
        assert_eq!(errno(bed.arrive(0, 0, 1, &[]).now_or_never().unwrap()), expected);
        assert_eq!(errno(bed.attach(2, 4)), Errno::EPIPE);
        assert_eq!(bed.publish(1, (1..2).into()), Ok(RegionReply::Published(1)), "flushes still work");
        bed.service.peer_failed(NodeId(3));
        bed.detach(0, false).unwrap();
        bed.detach(1, true).unwrap();
        assert_eq!(bed.notified(), []);
        assert!(bed.is_forgotten());
    }
}

#[test]
fn an_arrival_fails_when_the_only_process_ends() {
    let bed = Bed::new(8);
    bed.attach(1, 2).unwrap();
    let mut waiting = bed.arrive(1, 0, 1, &[]);
    assert!(bed.poll(&mut waiting).is_none());
    bed.service.peer_failed(NodeId(2));
    assert!(bed.poll(&mut waiting).is_none(), "a node without processes");
    bed.service.peer_failed(NodeId(1));
    assert_eq!(bed.poll(&mut waiting).map(errno), Some(Errno::EOWNERDEAD));
    assert!(bed.is_forgotten() && bed.notified().is_empty());
}

#[test]
fn nodes_are_notified_of_the_first_barrier_that_fails() {
    let bed = Bed::new(9);
    bed.attach(1, 2).unwrap();
    bed.attach(2, 2).unwrap();
    let mut first = bed.arrive(1, 0, 1, &[]);
    assert!(bed.poll(&mut first).is_none());
    released(bed.poll(&mut bed.arrive(2, 0, 1, &[])).expect("the last arrival"));
    released(bed.poll(&mut first).expect("released"));
    bed.detach(1, false).unwrap();
    assert_eq!(bed.notified_of(), [(NodeId(2), 1)]);
}

#[test]
fn a_failed_process_is_reported_although_another_had_detached() {
    let bed = Bed::new(10);
    for node in [1, 2, 3] {
        bed.attach(node, 3).unwrap();
    }
    let has_failed = || match bed.changes(3, 0) {
        RegionReply::Changes { failed, .. } => failed,
        other => panic!("{other:?}"),
    };
    bed.detach(1, false).unwrap();
    assert!(!has_failed());
    bed.detach(2, true).unwrap();
    assert!(has_failed());
}

/// Stores of a region are in units, which a file with inline content has not.
#[test]
fn the_file_of_a_region_has_no_inline_content() {
    let bed = Bed::new(11);
    let client = Client { world: bed.world.clone(), node: NodeId(1) };
    assert!(bed.world.machine.run(client.stat(bed.region)).expect("the file exists").inline);
    bed.attach(1, 1).unwrap();
    assert!(!bed.world.machine.run(client.stat(bed.region)).expect("the file exists").inline);
}

#[test]
fn processes_of_all_nodes_allocate_different_blocks() {
    let bed = Bed::new(12);
    let region = bed.region;
    let allocate =
        |node, bytes| bed.serve(node, RegionRequest::Allocate { region, pages: 2, bytes, alignment: 16 });
    let free = |node, offset| bed.serve(node, RegionRequest::Free { region, offset });
    bed.attach(1, 2).unwrap();
    bed.attach(2, 2).unwrap();
    assert_eq!(errno(free(1, 0)), Errno::EINVAL, "nothing is allocated");
    assert_eq!(allocate(1, 5000), Ok(RegionReply::Allocated(0)));
    assert_eq!(allocate(2, 3000), Ok(RegionReply::Allocated(5008)));
    assert_eq!(errno(allocate(1, 1000)), Errno::ENOMEM);
    assert_eq!(errno(allocate(3, 16)), Errno::EINVAL, "no process of it is attached");
    assert_eq!(free(2, 0), Ok(RegionReply::Done), "of another node");
    assert_eq!(allocate(1, 1000), Ok(RegionReply::Allocated(0)));
    bed.detach(1, false).unwrap();
    bed.detach(2, false).unwrap();
    bed.attach(1, 1).unwrap();
    assert_eq!(allocate(1, 8192), Ok(RegionReply::Allocated(0)), "the blocks are forgotten");
}

fn rank(bed: &Bed, node: u32, number: u32, bytes: u64) -> Result<RegionReply> {
    let rank = Some(Rank { number, bytes });
    bed.serve(node, RegionRequest::Attach { region: bed.region, processes: 3, one_writer: false, rank })
}

/// S50c.
#[test]
fn ranks_of_a_window_are_unique_and_have_memory_of_one_size() {
    let bed = Bed::new(21);
    assert_eq!(errno(rank(&bed, 1, 3, 100)), Errno::EINVAL, "beyond the number of processes");
    assert_eq!(bed.service.count(), 0);
    rank(&bed, 1, 2, 100).unwrap();
    assert_eq!(errno(rank(&bed, 2, 2, 100)), Errno::EEXIST);
    assert_eq!(errno(rank(&bed, 2, 1, 99)), Errno::EINVAL, "memory of another size");
    assert_eq!(errno(bed.attach(2, 3)), Errno::EINVAL, "not a region with pages");
    let ranks = || bed.serve(1, RegionRequest::Ranks { region: bed.region });
    rank(&bed, 2, 0, 100).unwrap();
    assert_eq!(errno(ranks()), Errno::EAGAIN);
    rank(&bed, 1, 1, 100).unwrap();
    assert_eq!(ranks(), Ok(RegionReply::Ranks(vec![NodeId(2), NodeId(1), NodeId(1)])));
    assert_eq!(errno(bed.serve(3, RegionRequest::Ranks { region: bed.region })), Errno::EINVAL);
    bed.detach(1, false).unwrap();
    assert_eq!(ranks(), Ok(RegionReply::Ranks(vec![NodeId(2), NodeId(1), NodeId(1)])), "still");
    let pages = Bed::new(22);
    pages.attach(1, 3).unwrap();
    assert_eq!(errno(rank(&pages, 1, 0, 100)), Errno::EINVAL, "not a window");
    assert_eq!(errno(pages.serve(1, RegionRequest::Ranks { region: pages.region })), Errno::EINVAL);
}
