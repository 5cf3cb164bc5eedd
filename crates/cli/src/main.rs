//! The program `tameike`: everything is in the library, the agent comes from its own room.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    tameike::main::<tameike_agent::Agent>()
}
