//! `tenure ls`: the locks that are held or waited for, one line each.

use serde::Serialize;
use std::io::IsTerminal as _;

use tenure::Holder;
use tenure::backend::{Holding, LockInfo};
use unicode_width::UnicodeWidthStr;

use crate::args::{Everywhere, LsArgs};
use crate::output;
use crate::talk::{self, Talk, wants_color};
use crate::text::{escape, short};
use crate::url::look_at;
use crate::view::{LockView, SCHEMA, json, state};

const HEAD: [&str; 7] = ["KEY", "MODE", "HOLDER", "HELD FOR", "LEASE LEFT", "WAITERS", "FENCE"];

type Row = [String; 7];

/// Lists the locks. Nothing held is no error.
pub(crate) fn ls(args: &LsArgs, flags: &Everywhere, talk: &mut Talk) -> u8 {
    match look_at(flags, talk, async |locker| locker.list(&args.glob).await) {
        Ok(locks) => print(locks, args, flags, talk),
        Err(trouble) => talk.trouble(&trouble),
    }
}

fn print(mut locks: Vec<LockInfo>, args: &LsArgs, flags: &Everywhere, talk: &mut Talk) -> u8 {
    locks.sort_by(|a, b| a.key.cmp(&b.key));
    if args.json {
        talk::data(&as_json(&locks));
    } else if locks.is_empty() {
        talk.say(&output::no_locks());
    } else {
        let colored = wants_color(flags.color, std::io::stdout().is_terminal());
        talk::data(&table(&locks, colored));
    }
    0
}

fn as_json(locks: &[LockInfo]) -> String {
    #[derive(Serialize)]
    struct Listing {
        schema: u32,
        locks: Vec<LockView>,
    }
    json(&Listing { schema: SCHEMA, locks: locks.iter().map(LockView::of).collect() })
}

fn table(locks: &[LockInfo], colored: bool) -> String {
    let mut rows = vec![HEAD.map(String::from)];
    rows.extend(locks.iter().flat_map(rows_of));
    let widths: Vec<usize> = (0..HEAD.len())
        .map(|column| rows.iter().map(|row| row[column].width()).max().unwrap_or(0))
        .collect();
    let mut lines = rows.iter().map(|row| line(row, &widths));
    let head = lines.next().unwrap_or_default();
    let head = if colored { format!("\x1b[1m{head}\x1b[0m") } else { head };
    std::iter::once(head).chain(lines).map(|line| line + "\n").collect()
}

fn line(row: &Row, widths: &[usize]) -> String {
    let cells = row.iter().zip(widths).map(|(cell, width)| {
        // Counted in columns of the screen: `format!` would count characters.
        format!("{cell}{}  ", " ".repeat(width - cell.width()))
    });
    cells.collect::<String>().trim_end().into()
}

/// One row per holder; a lock that is only waited for has a row too.
fn rows_of(lock: &LockInfo) -> Vec<Row> {
    if lock.holders.is_empty() {
        return vec![row(lock, None)];
    }
    lock.holders.iter().map(|holding| row(lock, Some(holding))).collect()
}

fn row(lock: &LockInfo, holding: Option<&Holding>) -> Row {
    let holder = holding.map(|holding| &holding.holder);
    let unknown = || "-".to_string();
    let who = |holder: &Holder| match &holder.client {
        Some(client) => Some(format!("{} pid {}", output::name(holder), client.pid)),
        None => holder.newer.then(|| output::name(holder)),
    };
    [
        escape(lock.key.as_str()).into_owned(),
        state(lock, holding),
        holder.and_then(who).unwrap_or_else(unknown),
        holder.and_then(|h| h.since).map_or_else(unknown, |since| short(since.elapsed())),
        holder.and_then(|h| h.lease_left).map_or_else(unknown, short),
        lock.waiters.as_ref().map_or_else(unknown, |queue| queue.len().to_string()),
        holding.and_then(|h| h.fence).map_or_else(unknown, |fence| fence.to_string()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::samples::{busy, closed, foreign};
    use tenure::Key;

    /// Columns are aligned on the screen, whatever the script; what is not known is a dash.
    #[test]
    fn table_in_full() {
        let waited = LockInfo::exclusive(Key::new("订单:42").unwrap(), vec![], Some(vec![]));
        assert_eq!(
            table(&[busy("db-migrate"), closed("cron"), foreign("k"), waited], false),
            "\
KEY         MODE       HOLDER               HELD FOR  LEASE LEFT  WAITERS  FENCE
db-migrate  exclusive  deploy@ci-7 pid 812  4m12s     21s         2        27431
cron        closed     deploy@ci-7 pid 812  4m12s     21s         0        27431
k           exclusive  -                    -         -           -        -
订单:42     exclusive  -                    -         -           0        -
"
        );
    }

    /// Colour is for the head alone.
    #[test]
    fn table_in_colour() {
        let table = table(&[foreign("k")], true);
        assert!(table.starts_with("\x1b[1mKEY"), "{table}");
        assert_eq!(table.matches('\x1b').count(), 2);
    }

    /// No locks are an empty list, with its version.
    #[test]
    fn json_of_nothing() {
        assert_eq!(as_json(&[]), "{\"schema\":1,\"locks\":[]}\n");
    }
}
