//! The two tokens of the admin listener. A request shows one of them as `Authorization: Bearer TOKEN`.
//!
//! The listener keeps only hashes of the tokens, with a secret of this process, and compares such hashes. So the time
//! of a comparison tells a client nothing about a token, not even its length.

use axum::extract::Request;
use axum::http::header;
use spillgate::KeyHasher;

use super::Proof;

/// The log warns of a token with fewer characters, because a program could find such a token by trying.
const SHORT_CHARS: usize = 16;

/// Why the tokens of the settings are refused: they would protect nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WrongTokens {
    /// Everyone can send an empty token.
    #[error("an admin token is empty; write a token into its file, for example 32 random characters")]
    Empty,
    /// No caller can send the token in a header field.
    #[error(
        "an admin token has a space, or a character that is not printable ASCII; write another token into its file"
    )]
    Unsendable,
    /// Both tokens are equal, so a client that may read could also write.
    #[error("both admin tokens are the same, so a caller that may read could write; make another read token")]
    Same,
    /// There is only a read token, so reading would need a token, and writing would not.
    #[error("there is a read token but no write token; set `admin_token_file` too")]
    ReadAlone,
}

/// The hashes of the two tokens, and the secret of these hashes.
#[derive(Debug)]
pub(crate) struct Tokens {
    keys: KeyHasher,
    write: Option<TokenHash>,
    read: Option<TokenHash>,
    is_short: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct TokenHash(u128);

impl std::fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TokenHash")
    }
}

impl Default for Tokens {
    fn default() -> Tokens {
        Tokens { keys: KeyHasher::random(), write: None, read: None, is_short: false }
    }
}

impl Tokens {
    pub(super) fn new(write: Option<&str>, read: Option<&str>) -> Result<Tokens, WrongTokens> {
        let (write, read) = (write.map(str::trim), read.map(str::trim));
        let given = || write.into_iter().chain(read);
        if given().any(str::is_empty) {
            return Err(WrongTokens::Empty);
        }
        if given().any(|token| !token.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err(WrongTokens::Unsendable);
        }
        match (write, read) {
            (None, Some(_)) => return Err(WrongTokens::ReadAlone),
            (Some(write), Some(read)) if write == read => return Err(WrongTokens::Same),
            _ => {}
        }
        let is_short = given().any(|token| token.len() < SHORT_CHARS);
        let keys = KeyHasher::random();
        let hash = |token: &str| hash(&keys, token.as_bytes());
        let (write, read) = (write.map(hash), read.map(hash));
        Ok(Tokens { keys, write, read, is_short })
    }

    /// Returns whether these are the tokens.
    pub(super) fn are(&self, write: Option<&str>, read: Option<&str>) -> bool {
        let hash = |token: &str| hash(&self.keys, token.trim().as_bytes());
        (self.write, self.read) == (write.map(hash), read.map(hash))
    }

    pub(super) const fn are_set(&self) -> bool {
        self.write.is_some()
    }

    pub(super) const fn are_short(&self) -> bool {
        self.is_short
    }

    /// Returns which right the token `given` proves, or `None` if it is neither of the two tokens.
    pub(super) fn proof(&self, given: &[u8]) -> Option<Proof> {
        let given = Some(hash(&self.keys, given));
        if given == self.write {
            return Some(Proof::Write);
        }
        (given == self.read).then_some(Proof::Read)
    }
}

fn hash(keys: &KeyHasher, token: &[u8]) -> TokenHash {
    TokenHash(keys.start().part(token).finish())
}

/// Returns the token in the request, whether it is right or wrong.
pub(super) fn bearer(request: &Request) -> Option<&[u8]> {
    let value = request.headers().get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, given) = value.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| given.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_that_protect_nothing_are_refused() {
        let new = |write, read| Tokens::new(write, read).map(|_| ());
        assert_eq!(new(Some(" \n"), None), Err(WrongTokens::Empty));
        assert_eq!(new(Some("a"), Some("")), Err(WrongTokens::Empty));
        assert_eq!(new(Some("a"), Some("a\n")), Err(WrongTokens::Same));
        assert_eq!(new(None, Some("a")), Err(WrongTokens::ReadAlone));
        for unsendable in ["a\nb", "a b", "\u{e9}", "a\u{7f}"] {
            assert_eq!(new(Some(unsendable), None), Err(WrongTokens::Unsendable), "{unsendable:?}");
        }
        assert_eq!((new(Some("a"), Some("b")), new(None, None)), (Ok(()), Ok(())));
    }

    #[test]
    fn nothing_shows_a_token() {
        let tokens = Tokens::new(Some("hidden"), Some("secret")).expect("the tokens protect something");
        let shown = format!("{tokens:?}");
        assert!(!shown.contains("hidden") && !shown.contains("secret"), "{shown}");
        assert!(!shown.chars().any(|c| c.is_ascii_digit()), "a hash is not shown either: {shown}");
    }

    #[test]
    fn a_token_proves_what_it_is_for() {
        let tokens = Tokens::new(Some("the-write-token-1"), Some("the-read-token-12")).expect("they are different");
        assert_eq!(tokens.proof(b"the-write-token-1"), Some(Proof::Write));
        assert_eq!(tokens.proof(b"the-read-token-12"), Some(Proof::Read));
        for wrong in [&b""[..], b"the-write-token-", b"the-write-token-11", b"the-write-token-1the-read-token-12"] {
            assert_eq!(tokens.proof(wrong), None);
        }
        assert!(!tokens.are_short() && Tokens::new(Some("15-characters--"), None).is_ok_and(|it| it.are_short()));
        assert_eq!(Tokens::default().proof(b""), None, "without tokens, an empty token proves nothing");
    }
}
