//! The target `mirror` of tools/fuzz.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tameike_fuzz::run("mirror", bytes));
