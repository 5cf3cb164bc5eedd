//! Several nodes flush one file concurrently: a node's result counts only with the results of the others.

use super::bed::{Bed, bytes, checksum};
use super::ends::bed_with_remote_coordinator;
use super::faulty::Plan;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::receipt::FileOutcome;
use tameike_core::wire::Reply;
use tameike_core::wire::unit::{UnitReply, UnitRequest};
use tameike_core::{Errno, Generation, InodeId, Layout, NodeId, Result, UnitId};

const UNIT: usize = UNIT_SIZE;

fn create(bed: &Bed, content: &[u8]) -> InodeId {
    bed.create("file", content);
    bed.client(0).identity(b"file").0
}

fn home(bed: &Bed, inode: InodeId, index: u64) -> NodeId {
    bed.cluster.primary(bed.cluster.unit_home(Layout::Striped, UnitId { inode, index }))
}

fn is_dirty(bed: &Bed, node: NodeId, inode: InodeId) -> bool {
    let coordinator = bed.cluster.primary(bed.cluster.inode_home(inode));
    let request = UnitRequest::DirtyInodes { coordinator, after: InodeId(0), limit: 100 };
    let answer = bed.run(bed.client(0).unit(node, request, None));
    match answer.expect("the node runs").reply {
        Reply::Unit(UnitReply::DirtyInodes(inodes)) => inodes.contains(&inode),
        other => panic!("{node} answered {other:?}"),
    }
}

type FlushOutcome = Arc<Mutex<Option<Result<()>>>>;

/// Begins a flush, and stops when the coordinator sends the first confirmation of its round.
fn flush_until_confirmed(bed: &Bed, node: NodeId) -> FlushOutcome {
    let (client, outcome) = (bed.client(node.0), FlushOutcome::default());
    let result = outcome.clone();
    bed.machine.runtime().spawn(async move { *result.lock() = Some(client.write_back(b"file").await) });
    while bed.confirmed_nodes().is_empty() {
        assert!(bed.machine.step(), "no node received a confirmation");
    }
    outcome
}

/// Regression: the fsync of one node failed, and reported the error. Another node opened the file after that, its own fsync succeeded, and
/// it marked its unit clean although the disk had none of it. Without `--verify`, the receipt listed the file as synced.
#[test]
fn a_successful_fsync_after_the_failed_one_of_another_node_does_not_count() {
    for late in 0..2 {
        for crash in [false, true] {
            let bed = Bed::new(300 + late, 2);
            let content = bytes(late, 2 * UNIT);
            let inode = create(&bed, &content);
            assert_ne!(home(&bed, inode, 0), home(&bed, inode, 1));
            bed.delay_flushes(home(&bed, inode, late), Duration::from_secs(1));
            bed.control.set(Plan::Fsync(Errno::EIO));
            let first = bed.drain(false);
            assert_eq!(bed.control.failed(), 1);
            assert!(matches!(first.files[0].outcome, FileOutcome::Missing(_)), "{first:?}");
            assert_eq!(bed.confirmed_nodes(), [], "no node may mark units clean");
            if crash {
                bed.crash();
            }
            let second = bed.drain(false);
            assert_eq!(second.files[0].outcome, FileOutcome::Synced, "{second:?}");
            assert!(bed.shared_content("file") == content, "unit {late} was flushed late, crash {crash}");
        }
    }
}

/// An ENOSPC write is not a failed fsync: nodes whose writes succeeded need not write again.
#[test]
fn the_flush_of_a_node_counts_if_another_gets_enospc() {
    for full in 0..2 {
        let bed = Bed::new(310 + full, 2);
        let content = bytes(full, 2 * UNIT);
        let inode = create(&bed, &content);
        bed.control.set(Plan::Write(full * UNIT as u64, Errno::ENOSPC));
        let first = bed.drain(true);
        assert_eq!(bed.control.failed(), 1);
        assert!(!first.is_complete(), "{first:?}");
        assert_eq!(bed.confirmed_nodes(), [home(&bed, inode, 1 - full)]);
        assert!(is_dirty(&bed, home(&bed, inode, full), inode));
        assert!(!is_dirty(&bed, home(&bed, inode, 1 - full), inode));
        bed.drain_completely(true);
        assert_eq!(bed.confirmed_nodes(), [home(&bed, inode, full)]);
        assert!(bed.shared_content("file") == content);
    }
}

/// Flushed data stays dirty, through crashes too, until the coordinator confirms the round. The node refuses the confirmation of another
/// round, and data written meanwhile stays dirty.
#[test]
fn a_flush_counts_once_the_coordinator_confirms_the_round() {
    let bed = Bed::new(330, 2);
    let inode = create(&bed, &bytes(1, UNIT));
    let node = home(&bed, inode, 0);
    let send = |request| bed.run(bed.client(1).unit(node, request, None)).map(drop);
    let flush = |round| {
        send(UnitRequest::Flush {
            inode,
            path: b"file".to_vec(),
            size: UNIT as u64,
            generation: Generation(1),
            patient: false,
            distrust: false,
            round,
            ending: None,
        })
    };
    let refused = |round| {
        let fault = send(UnitRequest::MarkClean { inode, round }).expect_err("no such round");
        assert_eq!(fault.errno, Errno::ESTALE, "{fault}");
        assert!(is_dirty(&bed, node, inode));
    };
    flush(7).expect("a flush");
    assert!(bed.shared_content("file") == bytes(1, UNIT));
    refused(8);
    bed.crash();
    refused(7);
    flush(9).expect("a flush");
    flush(10).expect("another one");
    refused(9);
    send(UnitRequest::Truncate { inode, size: UNIT as u64 }).expect("a truncate");
    refused(10);
    flush(11).expect("a flush");
    bed.write("file", 5, b"meanwhile");
    send(UnitRequest::MarkClean { inode, round: 11 }).expect("the confirmation");
    assert!(is_dirty(&bed, node, inode));
    flush(12).expect("a flush");
    send(UnitRequest::MarkClean { inode, round: 12 }).expect("the confirmation");
    assert!(!is_dirty(&bed, node, inode));
    bed.crash();
    assert!(!is_dirty(&bed, node, inode));
    assert_eq!(&bed.shared_content("file")[5..14], b"meanwhile");
}

/// A node crashes between its reply and the coordinator's confirmation: the file stays dirty, and is flushed again.
#[test]
fn a_restarted_node_refuses_the_confirmation() {
    let bed = Bed::new(340, 3);
    let content = bytes(1, 3 * UNIT);
    let inode = create(&bed, &content);
    let coordinator = bed.cluster.primary(bed.cluster.inode_home(inode));
    let victim = (0..3).map(|index| home(&bed, inode, index)).find(|node| *node != coordinator);
    let victim = victim.expect("three nodes");
    let outcome = flush_until_confirmed(&bed, coordinator);
    bed.stop(victim);
    bed.start(victim);
    bed.machine.rest(Duration::from_secs(1));
    let fault = outcome.lock().take().expect("the flush has ended").expect_err("one node has no such round");
    // The confirmation arrives before or after the restart.
    assert!(matches!(fault.errno, Errno::ESTALE | Errno::EHOSTDOWN), "{fault}");
    assert!(is_dirty(&bed, victim, inode));
    bed.drain_completely(true);
    assert!(!is_dirty(&bed, victim, inode));
    assert!(bed.shared_content("file") == content);
}

/// The journal fails between the confirmation of a flush round and the end of the flush.
#[test]
fn a_file_stays_queued_if_the_journal_refuses_the_end_of_its_flush() {
    let bed = bed_with_remote_coordinator(380);
    let content = bytes(1, UNIT);
    bed.write("file", 0, &content);
    let (inode, _) = bed.client(0).identity(b"file");
    let coordinator = bed.cluster.primary(bed.cluster.inode_home(inode));
    let outcome = flush_until_confirmed(&bed, coordinator);
    bed.break_ledger(coordinator);
    bed.machine.rest(Duration::from_secs(1));
    let fault = outcome.lock().take().expect("the flush has ended").expect_err("the journal is broken");
    assert!(fault.to_string().contains("accepts no more changes"), "{fault}");
    assert!(bed.shared_content("file") == content);
    assert!(!is_dirty(&bed, home(&bed, inode, 0), inode), "only the end of the flush failed");
    assert_eq!(bed.run(bed.client(0).unflushed_files(inode)), 1, "the file is in the queue");
    bed.crash();
    let receipt = bed.drain_completely(true);
    assert_eq!(receipt.files[0].outcome, FileOutcome::Verified, "{receipt:?}");
    assert_eq!(bed.run(bed.client(0).unflushed_files(inode)), 0);
    assert!(bed.shared_content("file") == content);
}

/// Regression: a second flush of a file got no reply, and was executed later. The unit was clean, and the journal had the digest of the
/// first flush. The receipt's checksum was wrong, and `--verify` reported a difference.
#[test]
fn a_lost_reply_leaves_no_stale_digest() {
    for late_ms in [1, 1000] {
        let bed = Bed::new(350 + late_ms, 2);
        let inode = create(&bed, &bytes(1, UNIT));
        bed.drain_completely(true);
        let content = bytes(2, UNIT);
        bed.write("file", 0, &content);
        bed.delay_flush_replies(home(&bed, inode, 0), Some(Duration::from_millis(late_ms)));
        assert!(!bed.drain(false).is_complete());
        bed.delay_flush_replies(home(&bed, inode, 0), None);
        bed.machine.rest(Duration::from_secs(2));
        let receipt = bed.drain(true);
        assert_eq!(receipt.files[0].outcome, FileOutcome::Verified, "{receipt:?}");
        assert_eq!(receipt.files[0].checksum, checksum(&content));
        assert!(bed.shared_content("file") == content);
    }
}

/// The same with a crash of the agents at each step of the second flush.
#[test]
fn agents_that_crash_during_a_flush_leave_no_stale_digest() {
    for steps in 0.. {
        let bed = Bed::new(360 + steps, 2);
        create(&bed, &bytes(1, 2 * UNIT));
        bed.drain_completely(true);
        let content = bytes(2, 2 * UNIT);
        bed.write("file", 0, &content);
        bed.begin_drain();
        let ended = bed.machine.steps(steps);
        bed.crash();
        let receipt = bed.drain(true);
        assert_eq!(receipt.files[0].outcome, FileOutcome::Verified, "after {steps} steps: {receipt:?}");
        assert_eq!(receipt.files[0].checksum, checksum(&content), "after {steps} steps");
        if ended {
            return;
        }
    }
}

/// Regression: a writer failed after it had written to a flushed file, and before its commit. When the flush of the drain failed, the
/// receipt listed the file as synced.
#[test]
fn uncommitted_bytes_count_as_missing() {
    let bed = Bed::new(370, 2);
    let inode = create(&bed, &bytes(1, UNIT));
    let client = bed.client(0);
    let opened = bed.run(client.open(b"file", true)).expect("open");
    bed.drain_completely(true);
    bed.run(client.write_uncommitted(opened, 5, b"uncommitted")).expect("put");
    bed.control.set(Plan::Fsync(Errno::EIO));
    let first = bed.drain(false);
    assert!(matches!(first.files[0].outcome, FileOutcome::Missing(_)), "{first:?}");
    let second = bed.drain(true);
    assert_eq!(second.files[0].outcome, FileOutcome::Verified, "{second:?}");
    assert_eq!(&bed.shared_content("file")[5..16], b"uncommitted");
    assert!(!is_dirty(&bed, home(&bed, inode, 0), inode));
    // A file that another flush has made clean keeps its mtime.
    let before = bed.shared.stat(b"file").expect("stat");
    bed.run(client.write_back(b"file")).expect("nothing to do");
    assert_eq!(bed.shared.stat(b"file").expect("stat").mtime, before.mtime);
}

/// A new home map arrives between the two phases of a round: the flush begins again, and ends.
#[test]
fn a_flush_ends_although_the_home_map_changes() {
    for late in 0..2 {
        let bed = Bed::new(310 + late, 2);
        let content = bytes(late, 2 * UNIT);
        let inode = create(&bed, &content);
        let homes = [home(&bed, inode, 0), home(&bed, inode, 1)];
        bed.delay_flushes(homes[late as usize], Duration::from_secs(1));
        bed.renew_map_at([homes[late as usize]]);
        assert_eq!(bed.run(bed.client(0).write_back(b"file")), Ok(()));
        assert_eq!(bed.cluster.epoch().0, 3);
        assert_eq!(bed.shared_content("file"), content);
        assert!(homes.iter().all(|&node| !is_dirty(&bed, node, inode)));
    }
}

/// Regression: if one node refused a flush because of a new home map, the failed fsync of another one was overlooked. So was that of a node
/// which gets the new map while it flushes: it does not report the error. The next flush then trusted the page cache, and lost bytes.
#[test]
fn a_failed_fsync_counts_although_the_home_map_changes() {
    for (late, renewed) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let bed = Bed::new(320 + 2 * late + renewed, 2);
        let content = bytes(late, 2 * UNIT);
        let inode = create(&bed, &content);
        let homes = [home(&bed, inode, 0), home(&bed, inode, 1)];
        bed.delay_flushes(homes[late as usize], Duration::from_secs(1));
        bed.renew_map_at([homes[renewed as usize]]);
        bed.control.set(Plan::Fsync(Errno::EIO));
        if let Err(fault) = bed.run(bed.client(0).write_back(b"file")) {
            assert_eq!(fault.errno, Errno::EIO);
            assert!(homes.iter().all(|&node| is_dirty(&bed, node, inode)));
            assert_eq!(bed.run(bed.client(0).write_back(b"file")), Ok(()));
        }
        assert_eq!(bed.control.failed(), 1, "an fsync fails");
        assert!(homes.iter().all(|&node| !is_dirty(&bed, node, inode)));
        assert!(bed.shared_content("file") == content, "late {late}, renewed {renewed}");
    }
}
