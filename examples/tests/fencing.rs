//! The SQL of the guide on fencing, and its recipes for rusqlite and sqlx, exactly as in the guide, on
//! SQLite.

#[path = "recipes/rusqlite.rs"]
mod with_rusqlite;
#[path = "recipes/sqlx.rs"]
mod with_sqlx;

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rusqlite::{Connection, OptionalExtension, named_params};
use tenure::{Fence, Locker, Memory};
use tokio::task::JoinSet;

const GUIDE: &str = include_str!("../../docs/guide/fencing.md");

/// An account in a database, written with the guide's statements.
struct Account {
    database: Mutex<Connection>,
    read: &'static str,
    write: &'static str,
    put: &'static str,
}

/// The guide's statements: create, read, write, put.
fn statement(at: usize) -> &'static str {
    GUIDE.split("```sql\n").nth(at + 1).unwrap().split("```").next().unwrap()
}

impl Account {
    fn open() -> Self {
        let database = Connection::open_in_memory().unwrap();
        database.execute(statement(0), []).unwrap();
        let (read, write, put) = (statement(1), statement(2), statement(3));
        Account { database: Mutex::new(database), read, write, put }
    }

    /// The balance; `None` if a newer fence has been seen.
    fn read(&self, fence: Fence) -> Option<i64> {
        let database = self.database.lock().unwrap();
        let named = named_params! {"$1": fence.as_i64(), "$2": 7};
        database.query_row(self.read, named, |row| row.get(0)).optional().unwrap()
    }

    /// Writes the balance. Returns whether the row was written.
    fn write(&self, fence: Fence, balance: i64) -> bool {
        self.run(self.write, fence, balance).unwrap()
    }

    fn put(&self, fence: Fence, balance: i64) -> bool {
        self.try_put(fence, balance).unwrap()
    }

    fn try_put(&self, fence: Fence, balance: i64) -> rusqlite::Result<bool> {
        self.run(self.put, fence, balance)
    }

    fn run(&self, statement: &str, fence: Fence, balance: i64) -> rusqlite::Result<bool> {
        let named = named_params! {"$1": fence.as_i64(), "$2": 7, "$3": balance};
        Ok(self.database.lock().unwrap().execute(statement, named)? == 1)
    }

    /// The balance as it is, without a fence.
    fn balance(&self) -> Option<i64> {
        let database = self.database.lock().unwrap();
        database.query_row("SELECT balance FROM account", [], |row| row.get(0)).optional().unwrap()
    }
}

/// A23: a former holder cannot write once the next holder has used the row, even if only to read.
#[tokio::test]
async fn a23_sql_refuses_a_stale_holder() {
    let (account, server) = (Account::open(), Memory::space("sql"));
    let locker = Locker::new(server.clone());
    let stopped = locker.lock("account:7").await.unwrap();
    assert!(account.put(stopped.fence(), 100), "the row is made");
    assert_eq!(account.read(stopped.fence()), Some(100));
    server.revoke("account:7").unwrap();

    let next = locker.lock("account:7").await.unwrap();
    assert_eq!(account.read(next.fence()), Some(100));
    assert!(!account.write(stopped.fence(), 110), "the next one has read");
    assert!(!account.put(stopped.fence(), 110));
    assert_eq!(account.read(stopped.fence()), None);
    assert!(
        account.write(next.fence(), 105) && account.put(next.fence(), 106),
        "as often as it likes"
    );
    assert_eq!(account.read(next.fence()), Some(106));
    assert!(!account.write(Fence::NONE, 0));
}

/// A23: a lock without a fence is rejected where no holder has been before: by a row whose fence is the default, and
/// where there is no row yet.
#[test]
fn a23_sql_refuses_a_lock_without_a_fence() {
    let account = Account::open();
    assert!(!account.write(Fence::NONE, 1), "no row");
    account.try_put(Fence::NONE, 1).unwrap_err();
    assert_eq!(account.balance(), None);
    let fresh = "INSERT INTO account (id, balance) VALUES (7, 100)";
    account.database.lock().unwrap().execute(fresh, []).unwrap();
    assert_eq!(account.read(Fence::NONE), None);
    assert!(!account.write(Fence::NONE, 1));
    account.try_put(Fence::NONE, 1).unwrap_err();
    let written = with_rusqlite::write(&account.database.lock().unwrap(), Fence::NONE, 7, 1);
    assert_eq!(written.unwrap(), with_rusqlite::Written::Stale);
    assert_eq!(account.balance(), Some(100));
}

/// The code of a recipe, without its header.
fn code(recipe: &str) -> &str {
    recipe.split_once("\n\n").unwrap().1
}

/// The recipes in this test are the same as in the guide.
#[test]
fn the_guide_shows_the_recipes() {
    for recipe in [include_str!("recipes/rusqlite.rs"), include_str!("recipes/sqlx.rs")] {
        let shown = format!("```rs\n{}```", code(recipe));
        assert!(GUIDE.contains(&shown), "the guide does not show:\n{}", code(recipe));
    }
}

/// The fences of two holders of `account:7`: one that has lost the lock, and the next.
async fn stale_and_next(space: &str) -> (Fence, Fence) {
    let server = Memory::space(space);
    let locker = Locker::new(server.clone());
    let stopped = locker.lock("account:7").await.unwrap();
    server.revoke("account:7").unwrap();
    let next = locker.lock("account:7").await.unwrap();
    (stopped.fence(), next.fence())
}

/// A23: with rusqlite a write succeeds, is rejected as stale, or finds no row.
#[tokio::test]
async fn a23_rusqlite_tells_stale_from_absent() {
    use with_rusqlite::{Written, write};
    let account = Account::open();
    let (stopped, next) = stale_and_next("rusqlite").await;
    assert!(account.put(stopped, 100), "the row is made");
    let database = account.database.lock().unwrap();
    assert_eq!(write(&database, stopped, 7, 101).unwrap(), Written::Done);
    assert_eq!(write(&database, next, 7, 102).unwrap(), Written::Done);
    assert_eq!(write(&database, stopped, 7, 103).unwrap(), Written::Stale);
    assert_eq!(write(&database, next, 8, 104).unwrap(), Written::Absent);
    drop(database);
    assert_eq!(account.read(next), Some(102));
}

/// A23: with sqlx a write succeeds, is rejected as stale, or finds no row.
#[tokio::test]
async fn a23_sqlx_tells_stale_from_absent() {
    use with_sqlx::{Written, write};
    // One connection, because each connection has its own database in memory.
    let pool = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1);
    let pool = pool.connect("sqlite::memory:").await.unwrap();
    let (create, put) = (statement(0), statement(3));
    sqlx::query(create).execute(&pool).await.unwrap();
    let (stopped, next) = stale_and_next("sqlx").await;
    let put = sqlx::query(put).bind(stopped.as_i64()).bind(7).bind(100).execute(&pool).await;
    assert_eq!(put.unwrap().rows_affected(), 1, "the row is made");
    assert_eq!(write(&pool, stopped, 7, 101).await.unwrap(), Written::Done);
    assert_eq!(write(&pool, next, 7, 102).await.unwrap(), Written::Done);
    assert_eq!(write(&pool, stopped, 7, 103).await.unwrap(), Written::Stale);
    assert_eq!(write(&pool, next, 8, 104).await.unwrap(), Written::Absent);
    let balance: i64 =
        sqlx::query_scalar("SELECT balance FROM account").fetch_one(&pool).await.unwrap();
    assert_eq!(balance, 102);
}

/// A23, t25: tasks add to one balance while some of their locks are revoked: no acknowledged update is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a23_sql_loses_no_update() {
    let (account, server) = (Arc::new(Account::open()), Memory::space("sql-many"));
    let locker = Locker::new(server.clone());
    account.put(locker.lock("account:7").await.unwrap().fence(), 0);
    let (added, refused) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut tasks = JoinSet::new();
    for task in 0..8_u64 {
        let (account, server, locker) = (account.clone(), server.clone(), locker.clone());
        let (added, refused) = (added.clone(), refused.clone());
        tasks.spawn(async move {
            for round in 0..100 {
                let guard = locker.lock("account:7").await.unwrap();
                let fence = guard.fence();
                let balance = account.read(fence);
                if (task + round) % 3 == 0 {
                    // From here on another task can acquire the lock, and this task does not check.
                    server.revoke("account:7").unwrap();
                    tokio::task::yield_now().await;
                }
                match balance.is_some_and(|balance| account.write(fence, balance + 1)) {
                    true => added.fetch_add(1, Ordering::Relaxed),
                    false => refused.fetch_add(1, Ordering::Relaxed) as i64,
                };
                drop(guard);
            }
        });
    }
    tasks.join_all().await;
    let last = locker.lock("account:7").await.unwrap().fence();
    assert_eq!(account.read(last), Some(added.load(Ordering::Relaxed)));
    assert!(refused.load(Ordering::Relaxed) > 0, "somebody came too late");
}
