//! Programs without an agent, and programs whose agent stops.

use crate::calls::build;
use crate::directory::{Bed, run, tree};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;

#[test]
fn without_a_ring_the_library_does_nothing() {
    let programs = tempfile::tempdir().expect("a directory");
    let program = build("files", programs.path());
    for (variable, value) in
        [("TAMEIKE_RING", ""), ("TAMEIKE_RING", "/absent"), ("TAMEIKE_SHARED", "/absent")]
    {
        let bed = Bed::new(0);
        let expected = run(&mut bed.without(&program));
        assert_eq!(run(bed.with_ring(&program).env(variable, value)), expected);
        assert_eq!(bed.requests(), 0);
        assert_eq!(tree(&bed.view()), tree(&bed.plain()));
    }
}

#[test]
fn after_the_agent_stops_its_files_fail_and_later_ones_use_the_kernel() {
    let programs = tempfile::tempdir().expect("a directory");
    let bed = Bed::new(0);
    let mut command = bed.with_ring(build("alone", programs.path()));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    while !line.contains("write(") {
        line.clear();
        assert!(output.read_line(&mut line).expect("a line") > 0, "it has ended");
    }
    bed.stop();
    child.stdin.take().expect("a pipe").write_all(b"\n").expect("it reads");
    let mut rest = String::new();
    output.read_to_string(&mut rest).expect("text");
    assert!(child.wait().expect("it ends").success());
    let expected = "pread(fd, text, 3, 0) = -1 EIO\npread(fd, text, 3, 0) = -1 EIO\n\
        (long)mmap(NULL, 3, PROT_READ, MAP_SHARED, fd, 0) = -1 EIO\nopen(\"file\", O_RDWR) = 4\n\
        pread(fd + 1, text, 3, 0) = 3\nclose(fd) = -1 EIO\nopen(\"file\", O_RDWR) = 3\n\
        open(\"of-child\", O_RDWR | O_CREAT, 0600) = 5\nchild ended with 0\n";
    assert_eq!(rest, expected);
}
