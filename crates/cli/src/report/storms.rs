//! Storms: directories in which many files were created within seconds, and the time that packing saves there.

use std::collections::BTreeMap;
use tameike_core::receipt::Receipt;
use tameike_core::wire::admin::Storm;

/// Largest file, in bytes, that counts as small.
const SMALL_MAX: u64 = 1 << 20;
/// The receipt omits storms in which packing saves less, in nanoseconds.
const SAVED_MIN_NS: u64 = 100_000_000;

/// Merges the storms of all nodes by directory.
pub fn merge<'a>(storms: impl Iterator<Item = &'a Storm>) -> Vec<Storm> {
    let mut merged = BTreeMap::<&str, Storm>::new();
    for storm in storms {
        match merged.get_mut(storm.dir.as_str()) {
            Some(known) => known.add(storm),
            None => drop(merged.insert(&storm.dir, storm.clone())),
        }
    }
    merged.into_values().collect()
}

/// Returns the storms of a receipt that are worth packing: more than half of the directory's files are small, and packing
/// saves at least [`SAVED_MIN_NS`].
pub fn of_small_files(receipt: &Receipt) -> Vec<Storm> {
    let mut counts = BTreeMap::<&str, (u64, u64)>::new();
    for file in &receipt.files {
        let dir = file.path.rsplit_once('/').map_or("", |(dir, _)| dir);
        let (small, all) = counts.entry(dir).or_default();
        (*small, *all) = (*small + u64::from(file.size <= SMALL_MAX), *all + 1);
    }
    let is_small =
        |storm: &Storm| counts.get(storm.dir.as_str()).is_some_and(|(small, all)| 2 * small > *all);
    merge(receipt.storms.iter()).into_iter().filter(|storm| is_small(storm) && is_worth_it(storm)).collect()
}

fn is_worth_it(storm: &Storm) -> bool {
    storm.create_ns.saturating_mul(storm.plain.saturating_add(storm.packed)) >= SAVED_MIN_NS
}

/// Formats the time to create `count` files.
fn time(count: u64, create_ns: u64) -> String {
    match create_ns.saturating_mul(count) {
        ..SAVED_MIN_NS => "less than 0.1 s".to_owned(),
        spent_ns => format!("{:.1} s", spent_ns as f64 / 1e9),
    }
}

/// Describes a storm in one line.
pub fn line(storm: &Storm) -> String {
    let Storm { dir, plain, packed, create_ns } = storm;
    let dir = if dir.is_empty() { "the shared directory itself" } else { dir };
    let mut line = format!("many files were created within seconds in {}", dir.escape_debug());
    if *plain > 0 {
        line += &format!(
            ": packing {plain} of them (--aggregate=auto) would save {} of file creation",
            time(*plain, *create_ns)
        );
    }
    if *packed > 0 {
        let saved = match *create_ns {
            0 => String::new(),
            _ => format!(", which saved {}", time(*packed, *create_ns)),
        };
        line += &format!("; {packed} are packed{saved}");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use tameike_core::receipt::{FileOutcome, FileReceipt};

    fn storm(plain: u64, packed: u64, create_ns: u64) -> Storm {
        Storm { dir: "d".to_owned(), plain, packed, create_ns }
    }

    #[test]
    fn the_time_that_packing_saves_is_reported() {
        let merged = merge([storm(1000, 0, 1_000_000), storm(500, 0, 4_000_000)].iter());
        assert_eq!(merged, [storm(1500, 0, 2_000_000)]);
        assert!(
            line(&merged[0])
                .ends_with("packing 1500 of them (--aggregate=auto) would save 3.0 s of file creation"),
            "{}",
            line(&merged[0])
        );
        assert!(line(&storm(128, 2000, 1_000_000)).ends_with("; 2000 are packed, which saved 2.0 s"));
    }

    #[test]
    fn directories_of_large_files_are_not_reported() {
        let file = |size| FileReceipt {
            path: "d/f".to_owned(),
            size,
            written: size,
            checksum: String::new(),
            note: String::new(),
            outcome: FileOutcome::Synced,
        };
        let receipt = |sizes: [u64; 3], create_ns| Receipt {
            files: sizes.map(file).to_vec(),
            storms: vec![storm(200, 0, create_ns)],
            ..Receipt::default()
        };
        assert_eq!(of_small_files(&receipt([1, 2, 1 << 30], 5_000_000)).len(), 1);
        assert!(of_small_files(&receipt([1, 1 << 30, 1 << 30], 5_000_000)).is_empty());
        // A regression: they were reported with "would save 0.0 s".
        assert!(of_small_files(&receipt([1, 2, 3], 100_000)).is_empty());
    }
}
