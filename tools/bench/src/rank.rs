//! One rank: takes the steps that the coordinator sends.
//!
//! Coordinator and rank exchange lines of JSON over one connection. The coordinator sends the plan, then one
//! [`ToRank::Go`] per step once every rank has finished the step before; the rank answers each with its work.

use crate::options::RankOptions;
use crate::outcome::{Context, Outcome};
use crate::servers;
use crate::workload::{Measured, Plan, Site};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::PathBuf;

/// A message of the coordinator: the plan of the run, once; then the start of each step.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ToRank {
    Plan(Plan),
    Go,
}

/// A message of a rank: it has connected, and shows the token of its command line; or the outcome of a step.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum FromRank {
    Hello { rank: u32, token: String },
    Done(Measured),
    Failed(String),
}

/// One end of the connection between coordinator and rank.
#[derive(Debug)]
pub struct Link(BufReader<TcpStream>);

impl Link {
    /// Over `stream`.
    pub fn new(stream: TcpStream) -> Outcome<Self> {
        stream.set_nodelay(true).context(|| "set up a connection")?;
        Ok(Self(BufReader::new(stream)))
    }

    /// The connection, to wait on.
    pub fn stream(&self) -> &TcpStream {
        self.0.get_ref()
    }

    /// Sends one message.
    pub fn send(&mut self, message: &impl Serialize) -> Outcome<()> {
        let mut line = serde_json::to_vec(message).context(|| "write a message")?;
        line.push(b'\n');
        self.0.get_mut().write_all(&line).context(|| "send a message")
    }

    /// Receives the next message; `None` if the peer has closed the connection.
    pub fn receive<T: DeserializeOwned>(&mut self) -> Outcome<Option<T>> {
        let mut line = String::new();
        match self.0.read_line(&mut line).context(|| "read a message")? {
            0 => Ok(None),
            _ => serde_json::from_str(&line).map(Some).context(|| "parse a message"),
        }
    }
}

/// Serves one coordinator from hello to the last step.
pub fn serve(options: &RankOptions) -> Outcome<()> {
    let rank = options.rank;
    let gone = || format!("rank {rank}: the coordinator has closed the connection");
    let directory = expand(&options.directory)?;
    let stream =
        TcpStream::connect(options.coordinator).context(|| format!("reach {}", options.coordinator))?;
    let mut link = Link::new(stream)?;
    link.send(&FromRank::Hello { rank, token: options.token.clone() })?;
    let Some(ToRank::Plan(plan)) = link.receive()? else { return Err(gone()) };
    if let Some(processor) = plan.processor {
        servers::pin_self(processor)?;
    }
    let site = Site::new(plan, rank, &directory);
    for step in site.steps() {
        let Some(ToRank::Go) = link.receive()? else { return Err(gone()) };
        match site.take(step) {
            Ok(measured) => link.send(&FromRank::Done(measured))?,
            Err(message) => {
                let message = format!("rank {rank}: {message}");
                link.send(&FromRank::Failed(message.clone()))?;
                return Err(message);
            }
        }
    }
    Ok(())
}

/// `$NAME/rest` with NAME taken from the environment: views may be elsewhere on each node.
fn expand(directory: &str) -> Outcome<PathBuf> {
    let Some(variable) = directory.strip_prefix('$') else { return Ok(directory.into()) };
    let (name, rest) = variable.split_once('/').unwrap_or((variable, ""));
    let value =
        std::env::var_os(name).ok_or_else(|| format!("{name} is not set where this rank was started"))?;
    Ok(PathBuf::from(value).join(rest))
}
