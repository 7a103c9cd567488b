//! `tenure ls`: the locks that are held or have waiters, one line each, however many hold them.

use std::cmp::Reverse;
use std::io::IsTerminal as _;

use tenure::Holder;
use tenure::backend::LockInfo;
use tenure::view::Listing;
use unicode_width::UnicodeWidthStr;

use crate::args::{GlobalArgs, LsArgs, Sort};
use crate::json::{json, state};
use crate::output;
use crate::target::look_at;
use crate::text::{escape, short};
use crate::ui::{self, Ui, wants_color};

const HEAD: [&str; 8] =
    ["KEY", "MODE", "HOLDER", "HELD FOR", "LEASE LEFT", "WAITERS", "FENCE", "REASON"];

type Row = [String; 8];

/// Lists the locks. An empty list is not an error.
pub(crate) fn ls(args: &LsArgs, flags: &GlobalArgs, ui: &mut Ui) -> u8 {
    match look_at(flags, ui, async |locker| locker.list(&args.glob).await) {
        Ok(locks) => print(locks, args, flags, ui),
        Err(trouble) => ui.trouble(&trouble),
    }
}

fn print(mut locks: Vec<LockInfo>, args: &LsArgs, flags: &GlobalArgs, ui: &mut Ui) -> u8 {
    sort(&mut locks, args.sort);
    if args.json {
        ui::data(&as_json(&locks));
    } else if locks.is_empty() {
        ui.info(&output::no_locks(&args.glob));
    } else {
        let colored = wants_color(flags.color, std::io::stdout().is_terminal());
        ui::data(&table(&locks, colored));
    }
    0
}

/// Unknown values come last; equal ones are sorted by key.
fn sort(locks: &mut [LockInfo], by: Sort) {
    locks.sort_by(|a, b| a.key.cmp(&b.key));
    let since = |lock: &LockInfo| lock.holders.iter().filter_map(|h| h.holder.since).min();
    match by {
        Sort::Key => {}
        Sort::Held => locks.sort_by_key(|lock| since(lock).map_or(u64::MAX, |since| since.0)),
        Sort::Waiters => locks.sort_by_key(|lock| Reverse(lock.waiters.as_ref().map(Vec::len))),
    }
}

fn as_json(locks: &[LockInfo]) -> String {
    json(&Listing::of(locks))
}

fn table(locks: &[LockInfo], colored: bool) -> String {
    let mut lines = aligned(HEAD, locks.iter().map(row));
    if let Some(head) = lines.first_mut().filter(|_| colored) {
        *head = format!("\x1b[1m{head}\x1b[0m");
    }
    lines.into_iter().map(|line| line + "\n").collect()
}

/// The lines of a table, the head first.
pub(crate) fn aligned<const N: usize>(
    head: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
) -> Vec<String> {
    let rows: Vec<_> = std::iter::once(head.map(String::from)).chain(rows).collect();
    let widths: Vec<usize> = (0..N)
        .map(|column| rows.iter().map(|row| row[column].width()).max().unwrap_or(0))
        .collect();
    rows.iter().map(|row| line(row, &widths)).collect()
}

fn line(row: &[String], widths: &[usize]) -> String {
    let cells = row.iter().zip(widths).map(|(cell, width)| {
        // Pads by display columns: `format!` would count characters.
        format!("{cell}{}  ", " ".repeat(width - cell.width()))
    });
    cells.collect::<String>().trim_end().into()
}

/// Of several holders: the first and how many others, the longest hold, the lease that ends first. What differs between
/// them is in `tenure show`.
fn row(lock: &LockInfo) -> Row {
    let unknown = || "-".to_string();
    let only = match &lock.holders[..] {
        [only] => Some(only),
        _ => None,
    };
    let holders = || lock.holders.iter().map(|holding| &holding.holder);
    let reason = only.and_then(|only| only.holder.reason.as_deref());
    [
        escape(lock.key.as_str()).into_owned(),
        state(lock),
        lock.holders.first().map_or_else(unknown, |first| who(&first.holder, lock.holders.len())),
        holders()
            .filter_map(|h| h.since)
            .min()
            .map_or_else(unknown, |since| short(since.elapsed())),
        holders().filter_map(|h| h.lease_left).min().map_or_else(unknown, short),
        lock.waiters.as_ref().map_or_else(unknown, |queue| queue.len().to_string()),
        only.and_then(|only| only.fence).map_or_else(unknown, |fence| fence.to_string()),
        reason.map_or_else(unknown, |reason| escape(reason).into_owned()),
    ]
}

/// `deploy@ci-7 pid 812`, and how many others there are of `count` holders.
pub(crate) fn who(holder: &Holder, count: usize) -> String {
    let name = match &holder.process {
        Some(client) => format!("{} pid {}", output::name(holder), client.pid),
        None if holder.newer => output::name(holder),
        None => "-".into(),
    };
    if count > 1 { format!("{name} +{}", count - 1) } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::samples::{busy, closed, foreign, permits, readers};
    use tenure::Key;

    /// Columns are aligned on the screen in every script; an unknown value is a dash. Each lock has one line, also with
    /// several holders; of two capacities the larger one counts.
    #[test]
    fn table_in_full() {
        let waited = LockInfo::new(Key::new("订单:42").unwrap(), vec![], Some(vec![]));
        assert_eq!(
            table(
                &[
                    busy("db-migrate"),
                    closed("cron"),
                    foreign("k"),
                    waited,
                    readers("prices"),
                    permits("limit"),
                ],
                false
            ),
            "\
KEY         MODE       HOLDER               HELD FOR  LEASE LEFT  WAITERS  FENCE  REASON
db-migrate  exclusive  deploy@ci-7 pid 812  4m12s     21s         2        27431  release 41
cron        closed     deploy@ci-7 pid 812  4m12s     21s         0        27431  release 41
k           exclusive  -                    -         -           -        -      -
订单:42     exclusive  -                    -         -           0        -      -
prices      shared 3   ann@ci-7 pid 1 +2    12s       21s         1        -      -
limit       3 of 6     ann@ci-7 pid 1 +1    12s       21s         1        -      -
"
        );
    }

    /// A reason that another user chose cannot control the terminal.
    #[test]
    fn reasons_are_escaped() {
        let mut lock = busy("k");
        lock.holders[0].holder.reason = Some("a\x1b[2J\nb".into());
        assert!(table(&[lock], false).ends_with("  a\\u{1b}[2J\\nb\n"));
    }

    /// Each order puts its own maximum first, unknown values last, and sorts equal ones by key.
    #[test]
    fn orders() {
        let mut longer = closed("c");
        longer.holders[0].holder.since = Some(tenure::time::UnixMillis(1));
        let all = [foreign("z"), busy("b"), longer, foreign("a"), closed("d")];
        let order = |by| {
            let mut locks = all.to_vec();
            sort(&mut locks, by);
            locks.iter().map(|lock| lock.key.as_str().to_owned()).collect::<String>()
        };
        assert_eq!(order(Sort::Key), "abcdz");
        assert_eq!(order(Sort::Held), "cbdaz");
        assert_eq!(order(Sort::Waiters), "bcdaz");
    }

    /// Only the head is coloured.
    #[test]
    fn table_in_colour() {
        let table = table(&[foreign("k")], true);
        assert!(table.starts_with("\x1b[1mKEY"), "{table}");
        assert_eq!(table.matches('\x1b').count(), 2);
    }

    /// Without locks, the JSON has an empty list and the schema.
    #[test]
    fn json_of_nothing() {
        assert_eq!(as_json(&[]), "{\"schema\":1,\"locks\":[]}\n");
    }
}
