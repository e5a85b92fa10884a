//! Passwords in URLs, which no error, listing or log may show.

use std::ops::Range;

/// What a URL begins with, also where somebody forgot a sign of it.
const BEGINNINGS: [&str; 9] =
    ["://", "redis:", "rediss:", "valkey:", "valkeys:", "cluster:", "sentinel:", "unix:", "redis//"];

/// The text with stars in place of every password in a URL, and as many bytes: what points into the one points to the
/// same in the other.
pub(crate) fn masked(text: &str) -> String {
    let hide = |line: &str| {
        let mut passwords = parameters(line);
        // A password may hold any sign, so the last `@` ends it.
        passwords.extend(line.rfind('@').map(|end| password_start(&line[..end])..end));
        hidden(line, &passwords)
    };
    text.split_inclusive('\n').map(hide).collect()
}

/// The text with stars in place of what stands there; lines stay lines.
pub(super) fn hidden(text: &str, places: &[Range<usize>]) -> String {
    let mut shown = String::with_capacity(text.len());
    for (at, sign) in text.char_indices() {
        if sign != '\n' && places.iter().any(|place| place.contains(&at)) {
            shown.extend(std::iter::repeat_n('*', sign.len_utf8()));
        } else {
            shown.push(sign);
        }
    }
    shown
}

/// Where the password begins in a line that ends with who logs in: after the second part of a URL's `scheme:user:`,
/// or of `user:` alone.
fn password_start(who: &str) -> usize {
    // A colon before a blank is YAML's, or that of a sentence.
    let tight = |from: usize| {
        let colons = who[from..].match_indices(':').map(|(at, _)| from + at + 1);
        colons.into_iter().find(|end| !who[*end..].starts_with(char::is_whitespace))
    };
    let first = tight(0).unwrap_or(who.len());
    match BEGINNINGS.iter().filter_map(|begin| Some(who.find(begin)? + begin.len())).min() {
        // `://` is at the colon or two signs after it.
        Some(begins) if begins <= first.saturating_add(2) => match tight(begins) {
            Some(password) => password,
            // A user has no slash: this is a URL without a host, and anything may stand in it.
            None if who[begins..].trim_start_matches("//").contains('/') => begins,
            None => who.len(),
        },
        _ => first,
    }
}

/// Where passwords are in `unix:///path?user=u&pass=secret`.
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
    use super::masked;

    #[test]
    fn passwords_are_stars_and_nothing_moves() {
        for (text, expected) in [
            ("store: {url: redis://u:secret@h:6379/2}", "store: {url: redis://u:******@h:6379/2}"),
            ("redis://:secret@h", "redis://:******@h"),
            ("a: 1\nredis-cluster://u:p@ss@h1:1,h2:2\nb: x", "a: 1\nredis-cluster://u:****@h1:1,h2:2\nb: x"),
            ("redis://u:pa/ss?@h", "redis://u:******@h"),
            ("unix:///run/r.sock?user=u&pass=secret&db=1", "unix:///run/r.sock?user=u&pass=******&db=1"),
            ("url: unix:///r?pass=s\n", "url: unix:///r?pass=*\n"),
            ("rediss://u@h", "rediss://u@h"),
            ("redis:u:secret@h", "redis:u:******@h"),
            ("--store redis:/u:secret@h", "--store redis:/u:******@h"),
            ("http: 0.0.0.0:8080", "http: 0.0.0.0:8080"),
            ("limiter:secret@h:6379", "limiter:******@h:6379"),
            ("url: :secret@redis:6379", "url: :******@redis:6379"),
            ("unix:/r?pass=secret", "unix:/r?pass=******"),
            ("unix:/r?pass=se@cret&db=1", "unix:***************&db=1"),
            ("redis:///secret@h", "redis:*********@h"),
            ("error: an argument 'redis://u:secret@h' is", "error: an argument 'redis://u:******@h' is"),
            ("error: invalid value 'a@b': write KEY=VALUE", "error: invalid value 'a@b': write KEY=VALUE"),
            ("--store-password-file=x", "--store-password-file=x"),
            ("redis://u:grüße@h", "redis://u:*******@h"),
        ] {
            assert_eq!(masked(text), expected);
            assert_eq!(masked(text).len(), text.len());
        }
    }
}
