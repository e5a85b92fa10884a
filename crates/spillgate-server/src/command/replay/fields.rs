//! The fields that no line of a log has.
//!
//! A descriptor with such a field is in no request, so its rules would count nothing. Most such fields are misspelt.

use std::collections::BTreeSet;

use serde_json::Value;

use super::inputs::Inputs;
use crate::command::terminal::{Problem, clean};

/// The error names the members of only this many lines.
const LINES: usize = 5;
/// The error names at most this many members.
const MEMBERS: usize = 40;
/// A member with a longer path is not named.
const NAME_BYTES: usize = 60;

/// The fields that no line has had up to now.
pub(super) struct Unseen {
    fields: Vec<usize>,
    /// The paths of the members of the first lines, if the lines are JSON.
    members: BTreeSet<String>,
    lines: usize,
    is_json: bool,
}

impl Unseen {
    pub(super) fn new(inputs: &Inputs) -> Unseen {
        Unseen {
            fields: (0..inputs.templates.fields().len()).collect(),
            members: BTreeSet::new(),
            lines: 0,
            is_json: matches!(&*inputs.format, "json" | "caddy" | "traefik"),
        }
    }

    /// Looks at the fields of a line. `value` returns the value of the field with this index.
    #[inline]
    pub(super) fn look<'f>(&mut self, text: &[u8], value: impl Fn(usize) -> Option<&'f str>) {
        if !self.fields.is_empty() {
            self.fields.retain(|index| value(*index).is_none());
            self.look_for_members(text);
        }
    }

    fn look_for_members(&mut self, text: &[u8]) {
        if !self.is_json || self.lines >= LINES {
            return;
        }
        self.lines += 1;
        if let Ok(line) = serde_json::from_slice::<Value>(text) {
            self.add_members("", &line);
        }
    }

    /// Adds the paths of the members of `value` that are not objects.
    fn add_members(&mut self, path: &str, value: &Value) {
        match value {
            Value::Object(members) => {
                for (name, value) in members {
                    let dot = if path.is_empty() { "" } else { "." };
                    if path.len() + name.len() < NAME_BYTES {
                        self.add_members(&format!("{path}{dot}{name}"), value);
                    }
                }
            }
            Value::Array(_) => {}
            _ if path.is_empty() || self.members.len() >= MEMBERS => {}
            _ => _ = self.members.insert(path.to_owned()),
        }
    }

    /// Returns a problem if no line has had some of the fields.
    pub(super) fn problem(&self, inputs: &Inputs) -> Option<Problem> {
        let names: Vec<_> =
            self.fields.iter().map(|index| format!("`{{{}}}`", inputs.templates.fields()[*index])).collect();
        let fields = match &names[..] {
            [] => return None,
            [name] => format!("field {name}"),
            names => format!("fields {}", names.join(", ")),
        };
        let help = if self.members.is_empty() {
            "use a field that the lines have, or leave out its descriptor".to_owned()
        } else {
            let members: Vec<_> = self.members.iter().map(|member| clean(member)).collect();
            format!("the first lines have these members: {}", members.join(", "))
        };
        Some(Problem::new(format!("no line of the log has the {fields}"), help))
    }
}
