//! The target `journal_record` of tools/fuzz.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tameike_fuzz::run("journal_record", bytes));
