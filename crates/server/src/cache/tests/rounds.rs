//! Several nodes flush one file at the same time: what one of them says counts only with what the others say.

use super::bed::{Bed, bytes};
use super::faulty::Plan;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::receipt::FileOutcome;
use tameike_core::wire::Reply;
use tameike_core::wire::unit::{UnitReply, UnitRequest};
use tameike_core::{Errno, Generation, InodeId, Layout, NodeId, UnitId};

const UNIT: usize = UNIT_SIZE;

fn create(bed: &Bed, path: &'static str, content: &[u8]) -> InodeId {
    let (client, content) = (bed.client(0), content.to_vec());
    bed.run(async move {
        client.create(path.as_bytes(), &content).await.expect("create");
        client.shared.stat(path.as_bytes()).expect("stat").inode_id()
    })
}

fn home(bed: &Bed, inode: InodeId, index: u64) -> NodeId {
    bed.cluster.unit_home(Layout::Striped, UnitId { inode, index })
}

fn is_dirty(bed: &Bed, node: NodeId, inode: InodeId) -> bool {
    let (client, coordinator) = (bed.client(0), bed.cluster.inode_home(inode));
    let request = UnitRequest::DirtyInodes { coordinator, after: InodeId(0), limit: 100 };
    let answer = bed.run(async move { client.unit(node, request, None).await });
    match answer.expect("the node runs").reply {
        Reply::Unit(UnitReply::DirtyInodes(inodes)) => inodes.contains(&inode),
        other => panic!("{node} answered {other:?}"),
    }
}

/// The fsync of one node failed, and was answered. Another node opened the file after that, so that its own fsync
/// succeeded, and called its unit clean, of which the disk had nothing: once, without `--verify`, the receipt called
/// the file synced.
#[test]
fn a_node_that_was_not_told_of_a_failed_fsync_is_not_believed() {
    for late in 0..2 {
        for crash in [false, true] {
            let bed = Bed::new(300 + late, 2);
            let content = bytes(late, 2 * UNIT);
            let inode = create(&bed, "file", &content);
            assert_ne!(home(&bed, inode, 0), home(&bed, inode, 1));
            bed.flush_slowly(home(&bed, inode, late), Duration::from_secs(1));
            bed.control.set(Plan::Fsync(Errno::EIO));
            let first = bed.drain(false);
            assert_eq!(bed.control.failed(), 1);
            assert!(matches!(first.files[0].outcome, FileOutcome::Missing(_)), "{first:?}");
            assert_eq!(bed.rounds(), [], "nobody may call anything clean");
            if crash {
                bed.crash();
            }
            let second = bed.drain(false);
            assert_eq!(second.files[0].outcome, FileOutcome::Synced, "{second:?}");
            assert!(bed.real("file") == content, "unit {late} was flushed late, crash {crash}");
        }
    }
}

/// A write that finds no room is no failed fsync: the node that had room need not write again.
#[test]
fn who_had_room_is_believed_when_another_had_none() {
    for full in 0..2 {
        let bed = Bed::new(310 + full, 2);
        let content = bytes(full, 2 * UNIT);
        let inode = create(&bed, "file", &content);
        bed.control.set(Plan::Write(full * UNIT as u64, Errno::ENOSPC));
        let first = bed.drain(true);
        assert_eq!(bed.control.failed(), 1);
        assert!(!first.is_complete(), "{first:?}");
        assert_eq!(bed.rounds(), [home(&bed, inode, 1 - full)]);
        assert!(is_dirty(&bed, home(&bed, inode, full), inode));
        assert!(!is_dirty(&bed, home(&bed, inode, 1 - full), inode));
        let second = bed.drain(true);
        assert_eq!(bed.rounds(), [home(&bed, inode, full)]);
        assert!(second.is_complete(), "{second:?}");
        assert!(bed.real("file") == content);
    }
}

/// What was flushed is dirty until the word comes that the round was good, and through every death until then. The
/// word for another round is refused, and what was written meanwhile stays dirty.
#[test]
fn a_flush_of_several_counts_with_the_word_of_the_coordinator() {
    let bed = Bed::new(330, 2);
    let inode = create(&bed, "file", &bytes(1, UNIT));
    let node = home(&bed, inode, 0);
    let ask = |request| {
        let client = bed.client(1);
        bed.run(async move { client.unit(node, request, None).await.map(|_| ()) })
    };
    let flush = |round| {
        ask(UnitRequest::Flush {
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
        let fault = ask(UnitRequest::MarkClean { inode, round }).expect_err("no such round");
        assert_eq!(fault.errno, Errno::ESTALE, "{fault}");
        assert!(is_dirty(&bed, node, inode));
    };
    flush(7).expect("a flush");
    assert!(bed.real("file") == bytes(1, UNIT));
    refused(8);
    bed.crash();
    refused(7);
    flush(9).expect("a flush");
    flush(10).expect("another one");
    refused(9);
    ask(UnitRequest::Truncate { inode, size: UNIT as u64 }).expect("a cut");
    refused(10);
    flush(11).expect("a flush");
    let client = bed.client(0);
    bed.run(async move { client.write(b"file", 5, b"meanwhile").await.expect("write") });
    ask(UnitRequest::MarkClean { inode, round: 11 }).expect("the word");
    assert!(is_dirty(&bed, node, inode));
    flush(12).expect("a flush");
    ask(UnitRequest::MarkClean { inode, round: 12 }).expect("the word");
    assert!(!is_dirty(&bed, node, inode));
    bed.crash();
    assert!(!is_dirty(&bed, node, inode));
    assert_eq!(&bed.real("file")[5..14], b"meanwhile");
}

/// A node dies between its answer and the word of the coordinator: the file is not clean, and is flushed again.
#[test]
fn a_node_that_was_started_again_does_not_take_the_word() {
    let bed = Bed::new(340, 3);
    let content = bytes(1, 3 * UNIT);
    let inode = create(&bed, "file", &content);
    let coordinator = bed.cluster.inode_home(inode);
    let victim = (0..3).map(|index| home(&bed, inode, index)).find(|node| *node != coordinator);
    let victim = victim.expect("three nodes");
    let (client, outcome) = (bed.client(coordinator.0), Arc::new(Mutex::new(None)));
    let place = outcome.clone();
    bed.machine.runtime().spawn(async move { *place.lock() = Some(client.write_back(b"file").await) });
    let mut told = Vec::new();
    while told.is_empty() {
        let ended = bed.machine.steps(1);
        assert!(!ended, "nobody was told that the round was good");
        told = bed.rounds();
    }
    bed.stop(victim);
    bed.start(victim);
    bed.machine.rest(Duration::from_secs(1));
    let fault = outcome.lock().take().expect("it has ended").expect_err("one node knows of no flush");
    // The word came when it was up again, or while it was not.
    assert!(matches!(fault.errno, Errno::ESTALE | Errno::EHOSTDOWN), "{fault}");
    assert!(is_dirty(&bed, victim, inode));
    let receipt = bed.drain(true);
    assert!(receipt.is_complete(), "{receipt:?}");
    assert!(!is_dirty(&bed, victim, inode));
    assert!(bed.real("file") == content);
}

/// A flush of a file that was flushed before went unanswered, and was carried out later: the unit was clean, and its
/// digest in the journal that of the flush before. Such a receipt had a wrong checksum, and `--verify` called the file
/// different from what was written.
#[test]
fn an_answer_that_is_lost_leaves_no_old_digest() {
    for late_ms in [1, 1000] {
        let bed = Bed::new(350 + late_ms, 2);
        let inode = create(&bed, "file", &bytes(1, UNIT));
        assert!(bed.drain(true).is_complete());
        let content = bytes(2, UNIT);
        let (client, new) = (bed.client(0), content.clone());
        bed.run(async move { client.write(b"file", 0, &new).await.expect("write") });
        bed.answer_late(home(&bed, inode, 0), Some(Duration::from_millis(late_ms)));
        assert!(!bed.drain(false).is_complete());
        bed.answer_late(home(&bed, inode, 0), None);
        bed.machine.rest(Duration::from_secs(2));
        let receipt = bed.drain(true);
        assert_eq!(receipt.files[0].outcome, FileOutcome::Verified, "{receipt:?}");
        assert_eq!(receipt.files[0].checksum, blake3::hash(&content).to_hex().to_string());
        assert!(bed.real("file") == content);
    }
}

/// The same when the agents die at any moment of the second flush.
#[test]
fn agents_that_die_in_a_flush_leave_no_old_digest() {
    for steps in 0.. {
        let bed = Bed::new(360 + steps, 2);
        create(&bed, "file", &bytes(1, 2 * UNIT));
        assert!(bed.drain(true).is_complete());
        let content = bytes(2, 2 * UNIT);
        let (client, new) = (bed.client(0), content.clone());
        bed.run(async move { client.write(b"file", 0, &new).await.expect("write") });
        bed.begin_drain();
        let ended = bed.machine.steps(steps);
        bed.crash();
        let receipt = bed.drain(true);
        assert_eq!(receipt.files[0].outcome, FileOutcome::Verified, "after {steps} steps: {receipt:?}");
        let checksum = blake3::hash(&content).to_hex().to_string();
        assert_eq!(receipt.files[0].checksum, checksum, "after {steps} steps");
        if ended {
            return;
        }
    }
}

/// Bytes were written after the file had been flushed, and their writer died before it committed them. When the flush
/// of the drain failed, the receipt called the file synced.
#[test]
fn bytes_that_were_never_committed_count_as_missing() {
    let bed = Bed::new(370, 2);
    let inode = create(&bed, "file", &bytes(1, UNIT));
    let client = bed.client(0);
    let opened = bed.run(async move { client.open(b"file", true).await.expect("open") });
    assert!(bed.drain(true).is_complete());
    let client = bed.client(0);
    bed.run(async move { client.put(opened, 5, b"uncommitted").await.expect("put") });
    bed.control.set(Plan::Fsync(Errno::EIO));
    let first = bed.drain(false);
    assert!(matches!(first.files[0].outcome, FileOutcome::Missing(_)), "{first:?}");
    let second = bed.drain(true);
    assert_eq!(second.files[0].outcome, FileOutcome::Verified, "{second:?}");
    assert_eq!(&bed.real("file")[5..16], b"uncommitted");
    assert!(!is_dirty(&bed, home(&bed, inode, 0), inode));
    // A file that another flush has made clean meanwhile keeps its time.
    let before = bed.shared.stat(b"file").expect("stat");
    let client = bed.client(0);
    bed.run(async move { client.write_back(b"file").await.expect("nothing to do") });
    assert_eq!(bed.shared.stat(b"file").expect("stat").mtime, before.mtime);
}
