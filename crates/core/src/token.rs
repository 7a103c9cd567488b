//! Tokens: the random identities of claims.
//!
//! In: random bytes of the system. Out: a new identity for each claim, and its text for the server.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// The random identity of one claim: 128 bits. A process that knows it can release the lock, so it is never
/// logged, and `Debug` does not show it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Token(u128);

impl Token {
    /// Makes a new token from the random source of the system.
    ///
    /// # Errors
    ///
    /// The error of the system's random source.
    pub fn random() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes)?;
        Ok(Token(u128::from_be_bytes(bytes)))
    }

    /// A random byte that is constant for this token, to spread things in time that were made together.
    pub(crate) fn spread(self) -> u8 {
        self.0.to_le_bytes()[0]
    }

    /// The token as 32 hexadecimal digits. A secret: keep it out of logs.
    pub fn expose(self) -> String {
        self.digits().to_string()
    }

    /// The 32 hexadecimal digits without a heap allocation. A secret: keep them out of logs.
    pub fn digits(self) -> TokenDigits {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut digits = [0; 32];
        for (pair, byte) in digits.chunks_exact_mut(2).zip(self.0.to_be_bytes()) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 15)];
        }
        TokenDigits(digits)
    }

    /// Reads 32 hexadecimal digits, as written by [`expose`](Self::expose); `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        let digits: &[u8; 32] = text.as_bytes().try_into().ok()?;
        let add =
            |sum: u128, digit: &u8| Some(sum << 4 | u128::from(char::from(*digit).to_digit(16)?));
        digits.iter().try_fold(0, add).map(Token)
    }
}

/// The hexadecimal digits of a [`Token`]; derefs to `str`. As secret as the token.
#[derive(Clone, Copy)]
pub struct TokenDigits([u8; 32]);

impl std::ops::Deref for TokenDigits {
    type Target = str;

    fn deref(&self) -> &str {
        // Hexadecimal digits are always valid UTF-8.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl fmt::Debug for TokenDigits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenDigits(…)")
    }
}

/// A stock of tokens: one system call gets several, since the call costs more than the bytes. A forked child
/// must not use it: it would get the same tokens as its parent.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    stock: Mutex<Vec<Token>>,
}

/// How many tokens one call gets: 256 bytes, which the system returns without interruption by a signal.
const STOCK: usize = 16;

impl Tokens {
    /// The next token; each is returned once.
    pub(crate) fn next(&self) -> Result<Token, getrandom::Error> {
        let mut stock = self.stock.lock().unwrap_or_else(PoisonError::into_inner);
        if stock.is_empty() {
            let mut bytes = [[0; 16]; STOCK];
            getrandom::fill(bytes.as_flattened_mut())?;
            stock.extend(bytes.map(|bytes| Token(u128::from_be_bytes(bytes))));
        }
        stock.pop().map_or_else(Token::random, Ok)
    }
}

impl From<Token> for String {
    fn from(token: Token) -> String {
        token.expose()
    }
}

impl TryFrom<String> for Token {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Token::parse(&text).ok_or("a token is 32 hexadecimal digits")
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A3: a token can be written and read back, has 128 bits, and is not shown by `Debug`.
    #[test]
    fn tokens_round_trip_and_hide() {
        let token = Token::random().unwrap();
        assert_eq!(Token::parse(&token.expose()), Some(token));
        assert_eq!(token.expose().len(), 32);
        assert_eq!(format!("{token:?}"), "Token(…)");
        assert_ne!(token, Token::random().unwrap());
        assert_eq!(Token::parse("+0000000000000000000000000000001"), None);
    }
}
