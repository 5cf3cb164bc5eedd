//! The libraries for `--preload` and `--aggregate-only`, and jobs that use the former.

use serde_json::Value;
use std::path::Path;
use std::sync::Once;
use tempfile::NamedTempFile;

/// The libraries of `--preload` and `--aggregate-only`.
const LIBRARIES: [&str; 2] = ["libtameike_preload.so", "libtameike_redirect.so"];
static INSTALLED: Once = Once::new();

/// Returns true if the programs of all jobs are preloaded, so that all tests of jobs also test the library.
pub fn is_wanted() -> bool {
    std::env::var_os("TAMEIKE_TEST_PRELOAD").is_some_and(|value| value == "1")
}

/// Copies the libraries to the directory of the binary under test. Cargo has built them before the tests, in another directory.
pub fn install() {
    INSTALLED.call_once(|| LIBRARIES.iter().for_each(|library| install_one(library)));
}

fn install_one(library: &str) {
    let built = std::env::current_exe().expect("this program").with_file_name(library);
    let installed = Path::new(super::binary()).with_file_name(library);
    let dir = installed.parent().expect("the binary has a parent");
    // Jobs of other tests may be loading the present one.
    let copy = NamedTempFile::new_in(dir).expect("a file beside the binary");
    std::fs::copy(&built, copy.path()).expect("cargo has built the library");
    copy.persist(&installed).expect("a name beside the binary");
}

/// Checks that a program printed the same in each of the three views, with `---` after each. Returns the rest of its output.
pub fn assert_equal_in_all_views<'a>(text: &'a str, expected: &str) -> &'a str {
    let parts: Vec<&str> = text.split("---\n").collect();
    assert_eq!(parts.len(), 4, "{text}");
    for (view, part) in parts[..3].iter().enumerate() {
        assert_eq!(*part, expected, "view {view}");
    }
    parts[3]
}

/// Requests that the agents of a job have answered through the ring, from `tameike status --json`.
pub fn answered(status: &str) -> u64 {
    counted(status, "ring_answered")
}

/// Sum of a counter of the agents of a job, from `tameike status --json`.
pub fn counted(status: &str, counter: &str) -> u64 {
    let status: Value = serde_json::from_str(status).expect("JSON");
    let text = status.to_string();
    let name = format!(r#""name":"{counter}","value":"#);
    let values = text.split(&name).skip(1).map(|rest| {
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u64>().expect("a number")
    });
    values.sum()
}
