//! Concurrency of readers and changes while the key-value store is slow.

use super::*;
use crate::ledger::kv::{Changes, Snapshot};
use parking_lot::Mutex;

type Interruption = Box<dyn FnMut() + Send>;

/// A key-value store that runs another operation before it answers a read.
#[derive(Clone, Default)]
struct Slow {
    kv: MemoryKv,
    interruption: Arc<Mutex<Option<Interruption>>>,
}

struct SlowSnapshot {
    stored: Arc<dyn Snapshot>,
    interruption: Arc<Mutex<Option<Interruption>>>,
}

impl SlowSnapshot {
    fn interrupt(&self) {
        let taken = self.interruption.lock().take();
        if let Some(mut interruption) = taken {
            interruption();
            *self.interruption.lock() = Some(interruption);
        }
    }
}

impl Snapshot for SlowSnapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.interrupt();
        self.stored.get(key)
    }
    fn scan(&self, start: &[u8], end: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.interrupt();
        self.stored.scan(start, end, limit)
    }
}

impl Kv for Slow {
    fn snapshot(&self) -> Arc<dyn Snapshot> {
        Arc::new(SlowSnapshot { stored: self.kv.snapshot(), interruption: self.interruption.clone() })
    }
    fn commit(&self, changes: &Changes) -> Result<()> {
        self.kv.commit(changes)
    }
    fn size_bytes(&self) -> Result<u64> {
        self.kv.size_bytes()
    }
}

fn is_free(ledger: &Ledger) -> bool {
    ledger.change_lock.try_lock().is_some() && ledger.state.try_write().is_some()
}

#[derive(Clone, Debug)]
enum Other {
    Execute(Vec<u8>),
    Checkpoint,
    /// A checkpoint during which the disk fails after that many calls.
    Failure(u64),
    /// The first half of a checkpoint.
    Freeze,
    Unfreeze,
}

fn other() -> impl Strategy<Value = Other> {
    prop_oneof![
        6 => prop::collection::vec((0u8..12, 0u8..5), 1..4)
            .prop_map(|pairs| Other::Execute(pairs.into_iter().flat_map(|(key, value)| [key, value]).collect())),
        2 => Just(Other::Checkpoint),
        1 => (0u64..5).prop_map(Other::Failure),
        2 => Just(Other::Freeze),
        2 => Just(Other::Unfreeze),
    ]
}

impl Other {
    fn happen(&self, world: &World, ledger: &Ledger) {
        match self {
            // Fails after a failed sync.
            Self::Execute(body) => drop(execute(ledger, body)),
            Self::Checkpoint => drop(world.machine.run(ledger.checkpoint())),
            Self::Failure(calls) => {
                world.faults.after(*calls);
                drop(world.machine.run(ledger.checkpoint()));
                world.faults.none();
            }
            Self::Freeze => {
                let state = &mut *ledger.state.write();
                if state.frozen.is_none() {
                    state.frozen = Some(std::mem::take(&mut state.active));
                }
            }
            Self::Unfreeze => ledger.unfreeze(0),
        }
    }
}

/// Keys 0 to 11, by single reads or in pages.
fn read_keys(table: &dyn ReadTable, page: usize) -> Result<Map> {
    let mut found = Map::new();
    if page == 0 {
        for key in (0u8..12).map(|key| vec![b'k', key]) {
            found.extend(table.get(&key)?.map(|value| (key, value)));
        }
        return Ok(found);
    }
    let mut start = b"k".to_vec();
    loop {
        let batch = table.scan(&start, b"l", page)?;
        let Some((last, _)) = batch.last() else { return Ok(found) };
        start = [last.as_slice(), &[0]].concat();
        found.extend(batch);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_reader_sees_one_version_and_blocks_no_other_caller(
        seed in any::<u64>(),
        before in prop::collection::vec(other(), 0..12),
        during in prop::collection::vec(other(), 0..40),
        page in 0usize..4,
    ) {
        let world = World::new(seed, 1 << 20);
        let slow = Slow { kv: world.kv.clone(), ..Slow::default() };
        let ledger = world.open_with(Arc::new(slow.clone()), false).unwrap();
        before.iter().for_each(|other| other.happen(&world, &ledger));
        let expected = contents(&ledger);
        let mut others = during.into_iter();
        let (ledger_then, world_then) = (ledger.clone(), world.clone());
        *slow.interruption.lock() = Some(Box::new(move || {
            assert!(is_free(&ledger_then), "a lock is held while the store is read");
            if let Some(other) = others.next() {
                other.happen(&world_then, &ledger_then);
            }
        }));
        prop_assert_eq!(ledger.read(|table| read_keys(table, page)).unwrap(), expected);
        *slow.interruption.lock() = None;
    }

    #[test]
    fn a_change_that_reads_blocks_no_reader(
        before in prop::collection::vec(other(), 0..12),
        body in prop::collection::vec(1u8..12, 4..=4),
    ) {
        let world = World::new(1, 1 << 20);
        let slow = Slow { kv: world.kv.clone(), ..Slow::default() };
        let ledger = world.open_with(Arc::new(slow.clone()), false).unwrap();
        before.iter().for_each(|other| other.happen(&world, &ledger));
        let expected = contents(&ledger);
        let seen = Arc::new(Mutex::new(None));
        let (reader, found) = (ledger.clone(), seen.clone());
        *slow.interruption.lock() = Some(Box::new(move || {
            assert!(reader.state.try_write().is_some(), "the state is locked while the store is read");
            *found.lock() = Some(contents(&reader));
        }));
        let _ = ledger.execute(RecordKind::Names, &body, |table| {
            apply(&body, table)?;
            table.get(b"k-cold")
        });
        *slow.interruption.lock() = None;
        let seen = seen.lock().take();
        // A failed ledger does not read the store.
        prop_assert!(seen.is_none_or(|seen| seen == expected));
    }
}
