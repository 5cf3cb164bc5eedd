//! The job's socket for other commands of the same user. One thread accepts, and one serves each connection. Commands that are
//! launched for a client run independently of the driver's loop.

use super::event::Event;
use super::launch;
use super::protocol::{ClientRequest, DriverReply, Launch};
use crate::exit;
use crate::place::base::control_socket;
use crate::place::record::JobRecord;
use libc::SIGHUP;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use tameike_core::{Errno, Fault, NodeId, Result};
use tameike_io::os::process::{ProcessId, start_thread, user};
use tameike_io::os::socket;

/// Longest request, in bytes: a command line and an environment.
const REQUEST_SIZE_MAX: usize = 16 << 20;

/// Signals a launched command on another host: arguments are node, name, signal.
pub type RemoteSignal = dyn Fn(NodeId, String, i32) + Send + Sync;

/// The job, for the threads of connections.
pub struct ClientContext {
    pub job_dir: PathBuf,
    /// Sends events to the driver's loop.
    pub events: Sender<Event>,
    /// Signals commands on other hosts.
    pub remote_signal: Box<RemoteSignal>,
    /// Counts the clients that have been sent the outcome of the mirror, or have disconnected.
    pub mirrored: Arc<AtomicUsize>,
}

/// Starts listening on the job's socket.
pub fn listen(context: ClientContext) -> Result<()> {
    let path = control_socket(&context.job_dir);
    let failed = |error| Fault::from_os(format_args!("making the socket {}", path.display()), &error);
    // A recovered job has the socket of its failed driver.
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let listener = UnixListener::bind(&path).map_err(failed)?;
    let context = Arc::new(context);
    start_thread("clients", move || {
        for socket in listener.incoming().flatten() {
            let context = context.clone();
            if let Err(fault) = start_thread("client", move || serve(&socket, context)) {
                log::warn!("{fault}");
            }
        }
    })?;
    Ok(())
}

/// Serves one connection: a request, and its replies.
fn serve(socket: &UnixStream, context: Arc<ClientContext>) {
    if socket::peer_user(socket).ok() != Some(user()) {
        return;
    }
    let Ok(mut reader) = LineReader::new(socket) else { return };
    let outcome = match reader.next_request() {
        Ok(Some(ClientRequest::Launch(launch))) => run_launched(launch, reader, socket, context),
        Ok(Some(request)) => {
            let (reply, replies) = channel();
            if context.events.send(Event::Client { request, reply }).is_ok() {
                replies.iter().try_for_each(|reply| {
                    let written = write(socket, &reply);
                    if let DriverReply::Mirrored(_) = reply {
                        context.mirrored.fetch_add(1, Ordering::SeqCst);
                    }
                    written
                })
            } else {
                Ok(())
            }
        }
        Ok(None) => Ok(()),
        Err(fault) => write(socket, &DriverReply::Failed(fault)),
    };
    if let Err(fault) = outcome {
        log::info!("a client disconnected: {fault}");
    }
}

/// Runs a command with the files of a client, and returns its exit code to the client.
fn run_launched(
    launch: Launch,
    mut reader: LineReader,
    socket: &UnixStream,
    context: Arc<ClientContext>,
) -> Result<()> {
    let (mut child, name, is_remote) =
        match start_launched(&launch, std::mem::take(&mut reader.files), &context) {
            Ok(started) => started,
            Err(fault) => return write(socket, &DriverReply::Failed(fault)),
        };
    let process = ProcessId::now(child.id());
    let signal = move |number: i32| match process {
        _ if is_remote => (context.remote_signal)(NodeId(launch.node), name.clone(), number),
        // It may have exited.
        Some(process) => drop(process.signal(number)),
        None => {}
    };
    let ended = Arc::new(AtomicBool::new(false));
    let has_ended = ended.clone();
    start_thread("client-signals", move || {
        while let Ok(Some(ClientRequest::Signal { signal: number })) = reader.next_request() {
            signal(number);
        }
        if !has_ended.load(Ordering::SeqCst) {
            signal(SIGHUP);
        }
    })?;
    let code = child.wait().map_or(exit::FAILED, exit::of_status);
    ended.store(true, Ordering::SeqCst);
    let written = write(socket, &DriverReply::Ended { code });
    // Ends the reading thread, unless the client has disconnected.
    let _ = socket.shutdown(std::net::Shutdown::Both);
    written
}

fn start_launched(
    launch: &Launch,
    files: Vec<OwnedFd>,
    context: &ClientContext,
) -> Result<(std::process::Child, String, bool)> {
    let none = || Fault::new(Errno::ENOENT, "the job has no record");
    let record = JobRecord::read(&context.job_dir)?.ok_or_else(none)?;
    let mut prepared = launch::prepare(&record, &context.job_dir, launch, false)?;
    let [input, output, errors] = <[OwnedFd; 3]>::try_from(files)
        .map_err(|_| Fault::new(Errno::EPROTO, "a launch needs input, output and error"))?;
    prepared.command.stdin(Stdio::from(input)).stdout(Stdio::from(output)).stderr(Stdio::from(errors));
    let child = prepared.command.spawn().map_err(|error| {
        Fault::from_os(format_args!("starting a command on node {}", launch.node), &error)
    })?;
    Ok((child, prepared.name, prepared.is_remote))
}

fn write(mut socket: &UnixStream, reply: &DriverReply) -> Result<()> {
    let failed = |error| Fault::from_os("answering a command", &error);
    let mut line = serde_json::to_vec(reply).map_err(|error| failed(error.into()))?;
    line.push(b'\n');
    socket.write_all(&line).map_err(failed)
}

/// Reads lines, and stores the files that are sent with them.
struct LineReader {
    socket: UnixStream,
    bytes: Vec<u8>,
    files: Vec<OwnedFd>,
}

impl LineReader {
    fn new(socket: &UnixStream) -> std::io::Result<Self> {
        Ok(Self { socket: socket.try_clone()?, bytes: Vec::new(), files: Vec::new() })
    }

    /// Returns the next request; `None` at the end of the connection.
    fn next_request(&mut self) -> Result<Option<ClientRequest>> {
        loop {
            if let Some(end) = self.bytes.iter().position(|&byte| byte == b'\n') {
                let rest = self.bytes.split_off(end + 1);
                let line = std::mem::replace(&mut self.bytes, rest);
                let request = serde_json::from_slice(&line);
                return request.map(Some).map_err(|error| Fault::new(Errno::EPROTO, error.to_string()));
            }
            let (bytes, files) = socket::receive_with_files(&self.socket)?;
            if bytes.is_empty() {
                return Ok(None);
            }
            self.bytes.extend(bytes);
            self.files.extend(files);
            if self.bytes.len() > REQUEST_SIZE_MAX {
                return Err(Fault::new(Errno::EPROTO, "the request is too long"));
            }
        }
    }
}
