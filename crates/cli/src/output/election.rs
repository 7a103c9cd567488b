//! The messages of `elect` and `leader`.

use tenure::{Fence, Leadership};

use crate::text::escape;

/// This process leads.
pub(crate) fn leading(key: &str, value: &str, term: Fence) -> String {
    format!("tenure: leading {} as {} (term {term})", escape(key), escape(value))
}

/// The leadership is lost, and the command has ended. This process waits to lead again.
pub(crate) fn lost_leadership(key: &str) -> String {
    format!("tenure: lost {}, waiting to lead again", escape(key))
}

/// Nobody leads.
pub(crate) fn nobody_leads(key: &str) -> String {
    format!("tenure: nobody leads {}", escape(key))
}

/// Who leads, as the rest of a line.
pub(crate) fn leadership(now: Option<&Leadership>) -> String {
    let Some(now) = now else { return "nobody".into() };
    let process = now.process.as_ref();
    let by = process.map(|process| format!(" by {}", escape(&process.to_string())));
    let term = now.term.map(|term| format!(" term {term}"));
    let value = if now.value.is_empty() { "-".into() } else { escape(&now.value) };
    format!("leader {value}{}{}", term.unwrap_or_default(), by.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_an_election() {
        let term = Fence::from_server(1);
        assert_eq!(
            leading("leader:x", "10.0.0.7:80\n", term),
            format!("tenure: leading leader:x as 10.0.0.7:80\\n (term {term})")
        );
        assert_eq!(lost_leadership("a"), "tenure: lost a, waiting to lead again");
        assert_eq!(nobody_leads("a"), "tenure: nobody leads a");
        assert_eq!(leadership(None), "nobody");
    }
}
