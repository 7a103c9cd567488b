//! The scripts, each behind one typed function. Nothing above this directory sees a `redis::Value`.
//!
//! In: a claim or lease. Out: a call of a script; `run` sends it and reads the reply (`answer`). A script is
//! sent by its hash. If the server does not know the hash (after `SCRIPT FLUSH` or a restart), it is sent as
//! text (`text`).
//!
//! Every reply starts with the token of its request. If it is another token, replies are out of step with
//! requests, and the connection is closed.

mod answer;
mod run;
mod slot_migration;
mod text;
mod wait_mode;

use std::sync::LazyLock;
use std::time::Duration;

use redis::Cmd;
use tenure_core::{Claim, Key, Lease, Token};

use crate::link::SendMode;
use crate::wire::command::CommandWriter;
use crate::wire::keys::Keys;
pub(crate) use crate::wire::timing::millis;
use crate::wire::value::{self, ValueWriter};
pub(crate) use answer::{
    AcquireReply, Answer, FastAcquireReply, FastReleaseReply, ReleaseReply, RenewReply, SetNxReply,
};
pub(crate) use run::{IfUnknown, run_all, run_all_here, run_all_on};
use slot_migration::WhileMoving;
pub(crate) use text::{ALWAYS, LuaScript, STRICT};
pub(crate) use wait_mode::WaitMode;

// The first two scripts handle the usual case, in which no other process wants the lock, at little cost. The
// next two handle the usual case if several processes want it. All other cases are left to ACQUIRE and
// RELEASE.
static ACQUIRE_FAST: LazyLock<LuaScript> = LazyLock::new(|| {
    LuaScript::new(STRICT, "3", include_str!("acquire_fast.lua")).or(WhileMoving::UseFull)
});
static RELEASE_FAST: LazyLock<LuaScript> =
    LazyLock::new(|| LuaScript::new(ALWAYS, "1", include_str!("release_fast.lua")));
/// The same script for a claim that shares the lock: it also looks at the queue.
static RELEASE_FAST_TOGETHER: LazyLock<LuaScript> = LazyLock::new(|| {
    LuaScript::new(ALWAYS, "2", include_str!("release_fast.lua")).or(WhileMoving::UseFull)
});
static ENQUEUE_FAST: LazyLock<LuaScript> = LazyLock::new(|| {
    LuaScript::new(STRICT, "3", include_str!("enqueue_fast.lua")).or(WhileMoving::UseFull)
});
static HANDOVER_FAST: LazyLock<LuaScript> = LazyLock::new(|| {
    LuaScript::new(ALWAYS, "4", include_str!("handover_fast.lua")).or(WhileMoving::UseFull)
});
static ACQUIRE: LazyLock<LuaScript> = LazyLock::new(|| {
    LuaScript::new(STRICT, "5", include_str!("acquire.lua")).or(slot_migration::ACQUIRE)
});
static RELEASE: LazyLock<LuaScript> = LazyLock::new(|| {
    LuaScript::new(ALWAYS, "5", include_str!("release.lua")).or(slot_migration::RELEASE)
});
static RENEW: LazyLock<LuaScript> = LazyLock::new(|| {
    LuaScript::new(ALWAYS, "3", include_str!("renew.lua")).or(slot_migration::RENEW)
});
static FORCE: LazyLock<LuaScript> =
    LazyLock::new(|| LuaScript::new(ALWAYS, "6", include_str!("force.lua")));

/// One request: a script with its keys, or the bare command that does the same.
pub(crate) struct ScriptCall {
    /// `None` for a bare command.
    form: Option<&'static LuaScript>,
    token: Token,
    /// The command with the hash of the flagged form, which nearly every server accepts, or of the sharded
    /// form.
    command: Cmd,
    way: SendMode,
}

impl ScriptCall {
    /// Acquires the lock and a fence if the lock has no waiters, and is free or can be joined.
    pub(crate) fn acquire_fast(keys: &Keys, writer: &ValueWriter, claim: &Claim) -> Self {
        let (mut words, mode) = (begin(&ACQUIRE_FAST), value::mode_word(claim));
        keys.add_usual(claim.key(), &mut words);
        words.add(&claim.token().digits());
        words.add_with(|to| match mode {
            None => writer.write_alone(to, claim),
            Some(_) => writer.write_entry(to, claim),
        });
        words.add_number(millis(claim.ttl()));
        if let Some(mode) = &mode {
            words.add(mode);
        }
        Self::of(&ACQUIRE_FAST, claim.token(), words)
    }

    /// Acquires the lock without a fence by the bare command, which costs the server less than a script.
    pub(crate) fn set_nx(keys: &Keys, writer: &ValueWriter, claim: &Claim) -> Self {
        let mut words = CommandWriter::new(&["SET"]);
        keys.add_lock(claim.key(), &mut words);
        words.add_with(|to| writer.write_alone(to, claim));
        words.add("NX");
        words.add("PX");
        words.add_number(millis(claim.ttl()));
        ScriptCall {
            form: None,
            token: claim.token(),
            command: words.command(),
            way: SendMode::Plain,
        }
    }

    /// Frees the lock if it is ours and has no waiters.
    pub(crate) fn release_fast(keys: &Keys, writer: &ValueWriter, lease: &Lease) -> Self {
        let (claim, together) = (lease.claim(), lease.claim().mode().is_together());
        let form = if together { &RELEASE_FAST_TOGETHER } else { &RELEASE_FAST };
        let mut words = begin(form);
        keys.add_lock(claim.key(), &mut words);
        if together {
            keys.add_queue(claim.key(), &mut words);
        }
        words.add_parts(&writer.mark("-", &claim.token().digits()));
        if together {
            words.add_with(|to| writer.write_member(to, claim, lease.slot()));
        }
        Self::of(form, claim.token(), words)
    }

    /// Acquires the lock if it is free and has no waiters, or enters its queue if another claim holds it.
    pub(crate) fn enqueue_fast(keys: &Keys, writer: &ValueWriter, claim: &Claim) -> Self {
        let mut words = begin_notifying(&ENQUEUE_FAST, keys);
        keys.add_usual(claim.key(), &mut words);
        words.add(&claim.token().digits());
        words.add_with(|to| writer.write_entry(to, claim));
        words.add_number(millis(claim.ttl()));
        keys.add_inboxes(claim.key(), &mut words);
        Self::of(&ENQUEUE_FAST, claim.token(), words)
    }

    /// Hands the lock to the first waiter, in the usual case. The new holder is notified before we get our
    /// reply.
    pub(crate) fn handover_fast(keys: &Keys, writer: &ValueWriter, lease: &Lease) -> Self {
        let (claim, mut words) = (lease.claim(), begin_notifying(&HANDOVER_FAST, keys));
        keys.add_usual(claim.key(), &mut words);
        keys.add_beats(claim.key(), &mut words);
        words.add_parts(&writer.mark("", &claim.token().digits()));
        keys.add_inboxes(claim.key(), &mut words);
        words.add_number(millis(claim.ttl()));
        Self::of(&HANDOVER_FAST, claim.token(), words).notify_first()
    }

    /// Acquires the lock if it is free, or enters its queue.
    pub(crate) fn acquire(keys: &Keys, writer: &ValueWriter, claim: &Claim, how: WaitMode) -> Self {
        let mut words = on_lock(&ACQUIRE, keys, claim.key(), claim.token());
        words.add(&who(claim));
        words.add_with(|to| writer.write_entry(to, claim));
        words.add_number(millis(claim.ttl()));
        words.add(if claim.fenced() { "1" } else { "0" });
        words.add(how.as_str());
        words.add_number(millis(how.alive_for()));
        keys.add_inboxes(claim.key(), &mut words);
        Self::of(&ACQUIRE, claim.token(), words)
    }

    /// Frees the lock, or closes it for a while, if it is ours; and leaves its queue. A numbered permit whose slot is
    /// not known costs the server a look at all members of the lock.
    pub(crate) fn release(
        keys: &Keys,
        writer: &ValueWriter,
        claim: &Claim,
        slot: Option<u32>,
        closed: Option<Duration>,
    ) -> Self {
        let mut words = on_lock(&RELEASE, keys, claim.key(), claim.token());
        words.add(&who(claim));
        // A time below the server's resolution still closes the lock.
        words.add_number(closed.map_or(0, |rest| millis(rest).max(1)));
        keys.add_inboxes(claim.key(), &mut words);
        words.add_with(|to| writer.write_member(to, claim, slot));
        Self::of(&RELEASE, claim.token(), words)
    }

    /// Releases a claim by its token, when nothing else about it is known.
    pub(crate) fn dequeue(keys: &Keys, key: &Key, token: Token) -> Self {
        let mut words = on_lock(&RELEASE, keys, key, token);
        words.add(&token.digits());
        words.add("0");
        keys.add_inboxes(key, &mut words);
        words.add("");
        Self::of(&RELEASE, token, words)
    }

    /// Extends the lock. A claim that shares the lock is found by its member, which `writer` writes.
    pub(crate) fn renew(
        keys: &Keys,
        writer: Option<&ValueWriter>,
        claim: &Claim,
        slot: Option<u32>,
        ttl: Duration,
    ) -> Self {
        let mut words = begin(&RENEW);
        keys.add_lock(claim.key(), &mut words);
        keys.add_forced(claim.key(), claim.token(), &mut words);
        let writer = writer.filter(|_| claim.mode().is_together());
        let third = if writer.is_some() { Keys::add_queue } else { Keys::add_holders };
        third(keys, claim.key(), &mut words);
        words.add(&claim.token().digits());
        words.add_with(|to| {
            to.write_all(who(claim).as_bytes())?;
            let Some(writer) = writer else { return Ok(()) };
            to.write_all(b" ")?;
            writer.write_member(to, claim, slot)
        });
        words.add_number(millis(ttl));
        words.add(&value::new_label(claim));
        Self::of(&RENEW, claim.token(), words)
    }

    /// Takes the lock from the claim with this token.
    pub(crate) fn force(keys: &Keys, key: &Key, token: Token, by: &str) -> Self {
        let mut words = begin_notifying(&FORCE, keys);
        keys.add_all(key, &mut words);
        keys.add_forced(key, token, &mut words);
        words.add(&token.digits());
        words.add(by);
        keys.add_inboxes(key, &mut words);
        Self::of(&FORCE, token, words)
    }

    pub(crate) fn of(form: &'static LuaScript, token: Token, words: CommandWriter) -> Self {
        ScriptCall { form: Some(form), token, command: words.command(), way: SendMode::Plain }
    }

    /// Makes the server notify the new holder before we get our reply.
    pub(crate) fn notify_first(self) -> Self {
        ScriptCall { way: SendMode::NotifyFirst, ..self }
    }
}

pub(crate) fn begin(form: &LuaScript) -> CommandWriter {
    CommandWriter::new(&["EVALSHA", &form.flagged.hash, form.keys])
}

/// The start of a call whose script notifies processes.
fn begin_notifying(form: &LuaScript, keys: &Keys) -> CommandWriter {
    let script = if keys.has_slots() { &form.sharded } else { &form.flagged };
    CommandWriter::new(&["EVALSHA", &script.hash, form.keys])
}

/// The start of a call whose script needs all keys of a lock. Then comes the token, as in every script.
fn on_lock(form: &LuaScript, keys: &Keys, key: &Key, token: Token) -> CommandWriter {
    let mut words = begin_notifying(form, keys);
    keys.add_all(key, &mut words);
    words.add(&token.digits());
    words
}

/// Who holds the lock after the grant: the claim, its shared owner, or one of several that share the lock.
fn who(claim: &Claim) -> String {
    value::mode_word(claim).unwrap_or_else(|| claim.token().expose())
}

#[cfg(test)]
mod tests {
    use tenure_core::ClaimOptions;

    use super::*;

    /// A ttl is never rounded down, and never to zero.
    #[test]
    fn t55_millis_round_up() {
        assert_eq!(millis(Duration::from_millis(1_500)), 1_500);
        assert_eq!(millis(Duration::from_nanos(1)), 1);
        assert_eq!(millis(Duration::from_micros(1_001)), 2);
    }

    /// The header of every script has its keys, arguments, replies, retry and slots.
    #[test]
    fn headers_are_complete() {
        let short = [&ACQUIRE_FAST, &RELEASE_FAST, &ENQUEUE_FAST, &HANDOVER_FAST];
        let full = [&ACQUIRE, &RELEASE, &RENEW, &FORCE];
        for form in short.into_iter().chain(full) {
            for word in ["-- KEYS[1] ", "-- ARGV[1] ", "-- Returns", "-- Retry", "-- Slots"] {
                assert!(
                    form.text_plain().contains(word),
                    "`{word}` is missing from:\n{}",
                    form.text_plain()
                );
            }
            assert!(
                !form.text_plain().contains("--@"),
                "a part is missing from:\n{}",
                form.text_plain()
            );
        }
    }

    /// The offsets in the scripts are those of the values and entries that we write.
    #[test]
    fn offsets_are_those_of_our_values() {
        let (client, token) = (Token::random().unwrap(), Token::random().unwrap());
        let claim = ClaimOptions::new(Duration::from_secs(1));
        let claim = Claim::new(Key::new("k").unwrap(), token, claim);
        let (writer, mut value, mut entry) = (ValueWriter::new(client), Vec::new(), Vec::new());
        writer.write_alone(&mut value, &claim).unwrap();
        writer.write_entry(&mut entry, &claim).unwrap();
        let (enqueue, part) = (include_str!("enqueue_fast.lua"), include_str!("entry.lua"));
        let at = |text: &str, what: &str, from: usize, to: usize| {
            let read = format!("string.sub({what}, {from}, {to})");
            assert!(text.contains(&read), "{read}");
            let written = if what == "value" { &value } else { &entry };
            String::from_utf8(written[from - 1..to].into()).unwrap()
        };
        assert_eq!(at(enqueue, "value", 22, 53), token.expose());
        assert_eq!(at(part, "entry", 1, 32), token.expose());
        assert_eq!(at(part, "entry", 34, 49), writer.client());
        assert!(part.contains("(:.*)$', 50)"), "the rest starts after the client");
    }

    /// In a cluster channels have slots. A script that notifies no process is the same everywhere.
    #[test]
    fn sharded_forms() {
        for form in [&ENQUEUE_FAST, &HANDOVER_FAST, &ACQUIRE, &RELEASE, &FORCE] {
            assert!(form.sharded.text.contains("= 'SPUBLISH', true, 128000\n"));
            assert!(form.flagged.text.contains("= 'PUBLISH', false, 128000\n"));
        }
        for form in [&ACQUIRE_FAST, &RELEASE_FAST, &RENEW] {
            assert_eq!(form.sharded.hash, form.flagged.hash);
        }
    }
}
