//! The words of one request, in one piece of memory: there are a dozen, and a request for each lock.

#[derive(Debug)]
pub(crate) struct Words {
    text: String,
    ends: Vec<usize>,
}

/// Room for the words of most requests.
const ROOM: usize = 512;
const WORDS: usize = 16;

impl Words {
    pub(crate) fn new() -> Self {
        Words { text: String::with_capacity(ROOM), ends: Vec::with_capacity(WORDS) }
    }

    pub(crate) fn add(&mut self, word: &str) {
        self.add_with(|text| text.push_str(word));
    }

    /// Adds a word that is made of several parts.
    pub(crate) fn add_parts(&mut self, parts: &[&str]) {
        self.add_with(|text| parts.iter().for_each(|part| text.push_str(part)));
    }

    /// Adds what `write` appends.
    pub(crate) fn add_with(&mut self, write: impl FnOnce(&mut String)) {
        write(&mut self.text);
        self.ends.push(self.text.len());
    }

    pub(crate) fn count(&self) -> usize {
        self.ends.len()
    }

    /// How long all of them are together.
    pub(crate) fn len(&self) -> usize {
        self.text.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &str> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.text[start..*end])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words come out as they went in, empty ones too.
    #[test]
    fn words_round_trip() {
        let mut words = Words::new();
        words.add("one");
        words.add("");
        words.add_parts(&["a", ":", "b"]);
        assert_eq!(words.iter().collect::<Vec<_>>(), ["one", "", "a:b"]);
        assert_eq!((words.count(), words.len()), (3, 6));
    }
}
