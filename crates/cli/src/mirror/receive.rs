//! `tameike receive`: executes the orders of a sender on the directory of a mirror.
//!
//! It needs no privileges. A lock on the directory itself excludes a second receiver. It ends when its input ends, and when no order has
//! come for [`SILENCE_LIMIT_S`] seconds, as a broken connection may not be noticed otherwise.

use super::apply::Applied;
use super::protocol::{
    HASHES_MAX, Item, MAGIC, Order, Reply, SILENCE_LIMIT_S, VERSION, check_path, read_frame, write_frame,
};
use super::source;
use crate::exit;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::io::{BufReader, BufWriter, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;
use tameike_core::limits::MESSAGE_SIZE_MAX;
use tameike_core::{Errno, Fault, FaultKind, Result};
use tameike_io::os::process::ask_until;
use tameike_io::shared::PosixTree;

/// Time in which an earlier receiver of the directory must end, whose connection was cut.
const LOCK_LIMIT: Duration = Duration::from_secs(5);
/// Time between attempts to lock the directory.
const LOCK_STEP: Duration = Duration::from_millis(50);
/// Faults in one reply, each with a path of at most 16 KiB.
const FAULTS_MAX: usize = 8;
/// Longest message of a fault, in characters.
const FAULT_SIZE_MAX: usize = 2000;
/// Buffers of input and output.
const BUFFER_SIZE: usize = 256 << 10;

/// Runs the receiver for a directory, which is created if it is missing. Returns the exit code.
pub fn receive(dir: &Path) -> u8 {
    let mut out = BufWriter::with_capacity(BUFFER_SIZE, std::io::stdout().lock());
    let received = open(dir).and_then(|(tree, _lock)| serve(tree, &mut Input::buffered(), &mut out));
    match received {
        Ok(()) => 0,
        Err(fault) => {
            crate::report::say(format_args!("receiving in {}: {fault}", dir.display()));
            // The sender may be gone.
            let _ = out.write_all(MAGIC);
            let _ = answer(&mut out, &Reply::Failed(fault), &[]).and_then(|()| flush(&mut out));
            exit::FAILED
        }
    }
}

/// Opens and locks the directory.
fn open(dir: &Path) -> Result<(PosixTree, OwnedFd)> {
    let failed = |doing: &str, error: std::io::Error| {
        Fault::from_os(format_args!("{doing} the directory {}", dir.display()), &error)
    };
    match std::fs::create_dir(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(failed("making", error));
        }
        _ => {}
    }
    let tree = PosixTree::open(dir)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let lock =
        rustix::fs::open(dir, flags, Mode::empty()).map_err(|error| failed("opening", error.into()))?;
    let try_lock = || match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => None,
        locked => Some(locked),
    };
    match ask_until(LOCK_LIMIT, LOCK_STEP, try_lock) {
        // Some file systems have no such locks.
        Some(Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS)) => Ok((tree, lock)),
        Some(Err(error)) => Err(failed("locking", error.into())),
        None => {
            let message = format!("another `tameike receive` uses the directory {}", dir.display());
            Err(Fault::new(Errno::EBUSY, message))
        }
    }
}

/// Executes orders until the input ends.
///
/// # Errors
/// An invalid order, and a broken connection.
pub fn serve(tree: PosixTree, input: &mut impl Read, out: &mut impl Write) -> Result<()> {
    out.write_all(MAGIC).map_err(|error| Fault::from_os("writing to the sender", &error))?;
    let mut applied = Applied::new(tree);
    let Some((first, _)) = read_frame(input)? else { return Ok(()) };
    let Order::Hello { version, makes_mirror } = first else {
        return Err(Fault::new(Errno::EPROTO, "the first order is not a hello"));
    };
    if version != VERSION {
        let message =
            format!("the sender has version {version} of the protocol, and this program has {VERSION}");
        return Err(Fault::new(Errno::EPROTO, message));
    }
    let is_mirror = applied.is_mirror(makes_mirror)?;
    let staged = applied.staged();
    answer(out, &Reply::Hello { version: VERSION, is_mirror, staged }, &[])?;
    flush(out)?;
    while let Some((order, data)) = read_frame(input)? {
        if execute(&mut applied, order, &data, out)? {
            flush(out)?;
        }
    }
    Ok(())
}

fn answer(out: &mut impl Write, reply: &Reply, data: &[u8]) -> Result<()> {
    write_frame(out, reply, data)
}

fn flush(out: &mut impl Write) -> Result<()> {
    out.flush().map_err(|error| Fault::from_os("writing to the sender", &error))
}

/// Executes an order. Returns true if it has a reply.
fn execute(applied: &mut Applied, order: Order, data: &[u8], out: &mut impl Write) -> Result<bool> {
    match order {
        Order::Make { path, attributes, target } => {
            applied.execute(&path, true, |it| it.make(&path, &attributes, &target))?;
        }
        Order::Put { path, attributes } => applied.execute(&path, false, |it| {
            it.stage(&path, data.len() as u64)?;
            it.write(&path, true, 0, data)?;
            it.publish(&path, &attributes)
        })?,
        Order::Stage { path, size } => applied.execute(&path, false, |it| it.stage(&path, size))?,
        Order::Write { path, is_staged, offset } => {
            applied.execute(&path, false, |it| it.write(&path, is_staged, offset, data))?;
        }
        Order::Clear { path, is_staged, offset, length } => {
            applied.execute(&path, false, |it| it.clear(&path, is_staged, offset, length))?;
        }
        Order::Publish { path, attributes } => {
            applied.execute(&path, false, |it| it.publish(&path, &attributes))?;
        }
        Order::Finish { path, attributes } => {
            applied.execute(&path, false, |it| it.finish(&path, &attributes))?;
        }
        Order::Change { path, attributes } => {
            applied.execute(&path, true, |it| it.change(&path, &attributes))?;
        }
        Order::Remove { path } => applied.execute(&path, false, |it| it.remove(&path))?,
        Order::Rename { from, to } => {
            check_path(&from, false)?;
            applied.execute(&to, false, |it| it.rename(&from, &to))?;
        }
        Order::Ping => {}
        asked => return reply_to(applied, asked, out).map(|()| true),
    }
    Ok(false)
}

/// Executes an order that has a reply.
fn reply_to(applied: &mut Applied, order: Order, out: &mut impl Write) -> Result<()> {
    match order {
        Order::Hashes { path, is_staged, first, count } => {
            check_path(&path, false)?;
            let hashes = applied.hashes(&path, is_staged, first, count.min(HASHES_MAX))?;
            answer(out, &Reply::Hashes, &hashes)
        }
        Order::List { path } => {
            check_path(&path, true)?;
            list(applied, &path, out)
        }
        Order::Checksum { path } => {
            check_path(&path, false)?;
            let file = source::checksum(applied.tree(), &path, || Ok(()))?;
            answer(out, &Reply::Checksum { file }, &[])
        }
        Order::Commit { number } => {
            for part in applied.commit().chunks(FAULTS_MAX) {
                let short = |(path, fault): &(Vec<u8>, Fault)| (path.clone(), short(fault));
                answer(out, &Reply::Faults { faults: part.iter().map(short).collect() }, &[])?;
            }
            answer(out, &Reply::Committed { number }, &[])
        }
        Order::End => {
            applied.end()?;
            answer(out, &Reply::Ended, &[])
        }
        _ => Err(Fault::new(Errno::EPROTO, "an unexpected order")),
    }
}

/// A fault with a message of bounded length.
fn short(fault: &Fault) -> Fault {
    Fault::new(fault.errno, fault.to_string().chars().take(FAULT_SIZE_MAX).collect::<String>())
}

/// Lists a directory, in replies of a bounded size.
fn list(applied: &Applied, path: &[u8], out: &mut impl Write) -> Result<()> {
    let items = match source::list(applied.tree(), path) {
        Err(fault) if fault.kind() == FaultKind::Missing => Vec::new(),
        items => items?,
    };
    let (mut part, mut size) = (Vec::new(), 0);
    for (item, _) in items {
        let item_size = item_size(&item);
        if size + item_size > MESSAGE_SIZE_MAX / 2 {
            answer(out, &Reply::List { items: std::mem::take(&mut part), has_more: true }, &[])?;
            size = 0;
        }
        size += item_size;
        part.push(item);
    }
    answer(out, &Reply::List { items: part, has_more: false }, &[])
}

/// An upper bound of the encoded size.
fn item_size(item: &Item) -> usize {
    item.name.len() + item.target.len() + 128
}

/// Standard input, which counts as ended after a time without a byte.
struct Input(std::io::Stdin);

impl Input {
    fn buffered() -> BufReader<Self> {
        BufReader::with_capacity(BUFFER_SIZE, Self(std::io::stdin()))
    }
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let limit = Timespec { tv_sec: SILENCE_LIMIT_S as i64, tv_nsec: 0 };
        let ready = poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&limit))?;
        if ready == 0 {
            let message = format!("no order for {SILENCE_LIMIT_S} s");
            return Err(std::io::Error::new(std::io::ErrorKind::TimedOut, message));
        }
        Ok(rustix::io::retry_on_intr(|| rustix::io::read(&self.0, &mut *buffer))?)
    }
}

#[cfg(test)]
mod tests;
