//! The SQL of the guide on fencing, as it stands there, on SQLite.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rusqlite::{Connection, OptionalExtension, named_params};
use tenure::{Fence, Locker, Memory};
use tokio::task::JoinSet;

const GUIDE: &str = include_str!("../../docs/fencing.md");

/// An account in a database, written by the statements of the guide.
struct Account {
    database: Mutex<Connection>,
    read: String,
    write: String,
    put: String,
}

impl Account {
    fn open() -> Self {
        let mut statements =
            GUIDE.split("```sql\n").skip(1).filter_map(|rest| rest.split("```").next());
        let mut next = || statements.next().unwrap().to_owned();
        let (create, read, write, put) = (next(), next(), next(), next());
        let database = Connection::open_in_memory().unwrap();
        database.execute(&create, []).unwrap();
        Account { database: Mutex::new(database), read, write, put }
    }

    /// The balance; `None` if a newer fence has been here.
    fn read(&self, fence: Fence) -> Option<i64> {
        let database = self.database.lock().unwrap();
        let named = named_params! {"$1": number(fence), "$2": 7};
        database.query_row(&self.read, named, |row| row.get(0)).optional().unwrap()
    }

    /// Whether it was written.
    fn write(&self, fence: Fence, balance: i64) -> bool {
        self.run(&self.write, fence, balance)
    }

    fn put(&self, fence: Fence, balance: i64) -> bool {
        self.run(&self.put, fence, balance)
    }

    fn run(&self, statement: &str, fence: Fence, balance: i64) -> bool {
        let named = named_params! {"$1": number(fence), "$2": 7, "$3": balance};
        self.database.lock().unwrap().execute(statement, named).unwrap() == 1
    }
}

fn number(fence: Fence) -> i64 {
    i64::try_from(fence.get()).unwrap()
}

/// A23: who lost the lock cannot write once the next holder has been there, be it only to read.
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

/// A23, t25: tasks add to one balance while their locks are taken away at random: what was acknowledged is there.
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
                    // Held by somebody else from here on, and we do not look.
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
