//! Who has what of which files, gathered from all nodes: what `tameike cache stat` tells of single files.

use crate::node::Node;
use futures_util::{StreamExt, stream};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use tameike_core::wire::admin::{AdminReply, AdminRequest, FILES_ASKED_MAX, FileHeld};
use tameike_core::wire::holders::Holder;
use tameike_core::wire::{Reply, Request};
use tameike_core::{Cluster, Errno, Fault, InodeId, NodeId, Result};
use tameike_fabric::Rpc;

/// Most files that are told of at once.
pub const FILES_MAX: u32 = 256;
/// Nodes that are asked at the same time.
const NODES_AT_ONCE: usize = 64;

/// Of which files a node is to tell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FilesAsked {
    /// Those whose holders were asked most often, at most so many.
    Most(u32),
    /// These.
    These(Vec<FileAsked>),
}

/// A file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileAsked {
    /// At this path, relative to the shared directory.
    Shared(Vec<u8>),
    /// With this inode number.
    Inode(u64),
}

/// What the nodes of a job have of one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileLine {
    /// Its path, or its inode number where that is not known.
    pub file: String,
    /// Its inode number.
    pub inode: u64,
    /// Version of its content, if its home knows of an open.
    pub generation: Option<u64>,
    /// Nodes that may have it in memory, as its home knows, with how often they were asked and had it.
    pub holders: Vec<Holder>,
    /// Nodes that have bytes of it.
    pub nodes: Vec<NodeBytes>,
    /// Why nothing is known of it.
    pub fault: Option<String>,
}

/// What one node has of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeBytes {
    /// The node.
    pub node: NodeId,
    /// Bytes in memory, for its own programs and for others.
    pub memory_bytes: u64,
    /// Bytes on its device, as the home of parts of the file.
    pub device_bytes: u64,
    /// Whether it may have more on its device, of which only a part was looked through.
    pub is_partial: bool,
}

impl FileLine {
    fn of(inode: InodeId) -> Self {
        let (holders, nodes) = Default::default();
        let file = format!("inode {}", inode.0);
        Self { file, inode: inode.0, generation: None, holders, nodes, fault: None }
    }

    fn add(&mut self, node: NodeId, held: FileHeld) {
        let FileHeld { memory_bytes, device_bytes, is_partial, table, path } = held;
        if memory_bytes + device_bytes > 0 {
            self.nodes.push(NodeBytes { node, memory_bytes, device_bytes, is_partial });
        }
        if let Some(table) = table {
            (self.generation, self.holders) = (Some(table.generation.0), table.holders);
        }
        if !path.is_empty() {
            self.file = String::from_utf8_lossy(&path).escape_debug().to_string();
        }
    }
}

/// Asks the nodes of a job, as one of them.
pub(crate) struct Gathering {
    pub(crate) node: Arc<Node>,
    pub(crate) rpc: Arc<dyn Rpc>,
    pub(crate) cluster: Arc<Cluster>,
}

impl Gathering {
    /// A line for each file. What nodes that do not answer have is not in it.
    pub(crate) async fn lines(&self, asked: FilesAsked) -> Result<Vec<FileLine>> {
        let mut lines = match asked {
            FilesAsked::Most(count) => self.most_asked(count.min(FILES_MAX)).await,
            FilesAsked::These(files) if files.len() > FILES_MAX as usize => {
                let count = files.len();
                let why = format!("{count} files are too many to tell of at once: at most {FILES_MAX}");
                return Err(Fault::new(Errno::EINVAL, why));
            }
            FilesAsked::These(files) => self.find(files).await,
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
        for (_, reply) in self.ask(&AdminRequest::MostAsked { count }).await {
            if let AdminReply::MostAsked(some) = reply {
                files.extend(some);
            }
        }
        let mut files: Vec<_> = files.into_iter().collect();
        files.sort_by_key(|&(inode, requested)| (Reverse(requested), inode));
        files.truncate(count as usize);
        files.into_iter().map(|(inode, _)| FileLine::of(inode)).collect()
    }

    async fn find(&self, files: Vec<FileAsked>) -> Vec<FileLine> {
        let mut lines = Vec::with_capacity(files.len());
        for file in files {
            lines.push(match file {
                FileAsked::Inode(inode) => FileLine::of(InodeId(inode)),
                FileAsked::Shared(path) => match self.node.views().cache() {
                    Some(cache) => match cache.inode_at(path).await {
                        Ok(inode) => FileLine::of(inode),
                        Err(fault) => FileLine { fault: Some(fault.to_string()), ..FileLine::of(InodeId(0)) },
                    },
                    None => {
                        let fault = Some("the job has no shared directory".to_owned());
                        FileLine { fault, ..FileLine::of(InodeId(0)) }
                    }
                },
            });
        }
        lines
    }

    /// Asks all nodes, some at a time; the answers of those that give one.
    async fn ask(&self, request: &AdminRequest) -> Vec<(NodeId, AdminReply)> {
        let nodes: Vec<NodeId> = self.cluster.nodes().iter().map(|info| info.id).collect();
        let calls = nodes.into_iter().map(|node| {
            let call = self.rpc.call(node, Request::Admin(request.clone()), None, None);
            async move { (node, call.await) }
        });
        let answers: Vec<_> = stream::iter(calls).buffer_unordered(NODES_AT_ONCE).collect().await;
        let reply = |(node, answer): (NodeId, Result<tameike_fabric::Answer>)| match answer {
            Ok(answer) => match answer.reply {
                Reply::Admin(reply) => Some((node, reply)),
                _ => None,
            },
            Err(fault) => {
                log::info!("{node} does not tell which files it has: {fault}");
                None
            }
        };
        answers.into_iter().filter_map(reply).collect()
    }
}
