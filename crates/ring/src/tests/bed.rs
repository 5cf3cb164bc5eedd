//! A test agent with files in a map, and child processes that run tests of this binary.

use super::extent_location::LocatedUnit;
use crate::client::{Answer, Client, OpenFile, Start, Status};
use crate::frames::FrameTable;
use crate::message::{Accepts, FileKey, Reply, Request};
use crate::server::{Call, Handler, NameTable, Peer, Server};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tameike_core::limits::UNIT_SIZE;
use tameike_io::os::process::user;
use tameike_io::os::system::System;
use tameike_io::{Frame, Slab};

/// Time limit of everything that must happen.
pub const PATIENCE: Duration = Duration::from_secs(30);
pub const ROOT: Start = Start { view: 0, dir: 1 };
/// A directory whose creation blocks its thread.
pub const BLOCKING_DIR: &[u8] = b"blocks";
/// A file of which the agent serves the first unit only.
pub const HALF_DECLINED: &[u8] = b"half declined";
const SOCKET_VARIABLE: &str = "TAMEIKE_TEST_SOCKET";

#[derive(Default)]
pub struct State {
    files: BTreeMap<Vec<u8>, Vec<u8>>,
    handles: BTreeMap<u64, Vec<u8>>,
    last: u64,
    /// Held requests: `fsync` blocks until `answer_held`.
    held: Vec<Call<Files>>,
    /// Handles that programs have closed without a reply.
    pub closed: Vec<u64>,
    /// Requests served by pinned servers.
    pub near: usize,
    /// Threads blocked by `mkdir`.
    pub blocked: usize,
    pub begun: usize,
    pub left: usize,
    pub ended: usize,
}

/// A unit that is granted at the open; its bytes are 7.
pub struct GrantedFile {
    pub table: Arc<FrameTable>,
    pub key: FileKey,
    pub frame: Frame,
}

impl GrantedFile {
    fn new() -> Self {
        let slab = Slab::new(3).expect("a small slab");
        let table = Arc::new(FrameTable::new(&slab).expect("a table"));
        let mut frame = slab.pool(1).try_take().expect("the first");
        frame.fill(7);
        Self { key: table.open().expect("the first"), table, frame }
    }

    pub fn grant(&self) {
        self.table.grant(self.frame.number(), self.key, 0, &(0..UNIT_SIZE as u32));
    }
}

/// Files in memory, by whole path.
pub struct Files {
    pub state: Mutex<State>,
    /// The frame of the file `granted`.
    pub granted: GrantedFile,
    /// The location of the file `located` on a device.
    pub located: LocatedUnit,
    changed: Condvar,
}

impl State {
    fn is_file(&self, handle: u64, name: &[u8]) -> bool {
        self.handles.get(&handle).is_some_and(|found| found == name)
    }

    fn bytes(&mut self, handle: u64) -> Option<&mut Vec<u8>> {
        self.files.get_mut(self.handles.get(&handle)?)
    }
}

impl Files {
    fn reply(&self, state: &mut State, call: &Call<Self>) -> Result<Reply, i32> {
        const ENOENT: i32 = 2;
        const EBADF: i32 = 9;
        let Some(request) = call.request() else { return Ok(Reply::Declined) };
        let status = |bytes: &Vec<u8>| Status { size: bytes.len() as u64, ..Status::default() };
        Ok(match request {
            Request::Open { path, .. } => {
                let bytes = state.files.entry(call.name(&path).to_vec()).or_default();
                state.last += 1;
                state.handles.insert(state.last, call.name(&path).to_vec());
                let key = (call.name(&path) == b"granted").then_some(self.granted.key);
                key.iter().for_each(|_| self.granted.grant());
                Reply::Opened { handle: state.last, key, status: status(bytes) }
            }
            Request::Write { handle, offset, size } => {
                let bytes = state.bytes(handle).ok_or(EBADF)?;
                let (start, end) = (offset as usize, offset as usize + size as usize);
                bytes.resize(bytes.len().max(end), 0);
                call.window().copy_to(0, &mut bytes[start..end]);
                Reply::Count(size)
            }
            Request::Append { handle, size } => {
                let bytes = state.bytes(handle).ok_or(EBADF)?;
                let start = bytes.len();
                bytes.resize(start + size as usize, 0);
                call.window().copy_to(0, &mut bytes[start..]);
                Reply::Appended { count: size, end: bytes.len() as u64 }
            }
            Request::Status { handle } => Reply::Status(status(state.bytes(handle).ok_or(EBADF)?)),
            Request::StatusAt { path, .. } => {
                Reply::Status(status(state.files.get(call.name(&path)).ok_or(ENOENT)?))
            }
            Request::Close { handle } => state.handles.remove(&handle).map(|_| Reply::Done).ok_or(EBADF)?,
            Request::Rename { from, to, .. } => {
                let bytes = state.files.remove(call.name(&from)).ok_or(ENOENT)?;
                assert_eq!(call.second_name(&from).len(), to.size as usize);
                state.files.insert(call.second_name(&from).to_vec(), bytes);
                Reply::Done
            }
            Request::Unlink { path } => {
                state.files.remove(call.name(&path)).map(|_| Reply::Done).ok_or(ENOENT)?
            }
            _ => Reply::Declined,
        })
    }

    /// Waits until `is_so`.
    pub fn wait_for_state(&self, is_so: impl Fn(&State) -> bool) {
        let mut state = self.state.lock();
        while !is_so(&state) {
            let waited = self.changed.wait_for(&mut state, PATIENCE);
            assert!(!waited.timed_out(), "it did not happen");
        }
    }

    /// Waits until `count` requests are held.
    pub fn wait_for_held(&self, count: usize) {
        self.wait_for_state(|state| state.held.len() == count);
    }

    /// Unblocks the blocked threads.
    pub fn unblock(&self) {
        self.state.lock().blocked = 0;
        self.changed.notify_all();
    }

    /// Answers the held requests.
    pub fn answer_held(&self) {
        let held = std::mem::take(&mut self.state.lock().held);
        held.into_iter().for_each(|call| call.answer(&Reply::Done));
    }
}

impl Handler for Files {
    type Session = ();

    fn begin(&self, peer: &Peer) {
        assert_eq!(peer.user, user());
        self.state.lock().begun += 1;
        self.changed.notify_all();
    }

    fn serve(&self, call: Call<Self>) {
        let mut state = self.state.lock();
        state.near += usize::from(std::thread::current().name() == Some("tameike-near"));
        match call.request() {
            Some(Request::MakeDir { path, .. }) if call.name(&path) == BLOCKING_DIR => {
                state.blocked += 1;
                self.changed.notify_all();
                drop(state);
                self.wait_for_state(|state| state.blocked == 0);
                call.answer(&Reply::Done);
            }
            Some(
                Request::RegionOpen { .. }
                | Request::RegionMapped { .. }
                | Request::RegionFetch { .. }
                | Request::RegionFlush { .. },
            ) => {
                drop(state);
                super::regions::serve(call);
            }
            Some(Request::Sync { .. } | Request::RegionBarrier { .. }) => {
                state.held.push(call);
                self.changed.notify_all();
            }
            Some(Request::Read { handle, offset, .. } | Request::Write { handle, offset, .. })
                if offset >= UNIT_SIZE as u64 && state.is_file(handle, HALF_DECLINED) =>
            {
                drop(state);
                call.answer(&Reply::Declined);
            }
            Some(Request::Read { handle, offset, size, accepts })
                if accepts.located && state.is_file(handle, b"located") =>
            {
                drop(state);
                let range = offset as u32..offset as u32 + size;
                let device = self.located.device.lock().clone();
                if let Err(call) = call.answer_located(&device, &self.located.place, &range) {
                    call.answer_with(&vec![1; size as usize]);
                }
            }
            Some(Request::Read { handle, accepts: Accepts { granted: true, .. }, .. }) => {
                // Revoked, or never granted.
                let size = state.bytes(handle).map_or(0, |bytes| bytes.len());
                drop(state);
                call.answer(&Reply::Granted(size as u32));
            }
            Some(Request::Read { handle, offset, size, .. }) => {
                let bytes = state.bytes(handle).cloned().unwrap_or_default();
                drop(state);
                let rest = &bytes[bytes.len().min(offset as usize)..];
                call.answer_with(&rest[..rest.len().min(size as usize)]);
            }
            Some(Request::HandOver { .. }) => {
                drop(state);
                panic!("on purpose");
            }
            _ => {
                let reply = self.reply(&mut state, &call).unwrap_or_else(Reply::Failed);
                drop(state);
                call.answer(&reply);
            }
        }
    }

    fn left(&self, (): &(), handle: u64) {
        let mut state = self.state.lock();
        if state.handles.remove(&handle).is_some() {
            state.closed.push(handle);
            self.changed.notify_all();
        }
    }

    fn leaves(&self, (): &()) {
        self.state.lock().left += 1;
    }

    fn ended(&self, (): &()) {
        self.state.lock().ended += 1;
        self.changed.notify_all();
    }
}

/// A listening agent.
pub struct Bed {
    pub server: Arc<Server<Files>>,
    pub files: Arc<Files>,
    pub names: Arc<NameTable>,
    pub socket: PathBuf,
    _dir: tempfile::TempDir,
    _system: System,
}

impl Bed {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        Self::at(dir.path().join("ring"), dir)
    }

    fn at(socket: PathBuf, dir: tempfile::TempDir) -> Self {
        let system = System::start(1).expect("a system");
        let (state, changed) = Default::default();
        let files =
            Arc::new(Files { state, granted: GrantedFile::new(), located: LocatedUnit::new(), changed });
        let names = NameTable::new().expect("memory");
        let tables = (names.clone(), Some(files.granted.table.clone()));
        let server = Server::new(files.clone(), vec![b"/view".to_vec()], user(), tables).expect("a server");
        server.listen(&system, UnixListener::bind(&socket).expect("a socket")).expect("it listens");
        Self { server, files, names, socket, _dir: dir, _system: system }
    }

    pub fn client(&self) -> Client {
        Client::connect(&self.socket, |_| {}).expect("the agent listens")
    }
}

pub fn open(client: &Client, path: &[u8]) -> OpenFile {
    match client.open(ROOT, path, 0, 0o644) {
        Answer::Done(open) => open,
        other => panic!("{other:?}"),
    }
}

/// Runs the test `name` of this binary in a child process, which gets the socket by [`socket`].
pub fn start(name: &str, socket: &std::path::Path) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", name, "--ignored", "--nocapture"]).env(SOCKET_VARIABLE, socket);
    command.stdout(Stdio::piped()).spawn().expect("it was started once")
}

/// The socket of the agent, in a child process.
pub fn socket() -> PathBuf {
    std::env::var_os(SOCKET_VARIABLE).expect("started by a test").into()
}

/// An agent in a child process, until the parent ends it.
pub fn be_an_agent() -> Bed {
    Bed::at(socket(), tempfile::tempdir().expect("a directory"))
}
