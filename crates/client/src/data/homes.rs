//! Requests of the data engine to files' homes.

use super::DataEngine;
use super::home::{FileVersion, Home};
use parking_lot::Mutex;
use tameike_core::wire::cache::{CacheReply, CacheRequest};
use tameike_core::wire::meta::{Command, MetaReply, MetaRequest};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Attr, Errno, Fault, InodeId, NodeId, Result, Timestamp};
use tameike_fabric::Answer;

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
