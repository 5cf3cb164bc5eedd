//! Collects the cached data of single files from all nodes, for `tameike cache stat`.

use crate::files::{FILES_MAX, FileLine, FileSelection, FileSelector};
use crate::node::Node;
use futures_util::{StreamExt, stream};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use tameike_core::wire::admin::{AdminReply, AdminRequest, FILES_ASKED_MAX};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Cluster, Errno, Fault, InodeId, NodeId, Result};
use tameike_fabric::{Answer, Rpc};

/// Nodes that are queried concurrently.
const NODES_AT_ONCE: usize = 64;

/// Queries all nodes of a job.
pub(crate) struct Gathering {
    pub(crate) node: Arc<Node>,
    pub(crate) rpc: Arc<dyn Rpc>,
    pub(crate) cluster: Arc<Cluster>,
}

impl Gathering {
    /// Returns a line for each file. Nodes that do not reply are missing in it.
    pub(crate) async fn lines(&self, selection: FileSelection) -> Result<Vec<FileLine>> {
        let mut lines = match selection {
            FileSelection::Most(count) => self.most_asked(count.min(FILES_MAX)).await,
            FileSelection::These(files) if files.len() > FILES_MAX as usize => {
                let count = files.len();
                let why = format!("{count} files are too many for one request: request at most {FILES_MAX}");
                return Err(Fault::new(Errno::EINVAL, why));
            }
            FileSelection::These(files) => self.find(files).await,
        };
        for some in lines.chunks_mut(FILES_ASKED_MAX) {
            let inodes: Vec<_> = some.iter().map(|line| InodeId(line.inode)).collect();
            for (node, reply) in self.ask(&AdminRequest::Files(inodes)).await {
                let AdminReply::Files(held) = reply else { continue };
                some.iter_mut().zip(held).for_each(|(line, held)| line.add(node, held));
            }
            some.iter_mut().for_each(|line| line.nodes.sort_by_key(|part| part.node));
        }
        Ok(lines)
    }

    async fn most_asked(&self, count: u32) -> Vec<FileLine> {
        let mut files = BTreeMap::<InodeId, u64>::new();
        for (_, reply) in self.ask(&AdminRequest::MostRequested { count }).await {
            if let AdminReply::MostRequested(some) = reply {
                files.extend(some);
            }
        }
        let mut files: Vec<_> = files.into_iter().collect();
        files.sort_by_key(|&(inode, requested)| (Reverse(requested), inode));
        files.truncate(count as usize);
        files.into_iter().map(|(inode, _)| FileLine::of(inode)).collect()
    }

    async fn find(&self, files: Vec<FileSelector>) -> Vec<FileLine> {
        let mut lines = Vec::with_capacity(files.len());
        for file in files {
            lines.push(match file {
                FileSelector::Inode(inode) => FileLine::of(InodeId(inode)),
                FileSelector::Shared(path) => {
                    let inode = match self.node.views().cache() {
                        Some(cache) => cache.inode_at(path).await.map_err(|fault| fault.to_string()),
                        None => Err("the job has no shared directory".to_owned()),
                    };
                    let failed = |fault| FileLine { fault: Some(fault), ..FileLine::of(InodeId(0)) };
                    inode.map_or_else(failed, FileLine::of)
                }
            });
        }
        lines
    }

    async fn ask(&self, request: &AdminRequest) -> Vec<(NodeId, AdminReply)> {
        let nodes: Vec<NodeId> = self.cluster.nodes().iter().map(|info| info.id).collect();
        let calls = nodes.into_iter().map(|node| {
            let call = self.rpc.call(node.into(), Request::Admin(request.clone()), None, None);
            async move { (node, call.await) }
        });
        let answers: Vec<_> = stream::iter(calls).buffer_unordered(NODES_AT_ONCE).collect().await;
        let reply = |(node, answer): (NodeId, Result<Answer>)| match answer {
            Ok(Answer { reply: Reply::Admin(reply), .. }) => Some((node, reply)),
            Ok(_) => None,
            Err(fault) => {
                log::info!("{node} does not report its files: {fault}");
                None
            }
        };
        answers.into_iter().filter_map(reply).collect()
    }
}
