//! Patterns that select many locks: `*` any characters, `?` one character, `[abc]` one of these, `[a-z]` a
//! range, `[^a]` any other character, `\x` the character itself. These are the patterns of Redis' `KEYS`.

/// Whether `pattern` matches the whole `name`.
///
/// ```
/// use tenure::glob::matches;
///
/// assert!(matches("order:*", "order:42"));
/// assert!(matches(r"price\*", "price*") && !matches(r"price\*", "prices"));
/// ```
pub fn matches(pattern: &str, name: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let name: Vec<char> = name.chars().collect();
    // Where to resume if the part after the last star does not match here: one character further.
    let (mut p, mut n, mut star) = (0, 0, None);
    while n < name.len() {
        if pattern.get(p) == Some(&'*') {
            star = Some((p + 1, n));
            p += 1;
        } else if let Some(width) = one(&pattern[p..], name[n]) {
            (p, n) = (p + width, n + 1);
        } else if let Some((after, from)) = star {
            (p, n, star) = (after, from + 1, Some((after, from + 1)));
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

/// How many characters of the pattern's front match the one character `c`; `None` if it does not match.
fn one(pattern: &[char], c: char) -> Option<usize> {
    match pattern {
        ['?', ..] => Some(1),
        ['[', rest @ ..] => class(rest, c).map(|width| width + 1),
        ['\\', escaped, ..] => (*escaped == c).then_some(2),
        [literal, ..] => (*literal == c).then_some(1),
        [] => None,
    }
}

/// The same for the part after a `[`. A class without an end matches nothing.
fn class(rest: &[char], c: char) -> Option<usize> {
    let negated = rest.first() == Some(&'^');
    let start = usize::from(negated);
    let end = start + 1 + rest.get(start + 1..)?.iter().position(|c| *c == ']')?;
    let hit = contains(&rest[start..end], c);
    (hit != negated).then_some(end + 1)
}

fn contains(members: &[char], c: char) -> bool {
    match members {
        [from, '-', to, rest @ ..] => (*from..=*to).contains(&c) || contains(rest, c),
        [member, rest @ ..] => *member == c || contains(rest, c),
        [] => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every form of pattern, matching and not matching.
    #[test]
    fn patterns() {
        let yes = [
            ("*", ""),
            ("", ""),
            ("a*c", "abbc"),
            ("a?c", "abc"),
            ("[a-c]x", "bx"),
            ("[^a]x", "bx"),
            ("*:*", "a:b"),
            (r"\*", "*"),
            (r"\[a]", "[a]"),
            ("*ab", "aab"),
            ("订*", "订单"),
            ("[]]", "]"),
        ];
        let no = [
            ("", "a"),
            ("a", ""),
            ("a*c", "abb"),
            ("a?c", "ac"),
            ("[a-c]x", "dx"),
            ("[^a]x", "ax"),
            ("[a", "a"),
            (r"\*", "x"),
            ("ab", "abc"),
        ];
        for (pattern, name) in yes {
            assert!(matches(pattern, name), "{pattern} should match {name}");
        }
        for (pattern, name) in no {
            assert!(!matches(pattern, name), "{pattern} should not match {name}");
        }
    }
}
