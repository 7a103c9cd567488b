//! Who had which lease end: the log that all members agree on, as it is on a member's disk.
//!
//! In: the files of its log. Out: for each lease that was ended, the member that asked for it.
//!
//! Each request in the log has a number, of which the upper bits are the lower ones of the number of the
//! member that took it in, from a client or from itself; on the way to the leader it keeps that. So a lease
//! that the leader ends, because its time is over, is told from one that another member has ended. Only the
//! first asking counts: a lease that is gone cannot be ended.
//!
//! | written | how |
//! |---|---|
//! | a file | records, each after its length; zeros after the last |
//! | the length | eight bytes, the lowest first; of the highest, the first bit says that the last three count bytes of padding |
//! | an entry | a record of kind 2; one with an index that there was replaces that one and all after it |

use std::collections::{BTreeMap, HashMap};

use prost::Message;

use super::EtcdServer;

/// How far a request's number is shifted by what counts requests.
const REQUEST_BITS: u32 = 48;
/// Records that are entries.
const ENTRY: i64 = 2;
/// The part of a length that is one.
const LENGTH_BITS: u32 = 56;

/// A member, as far as the numbers of requests tell.
pub type Asker = u16;

/// The end of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// Its place in the log.
    pub index: u64,
    /// Who asked for it.
    pub by: Asker,
}

impl EtcdServer {
    /// Who had each lease end, of its own accord or for a client.
    ///
    /// # Panics
    ///
    /// If its files cannot be read.
    pub fn who_ended(&self) -> HashMap<i64, Ending> {
        let dir = std::fs::read_dir(self.setup.data().join("member/wal")).expect("its log");
        let paths = dir.map(|entry| entry.expect("a file of its log").path());
        let is_log = |path: &std::path::PathBuf| path.extension().is_some_and(|it| it == "wal");
        let mut paths: Vec<_> = paths.filter(is_log).collect();
        // Their names count up.
        paths.sort();
        let read = |path| std::fs::read(path).expect("a file of its log");
        who_ended(&paths.into_iter().map(read).collect::<Vec<_>>())
    }
}

fn who_ended(files: &[Vec<u8>]) -> HashMap<i64, Ending> {
    let mut log = BTreeMap::new();
    for entry in files.iter().flat_map(|file| frames(file)).filter_map(entry) {
        log.split_off(&entry.index);
        log.extend(ending(&entry).map(|ending| (entry.index, ending)));
    }
    let mut ended = HashMap::new();
    for (index, (lease, by)) in log {
        ended.entry(lease).or_insert(Ending { index, by });
    }
    ended
}

/// The records of a file.
fn frames(mut file: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, rest) = file.split_first_chunk()?;
        let length = u64::from_le_bytes(*length);
        let (size, high) = (length & ((1 << LENGTH_BITS) - 1), length >> LENGTH_BITS);
        let padding = if high >> 7 == 1 { high & 7 } else { 0 };
        let size = usize::try_from(size).ok().filter(|size| *size > 0)?;
        file = rest.get(size + usize::try_from(padding).ok()?..)?;
        rest.get(..size)
    })
}

fn entry(frame: &[u8]) -> Option<Entry> {
    let record = Record::decode(frame).ok().filter(|record| record.kind == ENTRY)?;
    Entry::decode(&record.data[..]).ok()
}

/// The lease that is to end, and who wants it to.
fn ending(entry: &Entry) -> Option<(i64, Asker)> {
    // Not all entries are requests of this kind; those that can be read as one by mistake end no lease.
    let Request { revoke, header } = Request::decode(&entry.data[..]).ok()?;
    let asker = Asker::try_from(header?.id >> REQUEST_BITS).ok()?;
    Some((revoke?.lease, asker))
}

#[derive(Clone, PartialEq, Message)]
struct Record {
    #[prost(int64, tag = "1")]
    kind: i64,
    #[prost(bytes = "vec", tag = "3")]
    data: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Entry {
    #[prost(uint64, tag = "3")]
    index: u64,
    #[prost(bytes = "vec", tag = "4")]
    data: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Request {
    #[prost(message, optional, tag = "9")]
    revoke: Option<Revoke>,
    #[prost(message, optional, tag = "100")]
    header: Option<Header>,
}

#[derive(Clone, PartialEq, Message)]
struct Revoke {
    #[prost(int64, tag = "1")]
    lease: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Header {
    #[prost(uint64, tag = "1")]
    id: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(index: u64, lease: i64, asker: u64) -> Vec<u8> {
        let header = Some(Header { id: asker << REQUEST_BITS | 7 });
        let request = Request { revoke: Some(Revoke { lease }), header };
        let entry = Entry { index, data: request.encode_to_vec() };
        let record = Record { kind: ENTRY, data: entry.encode_to_vec() }.encode_to_vec();
        let padding = (8 - record.len() % 8) % 8;
        let high = if padding > 0 { 0x80 | padding as u64 } else { 0 };
        let length = record.len() as u64 | high << LENGTH_BITS;
        [&length.to_le_bytes()[..], &record, &vec![0; padding]].concat()
    }

    /// What was replaced before it was agreed on does not count, and of two who ask the first does.
    #[test]
    fn the_log_as_it_came_to_be() {
        let replaced = [written(1, 10, 1), written(2, 20, 1), written(3, 30, 1)].concat();
        let last = [written(2, 20, 2), written(3, 10, 3), vec![0; 64]].concat();
        let (ten, twenty) = (Ending { index: 1, by: 1 }, Ending { index: 2, by: 2 });
        assert_eq!(who_ended(&[replaced, last]), HashMap::from([(10, ten), (20, twenty)]));
    }

    /// A record that is being written is left out.
    #[test]
    fn a_torn_end() {
        let mut file = [written(1, 10, 1), written(2, 20, 1)].concat();
        file.truncate(file.len() - 9);
        assert_eq!(who_ended(&[file]), HashMap::from([(10, Ending { index: 1, by: 1 })]));
    }
}
