//! The program `tameike`: combines the library with the agent crate.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    tameike::main::<tameike_agent::Agent>()
}
