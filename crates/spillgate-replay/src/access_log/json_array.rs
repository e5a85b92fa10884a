//! Finds where an object of a JSON array ends. It can have several lines.

/// An object that is read piece by piece.
#[derive(Debug, Default)]
pub(super) struct Object {
    /// How many objects and lists are open.
    depth: u64,
    in_string: bool,
    is_escaped: bool,
    /// Whether the text does not begin like an object. Such a text ends with its line.
    is_other: bool,
}

impl Object {
    /// Returns the length of the rest of the object if it ends in the next `bytes`.
    pub(super) fn end(&mut self, bytes: &[u8]) -> Option<usize> {
        for (at, byte) in bytes.iter().enumerate() {
            if self.is_other {
                if *byte == b'\n' {
                    return Some(at);
                }
            } else if self.in_string {
                match byte {
                    _ if self.is_escaped => self.is_escaped = false,
                    b'\\' => self.is_escaped = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
            } else {
                match byte {
                    b'{' | b'[' => self.depth += 1,
                    _ if self.depth == 0 => self.is_other = true,
                    b'"' => self.in_string = true,
                    b'}' | b']' => {
                        self.depth -= 1;
                        if self.depth == 0 {
                            return Some(at + 1);
                        }
                    }
                    _ => {}
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_ends_with_its_last_brace() {
        for (text, length) in [
            (r#"{"a":1},"#, Some(7)),
            (r#"{"a":[{"b":"}]\"}"}]} {"#, Some(21)),
            (r#"{"a":"\\"}"#, Some(10)),
            ("{\n}\n", Some(3)),
            ("{", None),
            (r#"{"a}"#, None),
            ("}{}", None),
            ("no\n{}", Some(2)),
        ] {
            assert_eq!(Object::default().end(text.as_bytes()), length, "{text}");
            let mut object = Object::default();
            let ends = text.bytes().map(|byte| object.end(&[byte])).position(|end| end.is_some());
            let is_other = !text.starts_with('{');
            assert_eq!(ends.map(|at| at + usize::from(!is_other)), length, "{text}, byte by byte");
        }
    }
}
