//! Starts the next driver of a volume when the last one has failed. Each keeper of the record may, one after another.

use crate::driver::SupervisedStart;
use crate::place::kept;
use std::fs::File;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tameike_agent::keepers::KeptRecord;
use tameike_core::{Fault, NodeId, Result};
use tameike_io::os::process::detach;

/// Time without a driver after which the first keeper starts one, and that by which each later keeper waits longer.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const NEXT_WAIT: Duration = Duration::from_secs(5);
/// Pause after a driver that did not take over.
const PAUSE: Duration = Duration::from_secs(20);

/// The part of a keeper that starts drivers.
pub(super) struct Standby {
    node: NodeId,
    node_dir: PathBuf,
    driver: Option<Child>,
    not_before: Duration,
}

impl Standby {
    /// That of a node with this directory.
    pub fn new(node: NodeId, node_dir: PathBuf) -> Self {
        Self { node, node_dir, driver: None, not_before: Duration::ZERO }
    }

    /// Notes that the volume has a driver. If that one fails too, the next one need not wait.
    pub fn rest(&mut self) {
        self.not_before = Duration::ZERO;
    }

    /// Starts a driver if that is due. `driverless`: how long there has been none.
    pub fn tend(&mut self, driverless: Duration, record: Option<&KeptRecord<String>>, now: Duration) {
        // A driver that has ended leaves no process behind.
        if self.driver.as_mut().is_some_and(|driver| !matches!(driver.try_wait(), Ok(None))) {
            self.driver = None;
        }
        let Some(record) = record.filter(|_| self.driver.is_none() && now >= self.not_before) else { return };
        let Some(rank) = record.keepers.iter().position(|keeper| keeper.node == self.node) else { return };
        if driverless < FIRST_WAIT + NEXT_WAIT * rank as u32 {
            return;
        }
        self.not_before = now + PAUSE;
        match self.start(record) {
            Ok(driver) => {
                log::info!("the volume has no driver: process {} is the next one", driver.id());
                self.driver = Some(driver);
            }
            Err(fault) => log::error!("starting a driver of the volume: {fault}"),
        }
    }

    fn start(&self, record: &KeptRecord<String>) -> Result<Child> {
        let failed = |error| Fault::from_os("starting a driver", &error);
        let record = kept::decode(record)?;
        let base_parent = record.job.plan.base_dir.parent().unwrap_or(Path::new("/tmp")).to_owned();
        let start = SupervisedStart::NextDriver(Box::new(record));
        let mut line = serde_json::to_vec(&start).map_err(|error| failed(error.into()))?;
        line.push(b'\n');
        let messages = File::create(self.node_dir.join("driver.log")).map_err(failed)?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("tameike").arg("supervise").current_dir("/").env("TMPDIR", base_parent);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(messages);
        let mut driver = detach(&mut command).spawn().map_err(failed)?;
        driver.stdin.take().map_or(Ok(()), |mut input| input.write_all(&line)).map_err(failed)?;
        Ok(driver)
    }
}
