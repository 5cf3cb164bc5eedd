//! The library in programs in C, before an agent whose view is a plain directory, and without one.

#[path = "suite/containers.rs"]
mod containers;
#[expect(dead_code, reason = "what only preloaded programs need")]
#[path = "../../preload/tests/suite/directory.rs"]
mod directory;
mod kit;

use directory::{Bed, tree};
use kit::Kit;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn text(output: &Output) -> String {
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    format!("{}{}", String::from_utf8_lossy(&output.stdout), output.status)
}

#[test]
fn all_calls_tell_the_same_with_an_agent_and_without() {
    let kit = Kit::new();
    let program = kit.build("calls");
    for declines_each in [0, 2, 3, 5, 11] {
        let bed = Bed::new(declines_each);
        let expected = text(&bed.without(&program).output().expect("it starts"));
        assert!(expected.ends_with("exit status: 0"), "{expected}");
        let told = text(&bed.with_agent(&program).output().expect("it starts"));
        for (line, (told, expected)) in told.lines().zip(expected.lines()).enumerate() {
            assert_eq!(told, expected, "line {}, {declines_each}", line + 1);
        }
        assert_eq!(told, expected);
        assert!(bed.asked() > 50, "only {} requests: this was the kernel", bed.asked());
        bed.settle();
        assert!(tree(&bed.view()) == tree(&bed.plain()), "they left different files");
    }
}

#[test]
fn a_child_has_its_own_connection() {
    let kit = Kit::new();
    let bed = Bed::new(0);
    let told = text(&bed.with_agent(kit.build("endings")).arg("child").output().expect("it starts"));
    assert_eq!(told, "exit status: 0");
}

#[test]
fn an_agent_that_goes_away_fails_calls_and_ends_none() {
    let kit = Kit::new();
    let bed = Bed::new(0);
    let mut command = bed.with_agent(kit.build("endings"));
    let mut program =
        command.arg("agent").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut said = BufReader::new(program.stdout.take().expect("a pipe"));
    let mut line = String::new();
    said.read_line(&mut line).expect("it says so");
    assert_eq!(line, "ready\n");
    bed.stop();
    program.stdin.take().expect("a pipe").write_all(b"gone\n").expect("it listens");
    let ended = program.wait().expect("it ends");
    line.clear();
    said.read_line(&mut line).expect("all is said");
    assert!(ended.success() && line.is_empty(), "{line}{ended}");
}

#[test]
fn the_example_of_the_documents_is_a_program() {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/c-api.md");
    let document = std::fs::read_to_string(document).expect("the document");
    let example =
        document.split_once("```c\n").and_then(|(_, rest)| rest.split_once("```")).expect("an example").0;
    let kit = Kit::new();
    let source = kit.place().join("example.c");
    std::fs::write(&source, format!("{example}\nint main(void) {{ return 0; }}\n")).expect("a directory");
    kit.compile(&source, "example");
}

#[test]
fn the_header_is_for_programs_in_cpp_as_well() {
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/tameike.h");
    let mut compiler = Command::new("c++");
    let options = ["-x", "c++", "-std=c++11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"];
    let told = compiler.args(options).arg(include).output().expect("c++");
    // That the file given is a header by itself is on purpose.
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
}
