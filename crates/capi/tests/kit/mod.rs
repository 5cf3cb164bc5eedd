//! Installs the library for tests of this and other crates, and compiles C programs against it.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A directory with the library and programs linked to it.
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

    /// Returns the directory.
    pub fn place(&self) -> &Path {
        self.dir.path()
    }

    /// Compiles the program `name` of `tests/calls`.
    pub fn build(&self, name: &str) -> PathBuf {
        self.compile(&self.source(name), name)
    }

    /// Returns the source path of the program `name` of `tests/calls`.
    pub fn source(&self, name: &str) -> PathBuf {
        home().join("tests/calls").join(name).with_extension("c")
    }

    /// Compiles a program with all warnings as errors.
    pub fn compile(&self, source: &Path, name: &str) -> PathBuf {
        self.compile_with("cc", source, name)
    }

    /// As [`Self::compile`], with another compiler.
    pub fn compile_with(&self, compiler: &str, source: &Path, name: &str) -> PathBuf {
        let mut compiler = Command::new(compiler);
        compiler.args(["-std=gnu11", "-pthread", "-I"]).arg(include()).arg(source);
        self.link(&mut compiler, name)
    }

    /// Compiles a Fortran program with the modules of the library.
    pub fn compile_fortran(&self, source: &Path, name: &str) -> PathBuf {
        let mut compiler = Command::new("gfortran");
        let modules = ["tameike_dsm.f90", "tameike_win.f90"].map(|name| include().join(name));
        compiler.arg("-std=f2008").args(modules).arg(source);
        self.link(compiler.arg("-J").arg(self.dir.path()), name)
    }

    fn link(&self, compiler: &mut Command, name: &str) -> PathBuf {
        let (program, place) = (self.dir.path().join(name), self.dir.path().display());
        compiler.args(["-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-o"]).arg(&program);
        // Copies of program and library in another directory work as well.
        let rpath = format!("-Wl,-rpath,{place}:$ORIGIN");
        compiler.args([format!("-L{place}"), "-ltameike".to_owned(), rpath]);
        let built = compiler.output().expect("a compiler");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        program
    }
}

/// Returns the directory of the header.
pub fn include() -> PathBuf {
    home().join("include")
}

/// Returns the directory of this crate, also for tests of other crates.
fn home() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../capi")
}
