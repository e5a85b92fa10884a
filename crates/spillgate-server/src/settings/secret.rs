//! Hides the passwords in URLs.
//!
//! The URL of a store can contain a password, and a user can write that URL where something else belongs. Messages that
//! repeat what a user wrote must not show the password.

use std::ops::Range;

use super::store::SCHEMES;

/// What is shown instead of a password of any length.
pub(super) const STARS: &str = "***";

/// Returns the text with stars in place of each part that can be a password in a URL. Expects at most one URL in each
/// line.
pub(crate) fn masked(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        match (login(line), parameter(line)) {
            (None, None) => shown.push_str(line),
            (Some(place), None) | (None, Some(place)) => push_masked(&mut shown, line, &place),
            // A password can contain any character, so the two places can overlap. Both are masked together.
            (Some(a), Some(b)) => push_masked(&mut shown, line, &(a.start.min(b.start)..a.end.max(b.end))),
        }
    }
    shown
}

/// Returns the text of a message like [`masked`], but leaves alone words that are no URL, such as `log.json:5: no field
/// @timestamp`.
pub(crate) fn masked_message(text: &str) -> String {
    if names_store(text) { masked(text) } else { text.split_inclusive(char::is_whitespace).map(masked).collect() }
}

/// Returns whether a line of the text contains the URL of a store with a password.
pub(crate) fn has_store_password(text: &str) -> bool {
    text.lines().any(|line| names_store(line) && masked(line) != line)
}

fn names_store(text: &str) -> bool {
    SCHEMES.iter().any(|(scheme, _)| text.contains(&format!("{scheme}:")))
}

/// Returns the URL of a store, with stars instead of everything that can be a password: the login, everything after `?`
/// or `#`, and text where a port belongs.
///
/// A mistake in a URL can move the password to any of these places. An error must not show the password there
/// either.
pub(crate) fn masked_url(url: &str) -> String {
    let (location, rest) = url.split_at(url.find(['?', '#']).unwrap_or(url.len()));
    if let Some((scheme, _)) = url.split_once("://")
        && scheme != "unix"
        && rest.contains('@')
    {
        // Any text after the scheme can be a part of the password.
        return format!("{scheme}://{STARS}");
    }
    let location = masked(location);
    let (scheme, location) = location.split_once("://").unwrap_or(("", &location));
    // A password can contain a `/` too, so the hosts begin after the last `@`.
    let (login, hosts) = location.split_at(location.rfind('@').map_or(0, |at| at + 1));
    let (hosts, path) = hosts.split_at(hosts.find('/').unwrap_or(hosts.len()));
    let host = |host: &str| match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') && port.parse::<u16>().is_err() => format!("{name}:{STARS}"),
        _ => host.to_owned(),
    };
    let hosts: Vec<String> = hosts.split(',').map(host).collect();
    let scheme = if scheme.is_empty() { String::new() } else { format!("{scheme}://") };
    let rest = rest.get(..1).map(|sign| format!("{sign}{STARS}")).unwrap_or_default();
    format!("{scheme}{login}{}{path}{rest}", hosts.join(","))
}

fn push_masked(shown: &mut String, line: &str, place: &Range<usize>) {
    shown.push_str(&line[..place.start]);
    shown.push_str(STARS);
    shown.push_str(&line[place.end..]);
}

/// Returns the place of the password in `scheme://user:password@host`, also if a part of the URL is missing.
fn login(line: &str) -> Option<Range<usize>> {
    // A password can contain an `@` too, so the last `@` of the line ends the password.
    let end = line.rfind('@')?;
    let after_colon = |from: usize| {
        // A colon before a space is a part of a sentence, not of a URL.
        let mut colons = line[from..end].match_indices(':').map(|(at, _)| from + at + 1);
        colons.find(|after| !line[*after..].starts_with(char::is_whitespace))
    };
    let start = after_colon(0)?;
    // After `scheme://` the user's name ends at the next colon. Without this colon, any part can be the password.
    let start = match line[start..end].strip_prefix("//") {
        Some(rest) => after_colon(end - rest.len()).unwrap_or(end - rest.len()),
        None => start,
    };
    (start < end).then_some(start..end)
}

/// Returns the place of the password in `unix:///path?user=name&pass=password`.
fn parameter(line: &str) -> Option<Range<usize>> {
    let start = ["?pass=", "&pass="].iter().filter_map(|name| Some(line.find(name)? + name.len())).min()?;
    let len = line[start..].find(|sign: char| sign == '&' || sign.is_whitespace()).unwrap_or(line.len() - start);
    (len > 0).then_some(start..start + len)
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
            ("rediss://u@h", "rediss://***@h"),
            ("redis:u:secret@h", "redis:***@h"),
            ("--store redis:/u:secret@h", "--store redis:***@h"),
            ("http: 0.0.0.0:8080", "http: 0.0.0.0:8080"),
            ("limiter:secret@h:6379", "limiter:***@h:6379"),
            ("limiter:se://cret@h", "limiter:***@h"),
            ("url: :secret@redis:6379", "url: :***@redis:6379"),
            ("unix:/r?pass=secret", "unix:/r?pass=***"),
            ("unix:/r?pass=se@cret&db=1", "unix:***&db=1"),
            ("redis://u:secret&pass=secret@h x", "redis://u:*** x"),
            ("redis:///secret@h", "redis://***@h"),
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
    fn a_url_shows_no_password_wherever_a_mistake_puts_it() {
        for (url, shown) in [
            ("redis://h:1?password=S3cret", "redis://h:1?***"),
            ("redis-sentinel://h:1/m?sentinel_password=S3cret", "redis-sentinel://h:1/m?***"),
            ("redis://u:S3cret", "redis://u:***"),
            ("redis://127.0.0.1:1,u:S3cret", "redis://127.0.0.1:1,u:***"),
            ("redis://127.0.0.1:1/0#S3cret", "redis://127.0.0.1:1/0#***"),
            ("unix:///run/r.sock?pas=S3cret", "unix:///run/r.sock?***"),
            ("redis://u:S3c#ret@h", "redis://***"),
            ("redis://u:S3c?ret@h", "redis://***"),
            ("redis://:a@S3cret#g@h", "redis://***"),
            ("rediss://u:a@S3cret?g@h:1/2", "rediss://***"),
            ("redis-sentinel://:a@S3cret#g@h:1/m", "redis-sentinel://***"),
            ("redis-cluster://:S3c#ret@S3cret", "redis-cluster://***"),
            ("redis://u:a@S3cret/g@h:1/2", "redis://u:***@h:1/2"),
            ("redis://h?password=a@S3cret", "redis://***"),
            ("unix:///r?pass=a@S3cret", "unix:///r?***"),
            ("redis://u:S3cret@h:1/2", "redis://u:***@h:1/2"),
            ("redis-cluster://:S3cret@a,b:1", "redis-cluster://:***@a,b:1"),
            ("redis://[::1]:6379/2", "redis://[::1]:6379/2"),
            ("redis://[::1]", "redis://[::1]"),
            ("unix:///run/redis.sock", "unix:///run/redis.sock"),
            ("memory", "memory"),
            ("u:S3cret", "u:***"),
        ] {
            assert_eq!(masked_url(url), shown);
        }
    }

    #[test]
    fn a_message_shows_words_that_are_no_url() {
        for (text, shown) in [
            ("log.json:5: the field @timestamp is missing", "log.json:5: the field @timestamp is missing"),
            ("no file limiter:S3cret@h:6379: not found", "no file limiter:***@h:6379: not found"),
            ("no file redis://u:S3 cret@h: not found", "no file redis://u:***@h: not found"),
            ("a: b\n  redis:S3cret@h\n", "a: b\n  redis:***@h\n"),
        ] {
            assert_eq!(masked_message(text), shown);
        }
        let lines =
            ["url: redis://u:S3cret@h", "url: unix:///r?pass=S3cret", "value: mailto:bob@example.com", "redis://h"];
        assert_eq!(lines.map(has_store_password), [true, true, false, false]);
    }
}
