//! A look at the keys without starting a program for it: the server's own JSON over HTTP.
//!
//! Only of servers without TLS and users.

use serde_json::{Value, json};

use super::EtcdServer;
use super::metrics::post;

/// What a look has shown.
#[derive(Clone, Debug)]
pub struct Look {
    /// The revision as of which it is.
    pub revision: u64,
    /// Keys and their values, in the order in which they were made.
    pub pairs: Vec<(String, String)>,
}

impl EtcdServer {
    /// The keys that start with `prefix`, and their values, in the order in which they were made;
    /// `None` if it does not answer.
    pub fn oldest_first(&self, prefix: &str) -> Option<Vec<(String, String)>> {
        self.look(prefix).map(|look| look.pairs)
    }

    /// The same, and as of when.
    pub fn look(&self, prefix: &str) -> Option<Look> {
        // A zero as start and end is everything.
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
        // Numbers of this size are written as text.
        let revision = said["header"]["revision"].as_str()?.parse().ok()?;
        let text = |pair: &Value, name: &str| decode(pair[name].as_str().unwrap_or_default());
        let pairs = said["kvs"].as_array().into_iter().flatten();
        let pairs = pairs.map(|pair| (text(pair, "key"), text(pair, "value"))).collect();
        Some(Look { revision, pairs })
    }

    /// Its version.
    ///
    /// # Panics
    ///
    /// If it does not tell.
    pub fn version(&self) -> (u32, u32, u32) {
        let said = super::metrics::get(self.port(), "/version").expect("the server answers");
        let said: Value = serde_json::from_str(&said).expect("an answer in JSON");
        let version = said["etcdserver"].as_str().expect("a version");
        let mut parts = version.split('.').map(|part| part.parse().unwrap_or_default());
        let mut next = || parts.next().unwrap_or_default();
        (next(), next(), next())
    }
}

/// What comes after everything that starts with `prefix`, which ends in a plain letter or sign.
fn after(prefix: &str) -> String {
    let (rest, last) = prefix.split_at(prefix.len() - 1);
    format!("{rest}{}", char::from(last.as_bytes()[0] + 1))
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// In base 64, as JSON carries bytes.
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

    /// Bytes there and back, of each length.
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

    /// Keys in the order of their making, those of others left out.
    #[test]
    fn keys_in_order() {
        let server = EtcdServer::start();
        for name in ["a/2", "b", "a/1"] {
            server.ctl(&["put", name, &format!("v{name}")]);
        }
        let pair = |name: &str| (name.to_owned(), format!("v{name}"));
        assert_eq!(server.oldest_first("a/"), Some(vec![pair("a/2"), pair("a/1")]));
        assert_eq!(server.oldest_first("").map(|all| all.len()), Some(3));
        assert_eq!(server.look("").map(|look| look.revision), Some(server.revision()));
        assert!(server.version() >= (3, 4, 0));
        server.kill();
        assert_eq!(server.oldest_first("a/"), None);
    }
}
