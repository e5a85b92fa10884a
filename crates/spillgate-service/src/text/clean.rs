//! Makes text of unknown origin safe for a terminal and for a page.
//!
//! Clients choose the names of callers, and another server can send any text. But a terminal obeys control characters:
//! they can move the cursor, change the title, or reverse the direction of a line.

/// Replaces each character that a terminal could obey or hide by visible text such as `\u{1b}`. Line ends are replaced
/// too, so the result is one line.
pub fn clean(text: &str) -> String {
    const AS_THEY_ARE: [char; 3] = ['"', '\'', '\\'];
    let mut cleaned = String::with_capacity(text.len());
    for piece in text.split_inclusive(AS_THEY_ARE) {
        let body = piece.trim_end_matches(AS_THEY_ARE);
        cleaned.extend(body.escape_debug());
        cleaned.push_str(&piece[body.len()..]);
    }
    cleaned
}

/// Replaces each character that a terminal could obey or hide by its JSON escape, such as `\u001b`. So the JSON still
/// means the same. The JSON must be on one line.
pub fn clean_json(json: &str) -> String {
    let mut cleaned = String::with_capacity(json.len());
    for c in json.chars() {
        // `escape_debug` leaves a visible character as it is. No line end comes here: `json` is on one line, and JSON
        // escapes the line ends in strings.
        if c == ' ' || c.is_ascii_graphic() || c.escape_debug().len() == 1 {
            cleaned.push(c);
        } else {
            c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| cleaned.push_str(&format!("\\u{unit:04x}")));
        }
    }
    cleaned
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str =
        "\u{1b}[2J\u{7}\r\n\t\0\u{7f}\u{9b}31m\u{202e}\u{2066}\u{2028}\u{feff}\u{200b}\u{ad}\u{e0041}\u{ffff}";

    fn is_obeyed(c: char) -> bool {
        c.is_control() || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
    }

    /// Returns all characters in the ranges where a terminal obeys or hides some.
    fn characters() -> impl Iterator<Item = char> {
        ('\0'..='\u{ffff}').chain('\u{e0000}'..='\u{e01ff}')
    }

    #[test]
    fn no_character_that_a_terminal_obeys_is_left() {
        let cleaned = clean(HOSTILE);
        assert!(cleaned.is_ascii() && !cleaned.contains(is_obeyed), "{cleaned}");
        for c in characters() {
            assert!(!clean(&format!("a{c}b")).contains(is_obeyed), "{:x}", c as u32);
        }
    }

    #[test]
    fn visible_text_stays_as_it_is() {
        let text = r#"a "b" \n 'c' café 用户 наймення 😀 हिन्दी"#;
        assert_eq!(clean(text), text);
        assert_eq!(clean("a\u{1b}b\nc"), "a\\u{1b}b\\nc");
    }

    #[test]
    fn json_means_the_same_and_has_no_character_that_a_terminal_obeys() {
        for text in [HOSTILE, r#"a "b" \ café 😀"#] {
            let json = clean_json(&serde_json::Value::from(text).to_string());
            assert!(!json.contains(is_obeyed), "{json}");
            assert_eq!(serde_json::from_str::<String>(&json).expect("it is JSON"), text);
        }
        for c in characters() {
            let json = clean_json(&serde_json::Value::from(c.to_string()).to_string());
            assert!(!json.contains(is_obeyed), "{:x}", c as u32);
            assert_eq!(serde_json::from_str::<char>(&json).ok(), Some(c));
        }
    }
}
