//! The Fortran modules have the functions, structures and constants of the header, and examples compile.

use crate::kit::{Kit, include};
use std::collections::BTreeMap;
use std::path::Path;

/// How a value is passed. Fortran has no unsigned integers, and passes by address unless a dummy argument has `value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Bits32,
    Bits64,
    Address,
}

/// Kinds of the result and of the arguments, by the function's name in C.
type Functions = BTreeMap<String, Vec<Kind>>;
/// Names and kinds of the parts of a structure.
type Fields = Vec<(String, Kind)>;

/// A module of functions.
struct Module {
    file: &'static str,
    /// What the names of its functions begin with.
    prefix: &'static str,
    /// Least number of functions.
    functions: usize,
    /// Its constants for errors, with their numbers.
    errors: &'static [(&'static str, i32)],
}

const MODULES: [Module; 2] = [
    Module {
        file: "tameike_dsm.f90",
        prefix: "tameike_dsm_",
        functions: 14,
        errors: &[("EPIPE", libc::EPIPE), ("EHOSTDOWN", libc::EHOSTDOWN), ("EOWNERDEAD", libc::EOWNERDEAD)],
    },
    Module {
        file: "tameike_win.f90",
        prefix: "tameike_win_",
        functions: 25,
        errors: &[
            ("EAGAIN", libc::EAGAIN),
            ("EPIPE", libc::EPIPE),
            ("EMSGSIZE", libc::EMSGSIZE),
            ("EHOSTDOWN", libc::EHOSTDOWN),
            ("EOWNERDEAD", libc::EOWNERDEAD),
        ],
    },
];
const COUNTERS: &str = "tameike_dsm_counters";

fn read(name: &str) -> String {
    std::fs::read_to_string(include().join(name)).expect("a file to include")
}

/// Lines without what `mark` begins.
fn without_comments<'a>(text: &'a str, mark: &str) -> Vec<&'a str> {
    text.lines().map(|line| line.split(mark).next().unwrap_or(line)).collect()
}

fn kind_of_c(declared: &str) -> Kind {
    if declared.contains('*') {
        return Kind::Address;
    }
    let words: Vec<&str> = declared.split_whitespace().collect();
    let is_one_of = |types: &[&str]| words.iter().any(|word| types.contains(word));
    if is_one_of(&["uint64_t", "size_t", "ssize_t"]) {
        return Kind::Bits64;
    }
    assert!(is_one_of(&["int", "uint32_t"]), "{declared}: not known to this test");
    Kind::Bits32
}

fn functions_of_header(header: &str, prefix: &str) -> Functions {
    let text = without_comments(header, "//").join(" ");
    let prototypes = text.split(';').filter_map(|statement| statement.strip_suffix(')')?.split_once('('));
    prototypes
        .filter_map(|(before, arguments)| {
            let (result, name) = before.rsplit_once([' ', '*'])?;
            // A `*` before the name is a part of the result.
            let result = format!("{result}{}", &before[result.len()..=result.len()]);
            let kinds = std::iter::once(&*result).chain(arguments.split(',')).map(kind_of_c);
            name.starts_with(prefix).then(|| (name.to_owned(), kinds.collect()))
        })
        .collect()
}

fn counters_of_header(header: &str) -> Fields {
    let text = without_comments(header, "//").join(" ");
    let (before, _) = text.split_once(&format!("}} {COUNTERS};")).expect("the structure");
    let (_, fields) = before.rsplit_once('{').expect("its beginning");
    let fields = fields.split(';').filter_map(|field| field.trim().rsplit_once(' '));
    fields.map(|(kind, name)| (name.to_owned(), kind_of_c(kind))).collect()
}

/// A declaration in Fortran: its attributes, and names.
fn declaration(line: &str) -> Option<(Vec<&str>, Vec<&str>)> {
    let (attributes, names) = line.split_once("::")?;
    let [attributes, names] = [attributes, names].map(|list| list.split(',').map(str::trim).collect());
    Some((attributes, names))
}

/// The kind of a declared value.
fn kind_of_fortran(attributes: &[&str]) -> Kind {
    match attributes[0] {
        "type(c_ptr)" => Kind::Address,
        "integer(c_int64_t)" => Kind::Bits64,
        declared => {
            assert!(["integer(c_int)", "integer(c_int32_t)"].contains(&declared), "{attributes:?}");
            Kind::Bits32
        }
    }
}

/// The text between brackets after `mark`.
fn in_brackets<'a>(line: &'a str, mark: &str) -> Option<&'a str> {
    Some(line.split_once(mark)?.1.split_once(')')?.0)
}

fn functions_of_module(module: &str, prefix: &str) -> Functions {
    // A line that ends with `&` is continued.
    let text = without_comments(module, "!").join("\n").replace("&\n", "");
    let lines: Vec<&str> = text.lines().collect();
    let starts = lines.iter().enumerate().filter(|(_, line)| line.contains("bind(c, name="));
    starts
        .filter_map(|(at, line)| {
            let name = in_brackets(line, "bind(c, name=").map(|name| name.trim_matches('"'))?;
            if !name.starts_with(prefix) {
                return None;
            }
            let result = in_brackets(line, "result(")?;
            let arguments = in_brackets(line, "(")?.split(',').map(str::trim);
            let body = lines[at + 1..].iter().take_while(|line| line.trim() != "end function");
            let declared: Vec<_> = body.filter_map(|line| declaration(line)).collect();
            let attributes = |name: &str| {
                let is_it = |declared: &&str| declared.split('(').next() == Some(name);
                let mut found = declared.iter().filter(|(_, names)| names.iter().any(is_it));
                &found.next().expect("a declaration").0
            };
            let passed = |name| {
                let attributes = attributes(name);
                if attributes.contains(&"value") { kind_of_fortran(attributes) } else { Kind::Address }
            };
            let kinds = std::iter::once(kind_of_fortran(attributes(result))).chain(arguments.map(passed));
            Some((name.to_owned(), kinds.collect()))
        })
        .collect()
}

fn counters_of_module(module: &str) -> Fields {
    let (_, after) = module.split_once(&format!("public :: {COUNTERS}")).expect("the structure");
    let (fields, _) = after.split_once("end type").expect("its end");
    let fields = fields.lines().filter_map(declaration);
    fields.map(|(attributes, names)| (names[0].to_owned(), kind_of_fortran(&attributes))).collect()
}

#[test]
fn the_modules_declare_what_the_header_declares() {
    let header = read("tameike.h");
    for Module { file, prefix, functions: least, .. } in MODULES {
        let (module, functions) = (read(file), functions_of_header(&header, prefix));
        assert!(functions.len() >= least, "{functions:?}");
        assert_eq!(functions_of_module(&module, prefix), functions);
        for name in functions.keys() {
            let is_public = module.lines().any(|line| line.contains("public ::") && line.contains(&**name));
            assert!(is_public, "{name} is not public");
        }
    }
    let counters = counters_of_header(&header);
    assert!(counters.len() >= 10, "{counters:?}");
    assert_eq!(counters_of_module(&read("tameike_dsm.f90")), counters);
}

#[test]
fn constants_of_the_modules_are_those_of_the_header_and_the_system() {
    let header = read("tameike.h");
    for Module { file, prefix, errors, .. } in MODULES {
        let (module, prefix) = (read(file), prefix.to_uppercase());
        let lines = header.lines().filter_map(|line| line.strip_prefix("#define ")?.split_once(' '));
        let defined: Vec<_> = lines.filter(|(name, _)| name.starts_with(&prefix)).collect();
        assert!(!defined.is_empty(), "{prefix}");
        let defined = defined.into_iter().map(|(name, value)| format!("{name} = {value}"));
        let errors = errors.iter().map(|(name, errno)| format!("{prefix}{name} = {}", -errno));
        for constant in defined.chain(errors) {
            let is_there =
                |(after, _): (usize, &str)| !module[after + constant.len()..].starts_with(char::is_numeric);
            assert!(module.match_indices(&constant).any(is_there), "{constant}");
        }
    }
}

#[test]
fn the_examples_in_the_documentation_compile() {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/c-api.md");
    let document = std::fs::read_to_string(document).expect("the document");
    let examples: Vec<&str> =
        document.split("```fortran\n").skip(1).filter_map(|rest| Some(rest.split_once("```")?.0)).collect();
    let kit = Kit::new();
    let source = kit.place().join("example.f90");
    for example in &examples {
        std::fs::write(&source, example).expect("a directory");
        kit.compile_fortran(&source, "example");
    }
    assert_eq!(examples.len(), MODULES.len());
}
