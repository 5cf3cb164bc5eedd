//! An agent whose only view is a plain directory, and commands that use it.
//!
//! The kernel serves the same directory for requests that the ring declines: a handover name is a symbolic link to the agent's
//! descriptor of the file.

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, ResolveFlags, SeekFrom};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tameike_io::os::system::System;
use tameike_ring::client::Start;
use tameike_ring::message::{Reply, Request};
use tameike_ring::server::{Call, Handler, NameTable, Peer, Server};

/// Files of one program.
#[derive(Default)]
pub struct Session {
    files: Mutex<BTreeMap<u64, Arc<File>>>,
}

impl Session {
    fn file(&self, handle: u64) -> Result<Arc<File>, Errno> {
        self.files.lock().expect("no panic").get(&handle).cloned().ok_or(Errno::BADF)
    }
}

struct File {
    descriptor: OwnedFd,
    appends: bool,
    handed_over: Mutex<Option<String>>,
}

/// Serves the files below a directory.
pub struct Directory {
    root: PathBuf,
    last: AtomicU64,
    /// Number of requests; every `declines_each`th is declined.
    requests: AtomicU64,
    declines_each: u64,
}

type Outcome = Result<Reply, Errno>;

impl Directory {
    fn open_root(&self) -> Result<OwnedFd, Errno> {
        rustix::fs::open(&self.root, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
    }

    /// Opens the start directory of a path; directories below the root are identified by inode number.
    fn start(&self, at: Start) -> Result<OwnedFd, Errno> {
        let root = self.open_root()?;
        if at.dir == 1 { Ok(root) } else { find(root, at.dir).ok_or(Errno::XDEV) }
    }

    /// Opens the directory of a path, and returns the last name.
    fn parent<'a>(&self, at: Start, path: &'a [u8]) -> Result<(OwnedFd, &'a [u8]), Errno> {
        let split = path.iter().rposition(|byte| *byte == b'/');
        let (above, name) = split.map_or((&b"."[..], path), |at| (&path[..at], &path[at + 1..]));
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
        let flags = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
        Ok((rustix::fs::openat2(self.start(at)?, above, flags, Mode::empty(), resolve)?, name))
    }

    fn reply(&self, call: &Call<Self>) -> Outcome {
        let Some(request) = call.request() else { return Ok(Reply::Declined) };
        match request {
            Request::Open { path, flags, mode } => {
                self.open(call.session(), path.at, call.name(&path), flags, mode)
            }
            Request::StatusAt { path, follow } => {
                let (parent, name) = self.parent(path.at, call.name(&path))?;
                let found = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
                let declined = follow && FileType::from_raw_mode(found.st_mode) == FileType::Symlink;
                Ok(if declined { Reply::Declined } else { Reply::Status((&found).into()) })
            }
            Request::Unlink { path } => {
                let (parent, name) = self.parent(path.at, call.name(&path))?;
                rustix::fs::unlinkat(parent, name, AtFlags::empty()).map(|()| Reply::Done)
            }
            Request::MakeDir { path, mode } => {
                let (parent, name) = self.parent(path.at, call.name(&path))?;
                rustix::fs::mkdirat(parent, name, Mode::from_bits_retain(mode)).map(|()| Reply::Done)
            }
            Request::Rename { from, to, flags } => {
                let (source, name) = self.parent(from.at, call.name(&from))?;
                let (target, new) = self.parent(to.at, call.second_name(&from))?;
                let found = rustix::fs::statat(&source, name, AtFlags::SYMLINK_NOFOLLOW)?;
                if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
                    return Ok(Reply::Declined);
                }
                let flags = RenameFlags::from_bits_retain(flags);
                rustix::fs::renameat_with(source, name, target, new, flags).map(|()| Reply::Done)
            }
            _ => self.reply_on_file(call, &request),
        }
    }

    fn open(&self, session: &Session, at: Start, path: &[u8], flags: i32, mode: u32) -> Outcome {
        let (parent, name) = self.parent(at, path)?;
        let found = rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW);
        if found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode) != FileType::RegularFile) {
            return Ok(Reply::Declined);
        }
        let flags = OFlags::from_bits_retain(flags.cast_unsigned());
        let mode = Mode::from_bits_retain(mode);
        let descriptor = rustix::fs::openat(&parent, name, flags | OFlags::CLOEXEC, mode)?;
        let status = (&rustix::fs::fstat(&descriptor)?).into();
        let handle = self.last.fetch_add(1, Ordering::SeqCst) + 1;
        let file =
            File { descriptor, appends: flags.contains(OFlags::APPEND), handed_over: Mutex::default() };
        session.files.lock().expect("no panic").insert(handle, Arc::new(file));
        Ok(Reply::Opened { handle, key: None, status })
    }

    fn reply_on_file(&self, call: &Call<Self>, request: &Request) -> Outcome {
        let file = |handle: &u64| call.session().file(*handle);
        let window = |size: u32| {
            let mut bytes = vec![0; size as usize];
            call.window().copy_to(0, &mut bytes);
            bytes
        };
        Ok(match request {
            Request::Write { handle, offset, size } => {
                let bytes = window(*size);
                let file = file(handle)?;
                assert!(!file.appends, "the library appends");
                Reply::Count(rustix::io::pwrite(&file.descriptor, &bytes, *offset)? as u32)
            }
            Request::Append { handle, size } => {
                let file = file(handle)?;
                let count = rustix::io::write(&file.descriptor, &window(*size))? as u32;
                Reply::Appended { count, end: rustix::fs::tell(&file.descriptor)? }
            }
            Request::Status { handle } => {
                Reply::Status((&rustix::fs::fstat(&file(handle)?.descriptor)?).into())
            }
            Request::SetSize { handle, size } => {
                rustix::fs::ftruncate(&file(handle)?.descriptor, *size).map(|()| Reply::Done)?
            }
            Request::Sync { handle } => rustix::fs::fsync(&file(handle)?.descriptor).map(|()| Reply::Done)?,
            Request::Seek { handle, data, offset } => {
                let to = if *data { SeekFrom::Data(*offset) } else { SeekFrom::Hole(*offset) };
                Reply::Offset(rustix::fs::seek(&file(handle)?.descriptor, to)?)
            }
            Request::Close { handle } => {
                let closed = call.session().files.lock().expect("no panic").remove(handle);
                self.forget(closed.ok_or(Errno::BADF)?.as_ref());
                Reply::Done
            }
            _ => Reply::Declined,
        })
    }

    fn hand_over(&self, call: Call<Self>, handle: u64) {
        let file = match call.session().file(handle) {
            Ok(file) => file,
            Err(error) => return call.answer(&Reply::Failed(error.raw_os_error())),
        };
        let mut name = file.handed_over.lock().expect("no panic");
        if name.is_none() {
            let target = format!("/proc/{}/fd/{}", std::process::id(), file.descriptor.as_raw_fd());
            let given = format!(".handed-over-{handle}");
            std::os::unix::fs::symlink(target, self.root.join(&given)).expect("it is new");
            *name = Some(given);
        }
        call.answer_with(name.as_deref().unwrap_or_default().as_bytes());
    }

    /// Removes a file's handover name.
    fn forget(&self, file: &File) {
        if let Some(name) = file.handed_over.lock().expect("no panic").take() {
            std::fs::remove_file(self.root.join(name)).expect("it is there");
        }
    }
}

impl Handler for Directory {
    type Session = Session;

    fn begin(&self, _: &Peer) -> Session {
        Session::default()
    }

    fn serve(&self, call: Call<Self>) {
        let count = self.requests.fetch_add(1, Ordering::SeqCst) + 1;
        match call.request() {
            Some(Request::HandOver { handle }) => return self.hand_over(call, handle),
            Some(Request::Close { .. }) => {}
            _ if self.declines_each > 0 && count.is_multiple_of(self.declines_each) => {
                return call.answer(&Reply::Declined);
            }
            Some(Request::Read { handle, offset, size, .. }) => {
                let file = call.session().file(handle);
                let mut bytes = vec![0; size as usize];
                let read = file.and_then(|file| fill(&file.descriptor, &mut bytes, offset));
                return match read {
                    Ok(count) => call.answer_with(&bytes[..count]),
                    Err(error) => call.answer(&Reply::Failed(error.raw_os_error())),
                };
            }
            _ => {}
        }
        let reply = match self.reply(&call) {
            Ok(reply) => reply,
            Err(Errno::LOOP | Errno::XDEV) => Reply::Declined,
            Err(error) => Reply::Failed(error.raw_os_error()),
        };
        call.answer(&reply);
    }

    fn left(&self, session: &Session, handle: u64) {
        let file = session.files.lock().expect("no panic").remove(&handle);
        file.iter().for_each(|file| self.forget(file));
    }

    fn leaves(&self, _: &Session) {}

    fn ended(&self, session: &Session) {
        let files = std::mem::take(&mut *session.files.lock().expect("no panic"));
        files.values().for_each(|file| self.forget(file));
    }
}

fn fill(from: &OwnedFd, bytes: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let mut done = 0;
    while done < bytes.len() {
        match rustix::io::pread(from, &mut bytes[done..], offset + done as u64)? {
            0 => break,
            count => done += count,
        }
    }
    Ok(done)
}

fn find(directory: OwnedFd, inode: u64) -> Option<OwnedFd> {
    if rustix::fs::fstat(&directory).ok()?.st_ino == inode {
        return Some(directory);
    }
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::Dir::read_from(&directory).ok()?.filter_map(Result::ok).find_map(|entry| {
        let is_below =
            entry.file_type() == FileType::Directory && !entry.file_name().to_bytes().starts_with(b".");
        let below = || rustix::fs::openat(&directory, entry.file_name(), flags, Mode::empty()).ok();
        if is_below { find(below()?, inode) } else { None }
    })
}

/// The agent, its view, and a plain directory for runs without the library.
pub struct Bed {
    server: Arc<Server<Directory>>,
    handler: Arc<Directory>,
    dir: tempfile::TempDir,
    _system: System,
}

impl Bed {
    /// Starts an agent that declines every `declines_each`th request, unless that is 0.
    pub fn new(declines_each: u64) -> Self {
        // Programs have applied their umask to modes.
        rustix::process::umask(Mode::empty());
        let dir = tempfile::tempdir().expect("a directory");
        let view = dir.path().join("view");
        std::fs::create_dir(&view).expect("it is new");
        std::fs::create_dir(dir.path().join("plain")).expect("it is new");
        let system = System::start(1).expect("a system");
        let (last, requests) = Default::default();
        let handler = Arc::new(Directory { root: view.clone(), last, requests, declines_each });
        let user = rustix::process::geteuid().as_raw();
        let views = vec![view.as_os_str().as_bytes().to_vec()];
        let names = NameTable::new().expect("memory");
        let server = Server::new(handler.clone(), views, user, (names, None)).expect("a server");
        let listener = UnixListener::bind(dir.path().join("ring")).expect("a socket");
        server.listen(&system, listener).expect("it listens");
        Self { server, handler, dir, _system: system }
    }

    pub fn view(&self) -> PathBuf {
        self.dir.path().join("view")
    }

    pub fn plain(&self) -> PathBuf {
        self.dir.path().join("plain")
    }

    /// Returns the number of requests.
    pub fn requests(&self) -> u64 {
        self.handler.requests.load(Ordering::SeqCst)
    }

    /// Stops the agent.
    pub fn stop(&self) {
        self.server.stop();
    }

    /// Checks that a program printed the same in both directories, left the same files, and made more than `requests_min` requests.
    pub fn compare(&self, printed: &str, expected: &str, requests_min: u64) {
        for (line, (printed, expected)) in printed.lines().zip(expected.lines()).enumerate() {
            assert_eq!(printed, expected, "line {}", line + 1);
        }
        assert_eq!(printed, expected);
        assert!(
            self.requests() > requests_min,
            "only {} requests: the kernel served the calls",
            self.requests()
        );
        self.server.settle();
        assert_eq!(tree(&self.view()), tree(&self.plain()));
    }

    /// Returns a command that runs `program` in the view, with the agent in its environment.
    pub fn with_agent(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        command.current_dir(self.view());
        command.env("TAMEIKE_RING", self.dir.path().join("ring")).env("TAMEIKE_SHARED", self.view());
        command
    }

    /// Returns a command that runs `program` in the view, with the library preloaded.
    pub fn with_ring(&self, program: impl AsRef<Path>) -> Command {
        let mut command = self.with_agent(program);
        command.env("LD_PRELOAD", library());
        command
    }

    /// Returns a command that runs `program` in the plain directory, without the library.
    pub fn without(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        command.current_dir(self.plain());
        command
    }
}

/// Runs a program, and returns its output and exit status.
pub fn run(command: &mut Command) -> String {
    let output = command.output().expect("it starts");
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    format!("{}{}", String::from_utf8_lossy(&output.stdout), output.status)
}

/// Returns the path of the library, which cargo builds beside the tests.
pub fn library() -> PathBuf {
    let program = std::env::current_exe().expect("this program");
    let library = program.with_file_name("libtameike_preload.so");
    assert!(library.exists(), "{} does not exist", library.display());
    library
}

/// Returns names, types, permissions and content of all files below a directory.
pub fn tree(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    while let Some(path) = left.pop() {
        let meta = std::fs::symlink_metadata(&path).expect("it is there");
        let mode = std::os::unix::fs::PermissionsExt::mode(&meta.permissions());
        let content = if meta.is_dir() {
            left.extend(
                std::fs::read_dir(&path).expect("a directory").map(|entry| entry.expect("a name").path()),
            );
            String::new()
        } else if meta.is_symlink() {
            std::fs::read_link(&path).expect("a link").display().to_string()
        } else {
            String::from_utf8_lossy(&std::fs::read(&path).expect("a file")).into_owned()
        };
        let name = path.strip_prefix(root).expect("below").to_owned();
        found.insert(name, format!("{mode:o} {content}"));
    }
    found
}
