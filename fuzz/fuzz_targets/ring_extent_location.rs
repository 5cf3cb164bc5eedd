//! The target `ring_extent_location` of tools/fuzz.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tameike_fuzz::run("ring_extent_location", bytes));
