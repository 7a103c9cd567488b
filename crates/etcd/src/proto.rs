//! The messages of etcd's API that we send and read, with only the fields that we use.
//!
//! In and out: bytes on the wire. Names, numbers and meanings of the fields are those of the protocol
//! (`rpc.proto`, `kv.proto`). Fields that are not declared here are skipped when a message is read. Written
//! by hand, so that the project builds without `protoc`.

use bytes::Bytes;
use prost::{Message, Oneof};

/// A request, its method, and the type of its reply.
pub(crate) trait Call: Message + Clone + 'static {
    /// The name of the method.
    const PATH: &'static str;
    /// The type of the reply.
    type Answer: Message + Default + 'static;
}

macro_rules! calls {
    ($($request:ident => $path:literal => $answer:ty;)+) => {
        $(impl Call for $request {
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
    LeaseRevokeRequest => "/etcdserverpb.Lease/LeaseRevoke" => ();
    LeaseKeepAliveRequest => "/etcdserverpb.Lease/LeaseKeepAlive" => LeaseKeepAliveResponse;
    LeaseTimeToLiveRequest => "/etcdserverpb.Lease/LeaseTimeToLive" => LeaseTimeToLiveResponse;
    StatusRequest => "/etcdserverpb.Maintenance/Status" => StatusResponse;
    AlarmRequest => "/etcdserverpb.Maintenance/Alarm" => AlarmResponse;
    AuthenticateRequest => "/etcdserverpb.Auth/Authenticate" => AuthenticateResponse;
}

/// Messages: each field with its type and its declaration in the protocol. All fields can be seen in the crate.
macro_rules! messages {
    ($($(#[$of_message:meta])* $message:ident {
        $($(#[$of_field:meta])* $field:ident: $type:ty = [$($declared:tt)*],)*
    })*) => {
        $(#[derive(Clone, PartialEq, Message)]
        $(#[$of_message])*
        pub(crate) struct $message {
            $($(#[$of_field])* #[prost($($declared)*)] pub(crate) $field: $type,)*
        })*
    };
}

/// The numbers of an enumeration in the protocol.
macro_rules! enumerations {
    ($($name:ident { $($value:ident = $number:literal),* })*) => {
        $(#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
        #[repr(i32)]
        pub(crate) enum $name {
            $($value = $number,)*
        })*
    };
}

messages! {
    /// The member that sent a reply, and its revision and term.
    #[derive(Copy)]
    ResponseHeader {
        cluster_id: u64 = [uint64, tag = "1"],
        member_id: u64 = [uint64, tag = "2"],
        revision: i64 = [int64, tag = "3"],
        raft_term: u64 = [uint64, tag = "4"],
    }

    KeyValue {
        key: Bytes = [bytes = "bytes", tag = "1"],
        create_revision: i64 = [int64, tag = "2"],
        mod_revision: i64 = [int64, tag = "3"],
        value: Bytes = [bytes = "bytes", tag = "5"],
        lease: i64 = [int64, tag = "6"],
    }

    RangeRequest {
        key: Bytes = [bytes = "bytes", tag = "1"],
        range_end: Bytes = [bytes = "bytes", tag = "2"],
        limit: i64 = [int64, tag = "3"],
        sort_order: i32 = [enumeration = "SortOrder", tag = "5"],
        sort_target: i32 = [enumeration = "SortTarget", tag = "6"],
        keys_only: bool = [bool, tag = "8"],
        max_create_revision: i64 = [int64, tag = "13"],
    }

    RangeResponse {
        header: Option<ResponseHeader> = [message, optional, tag = "1"],
        kvs: Vec<KeyValue> = [message, repeated, tag = "2"],
        more: bool = [bool, tag = "3"],
        /// The number of keys in the range, without limit and revision bounds.
        count: i64 = [int64, tag = "4"],
    }

    PutRequest {
        key: Bytes = [bytes = "bytes", tag = "1"],
        value: Bytes = [bytes = "bytes", tag = "2"],
        lease: i64 = [int64, tag = "3"],
    }

    DeleteRangeRequest {
        key: Bytes = [bytes = "bytes", tag = "1"],
    }

    RequestOp {
        request: Option<Op> = [oneof = "Op", tags = "1, 2, 3, 4"],
    }

    /// The result of an operation: only that of a range is read.
    ResponseOp {
        range: Option<RangeResponse> = [message, optional, tag = "1"],
    }

    /// A condition of a transaction: always equality here.
    Compare {
        target: i32 = [enumeration = "CompareTarget", tag = "2"],
        key: Bytes = [bytes = "bytes", tag = "3"],
        create_revision: Option<i64> = [int64, optional, tag = "5"],
        mod_revision: Option<i64> = [int64, optional, tag = "6"],
        value: Option<Bytes> = [bytes = "bytes", optional, tag = "7"],
        lease: Option<i64> = [int64, optional, tag = "8"],
        /// With this, the condition is for every key of the range.
        range_end: Bytes = [bytes = "bytes", tag = "64"],
    }

    TxnRequest {
        compare: Vec<Compare> = [message, repeated, tag = "1"],
        success: Vec<RequestOp> = [message, repeated, tag = "2"],
        failure: Vec<RequestOp> = [message, repeated, tag = "3"],
    }

    TxnResponse {
        header: Option<ResponseHeader> = [message, optional, tag = "1"],
        succeeded: bool = [bool, tag = "2"],
        responses: Vec<ResponseOp> = [message, repeated, tag = "3"],
    }

    WatchRequest {
        create: Option<WatchCreateRequest> = [message, optional, tag = "1"],
    }

    WatchCreateRequest {
        key: Bytes = [bytes = "bytes", tag = "1"],
        range_end: Bytes = [bytes = "bytes", tag = "2"],
        start_revision: i64 = [int64, tag = "3"],
        filters: Vec<i32> = [enumeration = "Filter", repeated, tag = "5"],
        /// Also send the value before the change.
        prev_kv: bool = [bool, tag = "6"],
    }

    WatchResponse {
        header: Option<ResponseHeader> = [message, optional, tag = "1"],
        created: bool = [bool, tag = "3"],
        canceled: bool = [bool, tag = "4"],
        compact_revision: i64 = [int64, tag = "5"],
        cancel_reason: String = [string, tag = "6"],
        events: Vec<Event> = [message, repeated, tag = "11"],
    }

    Event {
        r#type: i32 = [enumeration = "EventType", tag = "1"],
        kv: Option<KeyValue> = [message, optional, tag = "2"],
        prev_kv: Option<KeyValue> = [message, optional, tag = "3"],
    }

    #[derive(Copy)]
    LeaseGrantRequest {
        ttl: i64 = [int64, tag = "1"],
    }

    LeaseGrantResponse {
        header: Option<ResponseHeader> = [message, optional, tag = "1"],
        id: i64 = [int64, tag = "2"],
        ttl: i64 = [int64, tag = "3"],
        error: String = [string, tag = "4"],
    }

    #[derive(Copy)]
    LeaseRevokeRequest {
        id: i64 = [int64, tag = "1"],
    }

    #[derive(Copy)]
    LeaseKeepAliveRequest {
        id: i64 = [int64, tag = "1"],
    }

    #[derive(Copy)]
    LeaseKeepAliveResponse {
        header: Option<ResponseHeader> = [message, optional, tag = "1"],
        id: i64 = [int64, tag = "2"],
        /// Zero or less if there is no such lease.
        ttl: i64 = [int64, tag = "3"],
    }

    #[derive(Copy)]
    LeaseTimeToLiveRequest {
        id: i64 = [int64, tag = "1"],
    }

    #[derive(Copy)]
    LeaseTimeToLiveResponse {
        header: Option<ResponseHeader> = [message, optional, tag = "1"],
        /// The rest in whole seconds, rounded down; -1 if there is no such lease.
        ttl: i64 = [int64, tag = "3"],
        granted_ttl: i64 = [int64, tag = "4"],
    }

    #[derive(Copy)]
    StatusRequest {}

    StatusResponse {
        header: Option<ResponseHeader> = [message, optional, tag = "1"],
        version: String = [string, tag = "2"],
        db_size: i64 = [int64, tag = "3"],
        /// Zero if the member knows no leader.
        leader: u64 = [uint64, tag = "4"],
        is_learner: bool = [bool, tag = "10"],
        /// Zero before 3.6.
        db_size_quota: i64 = [int64, tag = "12"],
    }

    /// Asks for all alarms of all members, the default values of its fields.
    #[derive(Copy)]
    AlarmRequest {}

    AlarmResponse {
        alarms: Vec<AlarmMember> = [message, repeated, tag = "2"],
    }

    #[derive(Copy)]
    AlarmMember {
        member_id: u64 = [uint64, tag = "1"],
        alarm: i32 = [enumeration = "Alarm", tag = "2"],
    }

    /// Contains the password; `Debug` does not show it.
    #[prost(skip_debug)]
    AuthenticateRequest {
        name: String = [string, tag = "1"],
        password: String = [string, tag = "2"],
    }

    /// Contains a token that is as good as the password for a while; `Debug` does not show it.
    #[prost(skip_debug)]
    AuthenticateResponse {
        token: String = [string, tag = "2"],
    }
}

enumerations! {
    SortOrder { None = 0, Ascend = 1, Descend = 2 }
    SortTarget { Key = 0, Create = 2 }
    CompareTarget { Version = 0, Create = 1, Mod = 2, Value = 3, Lease = 4 }
    Filter { NoPut = 0, NoDelete = 1 }
    EventType { Put = 0, Delete = 1 }
    Alarm { None = 0, NoSpace = 1, Corrupt = 2 }
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

impl std::fmt::Debug for AuthenticateRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuthenticateRequest").field("name", &self.name).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for AuthenticateResponse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AuthenticateResponse(…)")
    }
}

/// The end of the range of all keys that start with `prefix`.
pub(crate) fn end_of(prefix: &[u8]) -> Bytes {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end.into();
        }
    }
    // All keys.
    Bytes::from_static(&[0])
}

impl RangeRequest {
    /// The range of one key.
    pub(crate) fn one(key: Bytes) -> Self {
        RangeRequest { key, ..Default::default() }
    }

    /// The range of all keys that start with `prefix`.
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

    /// Only keys that were created at this revision or before.
    pub(crate) fn created_by(mut self, revision: i64) -> Self {
        self.max_create_revision = revision;
        self
    }
}

impl Compare {
    pub(crate) fn created(key: Bytes, revision: i64) -> Self {
        Compare { create_revision: Some(revision), ..Self::of(CompareTarget::Create, key) }
    }

    pub(crate) fn modified(key: Bytes, revision: i64) -> Self {
        Compare { mod_revision: Some(revision), ..Self::of(CompareTarget::Mod, key) }
    }

    /// Fails if there is no such key.
    pub(crate) fn valued(key: Bytes, value: Bytes) -> Self {
        Compare { value: Some(value), ..Self::of(CompareTarget::Value, key) }
    }

    pub(crate) fn leased(key: Bytes, lease: i64) -> Self {
        Compare { lease: Some(lease), ..Self::of(CompareTarget::Lease, key) }
    }

    /// There is no key in the range.
    pub(crate) fn none_in(range: RangeRequest) -> Self {
        Compare { range_end: range.range_end, ..Self::created(range.key, 0) }
    }

    fn of(target: CompareTarget, key: Bytes) -> Self {
        Compare { target: target.into(), key, ..Default::default() }
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

impl Event {
    /// The revision of the change.
    pub(crate) fn revision(&self) -> i64 {
        self.kv.as_ref().map_or(0, |kv| kv.mod_revision)
    }
}

impl KeyValue {
    /// Whether it was created before `other`, or is the same key.
    pub(crate) fn is_before(&self, other: &KeyValue) -> bool {
        self.create_revision <= other.create_revision
    }
}

impl RangeResponse {
    /// The first key that was found.
    pub(crate) fn first(self) -> Option<KeyValue> {
        self.kvs.into_iter().next()
    }
}

impl TxnRequest {
    /// Only reads, without conditions.
    pub(crate) fn read(ranges: impl IntoIterator<Item = RangeRequest>) -> Self {
        let success = ranges.into_iter().map(Op::range).collect();
        TxnRequest { success, ..Default::default() }
    }
}

impl TxnResponse {
    pub(crate) fn revision(&self) -> i64 {
        self.header.map_or(0, |header| header.revision)
    }

    pub(crate) fn raft_term(&self) -> u64 {
        self.header.map_or(0, |header| header.raft_term)
    }

    /// The results of the ranges in the branch that was executed, in their order.
    pub(crate) fn ranges(self) -> impl Iterator<Item = RangeResponse> {
        self.responses.into_iter().filter_map(|result| result.range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The end of a prefix's range comes after every key with that prefix, and before all other later keys.
    #[test]
    fn ends_of_prefixes() {
        assert_eq!(&end_of(b"a/")[..], b"a0");
        assert_eq!(&end_of(b"a\xff")[..], b"b");
        assert_eq!(&end_of(b"\xff")[..], b"\0");
    }

    /// The numbers of fields are defined by the protocol: a request as etcd's own client sends it.
    #[test]
    fn bytes_on_the_wire() {
        let compare = Compare::none_in(RangeRequest::under(Bytes::from_static(b"a/")));
        assert_eq!(compare.encode_to_vec(), b"\x10\x01\x1a\x02a/\x28\x00\x82\x04\x02a0");
        let put = Op::put(Bytes::from_static(b"k"), Bytes::from_static(b"v"), 7);
        assert_eq!(put.encode_to_vec(), b"\x12\x08\x0a\x01k\x12\x01v\x18\x07");
        let range = RangeRequest::one(Bytes::from_static(b"k")).newest_first().limit(2).keys_only();
        let bytes = range.created_by(9).encode_to_vec();
        assert_eq!(bytes, b"\x0a\x01k\x18\x02\x28\x02\x30\x02\x40\x01\x68\x09");
    }

    /// t66: `Debug` of a message with a secret does not show it.
    #[test]
    fn t66_secrets_are_not_shown() {
        let request = AuthenticateRequest { name: "u".into(), password: "hunter2".into() };
        let answer = AuthenticateResponse { token: "hunter2".into() };
        let shown = format!("{request:?} {answer:?}");
        assert!(shown.contains("\"u\"") && !shown.contains("hunter2"), "{shown}");
    }
}
