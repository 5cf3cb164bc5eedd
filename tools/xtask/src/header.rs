//! Generates the C header of `libtameike.so` from the signatures and comments of the functions.

use crate::Finding;
use std::fs;
use std::path::Path;

/// The generated header.
const HEADER: &str = "crates/capi/include/tameike.h";
/// The sources: the functions, and the types of their arguments.
pub const SOURCES: [&str; 9] = [
    "crates/capi/src/abi.rs",
    "crates/capi/src/file.rs",
    "crates/capi/src/request.rs",
    "crates/ring/src/message/status.rs",
    // With its submodules.
    "crates/capi/src/aggregate/mod.rs",
    "crates/capi/src/dsm/mod.rs",
    "crates/capi/src/dsm/region.rs",
    "crates/capi/src/win/mod.rs",
    "crates/capi/src/win/window.rs",
];
const OPENING: &str = "\
/* Access to files of a job's views without kernel calls.
 *
 * cc program.c $(pkg-config --cflags --libs tameike)
 *
 * In a job of Tameike, calls on files of its views go to the node's agent through shared memory. Elsewhere, and for calls that
 * the agent leaves to the kernel, the library makes system calls, so that each function works on every path. The library prints
 * nothing and never ends the program. A failed call returns a negative number of errno.h: -EIO if the agent has failed, and
 * -ENOTCONN for later calls.
 *
 * Any number of threads may call the functions concurrently, but only one at a time for each request; signal handlers may not.
 * In a child of fork(), files and requests of the parent fail with -EIO: the child must open its own. Files opened with
 * tameike_open() have the semantics of SEMANTICS.md for all programs, as with system calls.
 *
 * The functions tameike_agg_*() store many small files in a few large ones, in a container, on any file system and without an
 * agent. Any number of processes write to a container concurrently, each to its own files. tameike_agg_message() describes the
 * last error.
 *
 * The functions tameike_dsm_*() share memory between processes on all nodes of a job, and tameike_win_*() give each process memory that
 * all others read and write. They need an agent.
 */";

/// Returns a finding if the header differs from the generated one.
pub fn check(root: &Path) -> Result<Option<Finding>, String> {
    let found = fs::read_to_string(root.join(HEADER)).unwrap_or_default();
    let finding = || {
        Finding::new(
            Path::new(HEADER),
            1,
            "differs from the sources in crates/capi: run `cargo xtask header`",
        )
    };
    Ok((found != text(root)?).then(finding))
}

/// Generates the header file.
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
    let of_regions = [("Region", "dsm"), ("RegionCounters", "dsm_counters"), ("Window", "win")];
    let others = of_containers.into_iter().chain(of_regions);
    let names = names.into_iter().chain(others.map(|(name, of_c)| (name, of_c.to_owned())));
    names.for_each(|(name, of_c)| {
        config.export.rename.insert(name.to_owned(), format!("tameike_{of_c}"));
    });
    let sources = SOURCES.iter().fold(cbindgen::Builder::new().with_config(config), |builder, source| {
        builder.with_src(root.join(source))
    });
    let bindings = sources.generate().map_err(|error| format!("xtask: cannot generate {HEADER}: {error}"))?;
    let mut text = Vec::new();
    bindings.write(&mut text);
    String::from_utf8(text).map_err(|error| format!("xtask: {HEADER}: {error}"))
}
