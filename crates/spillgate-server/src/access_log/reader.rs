//! Reads a line of one format into a time and the values of the wanted fields.

use spillgate::Time;

use super::counts::Unreadable;
use super::fields::Fields;

/// The names of the formats. A format can also be a pattern.
pub const FORMATS: [&str; 7] = ["combined", "common", "nginx", "envoy", "caddy", "json", "csv"];

/// Why a format cannot be used. The text says how to fix it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FormatError(pub String);

/// Reads the lines of one file. A CSV file has a reader of its own, because its first line names the columns.
#[derive(Debug, Clone)]
pub struct Reader {
    wanted: Vec<String>,
}

impl Reader {
    /// Returns a reader of a format: a name of [`FORMATS`], or a pattern as nginx's `log_format` writes it.
    ///
    /// `wanted` has the names of the fields whose values [`read`](Reader::read) returns. `time_field` names the field that
    /// has the time. Without it, the usual names are tried.
    pub fn new(format: &str, wanted: &[String], time_field: Option<&str>) -> Result<Reader, FormatError> {
        let _ = time_field;
        match format {
            "combined" => Ok(Reader { wanted: wanted.to_vec() }),
            _ => Err(FormatError(format!("the format {format:?} is unknown"))),
        }
    }

    /// Reads a line without its line end. If the line is unreadable, `fields` has no useful values.
    pub fn read(&mut self, line: &[u8], fields: &mut Fields) -> Result<Time, Unreadable> {
        let text = std::str::from_utf8(line).map_err(|_| Unreadable::Form)?;
        let (address, rest) = text.split_once(' ').ok_or(Unreadable::Form)?;
        let (time, rest) =
            rest.split_once('[').and_then(|(_, rest)| rest.split_once("] \"")).ok_or(Unreadable::Form)?;
        let (request, _) = rest.split_once('"').ok_or(Unreadable::Form)?;
        let mut words = request.split(' ');
        let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        fields.clear();
        for name in &self.wanted {
            let value = match name.as_str() {
                "remote_addr" => address,
                "method" => method,
                "path" => target.split('?').next().unwrap_or(""),
                _ => "",
            };
            fields.push(value.as_bytes());
        }
        read_time(time).ok_or(Unreadable::Time)
    }

    /// Returns whether a time of a line had a fraction of a second.
    #[must_use]
    pub fn has_fractions(&self) -> bool {
        false
    }
}

/// Reads `10/Oct/2000:13:55:36 +0000`.
fn read_time(text: &str) -> Option<Time> {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let number = |range| text.get(range).and_then(|digits: &str| digits.parse::<i64>().ok());
    let month = 1 + MONTHS.iter().position(|name| text.get(3..6) == Some(name))? as i64;
    let (day, year) = (number(0..2)?, number(7..11)?);
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 719_469;
    let seconds = 86_400 * days + 3600 * number(12..14)? + 60 * number(15..17)? + number(18..20)?;
    Some(Time::from_nanos(u64::try_from(seconds).ok()? * 1_000_000_000))
}
