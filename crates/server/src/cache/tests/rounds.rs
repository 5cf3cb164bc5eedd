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
        })
    };
    let refused = |round| {
        let fault = ask(UnitRequest::MarkClean { inode, round }).expect_err("no such round");
        assert_eq!(fault.errno, Errno::ESTALE, "{fault}");
        assert!(is_dirty(&bed, node, inode));
    };
    flush(Some(7)).expect("a flush");
    assert!(bed.real("file") == bytes(1, UNIT));
    refused(8);
    bed.crash();
    refused(7);
    flush(Some(9)).expect("a flush");
    flush(Some(10)).expect("another one");
    refused(9);
    ask(UnitRequest::Truncate { inode, size: UNIT as u64 }).expect("a cut");
    refused(10);
    flush(Some(11)).expect("a flush");
    let client = bed.client(0);
    bed.run(async move { client.write(b"file", 5, b"meanwhile").await.expect("write") });
    ask(UnitRequest::MarkClean { inode, round: 11 }).expect("the word");
    assert!(is_dirty(&bed, node, inode));
    flush(Some(12)).expect("a flush");
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

/// Only files of which several nodes have something need the second message.
#[test]
fn a_file_on_one_node_is_clean_after_one_message() {
    let bed = Bed::new(320, 3);
    create(&bed, "small", &bytes(1, UNIT));
    assert!(bed.drain(true).is_complete());
    assert_eq!(bed.rounds(), []);
    let inode = create(&bed, "large", &bytes(1, 2 * UNIT));
    assert!(bed.drain(true).is_complete());
    let mut told = bed.rounds();
    let mut homes = vec![home(&bed, inode, 0), home(&bed, inode, 1)];
    told.sort_unstable();
    homes.sort_unstable();
    assert_eq!(told, homes);
}
