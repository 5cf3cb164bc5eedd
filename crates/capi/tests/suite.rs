//! C programs that use the library, with an agent whose view is a plain directory, and without an agent.

#[path = "suite/containers.rs"]
mod containers;
#[expect(dead_code, reason = "parts for preloaded programs only")]
#[path = "../../preload/tests/suite/directory.rs"]
mod directory;
#[path = "suite/fortran.rs"]
mod fortran;
mod kit;

use directory::{Bed, run};
use kit::Kit;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn all_calls_return_the_same_with_an_agent_and_without() {
    let kit = Kit::new();
    let program = kit.build("calls");
    for declines_each in [0, 2, 3, 5, 11] {
        let bed = Bed::new(declines_each);
        println!("every {declines_each}th request is declined");
        let expected = run(&mut bed.without(&program));
        assert!(expected.ends_with("exit status: 0"), "{expected}");
        bed.compare(&run(&mut bed.with_agent(&program)), &expected, 50);
    }
}

#[test]
fn a_child_has_its_own_connection() {
    let kit = Kit::new();
    let bed = Bed::new(0);
    assert_eq!(run(bed.with_agent(kit.build("endings")).arg("child")), "exit status: 0");
}

#[test]
fn calls_fail_after_the_agent_has_stopped() {
    let kit = Kit::new();
    let bed = Bed::new(0);
    let mut command = bed.with_agent(kit.build("endings"));
    let mut program =
        command.arg("agent").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut output = BufReader::new(program.stdout.take().expect("a pipe"));
    let mut line = String::new();
    output.read_line(&mut line).expect("a line");
    assert_eq!(line, "ready\n");
    bed.stop();
    program.stdin.take().expect("a pipe").write_all(b"gone\n").expect("it listens");
    let ended = program.wait().expect("it ends");
    line.clear();
    output.read_line(&mut line).expect("end of file");
    assert!(ended.success() && line.is_empty(), "{line}{ended}");
}

#[test]
fn the_examples_in_the_documentation_compile() {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/c-api.md");
    let document = std::fs::read_to_string(document).expect("the document");
    let examples = document.split("```c\n").skip(1).filter_map(|rest| rest.split_once("```"));
    let kit = Kit::new();
    let source = kit.place().join("example.c");
    let mut count = 0;
    for (example, _) in examples {
        // A function that an example uses and does not define.
        let rest = if example.contains("double heat(") {
            "double heat(int row, int column) { return row * column; }"
        } else {
            ""
        };
        let program = format!("{example}\n{rest}\nint main(void) {{ return 0; }}\n");
        std::fs::write(&source, program).expect("a directory");
        kit.compile(&source, "example");
        count += 1;
    }
    assert_eq!(count, 3);
}

#[test]
fn the_header_compiles_as_cpp() {
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/tameike.h");
    let mut compiler = Command::new("c++");
    let options = ["-x", "c++", "-std=c++11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"];
    let output = compiler.args(options).arg(include).output().expect("c++");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
