//! Accesses to ranks on other nodes, by the agent.
//!
//! A put is a transfer in flight, in a slot of the ring: it does not wait for the other node. Each has the epoch of its begin. A fence
//! begins the next epoch; an access to a rank waits for the puts to it of earlier epochs. Errors of puts are kept for the next call that
//! completes them.

use crate::dsm::result_of;
use crate::file::Result;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::ops::Range;
use tameike_core::wire::window::{Atomic, Elements, Signal};
use tameike_ring::client::{Answer, Client, RemoteRank, TRANSFER_SIZE_MAX, Transfer};

/// A put that is not known to have ended.
struct InFlight {
    rank: u32,
    epoch: u64,
    transfer: Transfer<'static>,
}

#[derive(Default)]
struct State {
    epoch: u64,
    /// In the order of their begin.
    in_flight: VecDeque<InFlight>,
    /// The first error of a put since the last call that returned one.
    failed: Option<Errno>,
}

/// Accesses of a process to ranks on other nodes.
pub struct Remote {
    client: &'static Client,
    /// Number of the window.
    window: u64,
    /// Held while a put waits for a slot: puts of several threads begin one after the other.
    state: Mutex<State>,
}

/// Parts of `size` bytes that fit a transfer; one if there are no bytes.
fn parts(size: usize) -> impl Iterator<Item = Range<usize>> {
    let count = size.div_ceil(TRANSFER_SIZE_MAX).max(1);
    (0..count).map(move |part| part * TRANSFER_SIZE_MAX..size.min((part + 1) * TRANSFER_SIZE_MAX))
}

fn bytes_at(offset: u64, part: &Range<usize>) -> Elements {
    Elements::contiguous(offset + part.start as u64, part.len() as u32)
}

impl State {
    /// Ends a put.
    fn end(&mut self, put: InFlight) {
        if let Err(error) = result_of(put.transfer.end(&mut [])) {
            self.failed.get_or_insert(error);
        }
    }

    fn end_oldest(&mut self) -> bool {
        let oldest = self.in_flight.pop_front();
        oldest.map(|put| self.end(put)).is_some()
    }

    /// Ends the puts for which `is_awaited` returns true.
    fn end_those(&mut self, is_awaited: impl Fn(&InFlight) -> bool) {
        let (awaited, others) = std::mem::take(&mut self.in_flight).into_iter().partition(is_awaited);
        self.in_flight = others;
        let awaited: VecDeque<InFlight> = awaited;
        awaited.into_iter().for_each(|put| self.end(put));
    }

    /// Ends the puts to a rank before the last fence.
    fn end_earlier(&mut self, rank: u32) {
        let epoch = self.epoch;
        if self.in_flight.iter().any(|put| put.rank == rank && put.epoch < epoch) {
            self.end_those(|put| put.rank == rank && put.epoch < epoch);
        }
    }

    fn take_error(&mut self) -> Result<()> {
        self.failed.take().map_or(Ok(()), Err)
    }
}

impl Remote {
    pub fn new(client: &'static Client, window: u64) -> Self {
        Self { client, window, state: Mutex::default() }
    }

    fn at(&self, rank: u32) -> RemoteRank {
        RemoteRank { window: self.window, rank }
    }

    /// Begins a put of one message.
    fn begin(
        &self,
        state: &mut State,
        rank: u32,
        (to, signal): (Elements, Option<Signal>),
        from: &[u8],
    ) -> Result<()> {
        loop {
            match self.client.begin_put(self.at(rank), to, signal, from) {
                Answer::Done(Some(transfer)) => {
                    let epoch = state.epoch;
                    state.in_flight.push_back(InFlight { rank, epoch, transfer });
                    return Ok(());
                }
                Answer::Done(None) if state.end_oldest() => {}
                // Other transfers of the process take the slots that may be taken.
                Answer::Done(None) => {
                    return result_of(self.client.put_to_rank(self.at(rank), to, signal, from));
                }
                Answer::Failed(errno) => return Err(Errno::from_raw_os_error(errno)),
                Answer::Declined | Answer::Broken => return Err(Errno::IO),
            }
        }
    }

    /// Stores bytes; then, once they are there, changes a word.
    pub fn put(&self, rank: u32, offset: u64, from: &[u8], signal: Option<Signal>) -> Result<()> {
        let mut state = self.state.lock();
        state.end_earlier(rank);
        let mut left = parts(from.len()).peekable();
        while let Some(part) = left.next() {
            let of_last = signal.filter(|_| left.peek().is_none());
            if of_last.is_some() && part.start > 0 {
                state.end_those(|put| put.rank == rank);
                state.take_error()?;
            }
            self.begin(&mut state, rank, (bytes_at(offset, &part), of_last), &from[part])?;
        }
        Ok(())
    }

    /// Stores elements, without gaps in `from`, in one message.
    pub fn put_elements(&self, rank: u32, to: Elements, from: &[u8]) -> Result<()> {
        let mut state = self.state.lock();
        state.end_earlier(rank);
        self.begin(&mut state, rank, (to, None), from)
    }

    /// Loads bytes, several parts at the same time.
    pub fn get(&self, rank: u32, offset: u64, into: &mut [u8]) -> Result<()> {
        self.state.lock().end_earlier(rank);
        let mut in_flight = VecDeque::new();
        for part in parts(into.len()) {
            loop {
                let from = bytes_at(offset, &part);
                match self.client.begin_get(self.at(rank), from, part.len()) {
                    Answer::Done(Some(transfer)) => {
                        in_flight.push_back((part, transfer));
                        break;
                    }
                    Answer::Done(None) => match in_flight.pop_front() {
                        Some(oldest) => end_get(oldest, into)?,
                        None => {
                            self.get_elements(rank, from, &mut into[part])?;
                            break;
                        }
                    },
                    Answer::Failed(errno) => return Err(Errno::from_raw_os_error(errno)),
                    Answer::Declined | Answer::Broken => return Err(Errno::IO),
                }
            }
        }
        in_flight.into_iter().try_for_each(|get| end_get(get, into))
    }

    /// Loads elements, without gaps, in one message.
    pub fn get_elements(&self, rank: u32, from: Elements, into: &mut [u8]) -> Result<()> {
        self.state.lock().end_earlier(rank);
        let count = result_of(self.client.get_from_rank(self.at(rank), from, into))?;
        if count == into.len() { Ok(()) } else { Err(Errno::IO) }
    }

    /// Executes an atomic operation.
    pub fn atomic(&self, rank: u32, offset: u64, operation: Atomic) -> Result<u64> {
        self.state.lock().end_earlier(rank);
        result_of(self.client.atomic_at_rank(self.at(rank), offset, operation))
    }

    /// Appends a message to a queue; `EAGAIN` if it is full.
    pub fn send(&self, rank: u32, queue: u64, message: &[u8]) -> Result<()> {
        if message.len() > TRANSFER_SIZE_MAX {
            return Err(Errno::MSGSIZE);
        }
        self.state.lock().end_earlier(rank);
        result_of(self.client.send_to_rank(self.at(rank), queue, message))
    }

    /// Orders later accesses to a rank after all puts to it that have begun. Returns the error of a put that has ended.
    pub fn fence(&self) -> Result<()> {
        let mut state = self.state.lock();
        if !state.in_flight.is_empty() {
            state.epoch += 1;
        }
        state.take_error()
    }

    /// Waits until all puts have ended. Returns the error of one that has failed.
    pub fn quiet(&self) -> Result<()> {
        let mut state = self.state.lock();
        while state.end_oldest() {}
        state.take_error()
    }
}

fn end_get((part, transfer): (Range<usize>, Transfer<'static>), into: &mut [u8]) -> Result<()> {
    let size = part.len();
    let count = result_of(transfer.end(&mut into[part]))?;
    if count == size { Ok(()) } else { Err(Errno::IO) }
}
