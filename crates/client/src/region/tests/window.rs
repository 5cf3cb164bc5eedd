//! Remote memory windows of two nodes.

use super::{Bed, INODE, simulate};
use crate::region::{Attachment, RegionFile};
use futures_util::future::join;
use std::sync::Arc;
use tameike_core::wire::window::{Access, Atomic, Elements, Signal, WindowReply, WordChange};
use tameike_core::{Errno, Layout, Result};
use tameike_dsm::window::{Queue, Shape, WindowMemory};
use tameike_io::Payload;

const BYTES: u64 = 10_000;

/// A rank and its mapping.
struct Rank {
    attachment: Arc<Attachment>,
    memory: WindowMemory,
}

impl Rank {
    async fn attach(bed: &Bed, node: usize, number: u32, ranks: u32) -> Result<Self> {
        let file = RegionFile { inode: INODE, layout: Layout::Striped, pages: 0 };
        let shape = Shape::new(ranks, BYTES)?;
        let attachment = bed.nodes[node].attach_window(file, shape, number).await?;
        let memory = attachment.window().expect("a window").memory();
        let memory = WindowMemory::map(memory, shape).expect("sealed memory");
        Ok(Self { attachment, memory })
    }

    async fn access(&self, rank: u32, access: Access, bytes: &[u8]) -> Result<(WindowReply, Vec<u8>)> {
        let window = self.attachment.window().expect("a window");
        let payload = if bytes.is_empty() {
            None
        } else {
            let mut frame = window.take_frame().await;
            frame[..bytes.len()].copy_from_slice(bytes);
            Some(Payload::new(Arc::new(frame), 0..bytes.len() as u32))
        };
        let (reply, found) = window.access(rank, access, payload).await?;
        Ok((reply, found.map_or_else(Vec::new, |found| found.to_vec())))
    }

    fn bytes(&self, rank: u32, offset: u64, size: usize) -> Vec<u8> {
        let mut bytes = vec![0; size];
        self.memory.load(rank, offset, &mut bytes).expect("in the memory");
        bytes
    }
}

#[test]
fn accesses_change_the_memory_of_ranks_on_both_nodes() {
    simulate(31, |runtime| async move {
        let bed = Bed::new(&runtime, 2, 1);
        let one = Rank::attach(&bed, 0, 1, 2).await.expect("attached");
        let zero = Rank::attach(&bed, 1, 0, 2).await.expect("attached");
        let both = join(one.attachment.barrier(), zero.attachment.barrier()).await;
        assert_eq!(both, (Ok(()), Ok(())));
        assert_eq!(one.attachment.window().expect("a window").are_near().await, Ok(vec![false, true]));
        for (from, rank, owner) in [(&one, 0, &zero), (&one, 1, &one), (&zero, 1, &one)] {
            let to = Elements { offset: 16, size: 2, stride: 5, count: 2 };
            let signal = Some(Signal { offset: 8, change: WordChange::Add(3) });
            let put = from.access(rank, Access::Put { to, signal }, b"abcd").await;
            assert_eq!(put, Ok((WindowReply::Done, Vec::new())));
            assert_eq!(owner.bytes(rank, 16, 7), b"ab\0\0\0cd");
            let get = from.access(rank, Access::Get { from: to }, b"").await;
            assert_eq!(get, Ok((WindowReply::Read, b"abcd".to_vec())));
            let atomic = Access::Atomic { offset: 8, operation: Atomic::Swap(0) };
            let before = from.access(rank, atomic, b"").await.expect("a word").0;
            assert!(matches!(before, WindowReply::Previous(3)), "{before:?}");
            Queue::create(&owner.memory, (rank, 64), 1, 8).expect("a queue");
            let send = Access::Send { queue: 64 };
            assert_eq!(from.access(rank, send, b"message").await, Ok((WindowReply::Done, Vec::new())));
            assert_eq!(from.access(rank, send, b"message").await, Ok((WindowReply::Full, Vec::new())));
            let beyond = Access::Put { to: Elements::contiguous(BYTES - 1, 2), signal: None };
            assert_eq!(
                from.access(rank, beyond, b"ab").await.map_err(|fault| fault.errno),
                Err(Errno::EINVAL)
            );
            let other = Access::Put { to: Elements::contiguous(0, 3), signal: None };
            assert_eq!(
                from.access(rank, other, b"ab").await.map_err(|fault| fault.errno),
                Err(Errno::EINVAL)
            );
        }
        let beyond = one.access(2, Access::Send { queue: 0 }, b"").await;
        assert_eq!(beyond.map_err(|fault| fault.errno), Err(Errno::EINVAL));
    });
}

/// S51a. S51b.
#[test]
fn waits_fail_after_the_failure_of_a_rank_and_not_after_its_detach() {
    for failed in [false, true] {
        simulate(32, |runtime| async move {
            let bed = Bed::new(&runtime, 2, 1);
            let zero = Rank::attach(&bed, 0, 0, 3).await.expect("attached");
            let one = Rank::attach(&bed, 1, 1, 3).await.expect("attached");
            let two = Rank::attach(&bed, 1, 2, 3).await.expect("attached");
            let barriers = [&zero, &one, &two].map(|rank| rank.attachment.barrier());
            futures_util::future::try_join_all(barriers).await.expect("all arrive");
            two.attachment.detach(failed).await.expect("detached");
            let whole = if failed { Err(Errno::EOWNERDEAD) } else { Ok(()) };
            assert_eq!((zero.memory.check_whole(0), one.memory.check_whole(1)), (whole, whole));
            let fetch = Access::Atomic { offset: 0, operation: Atomic::Fetch };
            for other in [&zero, &one] {
                let fetched = other.access(2, fetch, b"").await;
                assert_eq!(fetched.map_err(|fault| fault.errno), Err(Errno::EPIPE));
            }
            zero.access(1, fetch, b"").await.expect("still there");
            one.attachment.detach(false).await.expect("detached");
            let fetched = zero.access(1, fetch, b"").await;
            assert_eq!(fetched.map_err(|fault| fault.errno), Err(Errno::EPIPE), "no rank is left there");
            assert_eq!(bed.nodes[1].count(), 0);
            zero.attachment.detach(false).await.expect("detached");
        });
    }
}

#[test]
fn windows_have_an_empty_file() {
    simulate(33, |runtime| async move {
        let bed = Bed::new(&runtime, 1, 1);
        let shape = Shape::new(1, BYTES).expect("a shape");
        let refused = bed.nodes[0].attach_window(bed.file, shape, 0).await;
        assert_eq!(refused.map(drop).map_err(|fault| fault.errno), Err(Errno::EEXIST));
    });
}
