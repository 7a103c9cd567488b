//! The rules of a proxy: what it does, and to which messages.

use std::time::Duration;

use super::Connection;

/// The direction of a message.
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
    /// Orderly (`FIN`).
    Close,
    /// Abruptly (`RST`).
    Reset,
}

/// What happens to a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// The message is forwarded.
    Pass,
    /// The message is dropped.
    Swallow,
    /// The message is forwarded after this delay, and later messages wait behind it.
    Delay(Duration),
    /// The message is forwarded twice.
    Twice,
    /// Half of the message is forwarded, then the connection is closed.
    Truncate,
    /// The connection ends instead.
    End(Cut),
    /// These bytes are sent before the message: an extra reply shifts all later replies.
    Precede(Vec<u8>),
    /// The first bytes in the message are replaced by the second, which have the same length.
    Rewrite(Vec<u8>, Vec<u8>),
    /// These bytes are sent instead of the message.
    Replace(Vec<u8>),
}

/// An action, and the messages to which it applies.
#[derive(Clone, Debug)]
pub struct Rule {
    pub(super) way: Way,
    pub(super) deed: Action,
    connection: Option<usize>,
    said: Option<Vec<u8>>,
    containing: Option<Vec<u8>>,
    /// How often the rule still applies; `None` for no limit.
    left: Option<usize>,
}

impl Rule {
    /// Applies `deed` to every message in this direction.
    ///
    /// # Panics
    ///
    /// If a rewrite would change a length: the protocol sends lengths first.
    pub fn on(way: Way, deed: Action) -> Self {
        if let Action::Rewrite(from, to) = &deed {
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

    /// Only on connections whose first bytes from the client contain `text`.
    #[must_use]
    pub fn of_who_said(mut self, text: &str) -> Self {
        self.said = Some(text.into());
        self
    }

    /// Only to messages that contain `text`.
    #[must_use]
    pub fn containing(mut self, text: &str) -> Self {
        self.containing = Some(text.into());
        self
    }

    /// Only this many times. Zero means never.
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

    /// Whether this rule drops everything of the connection in this direction.
    pub(super) fn swallows_all(&self, connection: &Connection, way: Way) -> bool {
        let is_all = self.containing.is_none() && self.left.is_none();
        is_all && self.deed == Action::Swallow && self.is_about(connection, way)
    }

    fn is_about(&self, connection: &Connection, way: Way) -> bool {
        let is_meant = self.connection.is_none_or(|only| only == connection.number);
        let has_said = || self.said.as_ref().is_none_or(|text| connection.has_said(text));
        self.way == way && is_meant && has_said()
    }

    /// Counts one use. Returns whether it was the last.
    pub(super) fn is_spent(&mut self) -> bool {
        self.left = self.left.map(|left| left.saturating_sub(1));
        self.left == Some(0)
    }
}

/// The position of `text` in `message`.
pub(super) fn find(message: &[u8], text: &[u8]) -> Option<usize> {
    message.windows(text.len().max(1)).position(|window| window == text)
}
