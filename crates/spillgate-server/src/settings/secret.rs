//! Passwords in URLs, which no error, listing or log may show.

/// What a URL begins with, also where somebody forgot a sign of it.
const BEGINNINGS: [&str; 8] = ["://", "redis:", "rediss:", "valkey:", "valkeys:", "cluster:", "sentinel:", "redis//"];

/// The text with stars in place of every password in a URL, and as many bytes: what points into the one points to the
/// same in the other.
pub(crate) fn masked(text: &str) -> String {
    let mut masked = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let begins = BEGINNINGS.iter().filter_map(|begin| Some(line.find(begin)? + begin.len())).min();
        let (before, after) = line.split_at(begins.unwrap_or(line.len()));
        masked.push_str(before);
        mask_url(after, &mut masked);
    }
    masked
}

/// What follows the scheme, to the end of the line: a password may hold any sign, so the last `@` ends it.
fn mask_url(rest: &str, masked: &mut String) {
    let (who, rest) = rest.rsplit_once('@').map_or(("", rest), |(who, _)| rest.split_at(who.len()));
    let (user, password) = who.split_once(':').map_or((who, ""), |(user, _)| who.split_at(user.len() + 1));
    masked.push_str(user);
    stars(password, masked);
    // unix:///path?user=u&pass=secret
    for parameter in rest.split_inclusive(['?', '&']) {
        match parameter.split_once('=') {
            Some((name, value)) if name.contains("pass") => {
                let end = value.find(|c: char| c == '&' || c.is_whitespace()).unwrap_or(value.len());
                masked.extend([name, "="]);
                stars(&value[..end], masked);
                masked.push_str(&value[end..]);
            }
            _ => masked.push_str(parameter),
        }
    }
}

fn stars(text: &str, masked: &mut String) {
    masked.extend(std::iter::repeat_n('*', text.len()));
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
            ("redis://u:grüße@h", "redis://u:*******@h"),
        ] {
            assert_eq!(masked(text), expected);
            assert_eq!(masked(text).len(), text.len());
        }
    }
}
