use super::*;
use futures_util::FutureExt;

#[test]
fn a_pool_lends_its_share_and_no_more() {
    let slab = Slab::new(3).expect("a small slab");
    let (small, other) = (slab.pool(1), slab.pool(2));
    let mut frame = small.try_take().expect("first of one");
    assert!(small.try_take().is_none());
    assert!(small.take().now_or_never().is_none());
    let held = [other.try_take().expect("first of two"), other.try_take().expect("second of two")];
    assert_eq!(slab.usage(), (3, 3));
    frame.fill(7);
    assert!(held.iter().all(|frame| frame.iter().all(|&byte| byte == 0)));
    drop(frame);
    assert_eq!(slab.usage(), (2, 3));
    assert!(small.try_take().is_some());
}

#[test]
fn a_payload_is_a_part_of_its_frame() {
    let slab = Slab::new(1).expect("a small slab");
    let mut frame = slab.pool(1).try_take().expect("the only frame");
    frame[10..14].copy_from_slice(b"abcd");
    let payload = Payload::new(Arc::new(frame), 10..14);
    assert_eq!(&payload.slice(1..3)[..], b"bc");
    assert!(payload.clone().into_frame().is_none());
}

#[test]
fn a_payload_has_a_place_in_its_own_slab_only() {
    let (slab, other) = (Slab::new(2).expect("a small slab"), Slab::new(1).expect("another"));
    let mut frame = slab.pool(2).try_take().expect("a frame");
    frame[10..14].copy_from_slice(b"abcd");
    let payload = Payload::new(Arc::new(frame), 10..14);
    assert_eq!(payload.place_in(&other), None);
    let (index, start) = payload.place_in(&slab).expect("it is in this slab");
    let mut found = [0; 4];
    let offset = u64::from(index) * UNIT_SIZE as u64 + u64::from(start);
    assert_eq!(rustix::io::pread(slab.memory(), &mut found, offset), Ok(4));
    assert_eq!(found, *b"abcd");
}
