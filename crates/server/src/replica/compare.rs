//! Checks of copies: the primary of a home compares its copy with those of the backups, and repairs what differs.
//!
//! - Units: each is compared by checksums with its lock held, so that no change of it is in flight. What is damaged on the primary comes from
//!   a backup, and then what differs on a backup from the primary.
//! - Records: the stream of the home stops at one record while all copies digest their entries. A copy that differs is of no use: the authority
//!   of the home map is notified, and has the home copied again.

use super::RETRY_TIME;
use super::comparison::{BLOCK, Comparison, Difference, unexpected};
use super::join::{JoinsParts, entries_of};
use futures_util::{TryStreamExt, stream};
use parking_lot::Mutex;
use std::time::Duration;
use tameike_core::wire::admin::CopyReport;
use tameike_core::wire::replica::{ReplicaReply, ReplicaRequest};
use tameike_core::{Cluster, Errno, HomeId, HomeSet, NodeId, Result, UnitId};
use tameike_store::Ledger;
use tameike_store::ledger::{last_record, last_record_entry};

/// Units that are compared at a time.
const UNITS_PARALLEL: usize = 2;
/// Longest wait for a quiet node between two units.
const YIELD_TIME_MAX: Duration = Duration::from_millis(2);
/// Attempts to compare a unit while changes of it are in flight.
const ATTEMPTS_MAX: u32 = 100;

/// Checks the copies of the homes that a node serves.
pub struct CopyCheck {
    parts: JoinsParts,
    alone: async_lock::Mutex<()>,
}

/// The number of a home's last record, and a digest of its entries in the table.
pub(super) fn digest_of_home(ledger: &Ledger, cluster: &Cluster, home: HomeId) -> Result<(u64, [u8; 32])> {
    ledger.read(|table| {
        let last = last_record(table, home)?;
        let mut digest = blake3::Hasher::new();
        for (key, value) in
            entries_of(table, cluster, home)?.into_iter().chain([last_record_entry(home, last)])
        {
            for part in [key, value] {
                digest.update(&(part.len() as u64).to_le_bytes());
                digest.update(&part);
            }
        }
        Ok((last.number, digest.finalize().into()))
    })
}

impl CopyCheck {
    /// A check of the copies of one node's homes.
    pub fn new(parts: JoinsParts) -> Self {
        Self { parts, alone: async_lock::Mutex::default() }
    }

    /// Compares and repairs the copies of all homes that this node serves, while programs change them.
    pub async fn run(&self) -> CopyReport {
        // Two would hold back and release the same records.
        let _alone = self.alone.lock().await;
        let own = &self.parts.replicas.parts;
        let report = Mutex::new(CopyReport::default());
        let homes: Vec<_> = own.cluster.map().served_by(own.node).collect();
        for home in homes {
            if let Err(fault) = self.check_home(home, &report).await {
                let report = &mut *report.lock();
                report.failed += 1;
                report.describe(format!("{home} is not compared completely: {fault}"));
            }
        }
        report.into_inner()
    }

    async fn check_home(&self, home: HomeId, report: &Mutex<CopyReport>) -> Result<()> {
        let JoinsParts { replicas, extents, .. } = &self.parts;
        replicas.wait_for_stream(home).await?;
        let of_home = HomeSet::from_iter([home]);
        let units = extents.units_of(&of_home);
        let check = |unit| self.check_unit((home, unit), report);
        stream::iter(units).try_for_each_concurrent(UNITS_PARALLEL, check).await?;
        for backup in self.differing_records(home).await? {
            replicas.note_differing(backup, &[home]);
            let report = &mut *report.lock();
            report.differences += 1;
            report
                .describe(format!("{home}: the names or records on {backup} differ, and it gets a new copy"));
        }
        let is_alone = replicas.parts.cluster.map().backups(home).is_empty();
        let report = &mut *report.lock();
        report.homes += 1;
        report.homes_with_one_copy += u64::from(is_alone);
        Ok(())
    }

    /// Compares a unit. Returns an error if another node serves the home now.
    async fn check_unit(&self, (home, unit): (HomeId, UnitId), report: &Mutex<CopyReport>) -> Result<()> {
        let JoinsParts { replicas, copies, activity, .. } = &self.parts;
        let comparison = Comparison { copies, replicas, home, unit, is_exact: unit.inode.is_cached() };
        let name = format!("unit {} of {}", unit.index, unit.inode);
        let mut compared = Ok(None);
        for _ in 0..ATTEMPTS_MAX {
            compared = comparison.run().await;
            match &compared {
                Ok(None) => replicas.parts.runtime.sleep(RETRY_TIME).await,
                Ok(Some(_)) | Err(_) => break,
            }
        }
        let differences = match compared {
            Ok(Some(differences)) => differences,
            Err(fault) if fault.errno == Errno::EREMCHG => return Err(fault),
            other => {
                let why = other
                    .err()
                    .map_or_else(|| "it changes all the time".to_owned(), |fault| fault.to_string());
                let report = &mut *report.lock();
                report.failed += 1;
                report.describe(format!("{name} is not compared: {why}"));
                return Ok(());
            }
        };
        {
            let report = &mut *report.lock();
            report.units += 1;
            for Difference { node, bytes, is_repaired } in differences {
                report.differences += 1;
                report.repaired += u64::from(is_repaired);
                let outcome = if is_repaired { "repaired" } else { "NOT repaired" };
                let blocks = bytes.len() / BLOCK;
                report.describe(format!("{name}: damaged or other blocks on {node}: {blocks}, {outcome}"));
            }
        }
        replicas.parts.runtime.timeout(YIELD_TIME_MAX, activity.until_quiet()).await;
        Ok(())
    }

    /// The backups of a home whose entries differ from this node's.
    async fn differing_records(&self, home: HomeId) -> Result<Vec<NodeId>> {
        let JoinsParts { replicas, ledger, .. } = &self.parts;
        let cluster = &replicas.parts.cluster;
        let held = replicas.hold_records(home);
        let (own_number, own_digest) = digest_of_home(ledger, cluster, home)?;
        held.send_up_to(own_number);
        let mut differing = Vec::new();
        for &backup in cluster.map().backups(home) {
            replicas.wait_for_record(home, backup, own_number).await?;
            match replicas.ask_copy(home, backup, ReplicaRequest::DigestEntries { home }, None).await? {
                ReplicaReply::Digest { number, digest } if number == own_number => {
                    if digest != own_digest {
                        differing.push(backup);
                    }
                }
                other => return Err(unexpected(backup, &other)),
            }
        }
        Ok(differing)
    }
}
