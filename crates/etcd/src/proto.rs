//! The messages of etcd's API that we send and read, with only the fields that we use.
//!
//! In and out: bytes on the wire. Names, numbers and meanings of the fields are those of the protocol
//! (`rpc.proto`, `kv.proto`); what is not declared here is skipped when read. Written by hand, so that
//! the project builds without a compiler for such files.

use bytes::Bytes;
use prost::{Message, Oneof};

/// A request, where it goes, and what answers it.
pub(crate) trait Call: Message + Clone + 'static {
    /// The name of the method.
    const PATH: &'static str;
    /// What comes back.
    type Answer: Message + Default + 'static;
}

macro_rules! calls {
    ($($ask:ident => $path:literal => $answer:ident;)+) => {
        $(impl Call for $ask {
            const PATH: &'static str = $path;
            type Answer = $answer;
        })+
    };
}

calls! {
    RangeRequest => "/etcdserverpb.KV/Range" => RangeResponse;
    TxnRequest => "/etcdserverpb.KV/Txn" => TxnResponse;
    WatchRequest => "/etcdserverpb.Watch/Watch" => WatchResponse;
    LeaseGrantRequest => "/etcdserverpb.Lease/LeaseGrant" => LeaseGrantResponse;
    LeaseRevokeRequest => "/etcdserverpb.Lease/LeaseRevoke" => LeaseRevokeResponse;
    LeaseKeepAliveRequest => "/etcdserverpb.Lease/LeaseKeepAlive" => LeaseKeepAliveResponse;
    LeaseTimeToLiveRequest => "/etcdserverpb.Lease/LeaseTimeToLive" => LeaseTimeToLiveResponse;
    StatusRequest => "/etcdserverpb.Maintenance/Status" => StatusResponse;
    AlarmRequest => "/etcdserverpb.Maintenance/Alarm" => AlarmResponse;
    AuthenticateRequest => "/etcdserverpb.Auth/Authenticate" => AuthenticateResponse;
}

/// From whom an answer is, and as of when.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct ResponseHeader {
    #[prost(uint64, tag = "1")]
    pub(crate) cluster_id: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) member_id: u64,
    #[prost(int64, tag = "3")]
    pub(crate) revision: i64,
    #[prost(uint64, tag = "4")]
    pub(crate) raft_term: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct KeyValue {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    #[prost(int64, tag = "2")]
    pub(crate) create_revision: i64,
    #[prost(int64, tag = "3")]
    pub(crate) mod_revision: i64,
    #[prost(bytes = "bytes", tag = "5")]
    pub(crate) value: Bytes,
    #[prost(int64, tag = "6")]
    pub(crate) lease: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RangeRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) range_end: Bytes,
    #[prost(int64, tag = "3")]
    pub(crate) limit: i64,
    #[prost(enumeration = "SortOrder", tag = "5")]
    pub(crate) sort_order: i32,
    #[prost(enumeration = "SortTarget", tag = "6")]
    pub(crate) sort_target: i32,
    #[prost(bool, tag = "8")]
    pub(crate) keys_only: bool,
    #[prost(int64, tag = "13")]
    pub(crate) max_create_revision: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum SortOrder {
    None = 0,
    Ascend = 1,
    Descend = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum SortTarget {
    Key = 0,
    Create = 2,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RangeResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) kvs: Vec<KeyValue>,
    #[prost(bool, tag = "3")]
    pub(crate) more: bool,
    /// How many there are in the range, limits and bounds left aside.
    #[prost(int64, tag = "4")]
    pub(crate) count: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PutRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) value: Bytes,
    #[prost(int64, tag = "3")]
    pub(crate) lease: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct PutResponse {}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DeleteRangeRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct DeleteRangeResponse {
    #[prost(int64, tag = "2")]
    pub(crate) deleted: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RequestOp {
    #[prost(oneof = "Op", tags = "1, 2, 3, 4")]
    pub(crate) request: Option<Op>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Op {
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    #[prost(message, tag = "2")]
    Put(PutRequest),
    #[prost(message, tag = "3")]
    Delete(DeleteRangeRequest),
    #[prost(message, tag = "4")]
    Txn(TxnRequest),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ResponseOp {
    #[prost(oneof = "Done", tags = "1, 2, 3, 4")]
    pub(crate) response: Option<Done>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Done {
    #[prost(message, tag = "1")]
    Range(RangeResponse),
    #[prost(message, tag = "2")]
    Put(PutResponse),
    #[prost(message, tag = "3")]
    Delete(DeleteRangeResponse),
    #[prost(message, tag = "4")]
    Txn(TxnResponse),
}

/// A condition of a transaction: always equality here.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Compare {
    #[prost(enumeration = "CompareTarget", tag = "2")]
    pub(crate) target: i32,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) key: Bytes,
    #[prost(oneof = "Wanted", tags = "5, 6, 7, 8")]
    pub(crate) wanted: Option<Wanted>,
    /// With this, for every key of the range.
    #[prost(bytes = "bytes", tag = "64")]
    pub(crate) range_end: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum CompareTarget {
    Version = 0,
    Create = 1,
    Mod = 2,
    Value = 3,
    Lease = 4,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Wanted {
    #[prost(int64, tag = "5")]
    Create(i64),
    #[prost(int64, tag = "6")]
    Mod(i64),
    #[prost(bytes = "bytes", tag = "7")]
    Value(Bytes),
    #[prost(int64, tag = "8")]
    Lease(i64),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    pub(crate) compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) success: Vec<RequestOp>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) failure: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TxnResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(bool, tag = "2")]
    pub(crate) succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    pub(crate) responses: Vec<ResponseOp>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) create: Option<WatchCreateRequest>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchCreateRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) range_end: Bytes,
    #[prost(int64, tag = "3")]
    pub(crate) start_revision: i64,
    #[prost(enumeration = "Filter", repeated, tag = "5")]
    pub(crate) filters: Vec<i32>,
    /// Also tell what was there before.
    #[prost(bool, tag = "6")]
    pub(crate) prev_kv: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum Filter {
    NoPut = 0,
    NoDelete = 1,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(bool, tag = "3")]
    pub(crate) created: bool,
    #[prost(bool, tag = "4")]
    pub(crate) canceled: bool,
    #[prost(int64, tag = "5")]
    pub(crate) compact_revision: i64,
    #[prost(string, tag = "6")]
    pub(crate) cancel_reason: String,
    #[prost(message, repeated, tag = "11")]
    pub(crate) events: Vec<Event>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Event {
    #[prost(enumeration = "EventType", tag = "1")]
    pub(crate) r#type: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) kv: Option<KeyValue>,
    #[prost(message, optional, tag = "3")]
    pub(crate) prev_kv: Option<KeyValue>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum EventType {
    Put = 0,
    Delete = 1,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct LeaseGrantRequest {
    #[prost(int64, tag = "1")]
    pub(crate) ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct LeaseGrantResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(int64, tag = "2")]
    pub(crate) id: i64,
    #[prost(int64, tag = "3")]
    pub(crate) ttl: i64,
    #[prost(string, tag = "4")]
    pub(crate) error: String,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct LeaseRevokeRequest {
    #[prost(int64, tag = "1")]
    pub(crate) id: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct LeaseRevokeResponse {}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct LeaseKeepAliveRequest {
    #[prost(int64, tag = "1")]
    pub(crate) id: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct LeaseKeepAliveResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(int64, tag = "2")]
    pub(crate) id: i64,
    /// Zero or less where there is no such lease.
    #[prost(int64, tag = "3")]
    pub(crate) ttl: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct LeaseTimeToLiveRequest {
    #[prost(int64, tag = "1")]
    pub(crate) id: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct LeaseTimeToLiveResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    /// What is left in whole seconds, rounded down; -1 where there is no such lease.
    #[prost(int64, tag = "3")]
    pub(crate) ttl: i64,
    #[prost(int64, tag = "4")]
    pub(crate) granted_ttl: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct StatusRequest {}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(string, tag = "2")]
    pub(crate) version: String,
    #[prost(int64, tag = "3")]
    pub(crate) db_size: i64,
    /// Zero where the member knows none.
    #[prost(uint64, tag = "4")]
    pub(crate) leader: u64,
    #[prost(bool, tag = "10")]
    pub(crate) is_learner: bool,
    /// Zero before 3.6.
    #[prost(int64, tag = "12")]
    pub(crate) db_size_quota: i64,
}

/// Asks for all alarms of all members: what its fields are when they are not said.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct AlarmRequest {}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct AlarmResponse {
    #[prost(message, repeated, tag = "2")]
    pub(crate) alarms: Vec<AlarmMember>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct AlarmMember {
    #[prost(uint64, tag = "1")]
    pub(crate) member_id: u64,
    #[prost(enumeration = "Alarm", tag = "2")]
    pub(crate) alarm: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum Alarm {
    None = 0,
    NoSpace = 1,
    Corrupt = 2,
}

/// Holds the password, and does not show it.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(crate) struct AuthenticateRequest {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) password: String,
}

impl std::fmt::Debug for AuthenticateRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuthenticateRequest").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Holds a token that is as good as the password for a while, and does not show it.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(crate) struct AuthenticateResponse {
    #[prost(string, tag = "2")]
    pub(crate) token: String,
}

impl std::fmt::Debug for AuthenticateResponse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AuthenticateResponse(…)")
    }
}

/// What follows every key that starts with `prefix`, as the end of a range.
pub(crate) fn end_of(prefix: &[u8]) -> Bytes {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end.into();
        }
    }
    // Everything there is.
    Bytes::from_static(&[0])
}

impl RangeRequest {
    /// One key.
    pub(crate) fn one(key: Bytes) -> Self {
        RangeRequest { key, ..Default::default() }
    }

    /// All keys that start with `prefix`.
    pub(crate) fn under(prefix: Bytes) -> Self {
        RangeRequest { range_end: end_of(&prefix), key: prefix, ..Default::default() }
    }

    pub(crate) fn oldest_first(mut self) -> Self {
        (self.sort_order, self.sort_target) = (SortOrder::Ascend.into(), SortTarget::Create.into());
        self
    }

    pub(crate) fn newest_first(mut self) -> Self {
        (self.sort_order, self.sort_target) =
            (SortOrder::Descend.into(), SortTarget::Create.into());
        self
    }

    pub(crate) fn limit(mut self, most: i64) -> Self {
        self.limit = most;
        self
    }

    pub(crate) fn keys_only(mut self) -> Self {
        self.keys_only = true;
        self
    }

    /// Only those that were there at this revision already.
    pub(crate) fn created_by(mut self, revision: i64) -> Self {
        self.max_create_revision = revision;
        self
    }
}

impl Compare {
    pub(crate) fn created(key: Bytes, revision: i64) -> Self {
        Self::of(CompareTarget::Create, key, Wanted::Create(revision))
    }

    pub(crate) fn modified(key: Bytes, revision: i64) -> Self {
        Self::of(CompareTarget::Mod, key, Wanted::Mod(revision))
    }

    /// Not where there is no such key.
    pub(crate) fn valued(key: Bytes, value: Bytes) -> Self {
        Self::of(CompareTarget::Value, key, Wanted::Value(value))
    }

    pub(crate) fn leased(key: Bytes, lease: i64) -> Self {
        Self::of(CompareTarget::Lease, key, Wanted::Lease(lease))
    }

    /// No key starts with `prefix`.
    pub(crate) fn none_under(prefix: Bytes) -> Self {
        let range_end = end_of(&prefix);
        Compare { range_end, ..Self::created(prefix, 0) }
    }

    fn of(target: CompareTarget, key: Bytes, wanted: Wanted) -> Self {
        Compare { target: target.into(), key, wanted: Some(wanted), range_end: Bytes::new() }
    }
}

impl From<Op> for RequestOp {
    fn from(op: Op) -> Self {
        RequestOp { request: Some(op) }
    }
}

impl Op {
    pub(crate) fn delete(key: Bytes) -> RequestOp {
        Op::Delete(DeleteRangeRequest { key }).into()
    }

    pub(crate) fn put(key: Bytes, value: Bytes, lease: i64) -> RequestOp {
        Op::Put(PutRequest { key, value, lease }).into()
    }

    pub(crate) fn range(range: RangeRequest) -> RequestOp {
        Op::Range(range).into()
    }
}

impl WatchResponse {
    /// Whether it tells of something that came after `revision`.
    pub(crate) fn is_of_after(&self, revision: i64) -> bool {
        let at = |event: &Event| event.kv.as_ref().map_or(0, |kv| kv.mod_revision);
        self.events.iter().any(|event| at(event) > revision)
    }
}

impl Event {
    /// When what it tells of was done.
    pub(crate) fn revision(&self) -> i64 {
        self.kv.as_ref().map_or(0, |kv| kv.mod_revision)
    }
}

impl TxnResponse {
    pub(crate) fn revision(&self) -> i64 {
        self.header.map_or(0, |header| header.revision)
    }

    pub(crate) fn term(&self) -> u64 {
        self.header.map_or(0, |header| header.raft_term)
    }

    /// What the ranges of the branch that was taken found, in their order.
    pub(crate) fn ranges(self) -> impl Iterator<Item = RangeResponse> {
        self.responses.into_iter().filter_map(|done| match done.response {
            Some(Done::Range(found)) => Some(found),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The end of a prefix's range comes after everything that starts with it, and before the rest.
    #[test]
    fn ends_of_prefixes() {
        assert_eq!(&end_of(b"a/")[..], b"a0");
        assert_eq!(&end_of(b"a\xff")[..], b"b");
        assert_eq!(&end_of(b"\xff")[..], b"\0");
    }

    /// The numbers of fields are facts of the protocol: a request as etcd's own client sends it.
    #[test]
    fn bytes_on_the_wire() {
        let compare = Compare::none_under(Bytes::from_static(b"a/"));
        assert_eq!(compare.encode_to_vec(), b"\x10\x01\x1a\x02a/\x28\x00\x82\x04\x02a0");
        let put = Op::put(Bytes::from_static(b"k"), Bytes::from_static(b"v"), 7);
        assert_eq!(put.encode_to_vec(), b"\x12\x08\x0a\x01k\x12\x01v\x18\x07");
        let range = RangeRequest::one(Bytes::from_static(b"k")).newest_first().limit(2).keys_only();
        let bytes = range.created_by(9).encode_to_vec();
        assert_eq!(bytes, b"\x0a\x01k\x18\x02\x28\x02\x30\x02\x40\x01\x68\x09");
    }

    /// t66: what holds a secret does not show it.
    #[test]
    fn t66_secrets_are_not_shown() {
        let ask = AuthenticateRequest { name: "u".into(), password: "hunter2".into() };
        let answer = AuthenticateResponse { token: "hunter2".into() };
        let shown = format!("{ask:?} {answer:?}");
        assert!(shown.contains("\"u\"") && !shown.contains("hunter2"), "{shown}");
    }
}
