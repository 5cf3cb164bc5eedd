//! Connections to a job's driver.

use crate::driver::protocol::{ClientRequest, DriverReply};
use crate::place::base::control_socket;
use std::io::{BufRead, BufReader};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use tameike_core::{Errno, Fault, Result};
use tameike_io::os::process;
use tameike_io::os::socket::{peer_user, send_with_files};

/// A connection on which one request has been sent.
pub struct Connection {
    socket: UnixStream,
    reader: BufReader<UnixStream>,
}

impl Connection {
    /// Connects to the driver of the job in `job_dir`, and sends a request with open files.
    pub fn ask(job_dir: &Path, request: &ClientRequest, files: &[BorrowedFd<'_>]) -> Result<Self> {
        let path = control_socket(job_dir);
        let job = job_dir.file_name().unwrap_or_default().display();
        let failed = |error| {
            let doing = format!(
                "reaching the driver of job {job} at {} (the job may have ended, or its driver been killed)",
                path.display()
            );
            Fault::from_os(doing, &error)
        };
        let socket = UnixStream::connect(&path).map_err(failed)?;
        let user = peer_user(&socket)?;
        if user != process::user() {
            let message = format!(
                "{} is not the socket of the driver of job {job}: it belongs to a process of user {user}",
                path.display()
            );
            return Err(Fault::new(Errno::EPERM, message));
        }
        let reader = BufReader::new(socket.try_clone().map_err(failed)?);
        let connection = Self { socket, reader };
        connection.send(request, files)?;
        Ok(connection)
    }

    /// Sends another request.
    pub fn send(&self, request: &ClientRequest, files: &[BorrowedFd<'_>]) -> Result<()> {
        let mut line = serde_json::to_vec(request).map_err(|error| Fault::io(error.to_string()))?;
        line.push(b'\n');
        send_with_files(&self.socket, &line, files)
    }

    /// Returns a second handle for sending.
    pub fn sender(&self) -> Result<Self> {
        let failed = |error| Fault::from_os("using a socket twice", &error);
        let socket = self.socket.try_clone().map_err(failed)?;
        let reader = BufReader::new(self.socket.try_clone().map_err(failed)?);
        Ok(Self { socket, reader })
    }

    /// Returns the next reply; `None` if the driver has closed the connection.
    pub fn next(&mut self) -> Result<Option<DriverReply>> {
        let mut line = String::new();
        let failed = |error| Fault::from_os("reading from the job's driver", &error);
        if self.reader.read_line(&mut line).map_err(failed)? == 0 {
            return Ok(None);
        }
        match serde_json::from_str(&line).map_err(|error| failed(error.into()))? {
            DriverReply::Failed(fault) => Err(fault),
            reply => Ok(Some(reply)),
        }
    }

    /// Returns the next reply. Fails with `EHOSTDOWN` if the driver has closed the connection.
    pub fn must_next(&mut self) -> Result<DriverReply> {
        let closed = || Fault::new(Errno::EHOSTDOWN, "the job's driver exited before it replied");
        self.next()?.ok_or_else(closed)
    }
}
