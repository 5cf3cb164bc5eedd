mod of_home;
mod reading;

use super::kv::MemoryKv;
use super::*;
use futures_util::FutureExt;
use futures_util::future::ready;
use proptest::prelude::*;
use std::collections::BTreeMap;
use tameike_io::disk::memory::{Faults, MemoryLog};
use tameike_io::os::simulated::Simulation;

/// Data that is intact, except for the record with body `lost`.
#[derive(Clone, Default)]
struct TestData {
    lost: Option<Vec<u8>>,
}

impl Data for TestData {
    fn settle(&self) -> BoxFuture<'static, Result<()>> {
        ready(Ok(())).boxed()
    }
    fn holds(&self, _: RecordKind, body: Vec<u8>) -> BoxFuture<'static, Result<bool>> {
        ready(Ok(self.lost.as_ref() != Some(&body))).boxed()
    }
}

#[derive(Clone)]
struct World {
    machine: Simulation,
    logs: [MemoryLog; 2],
    kv: MemoryKv,
    faults: Faults,
    data: TestData,
    checkpoint_bytes: usize,
}

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

impl World {
    fn new(seed: u64, checkpoint_bytes: usize) -> Self {
        let faults = Faults::default();
        let logs = [MemoryLog::new(faults.clone()), MemoryLog::new(faults.clone())];
        let kv = MemoryKv::new(faults.clone());
        Self {
            machine: Simulation::shuffled(seed),
            logs,
            kv,
            faults,
            data: TestData::default(),
            checkpoint_bytes,
        }
    }

    fn try_open(&self, after_power_loss: bool) -> Result<Arc<Ledger>> {
        self.open_with(Arc::new(self.kv.clone()), after_power_loss)
    }

    fn open_with(&self, kv: Arc<dyn Kv>, after_power_loss: bool) -> Result<Arc<Ledger>> {
        let media = Media {
            logs: [Arc::new(self.logs[0].clone()), Arc::new(self.logs[1].clone())],
            kv,
            data: Arc::new(self.data.clone()),
        };
        let options =
            LedgerOptions { checkpoint_bytes: self.checkpoint_bytes, volatile: false, after_power_loss };
        self.machine.run(Ledger::open(self.machine.runtime(), media, options, |kind, body, table| {
            crate::replay(kind, body, table, &mut replay)
        }))
    }

    fn open(&self) -> Arc<Ledger> {
        self.try_open(false).expect("the media are intact")
    }
}

/// Applies a record: its body is pairs of key byte and value byte; value 0 deletes.
fn apply(body: &[u8], table: &mut dyn Table) -> Result<()> {
    for pair in body.chunks(2) {
        let key = vec![b'k', pair[0]];
        if pair[1] == 0 { table.delete(key) } else { table.put(key, vec![pair[1]; pair[1] as usize]) }
    }
    Ok(())
}

fn replay(kind: RecordKind, body: &[u8], table: &mut dyn Table) -> Result<()> {
    assert_eq!(kind, RecordKind::Names);
    apply(body, table)
}

fn apply_to_map(body: &[u8], map: &mut Map) {
    for pair in body.chunks(2) {
        map.remove([b'k', pair[0]].as_slice());
        if pair[1] != 0 {
            map.insert(vec![b'k', pair[0]], vec![pair[1]; pair[1] as usize]);
        }
    }
}

fn execute(ledger: &Ledger, body: &[u8]) -> Result<()> {
    ledger.execute(RecordKind::Names, body, |table| apply(body, table))
}

fn contents(ledger: &Ledger) -> Map {
    ledger.read(|table| table.scan(b"k", b"l", usize::MAX)).unwrap().into_iter().collect()
}

#[test]
fn a_failed_change_leaves_nothing() {
    let world = World::new(1, 1 << 20);
    let ledger = world.open();
    execute(&ledger, &[1, 1]).unwrap();
    let refused: Result<()> = ledger.execute(RecordKind::Names, b"x", |table| {
        table.put(b"k2".to_vec(), vec![9]);
        assert_eq!(table.get(b"k2")?, Some(vec![9]), "a change sees itself");
        Err(Errno::ENOENT.into())
    });
    assert_eq!(refused.unwrap_err().errno, Errno::ENOENT);
    assert_eq!(contents(&ledger), Map::from([(vec![b'k', 1], vec![1])]));
    ledger.execute(RecordKind::Names, b"x", |table| table.get(b"k2")).unwrap();
    assert_eq!(ledger.position(), 1, "a change without effect is not logged");
}

#[test]
fn synced_changes_survive_a_crash_and_others_may_not() {
    let world = World::new(1, 1 << 20);
    let ledger = world.open();
    execute(&ledger, &[1, 1]).unwrap();
    world.machine.run(ledger.sync(false)).unwrap();
    execute(&ledger, &[2, 2]).unwrap();
    drop(ledger);
    world.machine.kill();
    let ledger = world.open();
    assert_eq!(contents(&ledger).len(), 1);
    assert_eq!(ledger.position(), 1);
}

/// Regression: changes of the same keys grow the log but not the overlay; no caller waited, and the log outgrew its
/// preallocated space.
#[test]
fn callers_wait_before_the_log_exceeds_its_limit() {
    const CHECKPOINT_BYTES: usize = 10_000;
    let world = World::new(1, CHECKPOINT_BYTES);
    let ledger = world.open();
    let body = [1, 7].repeat(50);
    let largest = world.machine.run(async {
        let mut largest = 0;
        for round in 0..2000 {
            ledger.wait_for_space().await.unwrap();
            execute(&ledger, &body).unwrap();
            // The simulation runs other tasks only while this one waits.
            if round % 500 == 499 {
                ledger.confirm().await.unwrap();
                largest = world.logs.iter().map(|log| log.content().len()).fold(largest, usize::max);
            }
        }
        largest
    });
    assert!(largest <= ledger.options.log_bytes_max() + 2 * (record::HEADER_SIZE + body.len()), "{largest}");
    assert!(largest > CHECKPOINT_BYTES / 2, "{largest}");
}

#[test]
fn a_checkpoint_empties_the_log_and_keeps_the_table() {
    let world = World::new(1, 1 << 20);
    let ledger = world.open();
    for key in 0..100 {
        execute(&ledger, &[key, 7]).unwrap();
    }
    world.machine.run(ledger.checkpoint()).unwrap();
    assert!(ledger.table_size_bytes().unwrap() > 0);
    execute(&ledger, &[0, 0]).unwrap();
    assert_eq!(contents(&ledger).len(), 99);
    for log in &world.logs {
        log.edit(|bytes| assert!(bytes.is_empty()));
    }
}

#[test]
fn a_full_overlay_starts_a_checkpoint_that_callers_wait_for() {
    let world = World::new(1, 2000);
    let ledger = world.open();
    let mut model = Map::new();
    for round in 0..2000u32 {
        let body = [(round % 200) as u8, (round % 7) as u8];
        world.machine.run(ledger.wait_for_space()).unwrap();
        execute(&ledger, &body).unwrap();
        apply_to_map(&body, &mut model);
        assert!(ledger.state.read().active.read().bytes() < 2 * 2000 + 200);
    }
    assert_eq!(contents(&ledger), model);
    assert!(ledger.table_size_bytes().unwrap() > 500);
}

#[test]
fn stuck_checkpoints_refuse_changes_and_recover() {
    let world = World::new(1, 2000);
    let ledger = world.open();
    world.faults.after(3);
    let mut refused = None;
    for round in 0..2000u32 {
        world.machine.rest(std::time::Duration::from_millis(1));
        if let Err(fault) = execute(&ledger, &[round as u8, 200]) {
            refused = Some(fault);
            break;
        }
    }
    assert!(refused.expect("memory is bounded").to_string().contains("injected"));
    assert!(world.machine.run(ledger.wait_for_space()).is_err());
}

#[test]
fn a_failed_append_is_retried() {
    let world = World::new(1, 1 << 20);
    let ledger = world.open();
    execute(&ledger, &[1, 1]).unwrap();
    world.faults.after(0);
    assert!(world.machine.run(ledger.sync(false)).is_err());
    world.faults.none();
    execute(&ledger, &[2, 2]).unwrap();
    world.machine.run(ledger.sync(false)).unwrap();
    drop(ledger);
    assert_eq!(contents(&world.open()).len(), 2);
}

#[test]
fn the_ledger_refuses_changes_after_a_failed_sync() {
    let world = World::new(1, 1 << 20);
    let ledger = world.open();
    execute(&ledger, &[1, 1]).unwrap();
    world.faults.after(1);
    assert!(world.machine.run(ledger.sync(true)).is_err());
    world.faults.none();
    assert!(world.machine.run(ledger.sync(true)).is_err());
    assert!(execute(&ledger, &[2, 2]).unwrap_err().to_string().contains("no more changes"));
    assert_eq!(contents(&ledger).len(), 1, "reads still work");
}

/// A ledger with three records in its log, the first two of them durable.
fn three_records() -> World {
    let world = World::new(1, 1 << 20);
    let ledger = world.open();
    for round in 1..=3 {
        execute(&ledger, &[round, round]).unwrap();
        world.machine.run(ledger.sync(round < 3)).unwrap();
    }
    world
}

#[test]
fn recovery_drops_a_torn_last_record() {
    let world = three_records();
    world.logs[0].edit(|log| log.truncate(log.len() - 1));
    let ledger = world.open();
    assert_eq!((contents(&ledger).len(), ledger.position()), (2, 2));
    execute(&ledger, &[9, 9]).unwrap();
    world.machine.run(ledger.sync(false)).unwrap();
    assert_eq!(contents(&world.open()).len(), 3);
}

#[test]
fn damage_before_whole_records_is_reported_as_an_error() {
    let world = three_records();
    world.logs[0].edit(|log| log[20] ^= 1);
    for after_power_loss in [false, true] {
        let fault = world.try_open(after_power_loss).err().expect("damage differs from a torn write");
        assert_eq!(fault.errno, Errno::EIO);
        assert!(fault.to_string().contains("record 2 is missing or broken"), "{fault}");
    }
}

#[test]
fn records_lost_before_they_were_durable_are_no_damage() {
    let world = World::new(1, 1 << 20);
    let ledger = world.open();
    for round in 1..=3 {
        execute(&ledger, &[round, round]).unwrap();
        world.machine.run(ledger.sync(false)).unwrap();
    }
    let mut write = 0;
    world.logs[0].lose_power(|| {
        write += 1;
        write != 2
    });
    assert!(world.try_open(false).is_err());
    assert_eq!(contents(&world.try_open(true).unwrap()).len(), 1);
}

#[test]
fn recovery_drops_records_whose_data_a_power_loss_destroyed() {
    let mut world = World::new(1, 1 << 20);
    let ledger = world.open();
    for round in 1..=3 {
        execute(&ledger, &[round, round]).unwrap();
    }
    world.machine.run(ledger.sync(false)).unwrap();
    world.data.lost = Some(vec![2, 2]);
    let ledger = world.try_open(true).unwrap();
    assert_eq!((contents(&ledger).len(), ledger.position()), (1, 1));
}

#[derive(Clone, Debug)]
enum Step {
    Execute(Vec<u8>),
    Sync(bool),
    Checkpoint,
    Crash,
    PowerLoss,
}

fn step() -> impl Strategy<Value = Step> {
    let body = prop::collection::vec((0u8..12, 0u8..40), 1..4);
    prop_oneof![
        8 => body.prop_map(|pairs| Step::Execute(pairs.into_iter().flat_map(|(key, value)| [key, value]).collect())),
        3 => any::<bool>().prop_map(Step::Sync),
        1 => Just(Step::Checkpoint),
        1 => Just(Step::Crash),
        1 => Just(Step::PowerLoss),
    ]
}

/// States that are allowed after a crash: the table after each record, and how many records must survive.
struct History {
    tables: Vec<Map>,
    survives_crash: usize,
    survives_power_loss: usize,
}

impl History {
    fn check(&mut self, ledger: &Ledger, power_loss: bool) {
        let position = ledger.position() as usize;
        let synced = if power_loss { self.survives_power_loss } else { self.survives_crash };
        assert!(position >= synced, "{synced} records must survive, {position} did");
        assert_eq!(&contents(ledger), &self.tables[position]);
        self.tables.truncate(position + 1);
        (self.survives_crash, self.survives_power_loss) = (position, position);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn a_crash_at_any_instant_loses_no_synced_record(
        seed in any::<u64>(),
        steps in prop::collection::vec(step(), 1..80),
        crashes in prop::collection::vec(0u64..40, 0..6),
    ) {
        let world = World::new(seed, 600);
        let mut crashes = crashes.into_iter();
        let arm = |crashes: &mut std::vec::IntoIter<u64>| {
            if let Some(calls) = crashes.next() { world.faults.after(calls) }
        };
        let mut history = History { tables: vec![Map::new()], survives_crash: 0, survives_power_loss: 0 };
        let mut ledger = world.open();
        arm(&mut crashes);
        for step in steps {
            let mut crash = None;
            match step {
                Step::Execute(body) => {
                    if execute(&ledger, &body).is_ok() {
                        let mut table = history.tables.last().expect("never empty").clone();
                        apply_to_map(&body, &mut table);
                        history.tables.push(table);
                        prop_assert_eq!(ledger.position() as usize, history.tables.len() - 1);
                    } else {
                        crash = Some(false);
                    }
                }
                Step::Sync(durable) => {
                    let position = ledger.position() as usize;
                    if world.machine.run(ledger.sync(durable)).is_ok() {
                        history.survives_crash = position;
                        if durable { history.survives_power_loss = position }
                    } else {
                        crash = Some(seed & 1 == 0);
                    }
                }
                Step::Checkpoint => {
                    if world.machine.run(ledger.checkpoint()).is_err() { crash = Some(seed & 2 == 0) }
                }
                Step::Crash => crash = Some(false),
                Step::PowerLoss => crash = Some(true),
            }
            if let Some(power_loss) = crash {
                drop(ledger);
                world.machine.kill();
                if power_loss {
                    world.logs.iter().for_each(|log| log.lose_power(|| world.machine.draw(2) == 0));
                }
                // Recovery may crash as well.
                if world.try_open(power_loss).is_err() {
                    world.machine.kill();
                }
                world.faults.none();
                ledger = world.try_open(power_loss).expect("recovery after a crash");
                history.check(&ledger, power_loss);
                arm(&mut crashes);
            }
        }
        prop_assert_eq!(&contents(&ledger), history.tables.last().expect("never empty"));
    }
}
