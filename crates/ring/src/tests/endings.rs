//! Programs and agents that end during a call.

use super::bed::{Bed, PATIENCE, be_an_agent, open, socket, start};
use crate::client::{Answer, Client, ConnectError};
use rustix::io::FdFlags;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use tameike_io::os::process::start_thread;

/// Waits until the program reports that it is ready, and returns its output.
fn wait_for_ready(child: &mut Child) -> String {
    let output = child.stdout.as_mut().expect("piped");
    let mut text = String::new();
    while !text.ends_with("READY") {
        let mut byte = [0];
        assert_eq!(output.read(&mut byte).expect("a pipe"), 1, "it ended: {text}");
        text.push(byte[0] as char);
    }
    text
}

/// Starts an agent in a child process, and returns its socket in a temporary directory, a client, and the process.
pub fn client_of_child() -> ((tempfile::TempDir, PathBuf), Client, Child) {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("ring");
    let mut agent = start("tests::endings::agent", &socket);
    wait_for_ready(&mut agent);
    let client = Client::connect(&socket, |_| {}).expect("it listens");
    ((dir, socket), client, agent)
}

pub fn kill(mut child: Child) {
    child.kill().expect("it is our child");
    child.wait().expect("it is our child");
}

#[test]
#[ignore = "started by the_session_of_a_killed_program_ends_with_its_requests"]
fn program_with_requests_in_flight() {
    let client = Client::connect(&socket(), |_| {}).expect("the agent listens");
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| client.sync(1));
        }
    });
}

#[test]
fn the_session_of_a_killed_program_ends_with_its_requests() {
    let bed = Bed::new();
    let name = "tests::endings::program_with_requests_in_flight";
    let child = start(name, &bed.socket);
    bed.files.wait_for_held(3);
    kill(child);
    // As the parent may do after it has waited for the child.
    bed.server.settle();
    assert_eq!(bed.server.usage().clients, 0);
    {
        let state = bed.files.state.lock();
        assert_eq!((state.left, state.ended), (1, 0), "requests are in flight");
    }
    bed.files.answer_held();
    bed.files.wait_for_state(|state| state.ended == 1);
    assert_eq!(bed.client().close(1), Answer::Failed(9), "other programs are served");
}

#[test]
#[ignore = "started by the_session_of_a_killed_program_ends_despite_a_child"]
fn program_whose_child_outlives_it() {
    let client = Client::connect(&socket(), |_| {}).expect("the agent listens");
    assert_eq!(client.close(1), Answer::Failed(9));
    // As in a forked child before exec.
    rustix::io::fcntl_setfd(&client.socket, FdFlags::empty()).expect("it is open");
    let mut child = Command::new("sleep").arg("1000").stdout(Stdio::null()).spawn().expect("sleep");
    println!("{} READY", child.id());
    child.wait().expect("it is our child");
}

/// The socket of a program is closed by its last holder. Once, a daemon's child that held it kept the files of its failed
/// parent open.
#[test]
fn the_session_of_a_killed_program_ends_despite_a_child() {
    let bed = Bed::new();
    let mut child = start("tests::endings::program_whose_child_outlives_it", &bed.socket);
    let text = wait_for_ready(&mut child);
    kill(child);
    bed.files.wait_for_state(|state| state.ended == 1);
    let pid = text.lines().last().and_then(|line| line.split_whitespace().next()?.parse().ok());
    let pid = pid.expect("a number");
    tameike_io::os::process::ProcessId::now(pid).expect("it lives").signal(9).expect("it is ours");
}

#[test]
#[ignore = "started by tests of an agent that is killed"]
fn agent() {
    let bed = be_an_agent();
    println!("READY");
    bed.files.wait_for_held(usize::MAX);
}

#[test]
fn a_killed_agent_breaks_the_calls_in_flight_and_later_ones() {
    let ((_dir, socket), client, agent) = client_of_child();
    open(&client, b"file");
    let (sender, answers) = channel();
    std::thread::scope(|scope| {
        for _ in 0..20 {
            let (client, sender) = (&client, sender.clone());
            scope.spawn(move || sender.send(client.sync(1)).expect("the test waits"));
        }
        // Requests are at the agent, in flight, or wait for a slot: each must end.
        kill(agent);
        for _ in 0..20 {
            let answer = answers.recv_timeout(PATIENCE).expect("no call hangs");
            assert_eq!(answer, Answer::Broken);
        }
    });
    assert!(client.is_broken());
    assert_eq!(client.close(1), Answer::Broken);
    assert!(matches!(Client::connect(&socket, |_| {}), Err(ConnectError::System { .. })));
}

#[test]
fn a_stopping_agent_answers_requests_in_flight_only() {
    let bed = Bed::new();
    let client = bed.client();
    let (sender, answers) = channel();
    let files = bed.files.clone();
    std::thread::scope(|scope| {
        scope.spawn(|| sender.send(client.sync(1)).expect("the test waits"));
        files.wait_for_held(1);
        bed.server.stop();
        assert_eq!(files.state.lock().ended, 0);
        files.answer_held();
        let answer = answers.recv_timeout(PATIENCE).expect("no call hangs");
        assert!(matches!(answer, Answer::Done(()) | Answer::Broken), "{answer:?}");
    });
    files.wait_for_state(|state| state.ended == 1);
    assert_eq!(client.close(1), Answer::Broken);
    let late = start_thread("late", {
        let socket = bed.socket.clone();
        move || Client::connect(&socket, |_| {}).is_err()
    });
    assert!(late.expect("a thread").join().expect("an end"), "no program is accepted any more");
}
