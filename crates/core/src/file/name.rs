//! The file name of a key.
//!
//! In: a key. Out: a name that every file system distinguishes from the name of every other key.
//!
//! Upper case is escaped, since some file systems cannot tell `a` from `A`. So is a leading dot, which hides
//! a file. Names that are too long for a file are cut, and distinguished by a hash.

/// The longest encoded name. With the longest suffix it stays below the 255 bytes of a file name.
const NAME_MAX: usize = 200;
/// How much of a longer name is kept, for people who read the directory.
const NAME_CUT: usize = 100;

/// The file name for `key`, without suffix.
pub(super) fn encode(key: &str) -> String {
    let bytes = key.bytes().enumerate();
    let name: String = bytes.map(|(at, byte)| encode_byte(byte, at == 0)).collect();
    match name.len() <= NAME_MAX {
        true => name,
        false => format!("{}~{:032x}", &name[..NAME_CUT], hash(key)),
    }
}

fn encode_byte(byte: u8, first: bool) -> String {
    match byte {
        b'.' if first => "%2e".into(),
        b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'-' => char::from(byte).into(),
        _ => format!("%{byte:02x}"),
    }
}

/// The key for `name`, or its readable part if it was cut. For locks whose record cannot be read.
pub(super) fn decode(name: &str) -> String {
    let mut parts = name.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    parts.for_each(|part| decode_part(part, &mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

fn decode_part(part: &str, bytes: &mut Vec<u8>) {
    let escaped = part.get(..2).and_then(|hex| u8::from_str_radix(hex, 16).ok());
    bytes.extend(escaped);
    bytes.extend(part.bytes().skip(if escaped.is_some() { 2 } else { 0 }));
}

/// FNV-1a, 128 bits. Written out here because file names must not change with a library.
fn hash(key: &str) -> u128 {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    key.bytes().fold(OFFSET, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ordinary names stay readable; everything else is escaped, and decodes to the same key.
    #[test]
    fn names_are_escaped_and_come_back() {
        let cases = [
            ("order-42_a.b", "order-42_a.b"),
            ("order:42", "order%3a42"),
            ("A", "%41"),
            (".hidden", "%2ehidden"),
            ("..", "%2e."),
            ("a/../b", "a%2f..%2fb"),
            ("~", "%7e"),
            ("100%", "100%25"),
            ("🔒", "%f0%9f%94%92"),
        ];
        for (key, name) in cases {
            assert_eq!(encode(key), name);
            assert_eq!(decode(name), key);
        }
    }

    /// Long names fit into a file name, differ if only their ends differ, and never change.
    #[test]
    fn long_names_are_cut_and_told_apart() {
        let long = |end| format!("{}{end}", "X".repeat(500));
        let (one, two) = (encode(&long("1")), encode(&long("2")));
        assert_ne!(one, two);
        assert_eq!(one.len(), NAME_CUT + 1 + 32);
        assert_eq!(encode(&"x".repeat(NAME_MAX)), "x".repeat(NAME_MAX));
        assert_eq!(hash(""), 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
        assert_eq!(hash("a"), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
    }
}
