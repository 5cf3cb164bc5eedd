//! Records of homes with replicas: numbered by the primary, appended by a backup.

use super::*;
use crate::ledger::of_home::{HomeLog, HomeRecord, LastRecord, last_record};

const HOME: HomeId = HomeId(0x0102);
const OTHER: HomeId = HomeId(7);

/// Keeps the records of a primary, which serves `HOME` and `OTHER` unless it has `moved`.
#[derive(Default)]
struct Sent {
    records: Mutex<Vec<(HomeId, LastRecord, Vec<u8>)>>,
    moved: AtomicBool,
}

impl HomeLog for Sent {
    fn last(&self, home: HomeId) -> Result<LastRecord> {
        if self.moved.load(Ordering::Relaxed) {
            return Err(Errno::EREMCHG.into());
        }
        let records = self.records.lock();
        Ok(records
            .iter()
            .rev()
            .find(|(of, ..)| *of == home)
            .map_or(LastRecord::default(), |(_, last, _)| *last))
    }

    fn append(&self, home: HomeId, last: LastRecord, record: &[u8]) {
        self.records.lock().push((home, last, record.to_vec()));
    }

    fn on_backups(&self) -> BoxFuture<'static, Result<()>> {
        ready(Ok(())).boxed()
    }

    fn sync(&self) -> BoxFuture<'static, Result<()>> {
        ready(Err(Errno::EIO.into())).boxed()
    }
}

fn execute_at(ledger: &Ledger, home: HomeId, body: &[u8]) -> Result<()> {
    ledger.execute_at(home, RecordKind::Names, body, |table| apply(body, table))
}

/// All records of the table, with the numbers of the homes, but without those of the ledger itself.
fn all(ledger: &Ledger) -> Map {
    ledger.read(|table| table.scan(&[1], &[0xff], usize::MAX)).unwrap().into_iter().collect()
}

fn last(ledger: &Ledger, home: HomeId) -> u64 {
    ledger.read(|table| last_record(table, home)).unwrap().number
}

#[test]
fn a_backup_that_appends_the_records_has_the_same_table() {
    let (primary, backup) = (World::new(1, 1 << 20), World::new(2, 1 << 20));
    let (own, copy, sent) = (primary.open(), backup.open(), Arc::new(Sent::default()));
    own.set_home_log(sent.clone());
    for (home, body) in [(HOME, [1, 1]), (OTHER, [2, 2]), (HOME, [3, 3]), (HOME, [1, 0])] {
        execute_at(&own, home, &body).unwrap();
    }
    // Neither a change that failed nor one without effect has a number.
    own.execute_at(HOME, RecordKind::Names, b"x", |_| Err::<(), _>(Errno::ENOENT.into())).unwrap_err();
    own.execute_at(HOME, RecordKind::Names, b"x", |_| Ok(())).unwrap();
    // A sync includes the copies: here, theirs fails.
    assert_eq!(primary.machine.run(own.sync(false)), Ok(()));
    assert_eq!(primary.machine.run(own.sync(true)).unwrap_err().errno, Errno::EIO);
    let records = sent.records.lock().clone();
    let numbers: Vec<_> = records.iter().map(|(home, last, _)| (*home, last.number)).collect();
    assert_eq!(numbers, [(HOME, 1), (OTHER, 1), (HOME, 2), (HOME, 3)]);
    for (_, _, record) in &records {
        assert_eq!(copy.append_of_home(record, replay), Ok(true));
    }
    assert_eq!(all(&own), all(&copy));
    assert_eq!((last(&copy, HOME), last(&copy, OTHER), last(&copy, HomeId(8))), (3, 1, 0));
    // A restart replays the records of both.
    for (world, ledger) in [(&primary, own), (&backup, copy)] {
        let before = all(&ledger);
        world.machine.run(ledger.sync_own(true)).unwrap();
        drop(ledger);
        let again = world.open();
        assert_eq!(all(&again), before);
        world.machine.run(again.checkpoint()).unwrap();
        assert_eq!(last(&again, HOME), 3);
    }
}

#[test]
fn a_backup_ignores_records_that_it_has_and_refuses_those_behind_a_gap() {
    let world = World::new(1, 1 << 20);
    let copy = world.open();
    let record = |last: LastRecord, body: &[u8]| {
        let LastRecord { number, chain } = last.next(RecordKind::Names, body);
        HomeRecord { home: HOME, number, chain, kind: RecordKind::Names, body }.encode()
    };
    let first = LastRecord::default().next(RecordKind::Names, &[1, 1]);
    let second = first.next(RecordKind::Names, &[1, 2]);
    assert_eq!(copy.append_of_home(&record(LastRecord::default(), &[1, 1]), replay), Ok(true));
    assert_eq!(copy.append_of_home(&record(LastRecord::default(), &[1, 1]), replay), Ok(true));
    assert_eq!(copy.append_of_home(&record(second, &[1, 3]), replay), Ok(false), "one is missing");
    // Records of a primary that has lost the first one, and made another.
    let other = LastRecord::default().next(RecordKind::Names, &[1, 9]);
    assert_eq!(copy.append_of_home(&record(LastRecord::default(), &[1, 9]), replay), Ok(false));
    assert_eq!(copy.append_of_home(&record(other, &[1, 2]), replay), Ok(false));
    assert_eq!(contents(&copy), Map::from([(vec![b'k', 1], vec![1])]));
    // What the record does not change is not changed either if its number is refused, or its body.
    let failing = |_: RecordKind, _: &[u8], _: &mut dyn Table| Err(Errno::EBADMSG.into());
    assert_eq!(copy.append_of_home(&record(first, &[1, 2]), failing).unwrap_err().errno, Errno::EBADMSG);
    assert_eq!(last(&copy, HOME), 1);
    let whole = record(first, &[]);
    for malformed in [&b""[..], &whole[..14], &[&whole[..14], &[4]].concat(), &[9; 15]] {
        assert_eq!(copy.append_of_home(malformed, replay).unwrap_err().errno, Errno::EBADMSG);
    }
    assert_eq!(copy.append_of_home(&record(first, &[1, 2]), replay), Ok(true));
    assert_eq!(last(&copy, HOME), 2);
}

#[test]
fn a_home_that_has_moved_is_not_changed() {
    let world = World::new(1, 1 << 20);
    let (ledger, sent) = (world.open(), Arc::new(Sent::default()));
    ledger.set_home_log(sent.clone());
    sent.moved.store(true, Ordering::Relaxed);
    assert_eq!(execute_at(&ledger, HOME, &[1, 1]).unwrap_err().errno, Errno::EREMCHG);
    assert_eq!((all(&ledger), ledger.position()), (Map::new(), 0));
}

#[test]
fn the_format_of_a_record_of_a_home_is_stable() {
    let record = HomeRecord { home: HOME, number: 0x0304, chain: 5, kind: RecordKind::Cache, body: b"ab" };
    let bytes = record.encode();
    assert_eq!(bytes, [2, 1, 4, 3, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 3, b'a', b'b']);
    assert_eq!(HomeRecord::decode(&bytes), Ok(record));
}
