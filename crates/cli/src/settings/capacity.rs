//! Capacity of the views on a node: parsing `--capacity`, and division of the device among views.

use super::size;
use serde::{Deserialize, Serialize};
use tameike_core::limits::UNIT_SIZE;
use tameike_core::{Errno, Fault, Result, View};

/// Least capacity of a view: one unit of a file.
const SIZE_MIN: u64 = UNIT_SIZE as u64;

/// Eighths of the device that a view gets by default, with a cache view ...
const PARTS_WITH_CACHE: [u64; 3] = [1, 3, 4];
/// ... and without.
const PARTS_WITHOUT_CACHE: [u64; 3] = [2, 6, 0];

/// Capacity as the user requested it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Capacity {
    /// Bytes of all views of a node together.
    pub total: Option<u64>,
    /// Bytes of single views, in the order of [`View::ALL`].
    pub views: [Option<u64>; 3],
}

impl std::str::FromStr for Capacity {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self> {
        let mut capacity = Self::default();
        for part in text.split(',').map(str::trim) {
            let place = match part.split_once('=') {
                None => &mut capacity.total,
                Some((name, _)) => {
                    let view = View::ALL.into_iter().find(|view| view.as_str() == name.trim());
                    let view = view.ok_or_else(|| unknown_view(name))?;
                    &mut capacity.views[view.index()]
                }
            };
            let (name, size) = part.split_once('=').map_or(("", part), |(name, size)| (name, size));
            let size = size::parse(size)?;
            let is_nothing = size == 0 && !name.is_empty();
            if size < SIZE_MIN && !is_nothing {
                let least = size::show(SIZE_MIN);
                let message = format!(
                    "capacity {part:?} is too small: {size} bytes are less than {least}, the least that a view \
                                       can use; write it like 10GiB"
                );
                return Err(Fault::new(Errno::EINVAL, message));
            }
            if place.replace(size).is_some() {
                return Err(Fault::new(Errno::EINVAL, format!("capacity {text:?} sets {part:?} twice")));
            }
        }
        Ok(capacity)
    }
}

fn unknown_view(name: &str) -> Fault {
    let names = View::ALL.map(View::as_str).join(", ");
    Fault::new(Errno::EINVAL, format!("capacity of unknown view {name:?}; the views are: {names}"))
}

impl TryFrom<String> for Capacity {
    type Error = Fault;

    fn try_from(text: String) -> Result<Self> {
        // The default is serialized as an empty string.
        if text.is_empty() { Ok(Self::default()) } else { text.parse() }
    }
}

impl From<Capacity> for String {
    fn from(capacity: Capacity) -> Self {
        let total = capacity.total.map(|size| size.to_string());
        let views = View::ALL
            .into_iter()
            .filter_map(|view| capacity.views[view.index()].map(|size| format!("{}={size}", view.as_str())));
        total.into_iter().chain(views).collect::<Vec<_>>().join(",")
    }
}

impl Capacity {
    /// Returns the bytes of each view; views without a value share `fallback` bytes.
    pub fn resolve(&self, fallback: u64, cache: bool) -> [u64; 3] {
        let parts = if cache { PARTS_WITH_CACHE } else { PARTS_WITHOUT_CACHE };
        let given: u64 = self.views.iter().flatten().fold(0, |sum, size| sum.saturating_add(*size));
        let rest = self.total.unwrap_or(fallback).saturating_sub(given);
        let rest_parts: u64 = (0..3).filter(|&place| self.views[place].is_none()).map(|p| parts[p]).sum();
        std::array::from_fn(|place| match self.views[place] {
            Some(_) if place == View::Cache.index() && !cache => 0,
            Some(size) => size,
            None if rest_parts == 0 => 0,
            None => rest / rest_parts * parts[place],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capacity(text: &str) -> Capacity {
        text.parse().expect("a capacity")
    }

    #[test]
    fn one_size_is_divided_among_the_views() {
        assert_eq!(capacity("8G").resolve(0, true), [1 << 30, 3 << 30, 4 << 30]);
        assert_eq!(capacity("8G").resolve(0, false), [2 << 30, 6 << 30, 0]);
        assert_eq!(Capacity::default().resolve(8 << 20, true), [1 << 20, 3 << 20, 4 << 20]);
    }

    #[test]
    fn views_get_their_sizes_and_the_rest_is_divided() {
        let some = capacity("9G, cache=1G");
        assert_eq!(some.resolve(0, true), [2 << 30, 6 << 30, 1 << 30]);
        let all = capacity("node-local=1M,shared=2M,cache=3M");
        assert_eq!(all.resolve(1 << 40, true), [1 << 20, 2 << 20, 3 << 20]);
        assert_eq!(all.resolve(1 << 40, false), [1 << 20, 2 << 20, 0]);
        assert_eq!(capacity("1M,cache=3M").resolve(0, true), [0, 0, 3 << 20]);
    }

    /// `--capacity 10`, meant as gigabytes, was accepted, and every write failed.
    #[test]
    fn a_capacity_below_one_unit_is_refused() {
        for text in ["10", "0", "1G,cache=1", "shared=1023K"] {
            let message = text.parse::<Capacity>().expect_err(text).to_string();
            assert!(message.contains("1.00 MiB") && message.contains("10GiB"), "{message}");
        }
    }

    #[test]
    fn capacities_survive_serialization() {
        for text in ["", "5000000", "node-local=0,cache=7000000", "9000000,shared=3000000"] {
            let read = Capacity::try_from(text.to_owned()).expect(text);
            assert_eq!(String::from(read), text);
        }
        assert!("".parse::<Capacity>().is_err());
        for bad in ["1G,2G", "disk=1G", "cache=", "cache=1M,cache=2M"] {
            assert!(bad.parse::<Capacity>().is_err(), "{bad:?}");
        }
    }
}
