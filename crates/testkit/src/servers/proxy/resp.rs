//! Finds the boundaries of messages in the Redis protocol.
//!
//! In: the bytes read so far. Out: the length of the first whole message in them.

/// How a stream is divided into messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// Requests and replies of Redis (RESP2 and RESP3).
    Resp,
    /// The result of one read.
    Chunks,
}

impl Framing {
    /// Removes the first whole message from `bytes`, if there is one.
    pub(super) fn take(self, bytes: &mut Vec<u8>) -> Option<Vec<u8>> {
        let length = match self {
            Framing::Resp => message(bytes)?,
            Framing::Chunks => bytes.len(),
        };
        let rest = bytes.split_off(length);
        let taken = std::mem::replace(bytes, rest);
        (!taken.is_empty()).then_some(taken)
    }
}

/// The length of the first message, including the elements of aggregates.
fn message(bytes: &[u8]) -> Option<usize> {
    let line = bytes.windows(2).position(|end| end == b"\r\n")? + 2;
    let kind = *bytes.first()?;
    let count = || std::str::from_utf8(&bytes[1..line - 2]).ok()?.parse::<i64>().ok();
    match (kind, count().unwrap_or(-1)) {
        // A null has the length -1 and no content.
        (b'$' | b'=' | b'!', length @ 0..) => {
            let end = line + usize::try_from(length).ok()? + 2;
            (bytes.len() >= end).then_some(end)
        }
        (b'*' | b'~' | b'>', count @ 0..) => several(bytes, line, count),
        (b'%' | b'|', count @ 0..) => several(bytes, line, count * 2),
        _ => Some(line),
    }
}

fn several(bytes: &[u8], start: usize, count: i64) -> Option<usize> {
    (0..count).try_fold(start, |at, _| Some(at + message(&bytes[at..])?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each kind of message is recognised, and not before its last byte has arrived.
    #[test]
    fn messages_are_told_apart() {
        let messages = [
            "+OK\r\n",
            ":1\r\n",
            "$-1\r\n",
            "*-1\r\n",
            "_\r\n",
            "$0\r\n\r\n",
            "$4\r\na\r\nb\r\n",
            "*2\r\n$1\r\na\r\n*1\r\n:5\r\n",
            "%1\r\n+k\r\n$1\r\nv\r\n",
            "*0\r\n",
        ];
        for message in messages {
            let mut bytes = format!("{message}+next\r\n").into_bytes();
            let taken = Framing::Resp.take(&mut bytes).unwrap();
            assert_eq!(
                (taken.as_slice(), bytes.as_slice()),
                (message.as_bytes(), &b"+next\r\n"[..])
            );
            for cut in 0..message.len() {
                assert_eq!(Framing::Resp.take(&mut message.as_bytes()[..cut].to_vec()), None);
            }
        }
    }

    /// Without framing, a message is all available bytes.
    #[test]
    fn chunks_are_taken_whole() {
        let mut bytes = b"any".to_vec();
        assert_eq!(Framing::Chunks.take(&mut bytes), Some(b"any".to_vec()));
        assert_eq!(Framing::Chunks.take(&mut bytes), None);
    }
}
