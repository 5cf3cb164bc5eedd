//! How a file's home is told of its data: the two kinds of file whose data is striped.

use super::DataEngine;
use parking_lot::Mutex;
use std::sync::Arc;
use tameike_core::wire::cache::{CacheReply, CacheRequest, CacheState};
use tameike_core::wire::holders::Holder;
use tameike_core::wire::meta::{Command, MetaReply, MetaRequest, Node};
use tameike_core::wire::unit::Backing;
use tameike_core::wire::{Reply, Request};
use tameike_core::{Attr, Errno, Fault, Generation, InodeId, NodeId, Result, Timestamp};
use tameike_fabric::Answer;

/// What stands behind a file.
#[derive(Clone)]
pub enum Home {
    /// Its inode record (job-shared and node-local views).
    Inode,
    /// The file of the shared file system at this path, which follows renames, and its coordinator.
    Shared(Arc<Mutex<Vec<u8>>>),
}

/// The content of a file as its home knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileVersion {
    /// Size in bytes.
    pub size: u64,
    /// Version of the content.
    pub generation: Generation,
    /// Whether the content lies in the inode record.
    pub inline: bool,
    /// The inline content, if it was brought along.
    pub content: Option<Vec<u8>>,
    /// Other nodes that may have bytes of it in memory, if it was opened.
    pub holders: Vec<Holder>,
}

impl FileVersion {
    /// What a node of the job-shared view says.
    pub fn of_node(node: &Node) -> Self {
        let content = node.content.as_ref().map(|content| content.to_vec());
        let holders = node.holders.clone();
        let Attr { size, generation, inline, .. } = node.attr;
        Self { size, generation, inline, content, holders }
    }

    fn of_cache(state: CacheState, size: u64) -> Self {
        let size = state.newer.map_or(size, |(newer, _)| newer);
        Self { size, generation: state.generation, ..Self::default() }
    }
}

impl Home {
    /// Where the bytes of a file come from of which its units' homes have none; `holders` may have them in memory.
    pub(super) fn backing(&self, holders: impl FnOnce() -> Vec<NodeId>) -> Backing {
        match self {
            Self::Inode => Backing::Zeros,
            Self::Shared(path) => Backing::Shared { path: path.lock().clone(), holders: holders() },
        }
    }

    /// Whether what a close acknowledges must survive the death of an agent.
    pub(super) fn is_journaled(&self) -> bool {
        matches!(self, Self::Shared(_))
    }
}

pub(super) fn unexpected(answer: &Answer) -> Fault {
    Fault::new(Errno::EPROTO, format!("an agent answered out of turn: {:?}", answer.reply))
}

impl DataEngine {
    /// Sends a request without payload.
    pub(super) async fn ask(&self, to: NodeId, request: Request) -> Result<Answer> {
        self.rpc.call(to, request, None, None).await
    }

    /// Tells the home that data up to `end` is in the units, and whether the file may have holes. An inode's home tells its
    /// attributes.
    pub(super) async fn commit(
        &self,
        home: &Home,
        inode: InodeId,
        (end, sparse): (u64, bool),
        now: Timestamp,
    ) -> Result<(FileVersion, Option<Attr>)> {
        let to = self.cluster.inode_home(inode);
        let request = match home {
            Home::Inode => Request::Meta(MetaRequest::Execute(Command::Commit { inode, end, sparse, now })),
            Home::Shared(_) => Request::Cache(CacheRequest::Commit { inode, end, sparse, now }),
        };
        let answer = self.ask(to, request).await?;
        match answer.reply {
            Reply::Meta(MetaReply::Node(node)) => Ok((FileVersion::of_node(&node), Some(node.attr))),
            Reply::Cache(CacheReply::State(state)) => Ok((FileVersion::of_cache(state, end), None)),
            _ => Err(unexpected(&answer)),
        }
    }

    /// What the home of an inode knows of it.
    pub(crate) async fn version(&self, inode: InodeId) -> Result<FileVersion> {
        let request = Request::Meta(MetaRequest::GetAttr { inode });
        let answer = self.ask(self.cluster.inode_home(inode), request).await?;
        match answer.reply {
            Reply::Meta(MetaReply::Node(node)) => Ok(FileVersion::of_node(&node)),
            _ => Err(unexpected(&answer)),
        }
    }

    /// Sets the next `length` bytes at the file's end aside; their offset.
    pub(super) async fn reserve(&self, home: &Home, inode: InodeId, length: u64) -> Result<u64> {
        let now = self.runtime.now();
        let request = match home {
            Home::Inode => Request::Meta(MetaRequest::Execute(Command::Reserve { inode, length, now })),
            Home::Shared(_) => Request::Cache(CacheRequest::Reserve { inode, length, now }),
        };
        let answer = self.ask(self.cluster.inode_home(inode), request).await?;
        match answer.reply {
            Reply::Meta(MetaReply::Reserved { offset, .. })
            | Reply::Cache(CacheReply::Reserved { offset, .. }) => Ok(offset),
            _ => Err(unexpected(&answer)),
        }
    }

    /// Has the coordinator look for the file of the shared file system, which was not at its path: it is looked for under
    /// the one where it is from now on.
    pub(super) async fn find_again(&self, path: &Mutex<Vec<u8>>, inode: InodeId) -> Result<()> {
        let request = Request::Cache(CacheRequest::Locate { inode });
        let answer = self.ask(self.cluster.inode_home(inode), request).await?;
        match answer.reply {
            Reply::Cache(CacheReply::Located { path: found }) => *path.lock() = found,
            _ => return Err(unexpected(&answer)),
        }
        Ok(())
    }

    /// Makes what the home has acknowledged survive power loss.
    pub(super) async fn sync_home(&self, home: &Home, inode: InodeId) -> Result<()> {
        let to = self.cluster.inode_home(inode);
        let request = match home {
            Home::Inode => Request::Meta(MetaRequest::Sync { durable: true }),
            Home::Shared(_) => Request::Cache(CacheRequest::Flush { inode }),
        };
        self.ask(to, request).await.map(drop)
    }
}
