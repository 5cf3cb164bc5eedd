//! Units of several homes in one store: those of the primary, and copies that a backup keeps.

use super::*;
use tameike_core::wire::unit::{Sought, SpaceChange};
use tameike_core::{Cluster, JobId, Layout, NodeId, NodeInfo, UnitsOfHomes};

/// Even units are of home 0, the others of home 1.
const HOMES: [HomeId; 2] = [HomeId(0), HomeId(1)];

/// A store with four units of 5,000 bytes of a file.
fn filled(world: &World, inode: InodeId) -> Arc<ExtentStore> {
    let store = world.open();
    for index in 0..4 {
        let pieces = Pieces::at(0, world.payload(&[index as u8 + 1; 5000])).unwrap();
        let unit = UnitId { inode, index };
        let home = HOMES[index as usize % 2];
        world.machine.run(store.write(home, unit, pieces, inode.is_cached(), Generation(1))).unwrap();
    }
    store
}

fn only(home: HomeId) -> HomeSet {
    HomeSet::from_iter([home])
}

/// The first bytes of the units.
fn first_bytes(world: &World, store: &ExtentStore, inode: InodeId) -> Vec<Option<u8>> {
    let first = |index| world.read(store, UnitId { inode, index }, 0..1, 1).unwrap()[0];
    (0..4).map(first).collect()
}

#[test]
fn a_truncation_spares_units_of_other_homes() {
    let world = World::new(1, 64 << 20, [8 << 20; 3]);
    let inode = InodeId::in_slot(Slot(1), 7);
    let store = filled(&world, inode);
    assert_eq!(store.usage(&only(HOMES[0]), inode), Ok(4 * 4096));
    world.machine.run(store.truncate(&only(HOMES[1]), inode, 0)).unwrap();
    assert_eq!(first_bytes(&world, &store, inode), [Some(1), None, Some(3), None]);
    assert_eq!(store.usage(&only(HOMES[1]), inode), Ok(0));
    assert_eq!(store.usage(&HomeSet::All, inode), Ok(4 * 4096));
    // The homes survive a restart.
    world.machine.run(store.sync(true)).unwrap();
    drop(store);
    let store = world.open();
    world.machine.run(store.truncate(&only(HOMES[1]), inode, 0)).unwrap();
    world.machine.run(store.truncate(&only(HOMES[0]), inode, MIB)).unwrap();
    assert_eq!(first_bytes(&world, &store, inode), [Some(1), None, None, None]);
}

#[test]
fn dirty_units_are_listed_by_home() {
    let world = World::new(2, 64 << 20, [8 << 20; 3]);
    let inode = InodeId(0x8000_0000_0000_0102);
    let store = filled(&world, inode);
    let of = |homes: &HomeSet| {
        let dirty = store.dirty_units(homes, inode, 9).unwrap();
        dirty.into_iter().map(|dirty| dirty.unit.index).collect::<Vec<_>>()
    };
    assert_eq!((of(&only(HOMES[0])), of(&only(HOMES[1]))), (vec![0, 2], vec![1, 3]));
    assert_eq!((of(&HomeSet::All), of(&only(HomeId(2)))), (vec![0, 1, 2, 3], vec![]));
    let before = InodeId(inode.0 - 1);
    assert_eq!(store.dirty_inodes(&only(HOMES[1]), before), Ok(vec![inode]));
    assert_eq!(store.dirty_inodes(&only(HomeId(2)), before), Ok(vec![]));
    // A copy becomes clean as the primary's: all bytes but those that were written again.
    let unit = UnitId { inode, index: 1 };
    world.machine.run(store.clean_all_but(unit, (10..20).into(), Generation(2))).unwrap();
    let dirty = store.dirty_units(&only(HOMES[1]), inode, 9).unwrap();
    assert_eq!((dirty[0].unit, &dirty[0].ranges), (unit, &(10..20).into()));
    world.machine.run(store.clean_all_but(unit, (4990..6000).into(), Generation(2))).unwrap();
    assert_eq!(of(&only(HOMES[1])), [3], "bytes that are clean already stay clean");
}

#[test]
fn space_changes_and_searches_are_by_home() {
    let world = World::new(3, 64 << 20, [8 << 20; 3]);
    let inode = InodeId::in_slot(Slot(1), 7);
    let store = filled(&world, inode);
    let (host, address) = Default::default();
    let info = NodeInfo { id: NodeId(0), host, address, group: 0, device: true };
    let cluster = Cluster::new(JobId::new("job").unwrap(), vec![info], 1).unwrap();
    let own = |homes: &HomeSet| -> UnitsOfHomes {
        cluster.units_of_homes(Layout::Striped, inode, |home| homes.contains(home))
    };
    let odd = only(HOMES[1]);
    let punch = store.change_space(&odd, inode, SpaceChange::Punch, 0..4 * MIB, own(&odd));
    world.machine.run(punch).unwrap();
    assert_eq!(first_bytes(&world, &store, inode), [Some(1), None, Some(3), None]);
    let even = only(HOMES[0]);
    assert_eq!(store.seek(&even, inode, Sought::Data, MIB, &own(&even)), Ok(Ok(2 * MIB)));
    assert_eq!(store.seek(&odd, inode, Sought::Data, MIB, &own(&odd)), Ok(Err(u64::MAX)));
}
