//! Names the library for the linker of programs: the number changes with the binary interface.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libtameike.so.0");
}
