//! What the node of a volume keeps for the volume's drivers, in the directory of its store (`tameike_agent::keepers`).

use super::record::{read_json, write_durably};
use super::volume::VolumeRecord;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use tameike_agent::keepers::{Keeper, Kept, KeptRecord, Term};
use tameike_core::{Errno, Fault, NodeId, Result};
use tameike_io::os::process::random_bytes;

/// The file with it.
const KEPT_FILE: &str = "kept.json";

/// The file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptFile {
    /// Random number of the store.
    pub store: u64,
    /// What it keeps: records in JSON.
    pub kept: Kept<String>,
}

/// Returns the record of the volume in the form in which it is kept.
pub fn encode(record: &VolumeRecord) -> Result<String> {
    serde_json::to_string(record).map_err(|error| Fault::io(format!("the record of the volume: {error}")))
}

/// Returns the record that is kept.
pub fn decode(record: &KeptRecord<String>) -> Result<VolumeRecord> {
    serde_json::from_str(&record.record)
        .map_err(|error| Fault::io(format!("the kept record of the volume: {error}")))
}

/// What a running node keeps.
pub struct KeptHere {
    node: NodeId,
    /// The directory of its store; `None` if it has none, and keeps everything in memory.
    dir: Option<PathBuf>,
    file: KeptFile,
}

impl KeptHere {
    /// Opens the file of a node, or makes that of a new store.
    pub fn open(node: NodeId, dir: Option<PathBuf>) -> Result<Self> {
        let found = dir.as_deref().map(read).transpose()?.flatten();
        if let Some(file) = found {
            return Ok(Self { node, dir, file });
        }
        let file = KeptFile { store: u64::from_le_bytes(random_bytes()?), kept: Kept::default() };
        let here = Self { node, dir, file };
        here.write(&here.file)?;
        Ok(here)
    }

    /// The node as a keeper.
    pub fn keeper(&self) -> Option<Keeper> {
        self.dir.as_ref().map(|_| Keeper { node: self.node, store: self.file.store })
    }

    /// The highest promised term.
    pub fn promised(&self) -> Term {
        self.file.kept.promised
    }

    /// The newest record.
    pub fn record(&self) -> Option<&KeptRecord<String>> {
        self.file.kept.newest.as_ref()
    }

    /// What the node keeps, if it may promise a term.
    ///
    /// # Errors
    /// `ESTALE` if the node has promised this term or a later one.
    pub fn may_promise(&self, term: Term) -> Result<Kept<String>> {
        if term > self.promised() { Ok(self.file.kept.clone()) } else { Err(self.superseded()) }
    }

    /// Promises a term, durably. Returns what the node keeps.
    ///
    /// # Errors
    /// `ESTALE` if the node has promised this term or a later one; those of the system.
    pub fn promise(&mut self, term: Term) -> Result<Kept<String>> {
        let mut file = self.file.clone();
        if !file.kept.promise(term) {
            return Err(self.superseded());
        }
        self.replace(file)?;
        Ok(self.file.kept.clone())
    }

    /// Keeps a record, durably.
    ///
    /// # Errors
    /// `ESTALE` if the node has promised a later term; those of the system.
    pub fn keep(&mut self, record: KeptRecord<String>) -> Result<()> {
        let mut file = self.file.clone();
        if !file.kept.keep(record) {
            return Err(self.superseded());
        }
        self.replace(file)
    }

    fn superseded(&self) -> Fault {
        let Term(term) = self.promised();
        Fault::new(Errno::ESTALE, format!("another driver serves the volume, the one with number {term}"))
    }

    fn replace(&mut self, file: KeptFile) -> Result<()> {
        self.write(&file)?;
        self.file = file;
        Ok(())
    }

    fn write(&self, file: &KeptFile) -> Result<()> {
        self.dir.as_deref().map_or(Ok(()), |dir| write_durably(&dir.join(KEPT_FILE), file))
    }
}

/// Reads the file of a store; `None` if there is none.
pub fn read(dir: &Path) -> Result<Option<KeptFile>> {
    read_json(&dir.join(KEPT_FILE))
}
