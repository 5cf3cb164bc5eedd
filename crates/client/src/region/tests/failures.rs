//! Processes that attach late, end early, or fail, and calls that fail.

use super::{Bed, INODE, Process, simulate};
use crate::fixtures;
use futures_util::future::{join, join_all};
use std::pin::pin;
use std::time::Duration;
use tameike_core::region::Tracking;
use tameike_core::{Errno, NodeId};
use tameike_dsm::control::PageState;
use tameike_fabric::PeerEvent;

const SHORT: Duration = Duration::from_millis(50);

/// Starts a barrier that others do not join yet.
async fn begin_barrier<'a>(bed: &Bed, process: &'a Process) -> impl Future<Output = Option<Errno>> + 'a {
    let mut waiting = Box::pin(process.attachment.barrier());
    assert!(bed.runtime.timeout(SHORT, &mut waiting).await.is_none(), "others have not arrived");
    async move { waiting.await.err().map(|fault| fault.errno) }
}

#[test]
fn a_process_may_attach_while_another_of_its_node_is_in_the_barrier() {
    simulate(10, |runtime| async move {
        let bed = Bed::new(&runtime, 2, 4);
        let (early, other) =
            (bed.attach(0, 3, Tracking::Twins).await, bed.attach(1, 3, Tracking::Twins).await);
        early.store(5, 1).await;
        let waiting = begin_barrier(&bed, &early).await;
        let late = bed.attach(0, 3, Tracking::Twins).await;
        late.store(6, 2).await;
        let (first, rest) = join(waiting, join(late.attachment.barrier(), other.attachment.barrier())).await;
        assert_eq!((first, rest), (None, (Ok(()), Ok(()))));
        assert_eq!((other.load(5).await, other.load(6).await), (1, 2));
        let again = [&early, &late, &other].map(|process| process.attachment.barrier());
        assert!(join_all(again).await.iter().all(Result::is_ok), "all three arrive once");
    });
}

/// The flush found nothing to send, since the barrier had sent it, and returned although other nodes could not find it.
#[test]
fn a_flush_announces_what_a_barrier_has_sent() {
    simulate(11, |runtime| async move {
        let bed = Bed::new(&runtime, 2, 4);
        let (early, other) =
            (bed.attach(0, 3, Tracking::Twins).await, bed.attach(1, 3, Tracking::Twins).await);
        assert_eq!(other.load(5).await, 0);
        early.store(5, 1).await;
        let _waiting = begin_barrier(&bed, &early).await;
        let late = bed.attach(0, 3, Tracking::Twins).await;
        late.attachment.flush().await.expect("flushed");
        other.attachment.update().await.expect("updated");
        assert_eq!(other.load(5).await, 1);
    });
}

#[test]
fn nodes_may_go_on_before_others_have_the_release() {
    for seed in 0..40 {
        simulate(seed, |runtime| async move {
            // A tree of two levels.
            let bed = Bed::new(&runtime, 20, 4);
            let attached = join_all((0..20).map(|node| bed.attach(node, 20, Tracking::Twins))).await;
            let barriers = attached.iter().map(|process| async {
                for _ in 0..4 {
                    process.attachment.barrier().await.expect("a barrier");
                }
            });
            join_all(barriers).await;
        });
    }
}

#[test]
fn a_detached_process_ends_barriers_on_its_own_node() {
    simulate(12, |runtime| async move {
        let bed = Bed::new(&runtime, 1, 4);
        for (failed, expected) in [(false, Errno::EPIPE), (true, Errno::EOWNERDEAD)] {
            bed.double.begin_region(3);
            let (one, two) =
                (bed.attach(0, 2, Tracking::Twins).await, bed.attach(0, 2, Tracking::OwnTwins).await);
            let waiting = begin_barrier(&bed, &one).await;
            two.attachment.detach(failed).await.expect("detached");
            assert_eq!(waiting.await, Some(expected));
            one.attachment.detach(false).await.expect("detached");
            assert_eq!(bed.nodes[0].count(), 0);
        }
    });
}

#[test]
fn barriers_that_are_complete_do_not_fail() {
    simulate(13, |runtime| async move {
        let bed = Bed::new(&runtime, 1, 4);
        bed.double.begin_region(5);
        let process = bed.attach(0, 1, Tracking::Twins).await;
        let node = &bed.nodes[0];
        // A late message about earlier processes of the region.
        node.broken(INODE, 4, false);
        process.attachment.barrier().await.expect("barrier 5");
        // The release of barrier 6 is in flight.
        node.broken(INODE, 7, false);
        process.attachment.barrier().await.expect("barrier 6");
        let failed = process.attachment.barrier().await;
        assert_eq!(failed.map_err(|fault| fault.errno), Err(Errno::EPIPE));
    });
}

#[test]
fn a_process_that_is_attaching_learns_of_an_ended_one() {
    simulate(14, |runtime| async move {
        let bed = Bed::new(&runtime, 1, 4);
        let ended = async { bed.nodes[0].broken(INODE, 0, false) };
        let (process, ()) = join(bed.attach(0, 2, Tracking::Twins), ended).await;
        let failed = process.attachment.barrier().await;
        assert_eq!(failed.map_err(|fault| fault.errno), Err(Errno::EPIPE));
    });
}

/// The barrier waited for a node below this one in the tree, which was the coordinator itself.
#[test]
fn barriers_fail_with_the_node_of_the_coordinator() {
    simulate(19, |runtime| async move {
        let bed = Bed::new(&runtime, 2, 4);
        let cluster = fixtures::cluster(2);
        let coordinator = cluster.primary(cluster.inode_home(INODE));
        let other = NodeId(1 - coordinator.0);
        let number = other.0 as usize;
        let process = bed.attach(number, 3, Tracking::Twins).await;
        // The arrival waits for it here. One in flight to the coordinator fails with its call.
        let _second = bed.attach(number, 3, Tracking::Twins).await;
        let waiting = begin_barrier(&bed, &process).await;
        let node = &bed.nodes[number];
        node.peer(other, PeerEvent::Failed);
        node.peer(coordinator, PeerEvent::Up);
        let mut waiting = pin!(waiting);
        assert!(bed.runtime.timeout(SHORT, &mut waiting).await.is_none(), "the coordinator is up");
        node.peer(coordinator, PeerEvent::Failed);
        assert_eq!(waiting.await, Some(Errno::EHOSTDOWN));
    });
}

#[test]
fn changes_of_a_failed_barrier_are_announced_by_the_next_flush() {
    simulate(15, |runtime| async move {
        let bed = Bed::new(&runtime, 3, 4);
        let [one, two, three] = [0, 1, 2].map(|node| bed.attach(node, 3, Tracking::Twins));
        let (one, two, three) = (one.await, two.await, three.await);
        assert_eq!(three.load(5).await, 0);
        one.store(5, 1).await;
        let waiting = begin_barrier(&bed, &one).await;
        two.attachment.detach(true).await.expect("detached");
        assert!(waiting.await.is_some());
        one.attachment.flush().await.expect("flushed");
        three.attachment.update().await.expect("updated");
        assert_eq!(three.load(5).await, 1);
    });
}

#[test]
fn an_update_waits_for_a_process_that_makes_a_twin() {
    simulate(16, |runtime| async move {
        let bed = Bed::new(&runtime, 2, 4);
        let (writer, reader) =
            (bed.attach(0, 2, Tracking::Twins).await, bed.attach(1, 2, Tracking::Twins).await);
        assert_eq!(reader.load(5).await, 0);
        let control = &reader.attachment.memory().control;
        let valid = control.load(0);
        control.note_written(0);
        assert!(control.replace(0, valid, valid.with(PageState::Claimed, reader.attachment.owner())));
        writer.store(5, 1).await;
        writer.attachment.flush().await.expect("flushed");
        let mut update = pin!(reader.attachment.update());
        assert!(bed.runtime.timeout(SHORT, &mut update).await.is_none(), "and other tasks go on");
        control.store(0, valid);
        update.await.expect("updated");
        assert_eq!(reader.load(5).await, 1);
    });
}

/// A regression: the detach waited for the update.
#[test]
fn an_update_ends_when_the_process_that_makes_a_twin_has_ended() {
    simulate(18, |runtime| async move {
        let bed = Bed::new(&runtime, 2, 4);
        let writer = bed.attach(0, 3, Tracking::Twins).await;
        let (reader, killed) =
            (bed.attach(1, 3, Tracking::Twins).await, bed.attach(1, 3, Tracking::Twins).await);
        assert_eq!(reader.load(5).await, 0);
        let control = &killed.attachment.memory().control;
        let valid = control.load(0);
        control.note_written(0);
        assert!(control.replace(0, valid, valid.with(PageState::Claimed, killed.attachment.owner())));
        writer.store(5, 1).await;
        writer.attachment.flush().await.expect("flushed");
        let mut update = pin!(reader.attachment.update());
        assert!(bed.runtime.timeout(SHORT, &mut update).await.is_none());
        let both = join(update, killed.attachment.detach(true));
        let (updated, detached) = bed.runtime.timeout(10 * SHORT, both).await.expect("both end");
        updated.expect("updated");
        detached.expect("detached");
        assert_eq!(reader.load(5).await, 1);
    });
}

#[test]
fn a_sum_is_updated_after_a_failed_update() {
    simulate(17, |runtime| async move {
        let bed = Bed::new(&runtime, 1, 4);
        let process = bed.attach(0, 1, Tracking::Twins).await;
        process.store(100, 9).await;
        process.attachment.fetch_add(8, 3).await.expect("a sum");
        bed.double.fail_reads(true);
        assert!(process.attachment.update().await.is_err());
        bed.double.fail_reads(false);
        process.attachment.update().await.expect("updated");
        assert_eq!((process.load(8).await, process.load(100).await), (3, 9));
    });
}

#[test]
fn each_lock_is_released_once() {
    simulate(18, |runtime| async move {
        let bed = Bed::new(&runtime, 1, 4);
        let process = bed.attach(0, 1, Tracking::Twins).await;
        for _ in 0..3 {
            assert_eq!(process.attachment.lock(7).await, Ok(false));
            process.attachment.unlock(7).await.expect("unlocked");
        }
        assert_eq!(process.attachment.lock(8).await, Ok(false));
        let waiting = process.attachment.lock(9);
        let leaving = process.attachment.detach(true);
        let (locked, left) = join(waiting, leaving).await;
        assert_eq!(left, Ok(()));
        assert_eq!(locked.map_err(|fault| fault.errno), Err(Errno::EBADF), "the process has ended");
        assert_eq!(bed.double.locks(), (5, 5));
    });
}
