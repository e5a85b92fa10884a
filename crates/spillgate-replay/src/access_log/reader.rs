//! Reads a line of one format into a time and the values of the wanted fields.

use spillgate::Time;
use spillgate::text::nearest;

use super::counts::Unreadable;
use super::csv::Columns;
use super::fields::Fields;
use super::json::Paths;
use super::pattern::Pattern;
use super::plan::{Plan, Values};
use super::time::Times;

/// The names of the formats. A format can also be a pattern.
pub const FORMATS: [&str; 7] = ["combined", "common", "nginx", "envoy", "caddy", "json", "csv"];
/// Longer lines are unreadable. Servers accept only shorter request headers: nginx up to 32 KiB, Apache up to 8 KiB a
/// field.
pub const LINE_BYTES_MAX: usize = 64 * 1024;

/// The format `combined` of nginx and Apache. nginx writes `-` for the second value, `$ident`.
const COMBINED: &str = "$remote_addr $ident $remote_user [$time_local] \"$request\" $status $body_bytes_sent \
                        \"$http_referer\" \"$http_user_agent\"";
const COMMON: &str = "$remote_addr $ident $remote_user [$time_local] \"$request\" $status $body_bytes_sent";
/// Envoy's default format.
const ENVOY: &str = "[$time] \"$request\" $status $response_flags $bytes_received $bytes_sent $duration \
                     $upstream_service_time \"$http_x_forwarded_for\" \"$http_user_agent\" \"$http_x_request_id\" \
                     \"$host\" \"$upstream_host\"";

/// Why a format cannot be used. The text says how to fix it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FormatError(pub String);

#[derive(Debug, Clone)]
enum Form {
    Pattern(Pattern),
    Json(Paths),
    Csv(Columns),
}

/// Reads the lines of one file. Each CSV file needs a reader of its own, because its first line names the columns.
#[derive(Debug, Clone)]
pub struct Reader {
    form: Form,
    /// Whether the server writes some characters as escapes, for example `\x22`.
    escapes: bool,
    plan: Plan,
    values: Values,
    times: Times,
}

impl Reader {
    /// Returns a reader of a format: a name of [`FORMATS`], or a pattern as nginx's `log_format` writes it.
    ///
    /// `wanted` has the names of the fields whose values [`read`](Reader::read) returns. `time_field` names the field
    /// that has the time. Without it, the usual names are tried.
    pub fn new(format: &str, wanted: &[String], time_field: Option<&str>) -> Result<Reader, FormatError> {
        let escapes = format != "envoy";
        let pattern = match format {
            "combined" | "nginx" => COMBINED,
            "common" => COMMON,
            "envoy" => ENVOY,
            "json" | "caddy" | "csv" => "",
            pattern if pattern.contains('$') => pattern,
            other => return Err(unknown_format(other)),
        };
        let (form, escapes, plan) = if pattern.is_empty() {
            let plan = Plan::new(wanted, time_field, None)?;
            let form = match format {
                "csv" => Form::Csv(Columns::new()),
                _ => Form::Json(Paths::new(&plan.sources, format == "caddy")),
            };
            (form, false, plan)
        } else {
            let mut pattern = Pattern::parse(pattern, escapes)?;
            let plan = Plan::new(wanted, time_field, Some(&pattern.names()))?;
            pattern.need(&plan.sources, time_field);
            (Form::Pattern(pattern), escapes, plan)
        };
        Ok(Reader { form, escapes, plan, values: Values::default(), times: Times::default() })
    }

    /// Reads a line without its line end. If the line is unreadable, `fields` has no useful values.
    pub fn read(&mut self, line: &[u8], fields: &mut Fields) -> Result<Time, Unreadable> {
        if line.len() > LINE_BYTES_MAX {
            return Err(Unreadable::TooLong);
        }
        if line.iter().all(u8::is_ascii_whitespace) {
            return Err(Unreadable::Empty);
        }
        let values = &mut self.values;
        values.clear(self.plan.sources.len());
        let is_decoded = match &mut self.form {
            Form::Pattern(pattern) => {
                pattern.read(line, values)?;
                false
            }
            Form::Json(paths) => {
                paths.read(line, values).ok_or(Unreadable::Json)?;
                true
            }
            Form::Csv(columns) => {
                columns.read(line, &self.plan.sources, values)?;
                true
            }
        };
        let base = if is_decoded { &values.decoded } else { line };
        let time = self.plan.time(values, base).ok_or(Unreadable::NoTime)?;
        let time = self.times.read(time).ok_or(Unreadable::Time)?;
        self.plan.fill(values, base, self.escapes, fields);
        Ok(time)
    }
}

fn unknown_format(format: &str) -> FormatError {
    let near = nearest(format, FORMATS.into_iter()).map(|near| format!("did you mean {near}? ")).unwrap_or_default();
    let apache = if format.contains('%') {
        "For a format of Apache or Envoy, write the names of nginx: $remote_addr, $time_local, $request. "
    } else {
        ""
    };
    let formats = FORMATS.join(", ");
    FormatError(format!(
        "the format {format:?} is unknown: {near}{apache}The formats are {formats}, or a pattern such as \
         '$remote_addr [$time_local] \"$request\"'"
    ))
}
