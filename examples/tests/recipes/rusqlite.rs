//! A write under a fence, with rusqlite. The guide on fencing shows it.

use rusqlite::{Connection, OptionalExtension, params};
use tenure::Fence;

#[derive(Debug, PartialEq)]
pub enum Written {
    Done,
    /// A newer holder has been here: this one has lost its lock.
    Stale,
    /// There is no such row.
    Absent,
}

pub fn write(db: &Connection, fence: Fence, id: i64, balance: i64) -> rusqlite::Result<Written> {
    let update = "UPDATE account SET balance = ?3, fence = ?1 WHERE id = ?2 AND fence <= ?1";
    if db.execute(update, params![fence.as_i64(), id, balance])? == 1 {
        return Ok(Written::Done);
    }
    let newer =
        db.query_row("SELECT fence FROM account WHERE id = ?1", [id], |row| row.get::<_, i64>(0));
    Ok(if newer.optional()?.is_some() { Written::Stale } else { Written::Absent })
}
