//! The library as it is installed, for tests of this crate and of others that have cargo build it.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The library as it is installed, and programs that are linked to it.
pub struct Kit {
    dir: tempfile::TempDir,
}

impl Kit {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let built = std::env::current_exe().expect("this program").with_file_name("libtameike_capi.so");
        for name in ["libtameike.so", "libtameike.so.0"] {
            symlink(&built, dir.path().join(name)).expect("it is new");
        }
        Self { dir }
    }

    /// Where it is.
    pub fn place(&self) -> &Path {
        self.dir.path()
    }

    /// The program `name` of `tests/calls`.
    pub fn build(&self, name: &str) -> PathBuf {
        self.compile(&self.source(name), name)
    }

    /// Where the source of the program `name` of `tests/calls` is.
    pub fn source(&self, name: &str) -> PathBuf {
        home().join("tests/calls").join(name).with_extension("c")
    }

    /// By a compiler that warns of everything.
    pub fn compile(&self, source: &Path, name: &str) -> PathBuf {
        self.compile_with("cc", source, name)
    }

    /// The same by another one.
    pub fn compile_with(&self, compiler: &str, source: &Path, name: &str) -> PathBuf {
        let (program, place) = (self.dir.path().join(name), self.dir.path().display());
        let mut compiler = Command::new(compiler);
        compiler.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread", "-I"]);
        compiler.arg(home().join("include")).arg("-o").arg(&program).arg(source);
        compiler.args([format!("-L{place}"), "-ltameike".to_owned(), format!("-Wl,-rpath,{place}")]);
        let built = compiler.output().expect("a compiler");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        program
    }
}

/// This crate, seen from any.
fn home() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../capi")
}
