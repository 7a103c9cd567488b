//! What an observer of an election sees, and what must be true of it.
//!
//! In: an election. Out: every leadership that was seen, checked: values belong to the terms in which they were
//! proclaimed, and terms rise.

use tenure_core::{Election, Fence, Leadership, Observer};

use crate::wait::within;

/// An observer that remembers what it has seen.
#[derive(Debug)]
pub struct Seen {
    observe: Observer,
    all: Vec<Option<Leadership>>,
    proclaimed: Vec<(String, Fence)>,
}

impl Seen {
    /// Starts to observe.
    ///
    /// # Panics
    ///
    /// If the engine does not answer.
    pub async fn by(election: &Election) -> Self {
        let observe = election.observe().await.expect("the engine answers");
        Seen { observe, all: vec![], proclaimed: vec![] }
    }

    /// The observer.
    pub fn observe(&mut self) -> &mut Observer {
        &mut self.observe
    }

    /// Every change that was seen; `None` for nobody.
    pub fn all(&self) -> &[Option<Leadership>] {
        &self.all
    }

    /// The next change, however often the server is unreachable meanwhile.
    ///
    /// # Panics
    ///
    /// If there is none in time, or at a permanent error.
    pub async fn next(&mut self) -> Option<Leadership> {
        let calm = async {
            loop {
                match self.observe.next().await {
                    Ok(now) => return now,
                    Err(error) => assert!(error.is_unavailable() || error.is_unknown(), "{error}"),
                }
            }
        };
        let now = within("a change", calm).await;
        self.all.push(now.clone());
        now
    }

    /// Observes until `value` leads with `term`, which was proclaimed.
    ///
    /// # Panics
    ///
    /// As [`next`](Self::next).
    pub async fn until(&mut self, value: &str, term: Fence) {
        self.proclaimed.push((value.into(), term));
        let is_it = |now: Leadership| (now.value.as_str(), now.term) == (value, Some(term));
        while !self.next().await.is_some_and(is_it) {}
    }

    /// Observes until nobody leads.
    ///
    /// # Panics
    ///
    /// As [`next`](Self::next).
    pub async fn until_nobody(&mut self) {
        while self.next().await.is_some() {}
    }

    /// Checks that terms rise, and that every value was proclaimed in its term.
    ///
    /// # Panics
    ///
    /// If one of the two is not true.
    pub fn is_sound(&self) {
        let seen: Vec<_> = self.all.iter().flatten().collect();
        let terms: Vec<_> = seen.iter().map(|now| now.term).collect();
        assert!(terms.is_sorted(), "{terms:?}");
        for Leadership { value, term, .. } in seen {
            let pair = (value.clone(), term.expect("the engine shows the term"));
            assert!(self.proclaimed.contains(&pair), "{pair:?} was not proclaimed");
        }
    }
}
