//! What a proxy can be told to do, and to which messages.

use std::time::Duration;

use super::Connection;

/// Which way a message travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the client to the server.
    Requests,
    /// From the server to the client.
    Replies,
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// In order (`FIN`).
    Close,
    /// At once (`RST`).
    Reset,
}

/// What becomes of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed {
    /// It is passed on.
    Pass,
    /// It vanishes.
    Swallow,
    /// It is passed on so much later, and what follows it waits behind it.
    Delay(Duration),
    /// It is passed on twice.
    Twice,
    /// Half of it is passed on, then the connection is closed.
    Truncate,
    /// The connection ends instead.
    End(Cut),
    /// These bytes are passed on before it: a reply too many shifts all that follow.
    Precede(Vec<u8>),
    /// These bytes in it are replaced by as many others.
    Rewrite(Vec<u8>, Vec<u8>),
    /// These bytes are passed on in its place.
    Replace(Vec<u8>),
}

/// A deed, and the messages that it is done to.
#[derive(Clone, Debug)]
pub struct Rule {
    pub(super) way: Way,
    pub(super) deed: Deed,
    connection: Option<usize>,
    said: Option<Vec<u8>>,
    containing: Option<Vec<u8>>,
    /// How often it still acts; `None` for ever.
    left: Option<usize>,
}

impl Rule {
    /// Does `deed` to every message that travels this way.
    ///
    /// # Panics
    ///
    /// If a rewriting would change a length: the protocol says lengths ahead.
    pub fn on(way: Way, deed: Deed) -> Self {
        if let Deed::Rewrite(from, to) = &deed {
            assert_eq!(from.len(), to.len(), "a rewriting keeps the length");
        }
        Rule { way, deed, connection: None, said: None, containing: None, left: None }
    }

    /// Only on this connection.
    #[must_use]
    pub fn of(mut self, connection: usize) -> Self {
        self.connection = Some(connection);
        self
    }

    /// Only on connections among whose first bytes the client has said `text`.
    #[must_use]
    pub fn of_who_said(mut self, text: &str) -> Self {
        self.said = Some(text.into());
        self
    }

    /// Only to messages in which `text` occurs.
    #[must_use]
    pub fn containing(mut self, text: &str) -> Self {
        self.containing = Some(text.into());
        self
    }

    /// Only so many times. Zero is never.
    #[must_use]
    pub fn times(mut self, times: usize) -> Self {
        self.left = Some(times);
        self
    }

    /// Only once.
    #[must_use]
    pub fn once(self) -> Self {
        self.times(1)
    }

    pub(super) fn fits(&self, connection: &Connection, way: Way, message: &[u8]) -> bool {
        let is_here = self.is_about(connection, way) && self.left != Some(0);
        is_here && self.containing.as_ref().is_none_or(|text| find(message, text).is_some())
    }

    /// Whether nothing of the connection gets through this way.
    pub(super) fn swallows_all(&self, connection: &Connection, way: Way) -> bool {
        let is_all = self.containing.is_none() && self.left.is_none();
        is_all && self.deed == Deed::Swallow && self.is_about(connection, way)
    }

    fn is_about(&self, connection: &Connection, way: Way) -> bool {
        let is_meant = self.connection.is_none_or(|only| only == connection.number);
        let has_said = || self.said.as_ref().is_none_or(|text| connection.has_said(text));
        self.way == way && is_meant && has_said()
    }

    /// Counts one use; whether it was the last.
    pub(super) fn is_spent(&mut self) -> bool {
        self.left = self.left.map(|left| left.saturating_sub(1));
        self.left == Some(0)
    }
}

/// Where `text` begins in `message`.
pub(super) fn find(message: &[u8], text: &[u8]) -> Option<usize> {
    message.windows(text.len().max(1)).position(|window| window == text)
}
