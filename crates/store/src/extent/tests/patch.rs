//! Patches of single bytes, and numbers that several nodes add to.

use super::*;
use futures_util::future::join_all;
use tameike_core::HomeId;
use tameike_core::patch::{Difference, PAGE_SIZE, Page, PatchWriter};

/// A patch that sets bytes of pages.
fn patch_of(pages: &[(u32, Vec<(usize, u8)>)]) -> Vec<u8> {
    let mut buffer = vec![0; 1 << 16];
    let mut writer = PatchWriter::new(&mut buffer);
    for (page, bytes) in pages {
        let mut after: Page = [0; PAGE_SIZE];
        bytes.iter().for_each(|&(place, byte)| after[place] = byte);
        assert!(writer.push(*page, &Difference::between(&[0; PAGE_SIZE], &after), &after));
    }
    let length = writer.len();
    buffer.truncate(length);
    buffer
}

fn patch(world: &World, store: &ExtentStore, unit: UnitId, bytes: &[u8]) -> Result<()> {
    world.machine.run(store.patch(HomeId(0), unit, world.payload(bytes)))
}

#[test]
fn a_patch_keeps_other_bytes_and_fills_holes_with_zeros() {
    let world = World::new(1, 8 << 20, [0, 8 * MIB, 0]);
    let store = world.open();
    let mut bytes = pattern(3, 2 * PAGE_SIZE);
    world.write(&store, shared(1), 0, &bytes).unwrap();
    // Only a part of the third page has been written.
    world.write(&store, shared(1), 2 * PAGE_SIZE as u32 + 100, &[7; 10]).unwrap();
    let records =
        patch_of(&[(256, vec![(5, 11), (6, 12)]), (258, vec![(0, 13), (104, 14)]), (259, vec![(9, 15)])]);
    patch(&world, &store, shared(1), &records).unwrap();
    bytes.resize(4 * PAGE_SIZE, 0);
    bytes[2 * PAGE_SIZE + 100..2 * PAGE_SIZE + 110].fill(7);
    let changed = [(5, 11), (6, 12), (2 * PAGE_SIZE, 13), (2 * PAGE_SIZE + 104, 14), (3 * PAGE_SIZE + 9, 15)];
    changed.into_iter().for_each(|(place, byte)| bytes[place] = byte);
    world.whole(&store, shared(1), &bytes);
    assert_eq!(store.space(View::JobShared).used, 4 * PAGE_SIZE as u64);
    patch(&world, &store, shared(1), &[]).unwrap();
    world.rest_and_check(&store);
}

#[test]
fn a_patch_of_many_pages_keeps_the_pages_and_holes_between_them() {
    let world = World::new(1, 8 << 20, [0, 8 * MIB, 0]);
    let store = world.open();
    let mut bytes = pattern(5, 40 * PAGE_SIZE);
    world.write(&store, shared(1), 0, &bytes).unwrap();
    let tail = pattern(6, 3 * PAGE_SIZE);
    world.write(&store, shared(1), 47 * PAGE_SIZE as u32, &tail).unwrap();
    let pages = [0, 2, 3, 9, 30, 39, 43, 47, 49];
    let records = pages.map(|page| (256 + page, vec![(page as usize, 200)]));
    patch(&world, &store, shared(1), &patch_of(&records)).unwrap();
    bytes.resize(47 * PAGE_SIZE, 0);
    bytes.extend(tail);
    pages.into_iter().for_each(|page| bytes[page as usize * PAGE_SIZE + page as usize] = 200);
    let is_hole = |page| (40..47).contains(&page) && page != 43;
    let expected: Vec<_> =
        (0..).zip(bytes).map(|(at, byte)| (!is_hole(at / PAGE_SIZE)).then_some(byte)).collect();
    assert!(world.read(&store, shared(1), 0..50 * PAGE_SIZE as u32, 1).unwrap() == expected);
    assert_eq!(store.space(View::JobShared).used, 44 * PAGE_SIZE as u64);
    world.rest_and_check(&store);
}

#[test]
fn concurrent_patches_and_additions_all_take_effect() {
    for seed in 0..20 {
        let world = World::new(seed, 8 << 20, [0, 8 * MIB, 0]);
        let store = world.open();
        let patches: Vec<_> = (0..3).map(|node| patch_of(&[(0, vec![(node, 1 + node as u8)])])).collect();
        let patches = patches.iter().map(|bytes| store.patch(HomeId(0), shared(0), world.payload(bytes)));
        let adds = (1..9).map(|addend| store.fetch_add(HomeId(0), shared(0), 8, addend));
        let both = async { (join_all(patches).await, join_all(adds).await) };
        let (patched, mut added) = world.machine.run(both);
        assert!(patched.iter().all(Result::is_ok));
        added.sort_by_key(|previous| previous.clone().unwrap_or(u64::MAX));
        added.dedup();
        assert_eq!(added.len(), 8, "each addition sees another number");
        assert_eq!(world.machine.run(store.fetch_add(HomeId(0), shared(0), 8, u64::MAX)), Ok(36));
        let mut bytes = vec![0; PAGE_SIZE];
        bytes[..16].copy_from_slice(&[1, 2, 3, 0, 0, 0, 0, 0, 35, 0, 0, 0, 0, 0, 0, 0]);
        world.whole(&store, shared(0), &bytes);
        world.rest_and_check(&store);
    }
}

#[test]
fn a_patch_of_another_unit_or_view_changes_nothing() {
    let world = World::new(1, 8 << 20, [0, 8 * MIB, 8 * MIB]);
    let store = world.open();
    let refused = |result: Result<()>, why: &str| {
        let fault = result.expect_err("an invalid request");
        assert_eq!(fault.errno, Errno::EINVAL);
        assert!(fault.to_string().contains(why), "{fault}");
    };
    let records = patch_of(&[(255, vec![(5, 1)]), (256, vec![(5, 1)])]);
    refused(patch(&world, &store, shared(0), &records), "page 256 is not one of unit 0");
    refused(patch(&world, &store, shared(1), &records), "page 255 is not one of unit 1");
    let records = patch_of(&[(0, vec![(5, 1)]), (1, vec![(5, 1)])]);
    refused(patch(&world, &store, shared(0), &records[..records.len() - 1]), "malformed");
    refused(patch(&world, &store, cached(1, 0), &records), "not a file of the job-shared view");
    let add = |unit, offset| world.machine.run(store.fetch_add(HomeId(0), unit, offset, 1)).map(drop);
    refused(add(cached(1, 0), 0), "not a file of the job-shared view");
    refused(add(shared(0), 4), "byte 4 is not the place");
    refused(add(shared(0), UNIT_SIZE as u32), "byte 1048576 is not the place");
    assert_eq!(add(shared(0), UNIT_SIZE as u32 - 8), Ok(()));
    assert!(store.load(shared(1)).unwrap().is_none());
    assert_eq!(store.load(shared(0)).unwrap().unwrap().block_count(), 1);
}
