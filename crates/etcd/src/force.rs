//! An operator takes a lock away.
//!
//! In: a lock, and the token that the operator saw. Out: a free lock, and a word for its former holder,
//! which is kept for as long as its lease could have lasted.

use std::time::Duration;

use tenure_core::backend::{Fault, Loss, Notice, Release};
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

    /// How these claims ended, for those that an operator took away or that ran out.
    pub(crate) async fn fates(&self, ended: &[(Key, Token)]) -> Result<Vec<Option<Loss>>, Trouble> {
        let mut fates = Vec::with_capacity(ended.len());
        for some in ended.chunks(READ_AT_ONCE) {
            let word =
                |(_, token): &(Key, Token)| Op::range(RangeRequest::one(self.keys.forced(*token)));
            let success = some.iter().map(word).collect();
            let answer = self.calls.call(TxnRequest { success, ..Default::default() }).await?;
            for (found, (_, token)) in answer.ranges().zip(some) {
                fates.push(match found.kvs.into_iter().next() {
                    Some(by) => Some(Loss::Forced(String::from_utf8_lossy(&by.value).into_owned())),
                    None => self.ran_out(*token).await?,
                });
            }
        }
        Ok(fates)
    }

    /// A lock that ran out has taken its lease along.
    async fn ran_out(&self, token: Token) -> Result<Option<Loss>, Trouble> {
        let Some(lease) = self.departed.take(token) else { return Ok(None) };
        let left = self.what_is_left(lease).await?;
        Ok((left.ttl < 0).then_some(Loss::Expired))
    }
}
