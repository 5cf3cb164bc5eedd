//! Parsing and formatting of sizes like `10GiB`, `512M`, `4096`.

use tameike_core::{Errno, Fault, Result};

const UNITS: [(&str, u32); 5] = [("k", 1), ("m", 2), ("g", 3), ("t", 4), ("p", 5)];

/// Parses a size in bytes. `K`, `M`, `G`, `T`, `P`, also with `iB`, are powers of 1024; `kB`, `MB`, ... are powers of 1000.
/// Fractions are allowed before a unit (`1.5GiB`).
///
/// # Errors
/// `EINVAL` with the reason.
pub fn parse(text: &str) -> Result<u64> {
    let wrong = |why: &str| {
        Fault::new(Errno::EINVAL, format!("size {text:?} {why}; write it like 10GiB, 512M or 1.5TB"))
    };
    let text_plain = text.trim().to_ascii_lowercase();
    let end = text_plain.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text_plain.len());
    let (number, unit) = text_plain.split_at(end);
    let factor = factor(unit.trim()).ok_or_else(|| wrong("has an unknown unit"))?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || number.ends_with('.') || fraction.contains('.') || fraction.len() > 9 {
        return Err(wrong("is not a number with a unit"));
    }
    if !fraction.is_empty() && factor == 1 {
        return Err(wrong("has a fraction of a byte"));
    }
    let whole: u128 = whole.parse().map_err(|_| wrong("is too large"))?;
    let parts: u128 = if fraction.is_empty() { 0 } else { fraction.parse().unwrap_or(0) };
    let scale = 10_u128.pow(fraction.len() as u32);
    let bytes = whole
        .checked_mul(scale)
        .and_then(|scaled| scaled.checked_add(parts))
        .and_then(|scaled| scaled.checked_mul(u128::from(factor)))
        .map(|scaled| scaled / scale);
    bytes.and_then(|bytes| u64::try_from(bytes).ok()).ok_or_else(|| wrong("is too large"))
}

/// Returns the bytes of a unit in lower case.
fn factor(unit: &str) -> Option<u64> {
    if unit.is_empty() || unit == "b" {
        return Some(1);
    }
    UNITS.iter().find_map(|&(prefix, power)| match unit.strip_prefix(prefix)? {
        "" | "ib" => Some(1024_u64.pow(power)),
        "b" => Some(1000_u64.pow(power)),
        _ => None,
    })
}

/// Formats a size with three digits and a unit that is a power of 1024.
pub fn show(bytes: u64) -> String {
    let names = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut place = 0;
    while value >= 1023.5 && place + 1 < names.len() {
        value /= 1024.0;
        place += 1;
    }
    let digits = if place == 0 || value >= 99.95 {
        0
    } else if value >= 9.995 {
        1
    } else {
        2
    };
    format!("{value:.digits$} {}", names[place])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_with_all_units_are_parsed() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4096B", 4096),
            ("1K", 1024),
            ("1kB", 1000),
            ("10GiB", 10 << 30),
            ("10 GiB", 10 << 30),
            ("10g", 10 << 30),
            ("1.5GiB", 3 << 29),
            ("2.5MB", 2_500_000),
            ("16P", 16 << 50),
        ] {
            assert_eq!(parse(text).map_err(|fault| fault.to_string()), Ok(bytes), "{text:?}");
        }
        for bad in ["", "G", "-1", "1..5G", "1.G", ".5G", "1.5", "10Q", "10GiBs", "20000000000P", "1e3"] {
            let fault = parse(bad).expect_err(bad);
            assert_eq!(fault.errno, Errno::EINVAL, "{bad:?}");
        }
    }

    #[test]
    fn sizes_are_shown_with_three_digits() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (10 << 20, "10.0 MiB"),
            ((1 << 30) - 1, "1.00 GiB"),
            (500 << 30, "500 GiB"),
        ] {
            assert_eq!(show(bytes), text);
        }
    }
}
