//! Compares random operations on clusters with a POSIX tree in memory.

use super::check::check;
use super::client::{Client, new};
use super::world::{CrashPoint, World};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tameike_core::wire::meta::{MetaRequest, RenameMode, Target};
use tameike_core::{Errno, FileKind, InodeId, NodeId, Result};

type Path = Vec<u8>;

#[derive(Clone, Debug)]
enum Operation {
    Create(Path, bool),
    Mkdir(Path),
    Symlink(Path),
    Unlink(Path),
    Rmdir(Path),
    Link(Path, Path),
    Rename(Path, Path, RenameMode),
    List(Path),
    Crash(u8),
}

/// Paths of one to three names out of four.
fn path() -> impl Strategy<Value = Path> {
    prop::collection::vec(b'a'..=b'd', 1..4)
}

fn operation() -> impl Strategy<Value = Operation> {
    let mode = prop_oneof![3 => Just(RenameMode::Replace), 1 => Just(RenameMode::NoReplace), 1 => Just(RenameMode::Exchange)];
    prop_oneof![
        4 => (path(), any::<bool>()).prop_map(|(path, exclusive)| Operation::Create(path, exclusive)),
        5 => path().prop_map(Operation::Mkdir),
        1 => path().prop_map(Operation::Symlink),
        2 => path().prop_map(Operation::Unlink),
        2 => path().prop_map(Operation::Rmdir),
        3 => (path(), path()).prop_map(|(from, to)| Operation::Link(from, to)),
        6 => (path(), path(), mode).prop_map(|(from, to, mode)| Operation::Rename(from, to, mode)),
        1 => path().prop_map(Operation::List),
        1 => any::<u8>().prop_map(Operation::Crash),
    ]
}

/// Number and file type of an inode.
type Entry = (u64, FileKind);

/// A POSIX tree: inodes by number, directories with their names.
#[derive(Default)]
struct Model {
    directories: BTreeMap<u64, BTreeMap<u8, Entry>>,
    links: BTreeMap<u64, u32>,
    next: u64,
}

const ROOT: u64 = 0;

impl Model {
    fn new() -> Self {
        Self { directories: BTreeMap::from([(ROOT, BTreeMap::new())]), links: BTreeMap::new(), next: 1 }
    }

    fn find(&self, path: &[u8]) -> Result<Entry> {
        let mut found = (ROOT, FileKind::Directory);
        for name in path {
            if found.1 != FileKind::Directory {
                return Err(Errno::ENOTDIR.into());
            }
            found = *self.directories[&found.0].get(name).ok_or(Errno::ENOENT)?;
        }
        Ok(found)
    }

    fn parent(&self, path: &[u8]) -> Result<(u64, u8, Option<Entry>)> {
        let (&name, dir) = path.split_last().expect("a path has a name");
        match self.find(dir)? {
            (dir, FileKind::Directory) => Ok((dir, name, self.directories[&dir].get(&name).copied())),
            _ => Err(Errno::ENOTDIR.into()),
        }
    }

    fn put(&mut self, dir: u64, name: u8, entry: Entry) {
        self.directories.get_mut(&dir).unwrap().insert(name, entry);
    }

    fn take(&mut self, dir: u64, name: u8) {
        self.directories.get_mut(&dir).unwrap().remove(&name);
    }

    fn make(&mut self, path: &[u8], kind: FileKind, exclusive: bool) -> Result<()> {
        match self.parent(path)? {
            (_, _, Some(_)) if exclusive => Err(Errno::EEXIST.into()),
            (_, _, Some(_)) => Ok(()),
            (dir, name, None) => {
                self.put(dir, name, (self.next, kind));
                if kind == FileKind::Directory {
                    self.directories.insert(self.next, BTreeMap::new());
                } else {
                    self.links.insert(self.next, 1);
                }
                self.next += 1;
                Ok(())
            }
        }
    }

    fn unlink(&mut self, path: &[u8]) -> Result<()> {
        match self.parent(path)? {
            (_, _, None) => Err(Errno::ENOENT.into()),
            (_, _, Some((_, FileKind::Directory))) => Err(Errno::EISDIR.into()),
            (dir, name, Some((inode, _))) => {
                self.take(dir, name);
                *self.links.get_mut(&inode).unwrap() -= 1;
                Ok(())
            }
        }
    }

    fn rmdir(&mut self, path: &[u8]) -> Result<()> {
        match self.parent(path)? {
            (_, _, None) => Err(Errno::ENOENT.into()),
            (dir, name, Some((inode, FileKind::Directory))) => {
                if !self.directories[&inode].is_empty() {
                    return Err(Errno::ENOTEMPTY.into());
                }
                self.directories.remove(&inode);
                self.take(dir, name);
                Ok(())
            }
            _ => Err(Errno::ENOTDIR.into()),
        }
    }

    fn link(&mut self, from: &[u8], to: &[u8]) -> Result<()> {
        let (inode, kind) = self.find(from)?;
        let (dir, name, old) = self.parent(to)?;
        if kind == FileKind::Directory {
            return Err(Errno::EPERM.into());
        }
        if old.is_some() {
            return Err(Errno::EEXIST.into());
        }
        self.put(dir, name, (inode, kind));
        *self.links.get_mut(&inode).unwrap() += 1;
        Ok(())
    }

    /// Returns true if `dir` is `ancestor` or below it.
    fn is_below(&self, dir: u64, ancestor: u64) -> bool {
        dir == ancestor
            || self.directories[&ancestor]
                .values()
                .any(|&(inode, kind)| kind == FileKind::Directory && self.is_below(dir, inode))
    }

    fn rename(&mut self, from: &[u8], to: &[u8], mode: RenameMode) -> Result<()> {
        use FileKind::Directory;
        let (from_dir, from_name, moved) = self.parent(from)?;
        let (to_dir, to_name, old) = self.parent(to)?;
        let moved = moved.ok_or(Errno::ENOENT)?;
        match (mode, old) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EEXIST.into()),
            (RenameMode::Exchange, None) => return Err(Errno::ENOENT.into()),
            (RenameMode::Replace, Some((_, kind))) if moved.1 == Directory && kind != Directory => {
                return Err(Errno::ENOTDIR.into());
            }
            (RenameMode::Replace, Some((_, kind))) if moved.1 != Directory && kind == Directory => {
                return Err(Errno::EISDIR.into());
            }
            (_, Some((inode, _))) if inode == moved.0 => return Ok(()),
            _ => (),
        }
        let replaces_names = matches!((mode, old), (RenameMode::Replace, Some((inode, Directory)))
            if !self.directories[&inode].is_empty());
        if replaces_names {
            return Err(Errno::ENOTEMPTY.into());
        }
        if moved.1 == Directory && self.is_below(to_dir, moved.0) {
            return Err(Errno::EINVAL.into());
        }
        if let (RenameMode::Exchange, Some(old)) = (mode, old) {
            if old.1 == Directory && self.is_below(from_dir, old.0) {
                return Err(Errno::EINVAL.into());
            }
            self.put(from_dir, from_name, old);
        } else {
            self.take(from_dir, from_name);
            match old {
                Some((inode, Directory)) => drop(self.directories.remove(&inode)),
                Some((inode, _)) => *self.links.get_mut(&inode).unwrap() -= 1,
                None => (),
            }
        }
        self.put(to_dir, to_name, moved);
        Ok(())
    }

    fn apply(&mut self, operation: &Operation) -> Result<Vec<u8>> {
        match operation {
            Operation::Create(path, exclusive) => self.make(path, FileKind::File, *exclusive)?,
            Operation::Mkdir(path) => self.make(path, FileKind::Directory, true)?,
            Operation::Symlink(path) => self.make(path, FileKind::Symlink, true)?,
            Operation::Unlink(path) => self.unlink(path)?,
            Operation::Rmdir(path) => self.rmdir(path)?,
            Operation::Link(from, to) => self.link(from, to)?,
            Operation::Rename(from, to, mode) => self.rename(from, to, *mode)?,
            Operation::List(path) => {
                return match self.find(path)? {
                    (dir, FileKind::Directory) => Ok(self.directories[&dir].keys().copied().collect()),
                    _ => Err(Errno::ENOTDIR.into()),
                };
            }
            Operation::Crash(_) => (),
        }
        Ok(Vec::new())
    }
}

fn text(name: u8) -> String {
    char::from(name).to_string()
}

async fn walk(client: &Client, path: &[u8]) -> Result<Target> {
    let mut target = Target { inode: InodeId::ROOT, kind: FileKind::Directory };
    for &part in path {
        if target.kind != FileKind::Directory {
            return Err(Errno::ENOTDIR.into());
        }
        target = client.lookup(target.inode, &text(part)).await?;
    }
    Ok(target)
}

async fn walk_to_directory(client: &Client, path: &[u8]) -> Result<InodeId> {
    match walk(client, path).await? {
        Target { inode, kind: FileKind::Directory } => Ok(inode),
        _ => Err(Errno::ENOTDIR.into()),
    }
}

async fn parent(client: &Client, path: &[u8]) -> Result<(InodeId, String)> {
    let (&name, dir) = path.split_last().expect("a path has a name");
    Ok((walk_to_directory(client, dir).await?, text(name)))
}

async fn make(client: &Client, path: &[u8], kind: FileKind, exclusive: bool) -> Result<()> {
    let (dir, name) = parent(client, path).await?;
    client.create_as(dir, &name, new(kind), exclusive, None).await.map(drop)
}

async fn perform(client: &Client, operation: &Operation) -> Result<Vec<u8>> {
    match operation {
        Operation::Create(path, exclusive) => make(client, path, FileKind::File, *exclusive).await?,
        Operation::Mkdir(path) => make(client, path, FileKind::Directory, true).await?,
        Operation::Symlink(path) => make(client, path, FileKind::Symlink, true).await?,
        Operation::Unlink(path) => {
            let (dir, name) = parent(client, path).await?;
            client.unlink(dir, &name).await?;
        }
        Operation::Rmdir(path) => {
            let (dir, name) = parent(client, path).await?;
            client.rmdir(dir, &name).await?;
        }
        Operation::Link(from, to) => {
            let target = walk(client, from).await?;
            let (dir, name) = parent(client, to).await?;
            client.link(target, dir, &name).await?;
        }
        Operation::Rename(from, to, mode) => {
            let (from_dir, from) = parent(client, from).await?;
            let (to_dir, to) = parent(client, to).await?;
            client.rename((from_dir, &from), (to_dir, &to), *mode).await?;
        }
        Operation::List(path) => {
            let dir = walk_to_directory(client, path).await?;
            let entries = client.read_dir(dir, 2).await?;
            let mut names: Vec<_> = entries.into_iter().map(|entry| entry.name[0]).collect();
            names.sort_unstable();
            return Ok(names);
        }
        Operation::Crash(_) => (),
    }
    Ok(Vec::new())
}

/// Reads the tree below the root: paths, file types and link counts.
async fn seen(client: &Client) -> BTreeSet<(Path, String, u32)> {
    let mut seen = BTreeSet::new();
    let mut pending = vec![(Path::new(), InodeId::ROOT)];
    while let Some((path, dir)) = pending.pop() {
        for entry in client.read_dir(dir, 100).await.unwrap() {
            let path = [path.as_slice(), &entry.name].concat();
            let attr = client.stat(entry.target.inode).await.unwrap();
            assert_eq!(attr.kind, entry.target.kind);
            seen.insert((path.clone(), format!("{:?}", attr.kind), attr.nlink));
            if attr.kind == FileKind::Directory {
                pending.push((path, entry.target.inode));
            }
        }
    }
    seen
}

fn expected(model: &Model) -> BTreeSet<(Path, String, u32)> {
    let mut seen = BTreeSet::new();
    let mut pending = vec![(Path::new(), ROOT)];
    while let Some((path, dir)) = pending.pop() {
        for (&name, &(inode, kind)) in &model.directories[&dir] {
            let path = [path.as_slice(), &[name]].concat();
            let nlink = match kind {
                FileKind::Directory => {
                    let names = model.directories[&inode].values();
                    2 + names.filter(|(_, kind)| *kind == FileKind::Directory).count() as u32
                }
                _ => model.links[&inode],
            };
            seen.insert((path.clone(), format!("{kind:?}"), nlink));
            if kind == FileKind::Directory {
                pending.push((path, inode));
            }
        }
    }
    seen
}

async fn sync(client: &Client) {
    for &node in client.world.cluster.device_nodes() {
        client.request(node, MetaRequest::Sync { durable: false }).await.unwrap();
    }
}

fn crash(world: &Arc<World>, client: &Client, node: usize) {
    world.machine.run(sync(client));
    world.kill(node);
    world.heal();
}

fn compare(seed: u64, devices: &[bool], operations: &[Operation]) {
    let world = World::new(seed, devices);
    let client = super::client(&world);
    let mut model = Model::new();
    for operation in operations {
        if let Operation::Crash(node) = operation {
            crash(&world, &client, usize::from(*node) % devices.len());
        }
        let wanted = model.apply(operation).map_err(|fault| fault.errno);
        let got = world.machine.run(perform(&client, operation)).map_err(|fault| fault.errno);
        assert_eq!(got, wanted, "{operation:?}");
    }
    world.machine.finish();
    check(&world);
    assert_eq!(world.machine.run(seen(&client)), expected(&model));
    check_replay(&world, &client);
}

/// Checks that replayed logs produce the same tables, byte for byte.
fn check_replay(world: &Arc<World>, client: &Client) {
    world.machine.run(sync(client));
    let tables = || {
        let mut tables = super::check::tables(world);
        let starts = tameike_store::table::prefix::SHARD;
        tables.iter_mut().for_each(|rows| rows.retain(|(key, _)| key[3] != starts));
        tables
    };
    let before = tables();
    (0..world.count()).for_each(|node| world.kill(node));
    world.heal();
    assert_eq!(tables(), before);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn a_cluster_is_a_posix_tree(
        seed: u64,
        nodes in 1..5_usize,
        operations in prop::collection::vec(operation(), 1..80),
    ) {
        compare(seed, &vec![true; nodes], &operations);
    }
}

/// Concurrent clients with node crashes: everything ends, and the tables are consistent.
#[test]
fn concurrent_operations_with_crashes_leave_consistent_tables() {
    for seed in 0..60 {
        let world = World::new(seed * 7919 + 1, &[true, true, false, true]);
        let mut runner = proptest::test_runner::TestRunner::new_with_rng(
            ProptestConfig::default(),
            proptest::test_runner::TestRng::from_seed(
                proptest::test_runner::RngAlgorithm::ChaCha,
                &[seed as u8; 32],
            ),
        );
        for round in 0..4 {
            let clients = [0, 1, 2, 3, 0].map(|node| {
                let script = prop::collection::vec(operation(), 10..30).new_tree(&mut runner).unwrap();
                let client = Client { world: world.clone(), node: NodeId(node) };
                async move {
                    for operation in proptest::strategy::ValueTree::current(&script) {
                        // Calls to a failed node return an error.
                        let _ = perform(&client, &operation).await;
                    }
                }
            });
            let victim = [0, 1, 3][world.machine.draw(3) as usize];
            let event = world.machine.draw(150);
            world.crash_point((round > 0).then_some(CrashPoint { node: victim, event }));
            world.machine.run(futures_util::future::join_all(clients));
            world.heal();
            check(&world);
            world.machine.run(seen(&super::client(&world)));
        }
    }
}

#[test]
fn a_rename_to_another_view_is_refused() {
    let world = World::new(3, &[true, true]);
    let client = super::client(&world);
    let local = InodeId::local_root(NodeId(1), NodeId(1));
    world.machine.run(client.create(local, "file", FileKind::File)).unwrap();
    let rename = client.rename((local, "file"), (InodeId::ROOT, "file"), RenameMode::Replace);
    let result = world.machine.run(rename);
    assert_eq!(result.unwrap_err().errno, Errno::EXDEV);
}
