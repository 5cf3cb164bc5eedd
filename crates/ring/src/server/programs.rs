//! Connecting and disconnecting programs.

use super::connection::Connection;
use super::{CLIENTS_MAX, Handler, Inner};
use crate::greeting::{HELLO_SIZE, Welcome, is_hello};
use crate::layout::ARENA_SIZE;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::process::{PidfdFlags, pidfd_open};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use tameike_core::{Fault, Result};
use tameike_io::os::arena::Arena;
use tameike_io::os::privilege::is_peer_privileged;
use tameike_io::os::socket::{Peer, peer, receive_now, send_with_files};

/// `epoll` data of the eventfd that wakes threads; other values are numbers of programs.
pub(super) const WAKEUP: u64 = 0;
/// Bit of the `epoll` data of a program: its process has ended.
const PROCESS: u64 = 1 << 63;

/// A program with a connection.
pub(super) enum Program<H: Handler> {
    /// Before its hello.
    New(Arc<UnixStream>, Peer),
    /// After the welcome.
    Served(Arc<Connection<H>>),
}

impl<H: Handler> Inner<H> {
    /// Accepts a program if it runs as this user (user 0 needs the superuser's capabilities), and there is a free connection.
    pub(super) fn admit(&self, socket: UnixStream) -> Result<()> {
        let failed = |error| Fault::from_os("accepting a program", &error);
        socket.set_nonblocking(true).map_err(failed)?;
        let peer = peer(&socket)?;
        // Published names and frames are the same for all programs, and user 0 passes all permission checks here: a process of user 0 for which
        // the kernel checks permissions must use the kernel.
        if peer.user != self.user || (peer.user == 0 && !is_peer_privileged(&socket)) {
            return refuse(&socket, &Welcome::Refused);
        }
        let mut all = self.programs.lock();
        if all.programs.len() >= CLIENTS_MAX {
            return refuse(&socket, &Welcome::Full);
        }
        all.last += 1;
        let number = all.last;
        self.watch_for(&socket, number).map_err(failed)?;
        all.programs.insert(number, Program::New(Arc::new(socket), peer));
        Ok(())
    }

    fn watch_for(&self, descriptor: impl AsFd, number: u64) -> std::io::Result<()> {
        // Edge-triggered: an event for each byte and for the end, for one thread.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        Ok(epoll::add(&self.epoll, descriptor, epoll::EventData::new_u64(number), flags)?)
    }

    /// Handles an event of a program.
    pub(super) fn handle_event(&self, event: u64) {
        if event == WAKEUP {
            return;
        }
        let number = event & !PROCESS;
        let mut all = self.programs.lock();
        let Some(program) = all.programs.get_mut(&number) else { return };
        let stays = match program {
            _ if event & PROCESS != 0 => false,
            Program::New(socket, peer) => match self.greet(socket, *peer, number) {
                Ok(Some(connection)) => {
                    *program = Program::Served(connection.clone());
                    self.connections.write().push(connection);
                    true
                }
                Ok(None) => true,
                Err(fault) => {
                    log::info!("cannot accept a program: {fault}");
                    false
                }
            },
            Program::Served(connection) => connection.receive(),
        };
        let gone = if stays { None } else { self.remove(&mut all.programs, number) };
        drop(all);
        self.end(gone);
    }

    /// Receives a program's hello, and sends the welcome; `None` if the hello has not arrived.
    fn greet(&self, socket: &Arc<UnixStream>, peer: Peer, number: u64) -> Result<Option<Arc<Connection<H>>>> {
        let failed = |error| Fault::from_os("exchanging greetings with a program", &error);
        let mut hello = [0; HELLO_SIZE + 1];
        let (size, files) = match receive_now(socket, &mut hello) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            received => received.map_err(failed)?,
        };
        let (true, [memory]) = (is_hello(&hello[..size]), &files[..]) else {
            refuse(socket, &Welcome::Refused)?;
            return Err(failed(ErrorKind::InvalidData.into()));
        };
        let arena = Arena::map(memory, ARENA_SIZE).map_err(failed)?;
        let process = peer.process.and_then(|process| pidfd_open(process, PidfdFlags::empty()).ok());
        if let Some(process) = &process {
            self.watch_for(process, number | PROCESS).map_err(failed)?;
        }
        self.names.update_clock();
        let frames = self.granted.as_ref().map_or(0, |table| table.frames());
        let welcome = Welcome::Views { mounts: self.views.clone(), frames }.encode();
        let mut shared = vec![self.names.notice().memory().as_fd()];
        shared.extend(self.granted.iter().flat_map(|table| table.memory()));
        send_with_files(socket, &welcome, &shared)?;
        let session = self.handler.begin(&peer);
        let served = (self.handler.clone(), session, self.counts.clone());
        Ok(Some(Arc::new(Connection::new(served, (socket.clone(), process), (arena, self.wakeup.clone())))))
    }

    /// Runs under the lock, so that a later `settle` finds the program gone or its end reported.
    fn remove(&self, programs: &mut BTreeMap<u64, Program<H>>, number: u64) -> Option<Program<H>> {
        let gone = programs.remove(&number);
        if let Some(Program::Served(connection)) = &gone {
            connection.leaves();
        }
        gone
    }

    fn end(&self, gone: Option<Program<H>>) {
        if let Some(Program::Served(connection)) = gone {
            self.connections.write().retain(|other| !Arc::ptr_eq(other, &connection));
            connection.close();
        }
    }

    pub(super) fn settle(&self) {
        let ended = |program: &Program<H>| match program {
            Program::New(..) => false,
            Program::Served(connection) => {
                !connection.receive() || connection.process.as_ref().is_some_and(has_ended)
            }
        };
        self.end_where(ended);
    }

    pub(super) fn end_all(&self) {
        self.end_where(|_| true);
    }

    fn end_where(&self, ends: impl Fn(&Program<H>) -> bool) {
        let gone: Vec<_> = {
            let programs = &mut self.programs.lock().programs;
            let numbers: Vec<u64> =
                programs.iter().filter(|(_, program)| ends(program)).map(|(number, _)| *number).collect();
            numbers.into_iter().filter_map(|number| self.remove(programs, number)).collect()
        };
        gone.into_iter().for_each(|program| self.end(Some(program)));
    }

    /// Wakes a sleeping thread.
    pub(super) fn wake(&self) {
        // Fails only if the counter is full, and then a thread is being woken anyway.
        let _ = rustix::io::write(&self.wakeup, &1_u64.to_ne_bytes());
    }
}

fn refuse(socket: &UnixStream, welcome: &Welcome) -> Result<()> {
    send_with_files(socket, &welcome.encode(), &[])
}

fn has_ended(process: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
}
