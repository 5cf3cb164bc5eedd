//! A store on real files in one directory.
//!
//! ```text
//! format         version of the store, and boot id of the machine when it was last opened
//! lock           held by the agent that has the store open
//! log.0, log.1   log of the ledger; a checkpoint switches between them
//! table          key-value store of the ledger
//! extents        data of units
//! local          files of the node-local view; other crates own it
//! packed.0, packed.1  entries of packed files that are not durable yet; other crates own them
//! damage         what a salvage or repair found missing, one line each; absent in an intact store
//! table.damaged  a damaged table that a salvage has set aside
//! lost+found     what a repair has removed ([`crate::check`])
//! ```
//!
//! `format` is one line of text: `tameike-store 2 <boot id>`. If its boot id differs from the machine's, the machine
//! may have lost power since.

use crate::extent::{ExtentData, ExtentStore};
use crate::ledger::redb::RedbKv;
use crate::ledger::{LOG_NAMES, Ledger, LedgerOptions, Media, RecordKind};
use crate::table::Table;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tameike_core::{Errno, Fault, Result};
use tameike_io::disk::file::{FileLock, FileLog, in_memory, sync_directory, truncate_to_empty};
use tameike_io::disk::uring::Direct;
use tameike_io::disk::{self, Disk};
use tameike_io::{Pool, Runtime};

const LOCK: &str = "lock";
pub(crate) const TABLE: &str = "table";
pub(crate) const EXTENTS: &str = "extents";
/// Directory of the node-local view's files.
pub const LOCAL: &str = "local";
const TABLE_ASIDE: &str = "table.damaged";
const DAMAGE: &str = "damage";
/// Start of the file `format`, before the version number.
pub(crate) const FORMAT_NAME: &str = "tameike-store ";
pub(crate) const FORMAT: &str = "tameike-store 2";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Minimum size of the extents file beyond all capacities together, in bytes, for blocks that are being replaced. A
/// larger store has a sixteenth more.
const SLACK_MIN: u64 = 64 << 20;
/// On a disk, a checkpoint begins at the latest when the changes reach this fraction of all capacities; the
/// preallocated space is six times as much.
const CHECKPOINT_PART: u64 = 256;
/// Lower limit for that, in bytes of changes.
const CHECKPOINT_MIN: usize = 1 << 20;

/// Options for opening a store.
pub struct Options {
    /// Clock and tasks.
    pub runtime: Runtime,
    /// Direct I/O past the page cache; without it, data of units goes through the page cache.
    pub direct: Option<Direct>,
    /// Frames for merging and for rewriting units; at least one.
    pub scratch: Pool,
    /// Capacities in bytes, by [`tameike_core::View::index`]. Data beyond them that the store already holds stays.
    pub capacity: [u64; 3],
    /// Bytes of changes in memory (and in the log) at which a checkpoint begins; a small store on a disk uses less. A
    /// checkpoint in progress needs up to three times as much.
    pub checkpoint_bytes: usize,
    /// Memory of the key-value store's cache, in bytes.
    pub table_cache_bytes: usize,
}

/// An open store. The lock keeps other processes from opening it.
pub struct Store {
    /// The metadata.
    pub ledger: Arc<Ledger>,
    /// The data of units.
    pub extents: Arc<ExtentStore>,
    /// Descriptions of the damage found by salvages, this one or earlier ones.
    pub damage: Vec<String>,
    _lock: FileLock,
}

/// Attempts, and pause between them, while another process has a store open.
const BUSY_ATTEMPTS: u32 = 200;
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// The open parts of a store before its ledger is open.
struct Parts {
    lock: FileLock,
    format: Format,
    disk: Arc<dyn Disk>,
    media: Media,
    ledger_options: LedgerOptions,
}

fn take_lock(dir: &Path) -> Result<FileLock> {
    FileLock::take(&dir.join(LOCK))
        .map_err(|fault| fault.context(format_args!("open the store {}", dir.display())))
}

/// Returns true if a process has the store in a directory open.
///
/// # Errors
/// Those of the system.
pub fn is_open(dir: &Path) -> Result<bool> {
    match FileLock::take_existing(&dir.join(LOCK)) {
        Err(fault) if fault.errno == Errno::EBUSY => Ok(true),
        Err(fault) if fault.errno != Errno::ENOENT => Err(fault),
        _ => Ok(false),
    }
}

/// Retries `attempt` while another process, which may be about to exit, has the store open.
pub async fn retry_while_busy<T>(runtime: &Runtime, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 0..BUSY_ATTEMPTS {
        match attempt() {
            Err(fault) if fault.errno == Errno::EBUSY => runtime.sleep(BUSY_PAUSE).await,
            done => return done,
        }
    }
    attempt()
}

/// Truncates the extents file of a stopped store, which releases its space even if programs have descriptors of it. A
/// missing file is no error.
pub fn release_space(dir: &Path) -> Result<()> {
    truncate_to_empty(&dir.join(EXTENTS))
}

fn open_parts(dir: &Path, options: &Options, lock: FileLock) -> Result<Parts> {
    let format = Format { path: dir.join("format"), boot_id: boot_id()? };
    let after_power_loss = format.check()?;
    let volatile = in_memory(dir)?;
    let total = options.capacity.iter().fold(0u64, |sum, limit| sum.saturating_add(*limit));
    let size = total.saturating_add((total / 16).max(SLACK_MIN));
    let disk = disk::open(&dir.join(EXTENTS), size, &options.runtime, options.direct.as_ref())?;
    let mut ledger_options =
        LedgerOptions { checkpoint_bytes: options.checkpoint_bytes, volatile, after_power_loss };
    if !volatile {
        let part = usize::try_from(total / CHECKPOINT_PART).unwrap_or(usize::MAX).max(CHECKPOINT_MIN);
        ledger_options.checkpoint_bytes = part.min(options.checkpoint_bytes);
    }
    // Preallocates space: if other data fills the disk, the log must still take the records that free space.
    let preallocated = if volatile { 0 } else { ledger_options.log_bytes_max() as u64 };
    let log = |name| FileLog::open(&dir.join(name), options.runtime.clone(), preallocated);
    let [first, second] = LOG_NAMES;
    let media = Media {
        logs: [Arc::new(log(first)?), Arc::new(log(second)?)],
        kv: Arc::new(RedbKv::open(&dir.join(TABLE), options.table_cache_bytes, preallocated)?),
        data: Arc::new(ExtentData::new(disk.clone(), options.scratch.clone())),
    };
    Ok(Parts { lock, format, disk, media, ledger_options })
}

/// Opens a store on any media; `media.data` refers to the bytes on `disk`. `replay` is that of [`Store::open`].
pub async fn open_media(
    disk: Arc<dyn Disk>,
    media: Media,
    ledger_options: LedgerOptions,
    options: Options,
    mut replay: impl FnMut(RecordKind, &[u8], &mut dyn Table) -> Result<()> + Send,
) -> Result<(Arc<Ledger>, Arc<ExtentStore>)> {
    let runtime = options.runtime;
    let ledger = Ledger::open(runtime.clone(), media, ledger_options, move |kind, body, table| {
        crate::replay(kind, body, table, &mut replay)
    })
    .await?;
    let extents = ExtentStore::open(runtime, ledger.clone(), disk, options.scratch, options.capacity).await?;
    Ok((ledger, extents))
}

impl Store {
    /// Opens or creates the store in the directory `dir`. `replay` applies log records of kinds other than
    /// [`RecordKind::Extents`].
    ///
    /// # Errors
    /// - `EBUSY` if another process has it open
    /// - `EINVAL` if it has another version
    /// - those of the system and of `replay`
    pub async fn open(
        dir: &Path,
        options: Options,
        replay: impl FnMut(RecordKind, &[u8], &mut dyn Table) -> Result<()> + Send,
    ) -> Result<Self> {
        std::fs::create_dir_all(dir)
            .map_err(|error| Fault::from_os(format!("create the directory {}", dir.display()), &error))?;
        let damage = read_damage(dir)?;
        let Parts { lock, format, disk, media, ledger_options } = open_parts(dir, &options, take_lock(dir)?)?;
        let (ledger, extents) = open_media(disk, media, ledger_options, options, replay)
            .await
            .map_err(|fault| fault.context(format_args!("open the store {}", dir.display())))?;
        format.write()?;
        sync_directory(dir)?;
        Ok(Self { ledger, extents, damage, _lock: lock })
    }

    /// Verifies the checksums of the table. Opening a store verifies the log; reads verify the data.
    pub fn verify_table(dir: &Path) -> Result<()> {
        RedbKv::verify(&dir.join(TABLE))
    }

    /// Opens the store of a failed agent as far as it is readable: skips damaged records and sets a damaged table
    /// aside. [`Store::damage`] then lists what is missing, and what the caller knows (`missing`) to have been lost
    /// before; the list is persistent.
    pub async fn salvage(
        dir: &Path,
        options: Options,
        missing: &[String],
        mut replay: impl FnMut(RecordKind, &[u8], &mut dyn Table) -> Result<()> + Send,
    ) -> Result<Self> {
        // Changes nothing while the failed agent, or another salvage, has not exited completely.
        let lock = retry_while_busy(&options.runtime, || take_lock(dir)).await?;
        let verified = retry_while_busy(&options.runtime, || match Self::verify_table(dir) {
            Err(fault) if fault.errno == Errno::EBUSY => Err(fault),
            verified => Ok(verified),
        });
        let verified = verified.await?;
        write_damage(dir, missing)?;
        let mut damage = read_damage(dir)?;
        let known = damage.len();
        if let Err(fault) = verified {
            let (table, aside) = (dir.join(TABLE), dir.join(TABLE_ASIDE));
            std::fs::rename(&table, &aside)
                .map_err(|error| Fault::from_os(format!("set {} aside", table.display()), &error))?;
            damage.push(format!("{fault}; it is set aside as {}", aside.display()));
            write_damage(dir, &damage)?;
        }
        let Parts { lock, format, disk, media, ledger_options } = open_parts(dir, &options, lock)?;
        let runtime = options.runtime;
        let mut found = Vec::new();
        let ledger = Ledger::salvage(
            runtime.clone(),
            media,
            ledger_options,
            &mut found,
            // Must persist what the log lacks before the log is emptied.
            |damage| write_damage(dir, damage),
            move |kind, body, table| crate::replay(kind, body, table, &mut replay),
        )
        .await
        .map_err(|fault| fault.context(format_args!("open the store {}", dir.display())))?;
        let extents =
            ExtentStore::salvage(runtime, ledger.clone(), disk, options.scratch, &mut found).await?;
        damage.extend(found);
        if damage.len() > known {
            write_damage(dir, &damage)?;
        }
        format.write()?;
        sync_directory(dir)?;
        Ok(Self { ledger, extents, damage, _lock: lock })
    }
}

pub(crate) fn read_damage(dir: &Path) -> Result<Vec<String>> {
    let path = dir.join(DAMAGE);
    if !path.exists() {
        return Ok(Vec::new());
    }
    Ok(read_text(&path)?.lines().map(str::to_owned).collect())
}

/// Adds lines that the file lacks.
pub(crate) fn write_damage(dir: &Path, damage: &[String]) -> Result<()> {
    let mut lines = read_damage(dir)?;
    for line in damage.iter().map(|line| line.replace('\n', " ")) {
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    if lines.is_empty() {
        return Ok(());
    }
    write_whole(&dir.join(DAMAGE), &(lines.join("\n") + "\n"))
}

/// Replaces a file atomically: writes a draft, then renames it.
fn write_whole(path: &Path, text: &str) -> Result<()> {
    let draft = path.with_extension("draft");
    let write = || {
        match std::fs::remove_file(&draft) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // Fails if the draft exists, so that a symbolic link there is not followed.
        let mut file = std::fs::File::create_new(&draft)?;
        std::io::Write::write_all(&mut file, text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&draft, path)
    };
    write().map_err(|error| Fault::from_os(format!("write {}", path.display()), &error))
}

/// The file `format`: version and boot id.
pub(crate) struct Format {
    pub(crate) path: PathBuf,
    pub(crate) boot_id: String,
}

pub(crate) fn boot_id() -> Result<String> {
    read_text(Path::new(BOOT_ID))
}

impl Format {
    /// Checks the version. Returns true if the machine may have lost power since the store was last open; false for a
    /// new store.
    fn check(&self) -> Result<bool> {
        if !self.path.exists() {
            return Ok(false);
        }
        let found = read_text(&self.path)?;
        match found.strip_prefix(FORMAT).and_then(|rest| rest.strip_prefix(' ')) {
            Some(boot_id) => Ok(boot_id != self.boot_id),
            None => Err(Fault::new(
                Errno::EINVAL,
                format!(
                    "{} contains {found:?}, but this version of tameike reads {FORMAT:?}: open the store with the \
                     version that created it, or remove its directory",
                    self.path.display()
                ),
            )),
        }
    }

    /// Callers write the format last, when the store is consistent.
    pub(crate) fn write(&self) -> Result<()> {
        write_whole(&self.path, &format!("{FORMAT} {}\n", self.boot_id))
    }
}

fn read_text(path: &Path) -> Result<String> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(text.trim_end().to_owned()),
        Err(error) if error.kind() == ErrorKind::InvalidData => {
            Err(Fault::new(Errno::EINVAL, format!("{} is not text", path.display())))
        }
        Err(error) => Err(Fault::from_os(format!("read {}", path.display()), &error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extent::Pieces;
    use std::sync::Arc;
    use tameike_core::{Generation, HomeId, HomeSet, InodeId, Slot, UnitId};
    use tameike_io::os::simulated::Simulation;
    use tameike_io::os::system::System;
    use tameike_io::{Payload, Slab};

    const UNIT: UnitId = UnitId { inode: InodeId(0x0123_0000_0000_0001), index: 2 };

    struct Home {
        machine: Simulation,
        slab: Arc<Slab>,
        dir: tempfile::TempDir,
        capacity: [u64; 3],
    }

    impl Home {
        fn new(parent: &str) -> Self {
            let dir = tempfile::tempdir_in(parent).unwrap();
            Self {
                machine: Simulation::shuffled(1),
                slab: Slab::new(4).unwrap(),
                dir,
                capacity: [1 << 20, 4 << 20, 0],
            }
        }

        fn open(&self) -> Result<Store> {
            let options = Options {
                runtime: self.machine.runtime(),
                direct: None,
                scratch: self.slab.pool(1),
                capacity: self.capacity,
                checkpoint_bytes: 1 << 20,
                table_cache_bytes: 1 << 20,
            };
            self.machine.run(Store::open(self.dir.path(), options, |kind, body, table| {
                assert_eq!(kind, RecordKind::Names);
                table.put(body.to_vec(), b"again".to_vec());
                Ok(())
            }))
        }

        fn refused(&self) -> String {
            self.open().err().expect("refused").to_string()
        }

        fn payload(&self, byte: u8) -> Payload {
            let mut frame = self.slab.pool(1).try_take().unwrap();
            frame[..10_000].fill(byte);
            Payload::new(Arc::new(frame), 0..10_000)
        }

        fn pieces(&self, byte: u8) -> Pieces {
            Pieces::at(0, self.payload(byte)).unwrap()
        }

        fn read(&self, store: &Store) -> u8 {
            let frame = self.slab.pool(1).try_take().unwrap();
            let (frame, held) = self.machine.run(store.extents.read(UNIT, 0..10_000, frame, Generation(0)));
            assert_eq!(held.unwrap().ranges.len(), 10_000);
            frame[9_999]
        }
    }

    #[test]
    fn a_store_reopens_with_its_content_on_disk_and_in_memory() {
        for parent in ["/tmp", "/dev/shm"] {
            let home = Home::new(parent);
            let store = home.open().unwrap();
            home.machine
                .run(store.extents.write(HomeId(0), UNIT, home.pieces(7), false, Generation(0)))
                .unwrap();
            let name = |table: &mut dyn Table| {
                table.put(b"iname".to_vec(), b"first".to_vec());
                Ok(())
            };
            store.ledger.execute(RecordKind::Names, b"iname", name).unwrap();
            home.machine.run(store.extents.sync(true)).unwrap();
            drop(store);
            home.machine.kill();
            let store = home.open().unwrap();
            assert_eq!(home.read(&store), 7);
            let found = store.ledger.read(|table| table.get(b"iname")).unwrap();
            assert_eq!(found.as_deref(), Some(&b"again"[..]), "replay applied the log");
        }
    }

    #[test]
    fn opening_a_locked_store_fails_with_its_name() {
        let home = Home::new("/tmp");
        let _store = home.open().unwrap();
        let refused = home.refused();
        assert!(refused.contains("lock is locked by another process; end that one first"), "{refused}");
        assert!(refused.contains(&home.dir.path().display().to_string()), "{refused}");
    }

    #[test]
    fn a_store_opens_with_a_capacity_below_its_content() {
        let mut home = Home::new("/dev/shm");
        let store = home.open().unwrap();
        home.machine.run(store.extents.write(HomeId(0), UNIT, home.pieces(7), false, Generation(0))).unwrap();
        home.machine.run(store.extents.sync(false)).unwrap();
        drop(store);
        home.machine.kill();
        home.capacity = [0; 3];
        let store = home.open().unwrap();
        assert_eq!(home.read(&store), 7);
        let other = UnitId { index: 3, ..UNIT };
        let write = store.extents.write(HomeId(0), other, home.pieces(8), false, Generation(0));
        assert_eq!(home.machine.run(write).unwrap_err().errno, Errno::ENOSPC);
    }

    #[test]
    fn many_threads_use_one_store() {
        let system = System::start(4).unwrap();
        let slab = Slab::new(10).unwrap();
        for direct in [None, Some(Direct { reactor: system.reactor().clone(), slab: slab.clone() })] {
            many_threads(&system, &slab, direct);
        }
    }

    fn open_on_system(dir: &Path, system: &System, slab: &Arc<Slab>, direct: Option<Direct>) -> Store {
        let options = Options {
            runtime: system.runtime().clone(),
            direct,
            scratch: slab.pool(2),
            capacity: [0, 64 << 20, 0],
            checkpoint_bytes: 100_000,
            table_cache_bytes: 1 << 20,
        };
        pollster::block_on(Store::open(dir, options, |_, _, _| Ok(()))).unwrap()
    }

    #[test]
    fn direct_io_detects_a_flipped_bit_on_the_disk() {
        let system = System::start(2).unwrap();
        let slab = Slab::new(4).unwrap();
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let direct = Direct { reactor: system.reactor().clone(), slab: slab.clone() };
        let store = open_on_system(dir.path(), &system, &slab, Some(direct));
        let pool = slab.pool(2);
        let mut frame = pool.try_take().unwrap();
        frame[..8192].fill(7);
        let payload = Payload::new(Arc::new(frame), 0..8192);
        pollster::block_on(store.extents.write(
            HomeId(0),
            UNIT,
            Pieces::at(0, payload).unwrap(),
            false,
            Generation(0),
        ))
        .unwrap();
        pollster::block_on(store.extents.sync(true)).unwrap();
        let read = || {
            let frame = pool.try_take().unwrap();
            pollster::block_on(store.extents.read(UNIT, 0..8192, frame, Generation(0))).1
        };
        assert_eq!(read().unwrap().ranges.len(), 8192);
        let path = dir.path().join(EXTENTS);
        let mut bytes = std::fs::read(&path).unwrap();
        let place = bytes.iter().position(|byte| *byte == 7).expect("the written bytes");
        bytes[place + 5000] ^= 1;
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &bytes[place..place + 8192], place as u64).unwrap();
        let fault = read().unwrap_err();
        assert!(fault.errno == Errno::EIO && fault.to_string().contains("is damaged"), "{fault}");
    }

    #[test]
    fn released_space_is_free_despite_open_descriptors() {
        let dir = tempfile::tempdir().unwrap();
        release_space(dir.path()).expect("a missing file is no error");
        std::fs::write(dir.path().join(EXTENTS), [1; 10_000]).unwrap();
        let held = std::fs::File::open(dir.path().join(EXTENTS)).unwrap();
        release_space(dir.path()).unwrap();
        assert_eq!(held.metadata().unwrap().len(), 0);
        // A symbolic link there is refused: its target stays as it is.
        std::fs::write(dir.path().join("precious"), "bytes").unwrap();
        std::fs::remove_file(dir.path().join(EXTENTS)).unwrap();
        std::os::unix::fs::symlink("precious", dir.path().join(EXTENTS)).unwrap();
        release_space(dir.path()).unwrap_err();
        assert_eq!(std::fs::read(dir.path().join("precious")).unwrap(), b"bytes");
    }

    fn many_threads(system: &System, slab: &Arc<Slab>, direct: Option<Direct>) {
        let dir = tempfile::tempdir().unwrap();
        let runtime = system.runtime().clone();
        let store = open_on_system(dir.path(), system, slab, direct);
        let (extents, pool) = (store.extents.clone(), slab.pool(8));
        let workers: Vec<_> = (0..8u64)
            .map(|worker| {
                let (extents, pool) = (extents.clone(), pool.clone());
                let (resolver, done) = tameike_io::os::runtime::promise();
                runtime.spawn(async move { resolver.resolve(work(&extents, &pool, worker).await) });
                done
            })
            .collect();
        for done in workers {
            pollster::block_on(done).unwrap();
        }
        assert!(pollster::block_on(extents.scrub()).unwrap().damaged.is_empty());
        assert!(store.ledger.table_size_bytes().unwrap() > 0);
    }

    /// Writes and reads units of one worker, and one unit in which each worker has a range.
    async fn work(extents: &ExtentStore, pool: &Pool, worker: u64) -> Result<()> {
        let own = |round: u64| UnitId { inode: InodeId(0x0200_0000_0000_0000 + worker), index: round % 5 };
        let place = worker as u32 * 10_000;
        for round in 0..60u64 {
            let byte = (round * 8 + worker) as u8;
            let mut frame = pool.take().await;
            frame[..10_000].fill(byte);
            let payload = Payload::new(Arc::new(frame), 0..10_000);
            extents
                .write(HomeId(0), own(round), Pieces::at(place, payload.clone())?, false, Generation(0))
                .await?;
            extents.write(HomeId(0), UNIT, Pieces::at(place, payload)?, false, Generation(0)).await?;
            for unit in [own(round), UNIT] {
                let (frame, held) =
                    extents.read(unit, place..place + 10_000, pool.take().await, Generation(0)).await;
                assert_eq!(held?.ranges.len(), 10_000);
                assert!(frame[place as usize..place as usize + 10_000].iter().all(|found| *found == byte));
            }
            match round % 10 {
                3 => extents.sync(round % 20 == 3).await?,
                7 => extents.truncate(&HomeSet::All, own(0).inode, 0).await?,
                _ => {}
            }
        }
        Ok(())
    }

    #[test]
    fn another_version_is_refused() {
        let home = Home::new("/tmp");
        drop(home.open().unwrap());
        home.machine.kill();
        std::fs::write(home.dir.path().join("format"), "tameike-store 9 x\n").unwrap();
        assert!(home.refused().contains("open the store with the version that created it"));
        std::fs::write(home.dir.path().join("format"), [0xFF, 0xFE]).unwrap();
        assert!(home.refused().contains("format is not text"));
    }

    #[test]
    fn after_a_reboot_recovery_accepts_log_records_only_with_their_data() {
        let home = Home::new("/tmp");
        let store = home.open().unwrap();
        for byte in [7, 8] {
            home.machine
                .run(store.extents.write(HomeId(0), UNIT, home.pieces(byte), false, Generation(0)))
                .unwrap();
            home.machine.run(store.extents.sync(false)).unwrap();
        }
        drop(store);
        home.machine.kill();
        std::fs::write(home.dir.path().join("format"), "tameike-store 2 another-boot\n").unwrap();
        let extents = home.dir.path().join("extents");
        let mut bytes = std::fs::read(&extents).unwrap();
        let lost = bytes.iter().position(|byte| *byte == 8).expect("the second write");
        bytes[lost..lost + 4096].fill(0);
        std::fs::write(&extents, bytes).unwrap();
        assert_eq!(home.read(&home.open().unwrap()), 7);
        assert_eq!(UNIT.inode.slot(), Slot(0x0123));
    }
}
