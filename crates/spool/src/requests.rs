//! Requests of programs to the packer.

use super::batch::{DirStates, Pass, is_recent};
use super::intent::Intent;
use super::tree::{Found, attributes, change_at, spool_fault};
use super::{Names, Packer, find};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with,
    bind, connect, listen, recv, send, shutdown, socket_with,
};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use tameike_container::session::OpenFlags;
use tameike_container::{Brief, split_path};
use tameike_core::attr::AttrChange;
use tameike_core::spool::protocol::{REQUEST_SIZE_MAX, Request, SOCKET};
use tameike_core::spool::stub::Stub;
use tameike_core::{Errno, Fault, FileKind, Result};
use tameike_io::os::process::start_thread;

/// Number of requests answered in parallel.
const THREADS: usize = 8;
const BACKLOG: i32 = 1024;
/// How long a connected program may take to send its request.
const REQUEST_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// The socket for requests, with the threads that answer.
pub struct RequestSocket {
    socket: Arc<OwnedFd>,
    path: PathBuf,
    threads: Vec<JoinHandle<()>>,
}

fn failed(doing: &'static str) -> impl Fn(rustix::io::Errno) -> Fault {
    move |error| Fault::from_os(doing, &error.into())
}

fn socket() -> Result<OwnedFd> {
    let made = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    made.map_err(failed("creating the spool's socket"))
}

fn address(path: &Path) -> Result<SocketAddrUnix> {
    SocketAddrUnix::new(path).map_err(|_| {
        Fault::new(
            Errno::ENAMETOOLONG,
            format!("{}: too long for a socket; choose another --spool", path.display()),
        )
    })
}

impl RequestSocket {
    /// Begins to answer requests.
    pub fn open(packer: &Arc<Packer>) -> Result<Self> {
        let path = packer.shared.dir.join(SOCKET);
        let address = address(&path)?;
        // A killed packer may have left it.
        let _ = std::fs::remove_file(&path);
        let socket = Arc::new(socket()?);
        bind(&*socket, &address).map_err(failed("naming the spool's socket"))?;
        listen(&*socket, BACKLOG).map_err(failed("opening the spool's socket"))?;
        let threads = (0..THREADS).map(|_| {
            let (packer, socket) = (packer.clone(), socket.clone());
            start_thread("requests", move || {
                while let Ok(connection) = accept_with(&*socket, SocketFlags::CLOEXEC) {
                    // A program that has ended needs no reply.
                    let _ = packer.answer_one(&connection);
                }
            })
        });
        let threads = threads.collect::<Result<_>>()?;
        packer.shared.is_ready.store(true, Ordering::Release);
        Ok(Self { socket, path, threads })
    }

    /// Answers pending requests, and ends.
    pub fn close(self) -> Result<()> {
        let Self { socket, path, threads } = self;
        std::fs::remove_file(&path).map_err(|error| Fault::from_os("removing the spool's socket", &error))?;
        shutdown(&*socket, Shutdown::Both).map_err(failed("closing the spool's socket"))?;
        let ended = threads.into_iter().map(JoinHandle::join).filter(std::result::Result::is_err).count();
        if ended > 0 {
            Err(Fault::new(Errno::EIO, "a thread that answers requests panicked"))
        } else {
            Ok(())
        }
    }
}

/// Requests that the packer packs everything and syncs.
pub fn request_sync(path: &Path) -> Result<()> {
    let socket = socket()?;
    connect(&socket, &address(path)?).map_err(failed("sending a request to the packer"))?;
    let request = Request::Sync { path: None }.encode().unwrap_or_default();
    send(&socket, &request, SendFlags::NOSIGNAL).map_err(failed("sending a request to the packer"))?;
    let mut reply = [0; 4];
    match recv(&socket, &mut reply, RecvFlags::empty()).map_err(failed("sending a request to the packer"))? {
        (_, 4) if reply == [0; 4] => Ok(()),
        (_, 4) => Err(Fault::new(Errno::EIO, "the packer could not pack all files; its run reports which")),
        _ => Err(Fault::new(Errno::ECONNRESET, "the packer has ended")),
    }
}

impl Packer {
    fn answer_one(&self, connection: &OwnedFd) -> rustix::io::Result<()> {
        // A program stopped before it sends must not block other programs. It retries.
        let mut waiting = [PollFd::new(connection, PollFlags::IN)];
        if poll(&mut waiting, Some(&REQUEST_WAIT))? == 0 {
            return Ok(());
        }
        let mut request = vec![0; REQUEST_SIZE_MAX];
        let (_, count) = recv(connection, &mut *request, RecvFlags::empty())?;
        let done = match Request::decode(&request[..count.min(REQUEST_SIZE_MAX)]) {
            Some(request) => self.answer(request),
            None => Err(Errno::EPROTO.into()),
        };
        let errno = done.map_or_else(|fault| fault.errno.0, |()| 0);
        send(connection, &errno.to_ne_bytes(), SendFlags::NOSIGNAL).map(drop)
    }

    fn answer(&self, request: Request) -> Result<()> {
        match request {
            Request::List { dir } => self.list(&mut self.names.lock(), &dir),
            Request::Fill { path, is_emptied } => self.fill(&path, is_emptied),
            Request::Unlink { path } => self.unlink(&mut self.names.lock(), &path),
            Request::RemoveDir { path } => self.remove_dir(&mut self.names.lock(), &path),
            Request::Rename { from, to, keeps } => self.rename(&mut self.names.lock(), &from, &to, keeps),
            Request::Link { from, to } => self.link(&from, &to),
            Request::Change { path, change } => self.change(&mut self.names.lock(), &path, &change),
            Request::Sync { path } => self.sync(path.as_deref()),
            Request::WaitForSpace => {
                self.wait_for_space();
                Ok(())
            }
        }
    }

    fn wait_for_space(&self) {
        if self.is_full() {
            self.shared.wake();
            self.space.wait();
        }
    }

    /// Unpacks a file: replaces its stub by a file of the tree.
    fn fill(&self, path: &[u8], is_emptied: bool) -> Result<()> {
        let Some(Found::Packed(stub)) = self.shared.tree.lookup(path)? else { return Ok(()) };
        self.wait_for_space();
        let (file, staged) = self.shared.tree.stage()?;
        let filled = if is_emptied { Ok(()) } else { self.unpack(path, &file) };
        let mut attributes = attributes(&stub);
        attributes.mtime.take_if(|_| is_emptied);
        let filled = filled.and_then(|()| change_at(&staged, &attributes).map_err(spool_fault));
        // Closed before the watch, which reports closes as changes.
        drop(file);
        let mut names = self.names.lock();
        let tree = &self.shared.tree;
        let is_unchanged = tree.lookup(path)? == Some(Found::Packed(stub));
        if filled.is_err() || !is_unchanged {
            let _ = std::fs::remove_file(&staged);
            return filled;
        }
        let watched = names.clean.watch(&staged);
        tree.keeping_time(split_path(path).0, || tree.put(&staged, path))?;
        if let Some(Found::File(version)) = tree.lookup(path)?
            && !is_emptied
            // A recent mtime could not be distinguished from that of a later change.
            && !is_recent(stub.mtime)
        {
            names.clean.insert(path, watched, version);
        }
        Ok(())
    }

    fn unpack(&self, path: &[u8], into: &std::fs::File) -> Result<()> {
        let open = self.session.open_file(path, OpenFlags::default(), 0)?;
        into.set_len(self.session.status(&open).size).map_err(spool_fault)?;
        self.session.visit(&open, &mut |at, bytes| into.write_all_at(bytes, at).map_err(spool_fault))?;
        for xattr in self.session.file_xattrs(&open) {
            // Fails if the spool's file system has no extended attributes: packing the file again would lose them.
            rustix::fs::fsetxattr(into, xattr.name, &xattr.value, rustix::fs::XattrFlags::empty())
                .map_err(spool_fault)?;
        }
        self.session.close(open)
    }

    fn unlink(&self, names: &mut Names, path: &[u8]) -> Result<()> {
        self.list(names, split_path(path).0)?;
        if self.shared.tree.lookup(path)?.ok_or(Errno::ENOENT)? == Found::Dir {
            return Err(Errno::EISDIR.into());
        }
        std::fs::remove_file(self.shared.tree.real(path)).map_err(spool_fault)?;
        names.clean.remove(path);
        if find(&self.session, path)?.is_some() {
            self.session.unlink(path)?;
        }
        self.session.write_out()
    }

    fn remove_dir(&self, names: &mut Names, path: &[u8]) -> Result<()> {
        self.list(names, path)?;
        std::fs::remove_dir(self.shared.tree.real(path)).map_err(spool_fault)?;
        names.listed.forget([path, path]);
        if find(&self.session, path)?.is_some() {
            self.session.remove_dir(path)?;
        }
        self.session.write_out()
    }

    fn rename(&self, names: &mut Names, from: &[u8], to: &[u8], keeps: bool) -> Result<()> {
        let tree = &self.shared.tree;
        self.list(names, split_path(from).0)?;
        self.list(names, split_path(to).0)?;
        let is_dir = tree.lookup(from)? == Some(Found::Dir);
        if is_dir {
            // The replaced directory must be empty in the container, too.
            self.list(names, to)?;
        }
        let intent = Intent::begin(&self.shared.dir, from, to)?;
        if let Err(fault) = tree.rename(from, to, keeps) {
            intent.end()?;
            return Err(fault);
        }
        names.clean.remove(from);
        names.clean.remove(to);
        if is_dir {
            names.clean.remove_below(from);
            names.listed.forget([from, to]);
            if names.epoch > 0 {
                names.epoch += 1;
                tree.page.set_epoch(names.epoch)?;
            }
        }
        self.follow(from, to)?;
        self.session.write_out()?;
        intent.end()
    }

    /// Repeats a rename of the tree in the container.
    fn follow(&self, from: &[u8], to: &[u8]) -> Result<()> {
        match (find(&self.session, from)?, find(&self.session, to)?) {
            _ if from == to => Ok(()),
            (Some(_), _) => self.session.rename(from, to),
            // The source is not packed yet; its replaced target is in the container.
            (None, Some(there)) if there.kind == FileKind::Directory => self.session.remove_dir(to),
            (None, Some(_)) => self.session.unlink(to),
            (None, None) => Ok(()),
        }
    }

    fn link(&self, from: &[u8], to: &[u8]) -> Result<()> {
        let tree = &self.shared.tree;
        let mut names = loop {
            self.fill(from, false)?;
            let names = self.names.lock();
            // It may have been packed again.
            if !matches!(tree.lookup(from)?, Some(Found::Packed(_))) {
                break names;
            }
        };
        self.list(&mut names, split_path(to).0)?;
        let found = tree.metadata(from)?;
        if found.nlink() == 1 {
            tree.keep_number(found.ino(), tameike_core::spool::number(from))?;
        }
        rustix::fs::linkat(CWD, tree.real(from), CWD, tree.real(to), AtFlags::empty()).map_err(spool_fault)
    }

    fn change(&self, names: &mut Names, path: &[u8], change: &AttrChange) -> Result<()> {
        self.list(names, split_path(path).0)?;
        match self.shared.tree.lookup(path)?.ok_or(Errno::ENOENT)? {
            Found::Packed(stub) => {
                self.session.set_attributes(path, change)?;
                self.session.write_out()?;
                let Brief { mode, uid, gid, mtime, .. } = self.session.stat(path)?;
                let stub = Stub { size: stub.size, mode, uid, gid, mtime };
                let tree = &self.shared.tree;
                tree.keeping_time(split_path(path).0, || tree.put_stub(path, &stub))
            }
            // A symbolic link has no mode.
            Found::Link if change.mode.is_some() => Err(Errno::EOPNOTSUPP.into()),
            Found::Link | Found::File(_) | Found::Dir | Found::Other => {
                names.clean.remove(path);
                self.shared.tree.change(path, change)
            }
        }
    }

    fn sync(&self, path: Option<&[u8]>) -> Result<()> {
        match path {
            Some(path) => self.pack_now(path)?,
            None => self
                .round(&mut DirStates::default(), Pass::All)
                .faults
                .into_iter()
                .next()
                .map_or(Ok(()), Err)?,
        }
        self.session.sync()
    }
}
