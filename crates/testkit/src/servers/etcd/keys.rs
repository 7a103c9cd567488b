//! Reading keys without starting a program: the server's own JSON over HTTP.
//!
//! Only for servers without TLS and users.

use serde_json::{Value, json};

use super::EtcdServer;
use super::metrics::post;

impl EtcdServer {
    /// The keys that start with `prefix`, and their values, in the order of their creation; `None` if the
    /// server does not reply.
    pub fn oldest_first(&self, prefix: &str) -> Option<Vec<(String, String)>> {
        // A zero byte as start and end selects all keys.
        let (start, end) = match prefix {
            "" => ("\0".to_owned(), "\0".to_owned()),
            _ => (prefix.to_owned(), after(prefix)),
        };
        let body = json!({
            "key": encode(start.as_bytes()), "range_end": encode(end.as_bytes()),
            "sort_target": "CREATE", "sort_order": "ASCEND",
        });
        let said = post(self.port(), "/v3/kv/range", &body.to_string()).ok()?;
        let said: Value = serde_json::from_str(&said).ok()?;
        said.get("header")?;
        let text = |pair: &Value, name: &str| decode(pair[name].as_str().unwrap_or_default());
        let pairs = said["kvs"].as_array().into_iter().flatten();
        Some(pairs.map(|pair| (text(pair, "key"), text(pair, "value"))).collect())
    }

    /// The version of the server.
    ///
    /// # Panics
    ///
    /// If the server does not reply.
    pub fn version(&self) -> (u32, u32, u32) {
        let said = super::metrics::get(self.port(), "/version").expect("the server answers");
        let said: Value = serde_json::from_str(&said).expect("an answer in JSON");
        let version = said["etcdserver"].as_str().expect("a version");
        let mut parts = version.split('.').map(|part| part.parse().unwrap_or_default());
        let mut next = || parts.next().unwrap_or_default();
        (next(), next(), next())
    }
}

/// The end of the range of keys that start with `prefix`, which must end in an ASCII character.
fn after(prefix: &str) -> String {
    let (rest, last) = prefix.split_at(prefix.len() - 1);
    format!("{rest}{}", char::from(last.as_bytes()[0] + 1))
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Encodes in base 64, as JSON carries bytes.
fn encode(bytes: &[u8]) -> String {
    let digits = |three: &[u8]| {
        let number =
            three.iter().chain([&0, &0]).take(3).fold(0, |all, one| all << 8 | usize::from(*one));
        let digit = |place: usize| char::from(DIGITS[number >> (18 - 6 * place) & 63]);
        (0..4).map(|place| if place > three.len() { '=' } else { digit(place) }).collect::<String>()
    };
    bytes.chunks(3).map(digits).collect()
}

pub(super) fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    for four in text.trim_end_matches('=').as_bytes().chunks(4) {
        let value = |digit: &u8| DIGITS.iter().position(|known| known == digit).unwrap_or_default();
        let number =
            four.iter().fold(0, |all, digit| all << 6 | value(digit)) << (6 * (4 - four.len()));
        bytes.extend_from_slice(&number.to_be_bytes()[5..4 + four.len()]);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes are encoded and decoded, for each length.
    #[test]
    fn base_64() {
        for (plain, coded) in
            [("", ""), ("a", "YQ=="), ("ab", "YWI="), ("abc", "YWJj"), ("\0", "AA==")]
        {
            assert_eq!(encode(plain.as_bytes()), coded);
            assert_eq!(decode(coded), plain);
        }
        let long = "tenure/lock/order:1/00ab".repeat(9) + "ü";
        assert_eq!(decode(&encode(long.as_bytes())), long);
        assert_eq!(after("a/"), "a0");
    }

    /// Keys in the order of their creation, without those of another prefix.
    #[test]
    fn keys_in_order() {
        let server = EtcdServer::start();
        for name in ["a/2", "b", "a/1"] {
            server.ctl(&["put", name, &format!("v{name}")]);
        }
        let pair = |name: &str| (name.to_owned(), format!("v{name}"));
        assert_eq!(server.oldest_first("a/"), Some(vec![pair("a/2"), pair("a/1")]));
        assert_eq!(server.oldest_first("").map(|all| all.len()), Some(3));
        assert!(server.version() >= (3, 4, 0));
        server.kill();
        assert_eq!(server.oldest_first("a/"), None);
    }
}
