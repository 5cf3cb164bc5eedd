use super::*;
use crate::cache::record;
use crate::cache::record::digest_key;
use serde_bytes::ByteBuf;
use tameike_core::wire::cache::Stamp;
use tameike_core::{Generation, HomeId, HomeSet, Timestamp};
use tameike_store::check::{RecordChecks, Report, Severity, check};
use tameike_store::directory::{Options, Store};
use tameike_store::extent::Pieces;
use tameike_store::{RecordKind, table};

const DONE: InodeId = InodeId(0x8000_0000_0000_0001);
const DIRTY: InodeId = InodeId(0x8000_0000_0000_0002);

/// The checkers of the agent's components.
struct All;

impl RecordChecks for All {
    fn replay(&self, _: RecordKind, body: &[u8], table: &mut dyn table::Table) -> Result<()> {
        crate::cache::replay(body, table)
    }
    fn examine(&self, table: &dyn ReadTable, dirty: &[Dirty], findings: &mut Findings) -> Result<()> {
        let here = |dirty: &Dirty| Dirty { coordinated_here: true, ..*dirty };
        examine(table, &dirty.iter().map(here).collect::<Vec<_>>(), findings)
    }
    fn path(&self, table: &dyn ReadTable, inode: InodeId) -> Option<String> {
        path(table, inode)
    }
}

type Pairs = Vec<(Vec<u8>, Option<Vec<u8>>)>;

/// Applies `change` to the journal of a stopped store with two files. Returns the findings and the records after the repair.
/// Asserts that the repair reports the same findings, and that a check after it finds nothing.
fn found(change: impl FnOnce() -> Pairs) -> (Vec<String>, Vec<(InodeId, Record)>) {
    let home = tempfile::tempdir().unwrap();
    let machine = tameike_io::os::simulated::Simulation::shuffled(1);
    let slab = tameike_io::Slab::new(4).unwrap();
    let open = || {
        let options = Options {
            runtime: machine.runtime(),
            direct: None,
            scratch: slab.pool(1),
            capacity: [1 << 20; 3],
            checkpoint_bytes: 1 << 20,
            table_cache_bytes: 1 << 20,
        };
        machine
            .run(Store::open(home.path(), options, |_, body, table| crate::cache::replay(body, table)))
            .unwrap()
    };
    let store = open();
    let journal = record::Journal::of_stopped(store.ledger.clone());
    for (inode, path) in [(DONE, &b"done"[..]), (DIRTY, b"dir/dirty")] {
        let mut record = Record::new(path, Stamp::default(), Generation(1));
        (record.journaled, record.dirty, record.mtime) = (true, inode == DIRTY, Timestamp::default());
        record.prefer_path(&[path, b".new"].concat());
        journal.put(inode, None, &record).unwrap();
    }
    let digest = UnitDigest { index: 0, length: 1, root: true, value: [1; 32] };
    journal.put_digests(DONE, &[digest]).unwrap();
    let mut frame = slab.pool(1).try_take().unwrap();
    frame[..5000].fill(7);
    let payload = tameike_io::Payload::new(std::sync::Arc::new(frame), 0..5000);
    let unit = tameike_core::UnitId { inode: DIRTY, index: 0 };
    machine
        .run(store.extents.write(HomeId(0), unit, Pieces::at(0, payload).unwrap(), true, Generation(1)))
        .unwrap();
    let changes: Vec<_> =
        change().into_iter().map(|(key, value)| (ByteBuf::from(key), value.map(ByteBuf::from))).collect();
    let body = codec::encode(&changes).unwrap();
    store.ledger.execute(RecordKind::Cache, &body, |table| crate::cache::replay(&body, table)).unwrap();
    machine.run(store.ledger.sync(true)).unwrap();
    drop((store, journal));
    machine.kill();
    let run_check = |repair| check(home.path(), &All, repair, &mut |_, _| {}).unwrap();
    let messages = |report: &Report| {
        let worse = report.findings.iter().filter(|finding| finding.severity > Severity::Note);
        worse.map(|finding| format!("{} {}", finding.severity.as_str(), finding.message)).collect::<Vec<_>>()
    };
    let first = messages(&run_check(false));
    assert_eq!(messages(&run_check(true)), first);
    assert_eq!(messages(&run_check(true)), Vec::<String>::new());
    let store = open();
    let records = record::Journal::of_stopped(store.ledger.clone()).page(None, 10).unwrap();
    let dirty = store.extents.dirty_inodes(&HomeSet::All, InodeId(0)).unwrap();
    assert_eq!(
        dirty.len(),
        usize::from(records.iter().any(|(inode, _)| *inode == DIRTY)),
        "the repair removes dirty bytes exactly if it removes the record"
    );
    (first, records)
}

#[test]
fn an_undamaged_journal_has_no_findings() {
    let (found, records) = found(Vec::new);
    assert_eq!((found, records.len()), (Vec::new(), 2));
}

#[test]
fn a_damaged_record_is_reported_with_its_path_from_the_path_index() {
    let (found, records) = found(|| vec![(file_key(DIRTY), Some(vec![1, 2, 3]))]);
    assert!(found[0].starts_with("lost the record of dir/dirty is damaged ("), "{found:?}");
    assert_eq!((found.len(), records.len()), (1, 1));
}

#[test]
fn dirty_bytes_without_a_record_are_lost_and_other_files_remain() {
    let (found, records) = found(|| vec![(file_key(DIRTY), None)]);
    assert!(
        found.iter().any(|found| {
            found
                == "lost 5000 dirty bytes of dir/dirty have no record in the journal: they cannot be \
                      flushed"
        }),
        "{found:?}"
    );
    assert_eq!(records.len(), 1);
}

#[test]
fn the_path_index_is_rebuilt_from_the_records() {
    let (found, records) = found(|| {
        let stale = paths::key(b"other", DONE);
        vec![(paths::key(b"done", DONE), None), (stale, Some(Vec::new()))]
    });
    assert_eq!(
        found,
        ["wrong the path index lacks 1 paths and has 1 stale ones; it can be rebuilt from the records"]
    );
    assert_eq!(records.len(), 2);
}

#[test]
fn damaged_and_orphaned_checksums_are_reported() {
    let (found, records) = found(|| {
        let orphan = digest_key(InodeId(0x8000_0000_0000_0009), 0);
        vec![(digest_key(DONE, 0), Some(vec![0; 3])), (orphan, Some(vec![0; 3]))]
    });
    assert!(found[0].starts_with("lost 1 checksums of flushed units of done.new are damaged"), "{found:?}");
    assert_eq!(found[1..], ["wrong 1 checksums of flushed units belong to no file"]);
    assert_eq!(records.len(), 2);
}

#[test]
fn unknown_keys_are_reported_and_moved_aside() {
    let key = [&[table::prefix::CACHE][..], b"z?"].concat();
    let (found, _) = found(|| vec![(key, Some(vec![1]))]);
    assert_eq!(found, ["lost a record is lost: its key is damaged"]);
}
