//! Hash slots: which of the 16,384 a key is in, and a hash tag for each slot.
//!
//! In: a key, or a slot. Out: its slot, or the hash tag that puts another key into the same slot.
//!
//! A server computes the CRC16 (XMODEM) of the text between the first `{` and the next `}`, or of the whole
//! key if there is no such text. The tag of a slot is the smallest number whose CRC16 leads to it, so that it
//! is the same in every program that knows this rule.

use std::sync::LazyLock;

/// The number of slots in every cluster.
pub(crate) const SLOTS: usize = 16_384;

/// The polynomial of XMODEM's CRC16.
const POLYNOMIAL: u16 = 0x1021;
const TABLE: [u16; 256] = table();

/// `:{tag}` for each slot.
static TAGS: LazyLock<Vec<String>> = LazyLock::new(tags);

/// The slot of `key`.
pub(crate) fn slot(key: &[u8]) -> u16 {
    slot_after(0, key)
}

/// The slot of a key that ends with `rest` and starts with text whose CRC16 is `counted`. The start has no
/// braces.
pub(crate) fn slot_after(counted: u16, rest: &[u8]) -> u16 {
    let counted = match tagged(rest) {
        Some(tag) => count(0, tag),
        None => count(counted, rest),
    };
    counted % SLOTS as u16
}

/// Text that puts a key into `slot`: a colon and a hash tag in braces.
pub(crate) fn tag(slot: u16) -> &'static str {
    TAGS.get(usize::from(slot)).map_or("", String::as_str)
}

/// The hash tag of `key`, if it has one that is not empty.
fn tagged(key: &[u8]) -> Option<&[u8]> {
    let start = key.iter().position(|byte| *byte == b'{')? + 1;
    let length = key[start..].iter().position(|byte| *byte == b'}')?;
    (length > 0).then(|| &key[start..start + length])
}

/// Continues the CRC16 `counted` with `bytes`.
pub(crate) fn count(counted: u16, bytes: &[u8]) -> u16 {
    let step = |crc: u16, byte: &u8| {
        (crc << 8) ^ TABLE[usize::from((crc >> 8) ^ u16::from(*byte)) % TABLE.len()]
    };
    bytes.iter().fold(counted, step)
}

const fn table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        let (mut crc, mut bit) = ((byte as u16) << 8, 0);
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ POLYNOMIAL };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

fn tags() -> Vec<String> {
    let (mut tags, mut missing) = (vec![String::new(); SLOTS], SLOTS);
    for number in 0_u32.. {
        let text = number.to_string();
        let tag = &mut tags[usize::from(slot(text.as_bytes()))];
        if tag.is_empty() {
            *tag = format!(":{{{text}}}");
            missing -= 1;
        }
        if missing == 0 {
            break;
        }
    }
    tags
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Examples of the cluster specification.
    #[test]
    fn known_slots() {
        assert_eq!(count(0, b"123456789"), 0x31c3);
        assert_eq!((slot(b"foo"), slot(b"bar"), slot(b"")), (12_182, 5_061, 0));
        assert_eq!(slot(b"{user1000}.following"), slot(b"user1000"));
        assert_eq!(slot(b"foo{{bar}}zap"), slot(b"{bar"));
        assert_eq!(slot(b"foo{bar}{zap}"), slot(b"bar"));
        assert_ne!(slot(b"foo{}{bar}"), slot(b"bar"));
    }

    /// The CRC16 of the start may be computed in advance.
    #[test]
    fn counted_in_two_parts() {
        let start = "tenure:lock:";
        for name in ["a", "order:1", "{x}", "}{", "{}", "{}{x}", "a{b", "a}b{c}", "{a}{b}", ""] {
            let whole = slot(format!("{start}{name}").as_bytes());
            assert_eq!(slot_after(count(0, start.as_bytes()), name.as_bytes()), whole, "{name}");
        }
    }

    /// Every slot has a tag that leads to it, whatever text follows.
    #[test]
    fn tags_lead_to_their_slot() {
        for number in 0..SLOTS as u16 {
            let key = format!("tenure:queue{}:a{{b}}c", tag(number));
            assert_eq!(slot(key.as_bytes()), number);
        }
        assert_eq!(tag(slot(b"0")), ":{0}", "these names are kept on servers");
        assert_eq!(tag(0), ":{3560}", "these names are kept on servers");
    }
}
