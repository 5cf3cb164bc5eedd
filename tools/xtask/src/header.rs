//! Generates the C library's header from the functions' signatures and documentation.

use crate::Finding;
use std::fs;
use std::path::Path;

/// Path of the header.
const HEADER: &str = "crates/capi/include/tameike.h";
/// Sources of the functions and of the types that they use.
const SOURCES: [&str; 4] = [
    "crates/capi/src/abi.rs",
    "crates/capi/src/file.rs",
    "crates/capi/src/request.rs",
    // And the modules below it.
    "crates/capi/src/aggregate/mod.rs",
];
const OPENING: &str = "\
/* Files of a job's views without the kernel, and containers of many files.
 *
 * cc program.c $(pkg-config --cflags --libs tameike)
 *
 * In a job of Tameike, calls on files of its views go to the node's agent through shared memory. Elsewhere, and for calls that the agent
 * does not serve, the library calls the kernel: each function works on every path. The library prints nothing and never ends the
 * program. Calls that fail return a negative number of errno.h. After the agent has failed, calls return -EIO, and later -ENOTCONN.
 *
 * Functions are thread-safe, except that one thread at a time may use a request. They must not be called in signal handlers. In a
 * child of fork(), files and requests of the parent fail with -EIO: the child must open files itself. Other programs see a file of
 * tameike_open() as SEMANTICS.md states, as if its calls were the kernel's.
 *
 * The functions tameike_agg_*() are for many small files. They store them in a few large files, a container, on any file system and
 * without an agent. Any number of processes may write to a container at the same time, each to different files.
 * tameike_agg_message() returns a message for the last error.
 */";

/// Returns a finding if the header differs from the generated one.
pub fn check(root: &Path) -> Result<Option<Finding>, String> {
    let found = fs::read_to_string(root.join(HEADER)).unwrap_or_default();
    let finding =
        || Finding::new(Path::new(HEADER), 1, "is not what crate capi has: run `cargo xtask header`");
    Ok((found != text(root)?).then(finding))
}

/// Writes the header.
pub fn write(root: &Path) -> Result<(), String> {
    fs::write(root.join(HEADER), text(root)?)
        .map_err(|error| format!("xtask: cannot write {HEADER}: {error}"))
}

fn text(root: &Path) -> Result<String, String> {
    let mut config = cbindgen::Config {
        language: cbindgen::Language::C,
        cpp_compat: true,
        header: Some(OPENING.to_owned()),
        include_guard: Some("TAMEIKE_H".to_owned()),
        no_includes: true,
        sys_includes: ["stddef.h", "stdint.h", "sys/types.h"].map(str::to_owned).to_vec(),
        usize_is_size_t: true,
        style: cbindgen::Style::Type,
        documentation_style: cbindgen::DocumentationStyle::C99,
        line_length: 120,
        ..cbindgen::Config::default()
    };
    let of_containers = [
        ("Aggregate", "agg"),
        ("AggregateFile", "agg_file"),
        ("AggregateList", "agg_list"),
        ("AggregateOptions", "agg_options"),
    ];
    let names = ["File", "Request", "Piece", "Status", "Time"].map(|name| (name, name.to_lowercase()));
    let names = names.into_iter().chain(of_containers.map(|(name, of_c)| (name, of_c.to_owned())));
    names.for_each(|(name, of_c)| {
        config.export.rename.insert(name.to_owned(), format!("tameike_{of_c}"));
    });
    let sources = SOURCES.iter().fold(cbindgen::Builder::new().with_config(config), |builder, source| {
        builder.with_src(root.join(source))
    });
    let bindings = sources.generate().map_err(|error| format!("xtask: cannot make {HEADER}: {error}"))?;
    let mut text = Vec::new();
    bindings.write(&mut text);
    String::from_utf8(text).map_err(|error| format!("xtask: {HEADER}: {error}"))
}
