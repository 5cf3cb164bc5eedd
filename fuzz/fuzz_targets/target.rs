//! Every target of tools/fuzz: the name of the program selects it.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tameike_fuzz::run(env!("CARGO_BIN_NAME"), bytes));
