//! Pinned servers of programs that poll in vain.

use super::bed::{BLOCKING_DIR, Bed, PATIENCE, ROOT, open};
use crate::client::{Answer, Client};
use tameike_io::os::process::monotonic;

/// Lets a program poll in vain until it has a pinned server.
fn make_pinned(bed: &Bed, client: &Client) {
    let (begun, before) = (monotonic(), bed.files.state.lock().near);
    while bed.files.state.lock().near == before {
        assert!(monotonic() - begun < PATIENCE, "it has no pinned server");
        std::thread::scope(|scope| {
            scope.spawn(|| client.sync(1));
            bed.files.wait_for_held(1);
            bed.files.answer_held();
        });
        (0..4).for_each(|_| assert_eq!(client.close(1 << 50), Answer::Failed(9)));
    }
}

#[test]
fn a_program_that_polls_in_vain_gets_a_pinned_server() {
    let bed = Bed::new();
    let clients = [(); 3].map(|()| bed.client());
    for client in &clients {
        make_pinned(&bed, client);
        let before = bed.files.state.lock().near;
        for round in 0..200_u64 {
            let open = open(client, b"file");
            assert_eq!(client.write(open.handle, 0, &[&round.to_le_bytes()]), Answer::Done(8));
            assert_eq!(client.leave(open.handle), Answer::Done(()));
            bed.files.wait_for_state(|state| state.closed.last() == Some(&open.handle));
        }
        assert_eq!(bed.files.state.lock().near - before, 400, "all by the pinned server");
    }
    let [first, second, _third] = clients;
    drop((first, second));
    bed.files.wait_for_state(|state| state.ended == 2);
    bed.server.stop();
    assert_eq!(bed.files.state.lock().ended, 3);
}

#[test]
fn other_threads_are_served_while_the_pinned_server_is_blocked() {
    let bed = Bed::new();
    let client = bed.client();
    make_pinned(&bed, &client);
    std::thread::scope(|scope| {
        let before = bed.files.state.lock().near;
        let first = scope.spawn(|| client.make_dir(ROOT, BLOCKING_DIR, 0o755));
        bed.files.wait_for_state(|state| state.blocked == 1);
        assert_eq!(bed.files.state.lock().near - before, 1, "it is the pinned server");
        (0..100).for_each(|_| assert_eq!(client.close(1 << 50), Answer::Failed(9)));
        bed.files.unblock();
        assert_eq!(first.join().expect("no panic"), Answer::Done(()));
    });
}
