//! The scripts, each behind one typed function. Nothing above this file sees a `redis::Value`.
//!
//! In: a claim or lease, spelled out. Out: what the server made of it. A script runs by its hash,
//! and by its text where the server does not know it (any more): `SCRIPT FLUSH` and restarts heal.
//!
//! Every answer starts with the token that was asked about. If it is another's, replies have
//! shifted, and the connection is dropped.

mod answer;
mod moving;
mod words;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::{Cmd, Pipeline, Script, Value};
use tenure_core::backend::BoxFuture;
use tenure_core::{Claim, Key, Token};

use crate::cluster::together;
use crate::keys::Keys;
use crate::link::{Link, Live, Way};
use crate::trouble::{Cause, Trouble};
use crate::value::{self, Author};
pub(crate) use answer::{Answer, Asked, Bare, Freed, Given, Renewed, Taken};
use moving::{Lane, Moving};
pub(crate) use words::Words;
use words::starting_with;

/// A script in its forms: since version 7 it says under which conditions it may run, and in a cluster
/// it tells processes by sharded channels.
pub(crate) struct Form {
    plain: Script,
    flagged: Script,
    sharded: Script,
    text: String,
    flagged_text: String,
    sharded_text: String,
    /// How many keys it works on.
    keys: &'static str,
    /// What to do instead while its slot moves.
    moving: Moving,
}

impl Form {
    pub(crate) fn new(header: &str, keys: &'static str, text: &str) -> Self {
        let text =
            PARTS.iter().fold(text.to_owned(), |text, (line, part)| text.replace(line, part));
        let flagged_text = format!("{header}\n{text}");
        let change = |text: String, (plain, sharded)| text.replace(plain, sharded);
        let sharded_text = SHARDED.into_iter().fold(flagged_text.clone(), change);
        let (plain, flagged) = (Script::new(&text), Script::new(&flagged_text));
        let (sharded, moving) = (Script::new(&sharded_text), Moving::Same);
        Form { plain, flagged, sharded, text, flagged_text, sharded_text, keys, moving }
    }

    /// With what takes its place while its slot moves to another node.
    fn or(self, moving: Moving) -> Self {
        Form { moving, ..self }
    }

    #[cfg(test)]
    pub(crate) fn text_plain(&self) -> &str {
        &self.text
    }

    fn text(&self, live: &Live) -> &str {
        match (live.has_flags(), live.is_of_cluster()) {
            (true, true) => &self.sharded_text,
            (true, false) => &self.flagged_text,
            (false, _) => &self.text,
        }
    }
}

/// What is said of channels where each has a slot. Those have no patterns: whoever is counted by
/// `SPUBLISH` listens to this one, and need not be asked for by name before.
const SHARDED: [(&str, &str); 2] = [
    ("'PUBLISH'", "'SPUBLISH'"),
    ("redis.pcall('PUBSUB', 'NUMSUB', inbox .. client)", "{ client, 1 }"),
];

/// What several scripts share. Included below the usual case, which is not to pay for it.
const PARTS: [(&str, &str); 3] = [
    ("--@include fence.lua\n", include_str!("fence.lua")),
    // Also part of the one above.
    ("--@include clock.lua\n", include_str!("clock.lua")),
    ("--@include queue.lua\n", include_str!("queue.lua")),
];

/// Refused up front by a full server, and by a replica.
pub(crate) const STRICT: &str = "#!lua";
/// What gives memory back, or keeps what is there, must work on a full server.
pub(crate) const ALWAYS: &str = "#!lua flags=allow-oom";

// The first two do the usual, cheaply: nobody else wants the lock. The next two do what is usual where
// several do. They leave the rest to the two after them.
static TAKE: LazyLock<Form> =
    LazyLock::new(|| Form::new(STRICT, "3", include_str!("take.lua")).or(Moving::More));
static GIVE: LazyLock<Form> = LazyLock::new(|| Form::new(ALWAYS, "1", include_str!("give.lua")));
static STAND: LazyLock<Form> =
    LazyLock::new(|| Form::new(STRICT, "3", include_str!("stand.lua")).or(Moving::More));
static PASS: LazyLock<Form> =
    LazyLock::new(|| Form::new(ALWAYS, "4", include_str!("pass.lua")).or(Moving::More));
static ACQUIRE: LazyLock<Form> = LazyLock::new(|| {
    Form::new(STRICT, "5", include_str!("acquire.lua")).or(Moving::Steps(&moving::ACQUIRE))
});
static RELEASE: LazyLock<Form> = LazyLock::new(|| {
    Form::new(ALWAYS, "5", include_str!("release.lua")).or(Moving::Steps(&moving::RELEASE))
});
static RENEW: LazyLock<Form> = LazyLock::new(|| {
    Form::new(ALWAYS, "3", include_str!("renew.lua")).or(Moving::Steps(&moving::RENEW))
});
static FORCE: LazyLock<Form> = LazyLock::new(|| Form::new(ALWAYS, "6", include_str!("force.lua")));

/// Whether and how a claim that is not granted waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// It does not.
    Not,
    /// In the queue, and is told when it is its turn. The heartbeat is good for so long.
    Told(Duration),
    /// In the queue, and finds out by asking.
    Asks(Duration),
}

impl How {
    pub(crate) fn word(self) -> &'static str {
        match self {
            How::Not => "",
            How::Told(_) => "push",
            How::Asks(_) => "poll",
        }
    }

    pub(crate) fn good(self) -> Duration {
        match self {
            How::Not => Duration::ZERO,
            How::Told(good) | How::Asks(good) => good,
        }
    }
}

/// One request: a script on its keys, or the bare command that does the same.
pub(crate) struct Run {
    /// None for a bare command.
    form: Option<&'static Form>,
    token: Token,
    /// By the hash of the flagged form, which nearly every server knows, or of the sharded one.
    command: Cmd,
    way: Way,
}

impl Run {
    /// Take the lock and a fence, if it is plainly free.
    pub(crate) fn take(keys: &Keys, author: &Author, claim: &Claim) -> Self {
        let mut words = begin(&TAKE);
        keys.add_usual(claim.key(), &mut words);
        words.add(&claim.token().digits());
        words.add_with(|to| author.write_alone(to, claim));
        words.add_number(millis(claim.ttl()));
        Self::of(&TAKE, claim.token(), words)
    }

    /// Take the lock without a fence by the bare command, which costs the server less than a script.
    pub(crate) fn set(keys: &Keys, author: &Author, claim: &Claim) -> Self {
        let mut words = Words::new(&["SET"]);
        keys.add_lock(claim.key(), &mut words);
        words.add_with(|to| author.write_alone(to, claim));
        words.add("NX");
        words.add("PX");
        words.add_number(millis(claim.ttl()));
        Run { form: None, token: claim.token(), command: words.command(), way: Way::Plain }
    }

    /// Free the lock if it is plainly ours.
    pub(crate) fn give(keys: &Keys, author: &Author, claim: &Claim) -> Self {
        let mut words = begin(&GIVE);
        keys.add_lock(claim.key(), &mut words);
        words.add_parts(&author.mark("-", &claim.token().digits()));
        Self::of(&GIVE, claim.token(), words)
    }

    /// Take the lock if it is plainly free, or stand in its queue if it is plainly another's.
    pub(crate) fn stand(keys: &Keys, author: &Author, claim: &Claim) -> Self {
        let mut words = begin_telling(&STAND, keys);
        keys.add_usual(claim.key(), &mut words);
        words.add(&claim.token().digits());
        words.add_with(|to| author.write_place(to, claim));
        words.add_number(millis(claim.ttl()));
        keys.add_inboxes(claim.key(), &mut words);
        Self::of(&STAND, claim.token(), words)
    }

    /// Give the lock to the next that waits, if that is plain. Whoever gets it hears of it before we are
    /// answered.
    pub(crate) fn pass(keys: &Keys, author: &Author, claim: &Claim) -> Self {
        let mut words = begin_telling(&PASS, keys);
        keys.add_usual(claim.key(), &mut words);
        keys.add_beats(claim.key(), &mut words);
        words.add_parts(&author.mark("", &claim.token().digits()));
        keys.add_inboxes(claim.key(), &mut words);
        words.add_number(millis(claim.ttl()));
        Self::of(&PASS, claim.token(), words).others_first()
    }

    /// Take the lock if it is free, or stand in its queue.
    pub(crate) fn acquire(keys: &Keys, author: &Author, claim: &Claim, how: How) -> Self {
        let mut words = on_lock(&ACQUIRE, keys, claim.key(), claim.token());
        words.add(&who(claim));
        words.add_with(|to| author.write_place(to, claim));
        words.add_number(millis(claim.ttl()));
        words.add(if claim.fenced() { "1" } else { "0" });
        words.add(how.word());
        words.add_number(millis(how.good()));
        keys.add_inboxes(claim.key(), &mut words);
        Self::of(&ACQUIRE, claim.token(), words)
    }

    /// Free it, or keep it closed for a while, if it is ours; and leave its queue.
    pub(crate) fn release(
        keys: &Keys,
        author: &Author,
        claim: &Claim,
        closed: Option<Duration>,
    ) -> Self {
        let mut words = on_lock(&RELEASE, keys, claim.key(), claim.token());
        words.add(&who(claim));
        // Closed for less than the server can count is still closed, not free.
        words.add_number(closed.map_or(0, |rest| millis(rest).max(1)));
        keys.add_inboxes(claim.key(), &mut words);
        words.add_with(|to| author.write_place(to, claim));
        Self::of(&RELEASE, claim.token(), words)
    }

    /// The same for a claim of which only the token is known.
    pub(crate) fn disown(keys: &Keys, key: &Key, token: Token) -> Self {
        let mut words = on_lock(&RELEASE, keys, key, token);
        words.add(&token.digits());
        words.add("0");
        keys.add_inboxes(key, &mut words);
        words.add("");
        Self::of(&RELEASE, token, words)
    }

    /// Make it last.
    pub(crate) fn renew(keys: &Keys, claim: &Claim, ttl: Duration) -> Self {
        let mut words = begin(&RENEW);
        keys.add_lock(claim.key(), &mut words);
        keys.add_forced(claim.key(), claim.token(), &mut words);
        keys.add_holders(claim.key(), &mut words);
        words.add(&claim.token().digits());
        words.add(&who(claim));
        words.add_number(millis(ttl));
        Self::of(&RENEW, claim.token(), words)
    }

    /// Take it from the claim with this token.
    pub(crate) fn force(keys: &Keys, key: &Key, token: Token, by: &str) -> Self {
        let mut words = begin_telling(&FORCE, keys);
        keys.add_all(key, &mut words);
        keys.add_forced(key, token, &mut words);
        words.add(&token.digits());
        words.add(by);
        keys.add_inboxes(key, &mut words);
        Self::of(&FORCE, token, words)
    }

    pub(crate) fn of(form: &'static Form, token: Token, words: Words) -> Self {
        Run { form: Some(form), token, command: words.command(), way: Way::Plain }
    }

    /// The same, so that whoever gets the lock by it hears of it before we are answered.
    pub(crate) fn others_first(self) -> Self {
        Run { way: Way::OthersFirst, ..self }
    }

    /// Runs what `make` makes, and reads the answer. Where it has to be sent once more, which is rare, it
    /// is made once more, and so need not be kept.
    pub(crate) async fn once<A: Answer>(make: impl Fn() -> Run, link: &Link) -> Result<A, Trouble> {
        let (run, live) = (make(), link.live().await?);
        let (token, way) = (run.token, run.way);
        match link.call_by(&live, run.into_command(&live), way).await {
            Err(trouble) if trouble.cause() == Cause::NoScript || trouble.is_moving() => {
                let run = make();
                Box::pin(run.again(link, &live, trouble)).await
            }
            reply => read(token, link, &live, reply?),
        }
    }

    fn into_command(self, live: &Live) -> Cmd {
        match live.has_flags() {
            true => self.command,
            false => self.by_hash(live),
        }
    }

    fn by_hash(&self, live: &Live) -> Cmd {
        match self.form {
            Some(form) if !live.has_flags() => {
                starting_with(&["EVALSHA", form.plain.get_hash()], &self.command)
            }
            _ => self.command.clone(),
        }
    }

    fn by_text(&self, live: &Live) -> Cmd {
        match self.form {
            Some(form) => starting_with(&["EVAL", form.text(live)], &self.command),
            None => self.command.clone(),
        }
    }

    /// Runs it, and reads the answer.
    pub(crate) async fn on<A: Answer>(&self, link: &Link) -> Result<A, Trouble> {
        let live = link.live().await?;
        self.on_live(link, &live).await
    }

    /// The same on a connection that was looked at before.
    pub(crate) async fn on_live<A: Answer>(
        &self,
        link: &Link,
        live: &Arc<Live>,
    ) -> Result<A, Trouble> {
        self.on_live_while(link, live, || true).await
    }

    /// The same for what must not be carried out later than it is `wanted`: where the server says then
    /// that it does not know the script, that is the answer.
    pub(crate) async fn on_live_while<A: Answer>(
        &self,
        link: &Link,
        live: &Arc<Live>,
        wanted: impl Fn() -> bool,
    ) -> Result<A, Trouble> {
        match link.call_by(live, self.by_hash(live), self.way).await {
            Err(trouble) if trouble.cause() == Cause::NoScript && !wanted() => Err(trouble),
            Err(trouble) if trouble.cause() == Cause::NoScript || trouble.is_moving() => {
                Box::pin(self.again(link, live, trouble)).await
            }
            reply => read(self.token, link, live, reply?),
        }
    }

    /// Runs what was not carried out for a reason that can be mended: the script is not known, or the slot
    /// is on its way to another node.
    async fn again<A: Answer>(
        &self,
        link: &Link,
        live: &Arc<Live>,
        trouble: Trouble,
    ) -> Result<A, Trouble> {
        match trouble.cause() {
            Cause::NoScript => self.anew(link, live, Way::Plain).await,
            _ => self.moving(link, Lane::Commands, trouble).await,
        }
    }

    /// The same on a server that may not know the script: without asking that first.
    pub(crate) async fn on_new<A: Answer>(
        &self,
        link: &Link,
        live: &Arc<Live>,
    ) -> Result<A, Trouble> {
        self.anew(link, live, self.way).await
    }

    /// Runs it by its text, which also makes it known. "Unknown script" is no answer to that.
    async fn anew<A: Answer>(&self, link: &Link, live: &Arc<Live>, way: Way) -> Result<A, Trouble> {
        match link.call_by(live, self.by_text(live), way).await {
            Err(trouble) if trouble.cause() == Cause::NoScript => Err(link.out_of_turn(live)),
            reply => read(self.token, link, live, reply?),
        }
    }
}

/// Reads the reply to a run that carried `token`.
fn read<A: Answer>(
    token: Token,
    link: &Link,
    live: &Arc<Live>,
    reply: Value,
) -> Result<A, Trouble> {
    A::read(&token.digits(), reply).ok_or_else(|| link.out_of_turn(live))
}

pub(crate) fn begin(form: &Form) -> Words {
    Words::new(&["EVALSHA", form.flagged.get_hash(), form.keys])
}

/// For a script that tells processes something.
fn begin_telling(form: &Form, keys: &Keys) -> Words {
    let script = if keys.has_slots() { &form.sharded } else { &form.flagged };
    Words::new(&["EVALSHA", script.get_hash(), form.keys])
}

/// For a script that wants all keys of a lock, and then the token as every script does.
fn on_lock(form: &Form, keys: &Keys, key: &Key, token: Token) -> Words {
    let mut words = begin_telling(form, keys);
    keys.add_all(key, &mut words);
    words.add(&token.digits());
    words
}

/// Who is to hold the lock: the claim, or the owner that it shares with others.
fn who(claim: &Claim) -> String {
    claim.shared_owner().map_or_else(|| claim.token().expose(), value::shared)
}

/// Runs all of `runs` in one go within `within`, and reads each answer.
pub(crate) async fn run_all<A: Answer + Send>(
    link: &Link,
    runs: &[Run],
    within: Duration,
) -> Result<Vec<Result<A, Trouble>>, Trouble> {
    run_all_on(link, &link.live().await?, runs, within).await
}

/// The same on a connection of which more is wanted than this.
pub(crate) async fn run_all_on<A: Answer + Send>(
    link: &Link,
    live: &Arc<Live>,
    runs: &[Run],
    within: Duration,
) -> Result<Vec<Result<A, Trouble>>, Trouble> {
    let answers = run_all_here(link, live, runs, within).await?;
    let settled = runs.iter().zip(answers).map(|(run, answer)| -> BoxFuture<'_, _> {
        Box::pin(async move {
            match answer {
                Err(trouble) if trouble.is_moving() => run.renew_moving(link, trouble).await,
                answer => answer,
            }
        })
    });
    Ok(together(settled).await)
}

/// The same for what this node can answer by itself: of a slot that moves it says so.
pub(crate) async fn run_all_here<A: Answer>(
    link: &Link,
    live: &Arc<Live>,
    runs: &[Run],
    within: Duration,
) -> Result<Vec<Result<A, Trouble>>, Trouble> {
    let mut pipe = Pipeline::with_capacity(runs.len());
    for run in runs {
        pipe.add_command(run.by_hash(live));
    }
    let mut replies = link.call_all(live, &pipe, within).await?;
    heal(link, live, runs, &mut replies, within).await?;
    let read = |(run, reply): (&Run, Result<Value, Trouble>)| {
        reply.and_then(|reply| read(run.token, link, live, reply))
    };
    Ok(runs.iter().zip(replies).map(read).collect())
}

/// Runs those again whose script the server does not know. The first goes by its text, which makes
/// it known to the others.
async fn heal(
    link: &Link,
    live: &Arc<Live>,
    runs: &[Run],
    replies: &mut [Result<Value, Trouble>],
    within: Duration,
) -> Result<(), Trouble> {
    let unknown = |reply: &Result<Value, Trouble>| {
        reply.as_ref().is_err_and(|trouble| trouble.cause() == Cause::NoScript)
    };
    let mut missing =
        runs.iter().zip(replies).filter(|(_, reply)| unknown(reply)).collect::<Vec<_>>();
    if missing.is_empty() {
        return Ok(());
    }
    let mut pipe = Pipeline::with_capacity(missing.len());
    for (index, (run, _)) in missing.iter().enumerate() {
        let command = if index == 0 { run.by_text(live) } else { run.by_hash(live) };
        pipe.add_command(command);
    }
    let healed = link.call_all(live, &pipe, within).await?;
    for ((_, reply), again) in missing.iter_mut().zip(healed) {
        **reply = again;
    }
    Ok(())
}

/// Whole milliseconds, rounded up: a ttl is never shorter than what we count with.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ttl is never rounded down, and never to zero.
    #[test]
    fn t55_millis_round_up() {
        assert_eq!(millis(Duration::from_millis(1_500)), 1_500);
        assert_eq!(millis(Duration::from_nanos(1)), 1);
        assert_eq!(millis(Duration::from_micros(1_001)), 2);
    }

    /// Every script says its keys, arguments, answers, retry and slots.
    #[test]
    fn headers_are_complete() {
        let short = [&TAKE, &GIVE, &STAND, &PASS];
        let full = [&ACQUIRE, &RELEASE, &RENEW, &FORCE];
        let steps = moving::ACQUIRE.iter().chain(&moving::RELEASE).chain(&moving::RENEW);
        for form in short.into_iter().chain(full).chain(steps.map(|step| step.form)) {
            for word in ["-- KEYS[1] ", "-- ARGV[1] ", "-- Returns", "-- Retry", "-- Slots"] {
                assert!(form.text.contains(word), "`{word}` is missing from:\n{}", form.text);
            }
            assert!(!form.text.contains("--@"), "a part is missing from:\n{}", form.text);
        }
    }

    /// In a cluster channels have slots; what tells nobody is the same script everywhere.
    #[test]
    fn sharded_forms() {
        for form in [&STAND, &PASS, &ACQUIRE, &RELEASE, &FORCE] {
            assert!(form.sharded_text.contains("'SPUBLISH'"));
            assert!(!form.sharded_text.contains("'PUBLISH'"));
            assert!(!form.sharded_text.contains("'NUMSUB'"));
        }
        let steps = moving::ACQUIRE.iter().chain(&moving::RELEASE).chain(&moving::RENEW);
        for form in [&TAKE, &GIVE, &RENEW].into_iter().chain(steps.map(|step| step.form)) {
            assert_eq!(form.sharded.get_hash(), form.flagged.get_hash());
        }
    }
}
