//! Fuzz targets: all decoders of external bytes, as functions that take any bytes.
//!
//! A target panics if a decoder panics, if a decoded value does not encode back to an equal value, or if it takes more memory than its
//! bytes can mean. `fuzz/` runs each target under libFuzzer. The tests of this crate replay the corpus and random mutations of it.
#![forbid(unsafe_code)]

pub mod mutation;
pub mod seeds;

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::path::PathBuf;
use tameike::driver::protocol::{ClientRequest, DriverReply};
use tameike::place::record::{DeviceOwner, JobRecord, NodeState};
use tameike_agent::control::{AgentAnswer, AgentCommand, AgentStart};
use tameike_core::patch::{Difference, PAGE_SIZE, PatchWriter, RECORD_SIZE_MAX, patches};
use tameike_core::wire::call::{ReplyHeader, RequestHeader};
use tameike_core::wire::endpoint::Endpoint;
use tameike_core::wire::{Reply, Request, codec};

/// A fuzz target: panics on a bug in a decoder.
pub type Target = fn(&[u8]);

/// All targets by name; each has a directory in `fuzz/corpus`.
pub const TARGETS: [(&str, Target); 27] = [
    ("request", request),
    ("reply", reply),
    ("frame_header", tameike_fabric::fuzz::frame_header),
    ("hello", tameike_fabric::fuzz::hello),
    ("endpoint", endpoint),
    ("patch", patch),
    ("ring_request", tameike_ring::fuzz::request),
    ("ring_reply", tameike_ring::fuzz::reply),
    ("ring_greeting", tameike_ring::fuzz::greeting),
    ("ring_extent_location", tameike_ring::fuzz::extent_location),
    ("fuse_request", tameike_fuse::fuzz::fuse_request),
    ("log", tameike_store::fuzz::log),
    ("log_command", tameike_store::fuzz::log_command),
    ("unit_record", tameike_store::fuzz::unit_record),
    ("table_values", tameike_store::fuzz::table_values),
    ("store_format", tameike_store::fuzz::format),
    ("container_header", tameike_container::fuzz::header),
    ("container_record", tameike_container::fuzz::record),
    ("container_lane", tameike_container::fuzz::lane),
    ("container_page", tameike_container::fuzz::page),
    ("journal_record", tameike_server::fuzz::journal_record),
    ("journal", journal),
    ("config", config),
    ("hostfile", hostfile),
    ("control", control),
    ("mirror", tameike::mirror::fuzz::frames),
    ("records", records),
];

/// Runs the named target, which must exist.
pub fn run(name: &str, bytes: &[u8]) {
    let (_, target) = TARGETS.iter().find(|(known, _)| *known == name).expect("a target of this name");
    target(bytes);
}

/// Returns the directory of the corpus.
pub fn corpus() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus"))
}

/// Maximum memory of a value per encoded byte, in bytes: an empty list element, or a number.
const EXPANSION_MAX: usize = 16;

/// Checks that a decoded message encodes to bytes that decode to the same message, and that are not much longer.
fn round_trip<T: Serialize + DeserializeOwned + PartialEq + Debug>(bytes: &[u8]) {
    if let Ok(message) = codec::decode::<T>(bytes) {
        let again = codec::encode(&message).expect("it was no longer than this");
        assert!(again.len() <= bytes.len().saturating_mul(EXPANSION_MAX));
        assert_eq!(codec::decode::<T>(&again).as_ref(), Ok(&message));
    }
}

/// The body of a message with a request.
pub fn request(bytes: &[u8]) {
    if let Ok((header, rest)) = codec::decode_first::<RequestHeader>(bytes) {
        let again = codec::encode(&header).expect("small");
        assert_eq!(codec::decode::<RequestHeader>(&again), Ok(header));
        round_trip::<Request>(rest);
        if let Ok(request) = codec::decode::<Request>(rest) {
            assert!(
                !request.expects_payload() || request.is_read_only(),
                "only read-only requests may expect a payload: clients may send them twice"
            );
        }
    }
}

/// The body of a message with a reply.
pub fn reply(bytes: &[u8]) {
    if let Ok((header, rest)) = codec::decode_first::<ReplyHeader>(bytes) {
        let again = codec::encode(&header).expect("small");
        assert_eq!(codec::decode::<ReplyHeader>(&again), Ok(header));
        round_trip::<Reply>(rest);
    }
}

/// An agent's announcement of its endpoint.
pub fn endpoint(bytes: &[u8]) {
    round_trip::<Endpoint>(bytes);
}

/// A patch: each record, written again, has the same effect, and its effect does not depend on the rest of the page.
pub fn patch(bytes: &[u8]) {
    for record in patches(bytes).map_while(Result::ok) {
        let before = [0xA5; PAGE_SIZE];
        let (mut after, mut other) = (before, [0; PAGE_SIZE]);
        record.apply(&mut after);
        record.apply(&mut other);
        let changed = Difference::between(&before, &after);
        for run in changed.runs().map(|run| usize::from(run.start)..usize::from(run.end)) {
            assert_eq!(after[run.clone()], other[run]);
        }
        let mut buffer = [0; RECORD_SIZE_MAX];
        let mut writer = PatchWriter::new(&mut buffer);
        assert!(writer.push(record.page(), &changed, &after), "a record fits");
        let (length, mut again) = (writer.len(), before);
        patches(&buffer[..length]).for_each(|record| record.expect("as written").apply(&mut again));
        assert_eq!(again, after);
    }
}

/// The journal of the cache view: records of the log, and values of the table.
pub fn journal(bytes: &[u8]) {
    tameike_server::fuzz::journal_log(bytes);
    tameike_server::fuzz::journal(bytes);
}

/// A configuration file.
pub fn config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Err(fault) = tameike::settings::config::parse(text) {
        assert!(fault.has_message(), "an error has a message");
    }
}

/// A hostfile, and a list of hosts.
pub fn hostfile(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match tameike::settings::hostfile::parse(text) {
        Ok(hosts) => assert!(hosts.iter().all(|host| !host.host.is_empty() && !host.host.starts_with('-'))),
        Err(fault) => assert!(fault.to_string().contains("line "), "{fault}"),
    }
    if let Ok(hosts) = tameike::settings::hostfile::parse_list(text) {
        assert!(hosts.iter().all(|host| !host.host.starts_with('-')));
    }
}

fn json<T: Serialize + DeserializeOwned + PartialEq + Debug>(bytes: &[u8]) {
    if let Ok(value) = serde_json::from_slice::<T>(bytes) {
        // Paths that are not UTF-8 cannot be written as JSON, and are never read from it either.
        let again = serde_json::to_vec(&value).expect("it was JSON");
        assert_eq!(serde_json::from_slice::<T>(&again).expect("as written"), value);
    }
}

/// Lines between driver and agents, and between commands and driver.
pub fn control(bytes: &[u8]) {
    json::<AgentStart>(bytes);
    json::<AgentCommand>(bytes);
    json::<AgentAnswer>(bytes);
    json::<ClientRequest>(bytes);
    json::<DriverReply>(bytes);
}

/// Records of jobs, nodes and devices that later commands read.
pub fn records(bytes: &[u8]) {
    json::<JobRecord>(bytes);
    json::<NodeState>(bytes);
    json::<DeviceOwner>(bytes);
}
