use super::*;

fn findings_for(name: &str, depends_on: &[&str]) -> Vec<Finding> {
    let package = Package {
        name: name.to_owned(),
        manifest: "crates/x/Cargo.toml".into(),
        depends_on: depends_on.iter().map(|&name| name.to_owned()).collect(),
        roots: Vec::new(),
    };
    let members = EDGES.iter().map(|(name, _)| *name).collect();
    let text = "[package]\n[dependencies]\ntameike-client = {}\n";
    check_edges(&package, &package.manifest, text, &members)
}

#[test]
fn a_crate_may_depend_on_crates_below_it() {
    assert_eq!(findings_for("tameike-store", &["tameike-core", "tameike-io", "redb"]), []);
    assert_eq!(findings_for("tameike", &["tameike-core", "tameike-server", "tameike-client"]), []);
}

#[test]
fn server_and_client_do_not_depend_on_each_other() {
    let findings = findings_for("tameike-server", &["tameike-core", "tameike-client"]);
    assert_eq!(findings.len(), 1);
    assert_eq!(findings[0].line, 3);
    assert!(findings[0].message.contains("must not depend on tameike-client"), "{}", findings[0]);
    assert_eq!(findings_for("tameike-client", &["tameike-server"]).len(), 1);
    assert_eq!(findings_for("tameike-client", &["tameike-store"]).len(), 1);
}

#[test]
fn no_crate_depends_on_a_crate_above() {
    assert_eq!(findings_for("tameike-core", &["tameike-io"]).len(), 1);
    assert_eq!(findings_for("xtask", &["tameike-core"]).len(), 1);
}

#[test]
fn an_unknown_crate_is_a_finding() {
    assert_eq!(findings_for("tameike-utils", &[]).len(), 1);
}

#[test]
fn a_crate_without_forbid_unsafe_is_a_finding() {
    let path = Path::new("crates/store/src/lib.rs");
    assert!(check_unsafe("tameike-store", path, "//! A module.\n").is_some());
    assert!(check_unsafe("tameike-store", path, "//! A module.\n// #![forbid(unsafe_code)]\n").is_some());
    assert!(check_unsafe("tameike-store", path, "//! A module.\n#![forbid(unsafe_code)]\n").is_none());
    assert!(check_unsafe("tameike-io", path, "//! A module.\n").is_none());
}
