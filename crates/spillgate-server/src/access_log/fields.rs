//! The values of the wanted fields of one line.

/// The values of the wanted fields of one line, in the order in which they were wanted. It is used again for each line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fields {
    text: String,
    /// For each field where its value begins and ends in `text`. Begin and end are equal if there is no value.
    spans: Vec<(u32, u32)>,
}

impl Fields {
    /// Returns the value of a field. Returns `None` if the line has no such value, or if the value is empty or `-`.
    #[must_use]
    pub fn value(&self, index: usize) -> Option<&str> {
        let (begin, end) = *self.spans.get(index)?;
        self.text.get(begin as usize..end as usize).filter(|value| !value.is_empty() && *value != "-")
    }

    pub(super) fn clear(&mut self) {
        self.text.clear();
        self.spans.clear();
    }

    /// Adds the value of the next field. Bytes that are not UTF-8 are replaced.
    pub(super) fn push(&mut self, value: &[u8]) {
        let begin = self.text.len() as u32;
        match std::str::from_utf8(value) {
            Ok(value) => self.text.push_str(value),
            Err(_) => self.text.push_str(&String::from_utf8_lossy(value)),
        }
        self.spans.push((begin, self.text.len() as u32));
    }
}
