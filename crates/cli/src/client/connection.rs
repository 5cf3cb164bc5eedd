//! A connection to a job's driver.

use crate::driver::protocol::{ClientRequest, DriverReply};
use crate::place::base::control_socket;
use std::io::{BufRead, BufReader};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use tameike_core::{Errno, Fault, Result};
use tameike_io::os::process;
use tameike_io::os::socket::{peer_user, send_with_files};

/// A connection to a job's driver, on which one request was sent.
pub struct Connection {
    socket: UnixStream,
    reader: BufReader<UnixStream>,
}

impl Connection {
    /// Connects to the job with this directory and asks, with open files beside the request.
    ///
    /// # Errors
    /// The driver cannot be reached.
    pub fn ask(job_dir: &Path, request: &ClientRequest, files: &[BorrowedFd<'_>]) -> Result<Self> {
        let path = control_socket(job_dir);
        let job = job_dir.file_name().unwrap_or_default().display();
        let failed = |error| {
            let doing = format!(
                "reaching the driver of job {job} at {} (has the job ended, or its driver been killed?)",
                path.display()
            );
            Fault::from_os(doing, &error)
        };
        let socket = UnixStream::connect(&path).map_err(failed)?;
        let user = peer_user(&socket)?;
        if user != process::user() {
            let message =
                format!("{} is not the driver of job {job}: user {user} answers there", path.display());
            return Err(Fault::new(Errno::EPERM, message));
        }
        let reader = BufReader::new(socket.try_clone().map_err(failed)?);
        let connection = Self { socket, reader };
        connection.tell(request, files)?;
        Ok(connection)
    }

    /// Sends another request.
    ///
    /// # Errors
    /// The driver is gone.
    pub fn tell(&self, request: &ClientRequest, files: &[BorrowedFd<'_>]) -> Result<()> {
        let mut line = serde_json::to_vec(request).map_err(|error| Fault::io(error.to_string()))?;
        line.push(b'\n');
        send_with_files(&self.socket, &line, files)
    }

    /// A second handle to send by.
    ///
    /// # Errors
    /// No file descriptor is free.
    pub fn sender(&self) -> Result<Self> {
        let failed = |error| Fault::from_os("using a socket twice", &error);
        let socket = self.socket.try_clone().map_err(failed)?;
        let reader = BufReader::new(self.socket.try_clone().map_err(failed)?);
        Ok(Self { socket, reader })
    }

    /// The next answer; `None` when the driver has closed the connection.
    ///
    /// # Errors
    /// What the driver answered, when the request failed.
    pub fn next(&mut self) -> Result<Option<DriverReply>> {
        let mut line = String::new();
        let failed = |error| Fault::from_os("hearing the job's driver", &error);
        if self.reader.read_line(&mut line).map_err(failed)? == 0 {
            return Ok(None);
        }
        match serde_json::from_str(&line).map_err(|error| failed(error.into()))? {
            DriverReply::Failed(fault) => Err(fault),
            reply => Ok(Some(reply)),
        }
    }

    /// The next answer, which must come.
    ///
    /// # Errors
    /// The driver died, or what it answered.
    pub fn must_next(&mut self) -> Result<DriverReply> {
        let died = || Fault::new(Errno::EHOSTDOWN, "the job's driver ended before it answered");
        self.next()?.ok_or_else(died)
    }
}
