//! An operator takes a lock away.
//!
//! In: a lock, and the token that the operator saw. Out: a free lock, and a word for its former holder,
//! which is kept for as long as its lease could have lasted.

use std::time::Duration;

use tenure_core::backend::{Fate, Fault, Loss, Notice, Release};
use tenure_core::{Key, Token};

use crate::backend::Shared;
use crate::proto::{Compare, KeyValue, LeaseGrantRequest, Op, RangeRequest, TxnRequest};
use crate::session::seconds;
use crate::sessions::Debt;
use crate::trouble::Trouble;
use crate::value;

/// What an operator says is cut here, in characters: it is kept on the server for a while.
const BY_MAX: usize = 200;
/// The shortest time for which the word is kept, in seconds.
const WORD_MIN: i64 = 10;
/// How many words are read in one round trip.
const READ_AT_ONCE: usize = 64;

impl Shared {
    pub(crate) async fn force(&self, key: &Key, seen: Token, by: &str) -> Result<Release, Fault> {
        self.refuse_forked()?;
        let by: String = by.chars().take(BY_MAX).collect();
        let Some(held) = self.held_under(key, seen).await? else { return Ok(Release::NotHeld) };
        let (word, ttl) = self.lease_for_word(held.lease).await?;
        let name = held.key.clone();
        let ask = TxnRequest {
            compare: vec![
                Compare::created(name.clone(), held.create_revision),
                Compare::leased(name.clone(), held.lease),
            ],
            success: vec![
                Op::delete(name),
                Op::put(self.keys.forced(seen), by.clone().into(), word),
            ],
            failure: vec![],
        };
        if !self.calls.call(ask).await?.succeeded {
            self.owe(Debt::Revoke(word, ttl));
            return Ok(Release::NotHeld);
        }
        // For a holder in this process, at once; others watch for the word, or find it.
        let loss = Loss::Forced(by);
        self.tell(Notice::Lost { key: key.clone(), token: seen, loss });
        Ok(Release::Freed)
    }

    /// The key of whoever holds the lock, if that is under the token that was seen.
    async fn held_under(&self, key: &Key, seen: Token) -> Result<Option<KeyValue>, Trouble> {
        let first = self.first(&self.keys.queue(key)).await?;
        let is_it =
            |kv: &KeyValue| value::token(&kv.value) == Some(seen) && !value::is_closed(&kv.value);
        Ok(first.filter(is_it))
    }

    /// A lease that lasts as long as the one that was seen could have.
    async fn lease_for_word(&self, held: i64) -> Result<(i64, Duration), Trouble> {
        let left = self.what_is_left(held).await?;
        let ttl = left.granted_ttl.max(WORD_MIN);
        Ok((self.calls.call(LeaseGrantRequest { ttl }).await?.id, seconds(ttl)))
    }

    /// How these claims ended: as a watch was told, or else as a word says that an operator has left.
    pub(crate) async fn fates(&self, ended: &[(Key, Token)]) -> Result<Vec<Option<Fate>>, Trouble> {
        let mut fates = self.departed.fates(ended).await;
        let untold: Vec<usize> = (0..fates.len()).filter(|at| fates[*at].is_none()).collect();
        for some in untold.chunks(READ_AT_ONCE) {
            let word = |at: &usize| Op::range(RangeRequest::one(self.keys.forced(ended[*at].1)));
            let success = some.iter().map(word).collect();
            let answer = self.calls.call(TxnRequest { success, ..Default::default() }).await?;
            for (found, at) in answer.ranges().zip(some) {
                fates[*at] = found.kvs.first().map(|word| forced(word).into());
            }
        }
        Ok(fates)
    }
}

/// What a word says that an operator has left.
pub(crate) fn forced(word: &KeyValue) -> Loss {
    Loss::Forced(String::from_utf8_lossy(&word.value).into_owned())
}
