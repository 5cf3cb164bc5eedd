//! The target `log_command` of tools/fuzz.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tameike_fuzz::run("log_command", bytes));
