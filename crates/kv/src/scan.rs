//! Lists all keys with a prefix, page by page.
//!
//! In: a prefix. Out: keys, one at a time. Only one page is kept in memory.

use std::marker::PhantomData;
use std::vec;

use serde::de::DeserializeOwned;

use super::command::{Answer, Command, Kv, Verb};
use super::error::Error;
use super::verbs;

/// The keys of a store, made by [`KvExt::scan`](super::KvExt::scan). Call [`next`](Self::next) until it
/// returns `None`.
#[must_use = "nothing is read until `next` is called"]
pub struct Scan<'a, K: ?Sized, T> {
    kv: &'a K,
    prefix: &'a [u8],
    page: vec::IntoIter<Vec<u8>>,
    /// The cursor of the next page; `None` after the last.
    cursor: Option<Vec<u8>>,
    key: PhantomData<fn() -> T>,
}

impl<'a, K: Kv + ?Sized, T: DeserializeOwned> Scan<'a, K, T> {
    pub(super) fn new(kv: &'a K, prefix: &'a [u8]) -> Self {
        let (page, cursor) = (Vec::new().into_iter(), Some(Vec::new()));
        Scan { kv, prefix, page, cursor, key: PhantomData }
    }

    /// The next key, without the client's prefix; `None` after the last.
    ///
    /// # Errors
    ///
    /// [`is_undecodable`](Error::is_undecodable) for a key that is no `T`; the scan continues after it.
    /// [`is_unavailable`](Error::is_unavailable) if the server restarted or was replaced: the scan could miss
    /// keys and must be started again. Any other error may be temporary: call `next` again.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no key.
    pub async fn next(&mut self) -> Result<Option<T>, Error> {
        loop {
            if let Some(key) = self.page.next() {
                return verbs::read(&key).map(Some).map_err(|error| error.in_verb("scan", &key));
            }
            let Some(cursor) = self.cursor.clone() else { return Ok(None) };
            let command = Command::new(self.prefix, Verb::Scan { cursor });
            let page = self.kv.ask(&command).await.and_then(page);
            let (cursor, keys) = page.map_err(|error| error.of(&command))?;
            self.cursor = Some(cursor).filter(|cursor| !cursor.is_empty());
            self.page = keys.into_iter();
        }
    }
}

fn page(answer: Answer) -> Result<(Vec<u8>, Vec<Vec<u8>>), Error> {
    let Answer::List(parts) = answer else { return Err(Error::unexpected()) };
    match <[Answer; 2]>::try_from(parts) {
        Ok([Answer::Bytes(cursor), Answer::Many(keys)]) => Ok((cursor, keys)),
        _ => Err(Error::unexpected()),
    }
}
