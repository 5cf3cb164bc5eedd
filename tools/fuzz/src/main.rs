//! Regenerates the seeds of the corpus: `cargo run --package tameike-fuzz`.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use tameike_fuzz::{corpus, seeds};

fn main() -> ExitCode {
    for (target, name, bytes) in seeds::all() {
        let dir = corpus().join(target);
        let path = dir.join(name);
        if let Err(error) = std::fs::create_dir_all(&dir).and_then(|()| std::fs::write(&path, bytes)) {
            eprintln!("writing {}: {error}", path.display());
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
