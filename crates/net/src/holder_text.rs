//! The fields of a claim's value that are for people: `<host>:<pid>:<user>:<program>:<label>:<reason>`.
//!
//! In: this process, or the fields of a value. Out: text for a value, or the holder that it describes. The
//! fields are percent-encoded, and may be empty.

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use tenure_core::{Holder, Process};

/// Characters that would end a field, or could be mistaken for an escape.
const ESCAPED: &AsciiSet = &CONTROLS.add(b':').add(b'%');

/// A field of a value.
pub fn escape(field: &str) -> String {
    utf8_percent_encode(field, ESCAPED).to_string()
}

/// The fields of this process, from its host to its program.
pub fn process_fields() -> String {
    let Process { host, pid, user, program } = Process::this_process();
    [host, &pid.to_string(), user, program].map(|field| escape(field)).join(":")
}

/// The holder by these fields. If they are cut short or unreadable, only they are lost, not the lock.
pub fn parse_holder(fields: &[&str]) -> Holder {
    let field = |index: usize| {
        let text = percent_decode_str(fields.get(index)?).decode_utf8();
        text.ok().map(String::from)
    };
    let process = || {
        let pid = field(1)?.parse().ok()?;
        Some(Process { host: field(0)?, pid, user: field(2)?, program: field(3)? })
    };
    let mut holder = Holder::unknown();
    holder.process = process();
    holder.label = field(4).filter(|label| !label.is_empty());
    holder.reason = field(5).filter(|reason| !reason.is_empty());
    holder
}

/// Whether a value starts with a version after `t1`: it is from a newer tenure.
pub fn is_newer(value: &[u8]) -> bool {
    let [b't', rest @ ..] = value else { return false };
    let digits = rest.split(|byte| *byte == b':').next().unwrap_or_default();
    let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse::<u32>().ok());
    number.is_some_and(|number| number > 1)
}
