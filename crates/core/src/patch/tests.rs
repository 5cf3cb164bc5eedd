#![expect(clippy::single_range_in_vec_init, reason = "lists of ranges of bytes")]

use super::*;
use proptest::prelude::*;

/// Bytes of a page, drawn from a seed.
fn page(seed: u64) -> Page {
    let mut state = seed;
    std::array::from_fn(|_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    })
}

/// Changes every byte of these ranges; `page` is then different from `before` in exactly these bytes.
fn changed(before: &Page, ranges: &[Range<usize>]) -> Page {
    let mut after = *before;
    let all: std::collections::BTreeSet<usize> = ranges.iter().cloned().flatten().collect();
    all.into_iter().filter(|&byte| byte < PAGE_SIZE).for_each(|byte| after[byte] ^= 1 << (byte % 8));
    after
}

/// The bytes that differ, one by one.
fn by_byte(before: &Page, after: &Page) -> Vec<usize> {
    (0..PAGE_SIZE).filter(|&byte| before[byte] != after[byte]).collect()
}

fn written(pages: &[(u32, Page, Page)]) -> Vec<u8> {
    let mut buffer = vec![0; pages.len() * RECORD_SIZE_MAX];
    let mut writer = PatchWriter::new(&mut buffer);
    for (page, before, after) in pages {
        assert!(writer.push(*page, &Difference::between(before, after), after));
    }
    let length = writer.len();
    buffer.truncate(length);
    buffer
}

fn read(bytes: &[u8]) -> Result<Vec<PagePatch<'_>>> {
    patches(bytes).collect()
}

fn form_of(bytes: &[u8]) -> u16 {
    u16::from_le_bytes([bytes[4], bytes[5]])
}

fn one(ranges: &[Range<usize>]) -> Vec<u8> {
    let before = page(1);
    written(&[(7, before, changed(&before, ranges))])
}

/// Ranges of changed bytes: few or many, short or long.
fn ranges() -> impl Strategy<Value = Vec<Range<usize>>> {
    let range = (0..PAGE_SIZE, prop_oneof![4 => 1usize..12, 1 => 1usize..700, 1 => Just(PAGE_SIZE)]);
    prop::collection::vec(range.prop_map(|(start, length)| start..start + length), 0..60)
}

proptest! {
    #[test]
    fn a_patch_changes_exactly_the_bytes_of_the_difference(
        drawn in prop::collection::vec((any::<u64>(), ranges(), 1u32..1000), 1..5),
        dense in any::<bool>(),
    ) {
        let (mut number, mut pages) = (0, Vec::new());
        for (seed, ranges, step) in drawn {
            let before = page(seed);
            let after = if dense { page(seed ^ 1) } else { changed(&before, &ranges) };
            let difference = Difference::between(&before, &after);
            let bytes = by_byte(&before, &after);
            prop_assert_eq!(difference.count(), bytes.len());
            prop_assert_eq!(difference.is_empty(), bytes.is_empty());
            let runs: Vec<_> = difference.runs().collect();
            prop_assert_eq!(difference.run_count(), runs.len());
            prop_assert!(runs.windows(2).all(|pair| pair[0].end < pair[1].start));
            prop_assert_eq!(runs.into_iter().flatten().map(usize::from).collect::<Vec<_>>(), bytes);
            number += step;
            pages.push((number, before, after));
        }
        let bytes = written(&pages);
        let records = read(&bytes).expect("as written");
        pages.retain(|(_, before, after)| before != after);
        prop_assert_eq!(records.len(), pages.len());
        prop_assert_eq!(records.iter().map(PagePatch::size).sum::<usize>(), bytes.len());
        for (record, (number, before, after)) in records.iter().zip(&pages) {
            prop_assert_eq!(record.page(), *number);
            let mut found = *before;
            record.apply(&mut found);
            prop_assert_eq!(&found[..], &after[..]);
            // The page of the home differs in other bytes.
            let mut other = before.map(|byte| !byte);
            record.apply(&mut other);
            let expected: Vec<u8> = (0..PAGE_SIZE)
                .map(|byte| if before[byte] == after[byte] { !before[byte] } else { after[byte] })
                .collect();
            prop_assert_eq!(&other[..], &expected[..]);
        }
    }

    #[test]
    fn a_changed_patch_is_a_patch_or_is_refused(
        ranges in ranges(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = one(&ranges);
        if !bytes.is_empty() {
            for (at, to) in changes {
                let at = at.index(bytes.len());
                bytes[at] = to;
            }
            // Applied to any page, a record that was not refused stays within it.
            read(&bytes).into_iter().flatten().for_each(|record| record.apply(&mut page(1)));
        }
    }
}

#[test]
fn a_record_has_the_shortest_form() {
    let every = |step: usize| (0..PAGE_SIZE).step_by(step).map(|byte| byte..byte + 1).collect::<Vec<_>>();
    let whole = one(&[0..PAGE_SIZE]);
    assert_eq!((form_of(&whole), whole.len()), (WHOLE, HEADER_SIZE + PAGE_SIZE));
    let sparse = one(&[0..1, 4090..PAGE_SIZE]);
    assert_eq!((form_of(&sparse), sparse.len()), (RUNS, HEADER_SIZE + 2 + 2 * 4 + 7));
    let long = one(&[1..PAGE_SIZE]);
    assert_eq!((form_of(&long), long.len()), (RUNS, HEADER_SIZE + 2 + 4 + 4095));
    let dense = one(&every(2));
    assert_eq!((form_of(&dense), dense.len()), (MASKED, RECORD_SIZE_MAX));
    let runs = one(&every(5));
    assert_eq!((form_of(&runs), runs.len()), (RUNS, HEADER_SIZE + 2 + 820 * 5));
    assert!(one(&[]).is_empty(), "an equal page needs no record");
}

#[test]
fn the_format_is_stable() {
    let before = [0; PAGE_SIZE];
    let mut after = before;
    (after[3], after[4], after[300]) = (1, 2, 3);
    let bytes = written(&[(0x0102_0304, before, after)]);
    assert_eq!(
        bytes,
        [4, 3, 2, 1, 1, 0, 2, 0, 3, 0, 2, 0, 44, 1, 1, 0, 1, 2, 3],
        "page, form, count, two runs, their bytes"
    );
}

#[test]
fn a_record_that_does_not_fit_changes_nothing() {
    let before = page(1);
    for ranges in [vec![0..PAGE_SIZE], vec![5..9], (0..2048).map(|byte| 2 * byte..2 * byte + 1).collect()] {
        let after = changed(&before, &ranges);
        let difference = Difference::between(&before, &after);
        let first = one(&[1..3]);
        let size = one(&ranges).len();
        for missing in [1, size - 1, size] {
            let mut buffer = vec![0xEE; first.len() + size - missing];
            let mut writer = PatchWriter::new(&mut buffer);
            let small = changed(&before, &[1..3]);
            assert!(writer.is_empty());
            assert!(writer.push(7, &Difference::between(&before, &small), &small));
            assert!(!writer.push(8, &difference, &after));
            assert_eq!(writer.len(), first.len());
            assert!(buffer.starts_with(&first));
            assert!(buffer[first.len()..].iter().all(|&byte| byte == 0xEE));
        }
    }
}

#[test]
fn malformed_patches_are_refused() {
    let runs = |runs: &[(u16, u16)], bytes: usize| {
        let mut record = vec![1, 0, 0, 0, 1, 0];
        record.extend((runs.len() as u16).to_le_bytes());
        for (start, length) in runs {
            record.extend([start.to_le_bytes(), length.to_le_bytes()].concat());
        }
        record.resize(record.len() + bytes, 0);
        record
    };
    let refused = |bytes: &[u8], why: &str| {
        let results: Vec<_> = patches(bytes).collect();
        let fault = results.last().expect("a record").as_ref().expect_err("a malformed record");
        assert_eq!(fault.errno, Errno::EINVAL);
        assert!(fault.to_string().ends_with(why), "{fault}");
        assert_eq!(results.iter().filter(|result| result.is_err()).count(), 1, "the iteration ends");
    };
    assert!(read(&[]).expect("an empty patch").is_empty());
    assert!(read(&runs(&[(0, 4), (4, 4092)], 4096)).is_ok());
    refused(&runs(&[(4, 4), (0, 4)], 8), "its runs are not in order");
    refused(&runs(&[(0, 4), (3, 4)], 8), "its runs are not in order");
    refused(&runs(&[(7, 0)], 0), "its runs are not in order");
    refused(&runs(&[(4095, 2)], 2), "a run exceeds the page");
    refused(&runs(&[(0xFFFF, 0xFFFF)], 0), "a run exceeds the page");
    refused(&[1, 0, 0, 0, 3, 0], "its form is unknown");
    let before = page(3);
    let whole = (1, before, page(4));
    for forms in [vec![0..PAGE_SIZE], vec![5..9], (0..2048).map(|byte| 2 * byte..2 * byte + 1).collect()] {
        let bytes = written(&[(4, before, changed(&before, &forms))]);
        for length in [1, 4, 5, 6, 7, bytes.len() - 1] {
            refused(&bytes[..length], "it is truncated");
        }
    }
    let one = written(&[whole]);
    refused(&[&one[..], &one[..]].concat(), "its pages are not in order");
    let last = written(&[(u32::MAX, before, page(4))]);
    refused(&[&last[..], &one[..]].concat(), "its pages are not in order");
}
