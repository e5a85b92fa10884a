//! Reads a line of one format into a time and the values of the wanted fields.

use spillgate::Time;
use spillgate::text::nearest;

use super::columns::Columns;
use super::counts::Unreadable;
use super::csv::Csv;
use super::docker;
use super::fields::Fields;
use super::json::{Keys, Paths};
use super::pattern::Pattern;
use super::plan::{Plan, Values};
use super::time::{Times, is_time_of_day, join};

/// The names of the formats. A format can also be a pattern, and `docker:FORMAT` is any format in Docker's JSON lines.
pub const FORMATS: [&str; 15] = [
    "combined",
    "common",
    "nginx",
    "envoy",
    "caddy",
    "haproxy",
    "traefik",
    "squid",
    "iis",
    "cloudfront",
    "alb",
    "s3",
    "json",
    "csv",
    "docker",
];
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

/// The format `httplog` of HAProxy. Captured header fields can be before the request.
const HAPROXY: &str = "$client_with_port [$time_local] $frontend $backend $timers $status $bytes_sent $request_cookie \
                       $response_cookie $termination $connections $queues $captured\"$request\"";
/// The native format of Squid, which pads the duration.
const SQUID: &str = "$msec  $duration $remote_addr $cache_result/$status $bytes_sent $request_method $request_uri \
                     $remote_user $hierarchy $content_type";
/// The access log of the Application Load Balancer of AWS. Its first time is that of the answer, so the time of the
/// request has the name `time` here.
const ALB: &str = "$type $time_of_answer $elb $client_with_port $target $request_processing_time \
                   $target_processing_time $response_processing_time $status $target_status $received_bytes $bytes_sent \
                   \"$request\" \"$http_user_agent\" $ssl_cipher $ssl_protocol $target_group \"$trace_id\" \"$host\" \
                   \"$certificate\" $rule_priority $time";
/// The server access log of S3.
const S3: &str = "$bucket_owner $bucket [$time_local] $remote_addr $requester $request_id $operation $key \"$request\" \
                  $status $error_code $bytes_sent $object_size $total_time $turn_around_time \"$http_referer\" \
                  \"$http_user_agent\"";

/// Why a format cannot be used. The text says how to fix it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FormatError(pub String);

#[derive(Debug, Clone)]
enum Form {
    Pattern(Pattern),
    Json(Paths),
    Csv(Csv),
    Columns(Columns),
}

/// Reads the lines of one file. Each CSV file needs a reader of its own, because its first line names the columns.
#[derive(Debug, Clone)]
pub struct Reader {
    /// Whether each line is inside of a line that Docker has written.
    is_docker: bool,
    form: Form,
    /// Whether the server writes some characters as escapes, for example `\x22`.
    escapes: bool,
    plan: Plan,
    values: Values,
    times: Times,
    /// A date and a time of day, if the line has them in two values.
    joined: Vec<u8>,
}

impl Reader {
    /// Returns a reader of a format: a name of [`FORMATS`], a pattern as nginx's `log_format` writes it, or one of both
    /// after `docker:`.
    ///
    /// `wanted` has the names of the fields whose values [`read`](Reader::read) returns. `time_field` names the field
    /// that has the time. Without it, the usual names are tried.
    pub fn new(format: &str, wanted: &[String], time_field: Option<&str>) -> Result<Reader, FormatError> {
        let is_docker = format == "docker" || format.starts_with("docker:");
        let format = if is_docker { format.strip_prefix("docker:").unwrap_or("combined") } else { format };
        // HAProxy writes `#22` for a quote.
        let escapes = !matches!(format, "envoy" | "haproxy");
        let pattern = match format {
            "combined" | "nginx" => COMBINED,
            "common" => COMMON,
            "envoy" => ENVOY,
            "haproxy" => HAPROXY,
            "squid" => SQUID,
            "alb" => ALB,
            "s3" => S3,
            "json" | "caddy" | "traefik" | "csv" | "iis" | "cloudfront" => "",
            pattern if pattern.contains('$') => pattern,
            other => return Err(unknown_format(other)),
        };
        let (form, escapes, plan) = if pattern.is_empty() {
            let plan = Plan::new(wanted, time_field, None)?;
            let form = match format {
                "csv" => Form::Csv(Csv::new()),
                "iis" | "cloudfront" => Form::Columns(Columns::default()),
                "caddy" => Form::Json(Paths::new(&plan.sources, Keys::Caddy)),
                "traefik" => Form::Json(Paths::new(&plan.sources, Keys::Traefik)),
                _ => Form::Json(Paths::new(&plan.sources, Keys::Plain)),
            };
            (form, false, plan)
        } else {
            let mut pattern = Pattern::parse(pattern, escapes)?;
            let plan = Plan::new(wanted, time_field, Some(&pattern.names()))?;
            pattern.need(&plan.sources, time_field);
            let pattern = if format == "haproxy" { pattern.with_prefix() } else { pattern };
            (Form::Pattern(pattern), escapes, plan)
        };
        let (values, times, joined) = Default::default();
        Ok(Reader { is_docker, form, escapes, plan, values, times, joined })
    }

    /// Returns whether lines are JSON, so that a file can also be one JSON array.
    pub(super) fn is_json(&self) -> bool {
        matches!(self.form, Form::Json(_)) && !self.is_docker
    }

    /// Returns whether the first line of a file names its columns.
    pub(super) fn has_first_line(&self) -> bool {
        matches!(self.form, Form::Csv(_))
    }

    /// Reads a line without its line end. If the line is unreadable, `fields` has no useful values.
    pub fn read(&mut self, line: &[u8], fields: &mut Fields) -> Result<Time, Unreadable> {
        if line.len() > LINE_BYTES_MAX {
            return Err(Unreadable::TooLong);
        }
        if line.iter().all(u8::is_ascii_whitespace) {
            return Err(Unreadable::Empty);
        }
        if self.is_docker {
            let inner = docker::inner(line).ok_or(Unreadable::Docker)?;
            return self.read_inner(inner.as_bytes(), fields);
        }
        self.read_inner(line, fields)
    }

    fn read_inner(&mut self, line: &[u8], fields: &mut Fields) -> Result<Time, Unreadable> {
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
            Form::Csv(csv) => {
                csv.read(line, &self.plan.sources, values)?;
                true
            }
            Form::Columns(columns) => {
                columns.read(line, &self.plan.sources, values)?;
                false
            }
        };
        let base = if is_decoded { &values.decoded } else { line };
        let mut time = self.plan.time(values, base).ok_or(Unreadable::NoTime)?;
        if is_time_of_day(time) {
            let date = self.plan.date(values, base).ok_or(Unreadable::NoTime)?;
            join(date, time, &mut self.joined);
            time = &self.joined;
        }
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
        "the format {format:?} is unknown: {near}{apache}The formats are {formats}, docker:FORMAT, or a pattern such as \
         '$remote_addr [$time_local] \"$request\"'"
    ))
}
