//! Finds the known word that is most similar to a misspelt word.
//!
//! An error can then say, for example, `did you mean unit?`, and the author does not have to read the manual.

/// Returns the candidate that is most similar to `word`. Returns `None` if no candidate is similar enough.
///
/// The most similar candidate is the first one that needs the fewest edits. An edit inserts, deletes or replaces a
/// letter, or swaps two neighbouring letters. Upper and lower case count as equal, and so do `-`, `_` and a space.
///
/// A candidate is similar enough if the number of edits is at most a third of the candidate's length. One edit is
/// always allowed. The result is `None` for an empty word, or a word of more than 64 bytes. Each letter of the word is
/// compared with each letter of each candidate, so a longer word would take too much time.
///
/// ```
/// use spillgate::text::nearest;
/// assert_eq!(nearest("request_per_unit", ["unit", "requests_per_unit"].into_iter()), Some("requests_per_unit"));
/// assert_eq!(nearest("colour", ["unit", "window"].into_iter()), None);
/// ```
pub fn nearest<'c>(word: &str, candidates: impl Iterator<Item = &'c str>) -> Option<&'c str> {
    let plain = |text: &str| text.trim().to_lowercase().replace(['-', ' '], "_");
    let word = plain(word);
    if word.is_empty() || word.len() > 64 {
        return None;
    }
    let near = candidates.map(|candidate| (distance(&word, &plain(candidate)), candidate)).min_by_key(|(d, _)| *d);
    near.filter(|(distance, candidate)| *distance <= candidate.len().max(3) / 3).map(|(_, candidate)| candidate)
}

/// Returns the number of edits that turn `a` into `b` (the optimal string alignment distance).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 0..a.len() {
        let mut row = vec![i + 1];
        for j in 0..b.len() {
            let replace = above[j] + usize::from(a[i] != b[j]);
            let mut best = replace.min(above[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j] {
                best = best.min(before[j - 1] + 1);
            }
            row.push(best);
        }
        before = above;
        above = row;
    }
    above.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_word_finds_the_right_one() {
        let keys = ["requests_per_unit", "unit", "window", "rate_limit"];
        assert_eq!(nearest("request_per_unit", keys.into_iter()), Some("requests_per_unit"));
        assert_eq!(nearest("uint", keys.into_iter()), Some("unit"));
        assert_eq!(nearest("Rate-Limit", keys.into_iter()), Some("rate_limit"));
        assert_eq!(nearest("colour", keys.into_iter()), None);
        assert_eq!(nearest("", keys.into_iter()), None);
    }

    #[test]
    fn a_swap_is_one_edit() {
        assert_eq!(distance("abcd", "abdc"), 1);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
