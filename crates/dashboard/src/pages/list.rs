//! Which locks of a look a page shows: filter and paging, at the server.

use std::borrow::Cow;
use std::sync::Arc;

use serde::Deserialize;
use tenure_core::glob;

use crate::snapshot::{Seen, Snapshot};

/// A longer filter is cut: no key is longer.
const FILTER_MAX: usize = 512;

/// The query of a list.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Asked {
    /// A glob, or a part of the key.
    #[serde(default)]
    pub(crate) filter: String,
    /// From 1.
    #[serde(default)]
    pub(crate) page: usize,
}

/// One page of a list.
#[derive(Debug)]
pub(crate) struct Chosen {
    pub(crate) rows: Vec<Arc<Seen>>,
    /// How many locks match, on all pages.
    pub(crate) total: usize,
    /// From 1; the last page if a later one was asked for.
    pub(crate) page: usize,
    pub(crate) pages: usize,
}

impl Asked {
    pub(crate) fn filter(&self) -> String {
        self.filter.trim().chars().take(FILTER_MAX).collect()
    }
}

/// The locks that match, at most `size` of them.
pub(crate) fn chosen(snapshot: &Snapshot, asked: &Asked, size: usize) -> Chosen {
    let (filter, first) = (asked.filter(), asked.page.max(1) - 1);
    let pattern = pattern(&filter);
    let is_meant =
        |seen: &&Arc<Seen>| filter.is_empty() || glob::matches(&pattern, seen.info.key.as_str());
    let matching: Vec<_> = snapshot.locks.iter().filter(is_meant).collect();
    let (total, pages) = (matching.len(), matching.len().div_ceil(size).max(1));
    let page = first.min(pages - 1);
    let rows = matching.into_iter().skip(page * size).take(size).cloned().collect();
    Chosen { rows, total, page: page + 1, pages }
}

/// A filter without a wildcard matches every key that contains it.
fn pattern(filter: &str) -> Cow<'_, str> {
    match filter.contains(['*', '?', '[', '\\']) {
        true => Cow::Borrowed(filter),
        false => Cow::Owned(format!("*{filter}*")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_core::{Key, LockInfo};

    /// t70: the server pages 10,000 locks, and a page after the last one is the last.
    #[tokio::test]
    async fn t70_pages_of_ten_thousand() {
        let lock = |n| LockInfo::new(Key::new(&format!("k{n:05}")).unwrap(), vec![], None);
        let snapshot =
            Snapshot::none().after((0..10_000).map(lock).collect(), tokio::time::Instant::now());
        let page =
            |filter: &str, page| chosen(&snapshot, &Asked { filter: filter.into(), page }, 100);
        let shown = |chosen: &Chosen| (chosen.rows.len(), chosen.total, chosen.page, chosen.pages);
        assert_eq!(shown(&page("", 0)), (100, 10_000, 1, 100));
        assert_eq!(shown(&page("", 100)), (100, 10_000, 100, 100));
        assert_eq!(shown(&page("", usize::MAX)), (100, 10_000, 100, 100));
        assert_eq!(shown(&page("k0999?", 1)), (10, 10, 1, 1));
        assert_eq!(shown(&page("0999", 1)), (11, 11, 1, 1), "a part of the key");
        assert_eq!(shown(&page("nothing", 7)), (0, 0, 1, 1));
        assert_eq!(page("", 100).rows[99].info.key.as_str(), "k09999");
    }
}
