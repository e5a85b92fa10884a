//! Replaces secrets in texts by stars.
//!
//! Errors, listings and logs quote settings. They must never show a password.

use std::ops::Range;

/// The beginnings of URLs, also with a missing character.
const BEGINNINGS: [&str; 9] =
    ["://", "redis:", "rediss:", "valkey:", "valkeys:", "cluster:", "sentinel:", "unix:", "redis//"];

/// What is shown instead of a secret, whatever its length.
const STARS: &str = "***";

/// The text with stars instead of every password in a URL.
pub(crate) fn masked(text: &str) -> String {
    Shown::new(text, Vec::new()).text
}

/// A text with stars instead of its secrets.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) text: String,
    /// Where each secret was, and where its stars are.
    stars: Vec<(Range<usize>, Range<usize>)>,
}

impl Shown {
    /// Hides the passwords in URLs and the `places`. The number of lines stays the same.
    pub(super) fn new(text: &str, mut places: Vec<Range<usize>>) -> Shown {
        places.extend(passwords(text));
        places.sort_by_key(|place| place.start);
        let mut shown = Shown { text: String::with_capacity(text.len()), stars: Vec::new() };
        let mut at = 0;
        for place in places {
            let mut start = place.start.max(at);
            for line in text.get(start..place.end).unwrap_or_default().split_inclusive('\n') {
                let secret = start..start + line.trim_end_matches('\n').len();
                start += line.len();
                match shown.stars.last_mut() {
                    _ if secret.is_empty() => continue,
                    Some((before, _)) if before.end == secret.start => before.end = secret.end,
                    _ => {
                        shown.text.push_str(&text[at..secret.start]);
                        let begin = shown.text.len();
                        shown.text.push_str(STARS);
                        shown.stars.push((secret.clone(), begin..begin + STARS.len()));
                    }
                }
                at = secret.end;
            }
        }
        shown.text.push_str(&text[at..]);
        shown
    }

    /// The new place of a part of the text. A place inside a secret is moved to its stars.
    pub(super) fn place(&self, place: &Range<usize>) -> Range<usize> {
        let at = |offset: usize| {
            let before = self.stars.iter().rev().find(|(secret, _)| secret.start < offset);
            match before {
                None => offset,
                Some((secret, stars)) if offset <= secret.end => stars.end,
                Some((secret, stars)) => offset - secret.end + stars.end,
            }
        };
        at(place.start)..at(place.end)
    }
}

/// The places of passwords in URLs.
fn passwords(text: &str) -> Vec<Range<usize>> {
    let mut places = Vec::new();
    let mut begin = 0;
    for line in text.split_inclusive('\n') {
        let mut found = parameters(line);
        // A password may contain any character, so the last `@` ends it.
        found.extend(line.rfind('@').map(|end| password_start(&line[..end])..end));
        places.extend(found.into_iter().map(|place| place.start + begin..place.end + begin));
        begin += line.len();
    }
    places
}

/// Whether the name sounds like that of a secret.
pub(super) fn sounds_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["pass", "secret", "token", "key"].iter().any(|word| name.contains(word))
}

/// The places of possible secrets in a text that is not understood: from such a name to the end of the line, and on
/// lines below it that are indented further. Names for which `is_known` is true are not secrets.
pub(super) fn after_names(text: &str, is_known: impl Fn(&str) -> bool) -> Vec<Range<usize>> {
    let mut places = Vec::new();
    let (mut begin, mut margin) = (0, usize::MAX);
    for line in text.split_inclusive('\n') {
        let names = line.match_indices([':', '=']).filter(|(end, _)| {
            let name = line[..*end].trim_end_matches(['"', '\'', ' ']);
            let name = name.rsplit(|sign: char| !(sign.is_alphanumeric() || matches!(sign, '_' | '-'))).next();
            name.is_some_and(|name| sounds_secret(name) && !is_known(name))
        });
        let (name, indent) = (names.map(|(end, _)| end + 1).next(), line.len() - line.trim_start().len());
        if indent > margin {
            places.push(begin..begin + line.len());
        } else {
            margin = if name.is_some() { indent } else { usize::MAX };
            places.extend(name.map(|end| begin + end..begin + line.len()));
        }
        begin += line.len();
    }
    places
}

/// The start of the password in a text that ends at the `@`: after `scheme:user:`, or after `user:` if there is no
/// scheme.
fn password_start(who: &str) -> usize {
    // A colon before a space belongs to YAML or to a sentence.
    let tight = |from: usize| {
        let colons = who[from..].match_indices(':').map(|(at, _)| from + at + 1);
        colons.into_iter().find(|end| !who[*end..].starts_with(char::is_whitespace))
    };
    let first = tight(0).unwrap_or(who.len());
    match BEGINNINGS.iter().filter_map(|begin| Some(who.find(begin)? + begin.len())).min() {
        // The match is at the first colon, or at most two characters after it (`://`).
        Some(begins) if begins <= first.saturating_add(2) => match tight(begins) {
            Some(password) => password,
            // A user name has no slash: this is a URL without a host, and any part of it may be secret.
            None if who[begins..].trim_start_matches("//").contains('/') => begins,
            None => who.len(),
        },
        _ => first,
    }
}

/// The places of passwords in parameters, as in `unix:///path?user=u&pass=secret`.
fn parameters(line: &str) -> Vec<Range<usize>> {
    let mut places = Vec::new();
    for (sign, _) in line.match_indices(['?', '&']) {
        let rest = &line[sign + 1..];
        let parameter = rest.split(['?', '&', ' ', '\t', '\n']).next().unwrap_or_default();
        if let Some((_, value)) = parameter.split_once('=').filter(|(name, _)| name.contains("pass")) {
            let end = sign + 1 + parameter.len();
            places.push(end - value.len()..end);
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_stars_of_one_width() {
        for (text, expected) in [
            ("store: {url: redis://u:secret@h:6379/2}", "store: {url: redis://u:***@h:6379/2}"),
            ("redis://:secret@h", "redis://:***@h"),
            ("a: 1\nredis-cluster://u:p@ss@h1:1,h2:2\nb: x", "a: 1\nredis-cluster://u:***@h1:1,h2:2\nb: x"),
            ("redis://u:pa/ss?@h", "redis://u:***@h"),
            ("unix:///run/r.sock?user=u&pass=secret&db=1", "unix:///run/r.sock?user=u&pass=***&db=1"),
            ("url: unix:///r?pass=s\n", "url: unix:///r?pass=***\n"),
            ("rediss://u@h", "rediss://u@h"),
            ("redis:u:secret@h", "redis:u:***@h"),
            ("--store redis:/u:secret@h", "--store redis:/u:***@h"),
            ("http: 0.0.0.0:8080", "http: 0.0.0.0:8080"),
            ("limiter:secret@h:6379", "limiter:***@h:6379"),
            ("url: :secret@redis:6379", "url: :***@redis:6379"),
            ("unix:/r?pass=secret", "unix:/r?pass=***"),
            ("unix:/r?pass=se@cret&db=1", "unix:***&db=1"),
            ("redis:///secret@h", "redis:***@h"),
            ("error: an argument 'redis://u:secret@h' is", "error: an argument 'redis://u:***@h' is"),
            ("error: invalid value 'a@b': write KEY=VALUE", "error: invalid value 'a@b': write KEY=VALUE"),
            ("--store-password-file=x", "--store-password-file=x"),
            ("redis://u:grüße@h", "redis://u:***@h"),
        ] {
            assert_eq!(masked(text), expected);
            assert_eq!(masked(expected), expected, "stars are not masked again");
        }
    }

    #[test]
    fn a_place_behind_a_secret_is_found_in_the_masked_text() {
        for secret in ["s", "sss", "a-long-secret"] {
            let text = format!("{{pass: {secret}, b: 1}}\n{{url: redis://u:{secret}@h, c: 2}}\nd");
            let shown = Shown::new(&text, std::iter::once(7..7 + secret.len()).collect());
            assert_eq!(shown.text, "{pass: ***, b: 1}\n{url: redis://u:***@h, c: 2}\nd");
            let found = |what: &str| {
                let start = text.find(what).expect(what);
                shown.text[shown.place(&(start..start + what.len()))].to_owned()
            };
            assert_eq!(["b: 1", "c: 2", "h, c", "\nd"].map(found), ["b: 1", "c: 2", "h, c", "\nd"]);
            assert_eq!(&shown.text[shown.place(&(7..7 + secret.len()))], "***");
            assert_eq!(&shown.text[shown.place(&(0..text.len()))], shown.text);
        }
        assert_eq!(Shown::new("a: |\n  b\n\n  c\nd", std::iter::once(3..14).collect()).text, "a: ***\n***\n\n***\nd");
    }
}
