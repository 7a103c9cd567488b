//! The texts of a script, and their hashes.
//!
//! In: a file of Lua. Out: its forms, with the parts that it includes. Nothing here knows a connection.

use redis::Script;
use tenure_core::fence::PER_MILLI;

use super::slot_migration::WhileMoving;
use crate::wire::timing::{FIRST_HEARTBEAT_AFTER, millis};

pub(crate) struct LuaScript {
    /// For servers before Redis 7.
    pub(super) plain: Form,
    /// With a header that states under which conditions the script may run.
    pub(super) flagged: Form,
    /// The same for a cluster: it notifies processes on sharded channels.
    pub(super) sharded: Form,
    /// The number of its keys.
    pub(super) keys: &'static str,
    /// What to run instead while its slot moves.
    pub(super) moving: WhileMoving,
}

pub(super) struct Form {
    pub(super) text: String,
    pub(super) hash: String,
}

impl Form {
    fn new(header: &str, text: &str, constants: &str) -> Self {
        let text = format!("{header}{}", text.replace(CONSTANTS, constants));
        Form { hash: Script::new(&text).get_hash().to_owned(), text }
    }
}

impl LuaScript {
    pub(crate) fn new(header: &str, keys: &'static str, text: &str) -> Self {
        let include = |text: String, (line, part): &(&str, &str)| text.replace(line, part);
        let whole = PARTS.iter().fold(text.to_owned(), include);
        let single = constants("PUBLISH", false);
        LuaScript {
            plain: Form::new("", &whole, &single),
            flagged: Form::new(header, &whole, &single),
            sharded: Form::new(header, &whole, &constants("SPUBLISH", true)),
            keys,
            moving: WhileMoving::Same,
        }
    }

    /// Sets what to run instead while the slot moves to another node.
    pub(super) fn or(self, moving: WhileMoving) -> Self {
        LuaScript { moving, ..self }
    }

    #[cfg(test)]
    pub(crate) fn text_plain(&self) -> &str {
        &self.plain.text
    }
}

/// The line that is replaced by the constants.
const CONSTANTS: &str = "--@constants\n";

/// The command that notifies a process, which is another one in a cluster, where each channel has a slot; and
/// how long a waiter needs no heartbeat, in the unit of tickets.
fn constants(publish: &str, sharded: bool) -> String {
    let first_heartbeat = millis(FIRST_HEARTBEAT_AFTER) * PER_MILLI;
    format!(
        "local PUBLISH, SHARDED, FIRST_HEARTBEAT_AFTER = '{publish}', {sharded}, {first_heartbeat}\n"
    )
}

/// Parts that several scripts include, as text: the usual case does not pay for the call of a function.
const PARTS: [(&str, &str); 7] = [
    ("--@include notify.lua\n", include_str!("notify.lua")),
    ("--@include queue.lua\n", include_str!("queue.lua")),
    // Those above include some of these.
    ("--@include clock.lua\n", include_str!("clock.lua")),
    ("--@include fence.lua\n", include_str!("fence.lua")),
    ("--@include value.lua\n", include_str!("value.lua")),
    ("--@include entry.lua\n", include_str!("entry.lua")),
    ("--@include liveness.lua\n", include_str!("liveness.lua")),
];

/// A full server refuses it before it runs, and so does a replica.
pub(crate) const STRICT: &str = "#!lua\n";
/// A script that frees memory, or keeps what is stored, must run on a full server.
pub(crate) const ALWAYS: &str = "#!lua flags=allow-oom\n";
