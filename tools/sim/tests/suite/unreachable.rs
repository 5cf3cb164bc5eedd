//! How long calls wait for an unreachable agent, in simulated time.

use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;
use tameike_agent::control::AgentMode;
use tameike_client::vfs::{Content, FileNumber, HandleNumber, Inodes, Names, OpenFiles, OpenMode};
use tameike_core::attr::AttrChange;
use tameike_core::wire::meta::RenameMode;
use tameike_core::{Errno, NodeId, Result, UnitId, View};
use tameike_sim::countdown::Countdown;
use tameike_sim::kernel::{self, Output};
use tameike_sim::op::{Flags, Op};
use tameike_sim::program::{Action, Injection, Program, Step};
use tameike_sim::run::run;
use tameike_sim::world::{World, WorldConfig};

/// S10d.
#[test]
fn a_file_is_removed_although_a_node_with_it_open_is_unreachable() {
    let call = |node, op| Step::Together(vec![Action::Call { node, view: View::Cache, op }]);
    let open = |write| Op::Open {
        slot: 0,
        path: "a/y".to_owned(),
        flags: Flags { write, create: write, ..Flags::default() },
    };
    for seed in 0..20 {
        let unlink = Action::Call { node: 1, view: View::Cache, op: Op::Unlink { path: "a/y".to_owned() } };
        let steps = vec![
            call(1, open(true)),
            call(1, Op::Write { slot: 0, offset: 40_000, length: 70_000, tag: 1 }),
            call(1, Op::Fsync { slot: 0 }),
            call(2, open(false)),
            Step::Together(vec![
                unlink,
                Action::Injection(1000, Injection::Partition { from: 1, to: 2, both: false }),
            ]),
            Step::Together(vec![Action::Injection(7000, Injection::Heal)]),
            call(2, Op::Read { slot: 0, offset: 4096, length: 70_000 }),
        ];
        let program = Program { world: WorldConfig::plain(seed, 3), steps, crashes: false };
        assert_eq!(run(&program), Ok(()), "seed {seed}");
    }
}

/// The limits of S18.
const FIRST_MAX: Duration = Duration::from_secs(10);
const FURTHER_MAX: Duration = Duration::from_millis(500);

/// A file with inode, name and first unit on node 1, opened on node 0.
struct Far {
    name: String,
    file: FileNumber,
    handle: HandleNumber,
}

/// One request of the kernel on node 0.
type Request = fn(Arc<World>, Arc<Far>) -> BoxFuture<'static, Result<()>>;

macro_rules! request {
    ($view:ident, $far:ident, $request:expr) => {
        |world, $far| {
            Box::pin(async move {
                let (views, _) = world.views(0).ok_or(Errno::EHOSTDOWN)?;
                let $view = views.shared();
                $request.await.map(drop)
            })
        }
    };
}

const REQUESTS: [(&str, Request); 8] = [
    ("lookup", request!(view, far, view.lookup(FileNumber::ROOT, far.name.as_bytes()))),
    ("getattr", request!(view, far, view.getattr(far.file))),
    (
        "setattr",
        request!(
            view,
            far,
            view.setattr(far.file, AttrChange { mode: Some(0o600), ..AttrChange::default() })
        ),
    ),
    ("open", request!(view, far, view.open(far.file, OpenMode { read: true, ..OpenMode::default() }))),
    ("read", request!(view, far, view.read(far.handle, 0, 4096))),
    ("fsync", request!(view, far, view.fsync(far.handle))),
    ("unlink", request!(view, far, view.unlink(FileNumber::ROOT, far.name.as_bytes()))),
    (
        "rename",
        request!(view, far, {
            let to = (FileNumber::ROOT, far.name.as_bytes());
            view.rename(to, to, RenameMode::Replace)
        }),
    ),
];

async fn called(world: &World, node: usize, op: Op, open: Option<HandleNumber>) -> Output {
    let (views, _) = world.views(node).expect("the node runs");
    let caller = world.caller(node, View::JobShared).expect("the node runs");
    kernel::call(views.shared(), &caller, &op, open).await.expect("the call")
}

async fn far_file(world: &World) -> Far {
    let flags = Flags { write: true, create: true, ..Flags::default() };
    for number in 0.. {
        let name = format!("file-{number}");
        let open = Op::Open { slot: 0, path: name.clone(), flags };
        let Output::Opened(handle, attr) = called(world, 1, open.clone(), None).await else { continue };
        let unit = UnitId { inode: attr.inode, index: 0 };
        let homes = [world.cluster.inode_home(attr.inode), world.cluster.unit_home(attr.layout, unit)];
        if homes != [NodeId(1); 2] {
            continue;
        }
        called(world, 1, Op::Write { slot: 0, offset: 0, length: 100_000, tag: 3 }, Some(handle)).await;
        called(world, 1, Op::Close { slot: 0 }, Some(handle)).await;
        if let Output::Opened(handle, _) = called(world, 0, open, None).await {
            return Far { name, file: FileNumber(attr.inode.0), handle };
        }
    }
    unreachable!("some file has its homes on node 1")
}

/// S18a, S18b.
#[test]
fn requests_wait_no_longer_than_specified() {
    for (what, request) in REQUESTS {
        for seed in 0..2 {
            let world = World::new(WorldConfig::plain(seed, 2), Countdown::default());
            let at = Arc::clone(&world);
            world.simulation.clone().run(async move {
                at.start_all(AgentMode::Serve, false).await.expect("the agents start");
                let far = Arc::new(far_file(&at).await);
                let timed = async || {
                    let begun = at.runtime().clock.monotonic();
                    let done = request(at.clone(), far.clone()).await;
                    (done.map_err(|fault| fault.errno), at.runtime().clock.monotonic() - begun)
                };
                at.network.cut(NodeId(0), NodeId(1));
                at.network.cut(NodeId(1), NodeId(0));
                let (first, time) = timed().await;
                assert_eq!(first, Err(Errno::EHOSTDOWN), "{what}, seed {seed}");
                assert!(time <= FIRST_MAX, "{what}, seed {seed}: {time:?}");
                for _ in 0..3 {
                    let (further, time) = timed().await;
                    assert_eq!(further, Err(Errno::EHOSTDOWN), "{what}, seed {seed}");
                    assert!(time <= FURTHER_MAX, "{what}, seed {seed}: {time:?}");
                }
                at.network.heal();
                let (healed, time) = timed().await;
                assert_eq!(healed, Ok(()), "{what}, seed {seed}");
                assert!(time <= FIRST_MAX, "{what}, seed {seed}: {time:?}");
            });
        }
    }
}
