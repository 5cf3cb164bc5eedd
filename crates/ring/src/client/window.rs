//! Remote memory windows: attaching, and accesses to ranks on other nodes.

use super::call::NoReply;
use super::received::NoFiles;
use super::region::LEFT_BY_LONG_CALLS;
use super::slots::Claim;
use super::{Answer, Client, Transfer, counted};
use crate::message::{Reply, Request};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use tameike_core::wire::window::{Access, Atomic, Elements, Rank, Signal};

/// A remote memory window to which the process is attached. Its barrier and its end are those of a region.
#[derive(Debug)]
pub struct Window {
    /// Number for later calls of this process.
    pub number: u64,
    /// The memory of all ranks of the node.
    pub memory: OwnedFd,
}

/// The memory of a rank of a window on another node.
#[derive(Clone, Copy, Debug)]
pub struct RemoteRank {
    /// Number of the window.
    pub window: u64,
    /// The rank.
    pub rank: u32,
}

impl RemoteRank {
    fn request(self, access: Access, size: u32) -> Request {
        Request::WindowAccess { region: self.window, rank: self.rank, access, size }
    }
}

impl Client {
    /// Attaches to the window of an empty file that is open for reading and writing, as one of `ranks` ranks. Only one thread at a time may
    /// call it or [`Self::open_region`], and no signal handler.
    pub fn open_window(&self, handle: u64, rank: Rank, ranks: u32) -> Answer<Window> {
        self.received.region.expect();
        let Rank { number, bytes } = rank;
        let reply = self.by_long_call(&Request::WindowOpen { handle, rank: number, ranks, bytes });
        let number = match self.take(reply, offset) {
            Answer::Done(number) => number,
            Answer::Failed(errno) => return Answer::Failed(errno),
            Answer::Declined => return Answer::Declined,
            Answer::Broken => return Answer::Broken,
        };
        match self.take_window_file() {
            Ok(memory) => Answer::Done(Window { number, memory }),
            Err(NoFiles::Lacking) => {
                // The open fails in any case.
                let _: Answer<()> = self.close_region(number);
                Answer::Failed(Errno::MFILE.raw_os_error())
            }
            Err(NoFiles::Unsent) => self.give_up().into(),
        }
    }

    /// Sets a byte for each rank of a window to 1 if it is a process of this node, and to 0 otherwise. Returns the number of ranks.
    pub fn near_ranks(&self, window: u64, into: &mut [u8]) -> Answer<usize> {
        self.by_long_transfer(&[], into, &Request::WindowRanks { region: window })
    }

    /// Begins to store bytes at elements of another rank, and then to change a word; `None` if too many transfers are in flight. Copies the
    /// bytes before it returns.
    pub fn begin_put(
        &self,
        at: RemoteRank,
        to: Elements,
        signal: Option<Signal>,
        from: &[u8],
    ) -> Answer<Option<Transfer<'_>>> {
        let put = |claim: &Claim<'_>| self.put(claim, std::iter::once(from));
        self.begin(from.len(), |size| at.request(Access::Put { to, signal }, size), put)
    }

    /// As [`Self::begin_put`], waits for a slot and for the end.
    pub fn put_to_rank(
        &self,
        at: RemoteRank,
        to: Elements,
        signal: Option<Signal>,
        from: &[u8],
    ) -> Answer<()> {
        let request = at.request(Access::Put { to, signal }, from.len() as u32);
        self.by_long_transfer(from, &mut [], &request).map(drop)
    }

    /// Begins to load bytes of elements of another rank, as many as `size`; `None` if too many transfers are in flight.
    pub fn begin_get(&self, at: RemoteRank, from: Elements, size: usize) -> Answer<Option<Transfer<'_>>> {
        self.begin(size, |_| at.request(Access::Get { from }, 0), |_| {})
    }

    /// As [`Self::begin_get`], waits for a slot and for the end.
    pub fn get_from_rank(&self, at: RemoteRank, from: Elements, into: &mut [u8]) -> Answer<usize> {
        self.by_long_transfer(&[], into, &at.request(Access::Get { from }, 0))
    }

    /// Executes an atomic operation on a word of another rank, and returns its value before.
    pub fn atomic_at_rank(&self, at: RemoteRank, offset: u64, operation: Atomic) -> Answer<u64> {
        let reply = self.by_long_call(&at.request(Access::Atomic { offset, operation }, 0));
        self.take(reply, self::offset)
    }

    /// Appends a message to a queue of another rank. Fails with `EAGAIN` if the queue is full.
    pub fn send_to_rank(&self, at: RemoteRank, queue: u64, message: &[u8]) -> Answer<()> {
        let request = at.request(Access::Send { queue }, message.len() as u32);
        self.by_long_transfer(message, &mut [], &request).map(drop)
    }

    /// Returns true in a child of the process that has connected.
    pub fn is_child(&self) -> bool {
        !self.own.is_own()
    }

    /// Returns true if the agent answers no more calls. Other than [`Self::is_broken`], asks the kernel.
    pub fn has_ended(&self) -> bool {
        self.is_broken() || self.is_alone()
    }

    /// As [`Self::by_long_call`], with bytes for the agent and of the agent. Returns the count of the reply.
    fn by_long_transfer(&self, from: &[u8], into: &mut [u8], request: &Request) -> Answer<usize> {
        let (size, most) = (from.len().max(into.len()), from.len().max(into.len()) as u32);
        let asked = (|| {
            let long = self.claim_of(&self.long_calls, LEFT_BY_LONG_CALLS, false)?;
            let claim = self.claim_of(&self.slots, self.fault_slots(), false)?;
            self.populate(&claim, size)?;
            self.put(&claim, std::iter::once(from));
            Ok::<_, NoReply>((self.ask(&claim, request)?, claim, long))
        })();
        let (reply, claim, _long) = match asked {
            Ok(asked) => asked,
            Err(none) => return none.into(),
        };
        let count = self.take(Ok(reply), counted(most));
        if let Answer::Done(count) = count
            && !into.is_empty()
        {
            self.get(&claim, std::iter::once(&mut into[..count]));
        }
        count
    }
}

fn offset(reply: Reply) -> Option<u64> {
    match reply {
        Reply::Offset(offset) => Some(offset),
        _ => None,
    }
}
