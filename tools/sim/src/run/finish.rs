//! The end of a job: the last drain with its receipt, recovery after all agents failed, and a check for leaked space.

use super::check::file_at;
use super::{Checked, Run, VIEWS};
use crate::model::Reader;
use crate::op::Op;
use crate::tree::Content;
use std::collections::BTreeSet;
use std::time::Duration;
use tameike_agent::control::AgentMode;
use tameike_core::receipt::{FileReceipt, Receipt};
use tameike_core::{FileKind, View};

/// After this time a drain counts as hung.
const DRAIN_LIMIT: Duration = Duration::from_secs(1200);
/// Longer than any background work takes.
const BEHIND: Duration = Duration::from_secs(90);

impl Run {
    pub(super) async fn finish(&mut self, crashes: bool) -> Checked {
        if crashes {
            return self.recover().await;
        }
        self.check().await?;
        let receipt = self.drain_whole(AgentMode::Serve).await?;
        self.compare_interrupted(&receipt, &BTreeSet::new())?;
        let _pause = self.world.countdown.pause();
        self.compare_shared(&receipt, false)?;
        if self.has_losses { Ok(()) } else { self.remove_all().await }
    }

    async fn drain_agents(&self, verify: bool) -> Checked<Receipt> {
        let drained = self.world.runtime().timeout(DRAIN_LIMIT, self.world.drain(verify)).await;
        drained.ok_or_else(|| format!("a drain does not end within {DRAIN_LIMIT:?}"))
    }

    /// Drains while programs and faults are active: files that the receipt calls complete must be.
    pub(super) async fn drain(&mut self) -> Checked {
        let begun = self.moment();
        let receipt = self.drain_agents(false).await?;
        let files = self.world.tree.files(true);
        let model = self.model(View::Cache);
        for entry in receipt.files.iter().filter(|entry| entry.is_complete() && entry.note.is_empty()) {
            let (Ok(id), false) = (model.find(&entry.path), model.is_unknown(&entry.path, false)) else {
                continue;
            };
            let wrong = |why: String| format!("the receipt says {entry:?}, but {why}");
            let Some((_, content)) = files.iter().find(|(path, _)| *path == entry.path.as_bytes()) else {
                return Err(wrong("there is no such file".to_owned()));
            };
            let reader = Reader { node: usize::MAX, opened: begun, now: begun };
            let checked = model.object(id).data.check(reader, 0, content.size + 1, &whole(content));
            checked.map_err(wrong)?;
        }
        Ok(())
    }

    /// All agents fail; new ones start in recovery mode and drain the journals.
    async fn recover(&mut self) -> Checked {
        self.leave_open().await?;
        let power = !self.volatile && self.rotten.is_empty() && self.moment() & 1 == 0;
        let being_written = if power || self.log_broken { BTreeSet::new() } else { self.being_written() };
        (0..self.world.count()).for_each(|node| self.world.kill(node, power));
        self.power_lost |= power;
        self.end_faults();
        self.restart(AgentMode::Recover).await?;
        self.clear_explained();
        self.verify_explained()?;
        self.world.runtime().sleep(BEHIND).await;
        let receipt = self.drain_whole(AgentMode::Recover).await?;
        self.compare_interrupted(&receipt, &being_written)?;
        self.compare_shared(&receipt, true)
    }

    /// Runs the last drain, which must be complete. Repeats it if a countdown failed a call in it.
    async fn drain_whole(&mut self, mode: AgentMode) -> Checked<Receipt> {
        self.apply_countdown();
        loop {
            if self.must_restart {
                self.restart(mode).await?;
            }
            let receipt = self.drain_agents(true).await?;
            // The caller checks the interrupted files.
            if receipt.is_drained() || self.has_losses || self.lacks_only_rotten(&receipt) {
                return Ok(receipt);
            }
            if !self.apply_countdown() {
                return Err(format!("a drain without a fault is not complete: {receipt:?}"));
            }
        }
    }

    /// Returns the bytes in use after all files were removed.
    fn leaked(&self, view: View) -> u64 {
        match view {
            // The creation of these units' file did not reach the log before the failed sync, or was lost with its agent.
            View::JobShared if self.log_broken || self.has_orphans || self.has_gone_files => 0,
            // A home that missed the removal evicts the clean bytes when it needs space.
            View::Cache if self.world.countdown.injected().is_some() || self.was_unreachable => {
                self.world.space(view, |space| space.dirty)
            }
            _ => self.world.space(view, |space| space.used),
        }
    }

    /// Compares the durable content of the shared file system with the model and the receipt.
    fn compare_shared(&mut self, receipt: &Receipt, recovered: bool) -> Checked {
        let now = self.moment();
        let files: Vec<_> = self.world.tree.files(true);
        let has_losses = self.has_losses;
        let model = self.model(View::Cache);
        for (path, content) in &files {
            let path = String::from_utf8_lossy(path).into_owned();
            let is_missing = |entry: &FileReceipt| entry.path == path && !entry.is_complete();
            if model.is_unknown(&path, false) || receipt.files.iter().any(is_missing) {
                continue;
            }
            let Some(id) = file_at(model, &path) else {
                return Err(format!("the shared file system has {path}, which should not exist"));
            };
            let bytes = whole(content);
            let reader = Reader { node: usize::MAX, opened: now, now };
            let data = &model.object(id).data;
            let wrong = |why| {
                format!("the shared file system's {path} after the drain (recovered: {recovered}): {why}")
            };
            data.check(reader, 0, content.size + 1, &bytes).map_err(wrong)?;
            // A journal without its tail takes later flushes for changes of another program, and notes that.
            let is_of_then = |entry: &FileReceipt| has_losses && !entry.note.is_empty();
            let entries = receipt.files.iter().filter(|entry| entry.path == path && entry.is_complete());
            for entry in entries.filter(|entry| !is_of_then(entry)) {
                let checksum = blake3::hash(&bytes).to_hex().to_string();
                // A file that another program changed has no checksum.
                let is_whole = !entry.checksum.is_empty() && !entry.checksum.contains(':');
                if entry.size != content.size || (is_whole && entry.checksum != checksum) {
                    return Err(wrong(format!(
                        "the receipt says {entry:?}, it has {} bytes, {checksum}",
                        content.size
                    )));
                }
            }
        }
        let has = |path: &str| files.iter().any(|(found, _)| found == path.as_bytes());
        for (path, id) in model.all() {
            if model.object(id).kind == FileKind::File && !model.is_unknown(&path, false) && !has(&path) {
                return Err(format!("the shared file system lacks {path}"));
            }
        }
        Ok(())
    }

    async fn remove_all(&mut self) -> Checked {
        for ((node, view, slot), open) in self.slots.clone() {
            let call = self.one(node, View::ALL[view], Op::Close { slot }, Some(open)).await?;
            self.verify(vec![call])?;
        }
        for view in VIEWS {
            if self.model(view).has_lost() {
                continue;
            }
            let all: Vec<_> = self.model(view).all().into_iter().rev().collect();
            for (path, id) in all {
                let op = match self.model(view).object(id).kind {
                    FileKind::Directory => Op::Rmdir { path },
                    _ => Op::Unlink { path },
                };
                let call = self.one(0, view, op, None).await?;
                self.verify(vec![call])?;
            }
        }
        self.world.runtime().sleep(BEHIND).await;
        let receipt = self.world.drain(false).await;
        if !receipt.is_complete() {
            return Err(format!("a drain after the removal of all files is not complete: {receipt:?}"));
        }
        for view in VIEWS {
            let used = self.leaked(view);
            if used > 0 {
                return Err(format!(
                    "{}: {used} bytes are in use after the removal of all files",
                    view.as_str()
                ));
            }
        }
        Ok(())
    }
}

fn whole(content: &Content) -> Vec<u8> {
    let mut bytes = vec![0; content.size as usize];
    content.read(&mut bytes, 0);
    bytes
}
