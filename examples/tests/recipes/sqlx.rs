//! A write under a fence, with sqlx. The guide on fencing shows it.

use sqlx::SqlitePool;
use tenure::Fence;

#[derive(Debug, PartialEq)]
pub enum Written {
    Done,
    /// A newer holder has been here: this one has lost its lock.
    Stale,
    /// There is no such row.
    Absent,
}

pub async fn write(db: &SqlitePool, fence: Fence, id: i64, balance: i64) -> sqlx::Result<Written> {
    let update = "UPDATE account SET balance = $3, fence = $1 WHERE id = $2 AND fence <= $1";
    let update = sqlx::query(update).bind(fence.as_i64()).bind(id).bind(balance);
    if update.execute(db).await?.rows_affected() == 1 {
        return Ok(Written::Done);
    }
    let newer = sqlx::query("SELECT fence FROM account WHERE id = $1").bind(id);
    let newer = newer.fetch_optional(db).await?;
    Ok(if newer.is_some() { Written::Stale } else { Written::Absent })
}
