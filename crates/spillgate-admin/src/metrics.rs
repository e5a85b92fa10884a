//! `GET /metrics`: returns all metrics, in the format that the client prefers.
//!
//! Monitoring systems such as Prometheus read this page.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::Response;
use spillgate::Clock;
use spillgate_service::Service;
use spillgate_service::metrics::{Format, Page};

use super::{AdminState, page};

pub(super) async fn metrics<C: Clock + 'static>(
    State(state): State<Arc<AdminState<C>>>,
    headers: HeaderMap,
) -> Response {
    page_of(&state.service, Page::new(preferred(&headers)))
}

/// Returns the answer with this page of metrics.
pub(super) fn page_of<C: Clock + 'static>(service: &Arc<Service<C>>, mut page: Page) -> Response {
    let kind = match page.format() {
        Format::Text => "text/plain; version=0.0.4; charset=utf-8",
        Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
    };
    service.update_metrics();
    let service = Arc::clone(service);
    page::page(kind, move || page.next(service.metrics()))
}

/// Returns the format that the header field `Accept` prefers: OpenMetrics or the text format of Prometheus. If both
/// have the same weight above zero, it is OpenMetrics. If `Accept` names neither, it is the text format.
pub(super) fn preferred(headers: &HeaderMap) -> Format {
    let (mut open, mut text) = (0.0, 0.0_f32);
    let fields = headers.get_all(header::ACCEPT).iter().filter_map(|field| field.to_str().ok());
    for range in fields.flat_map(|field| field.split(',')) {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
        let parameters: Vec<_> = parts.filter_map(|part| part.split_once('=')).collect();
        let parameter = |name: &str| parameters.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, v)| *v);
        let weight = parameter("q").map_or(Some(1.0), |q| q.parse().ok()).unwrap_or(0.0_f32);
        match (&*kind, parameter("version")) {
            ("application/openmetrics-text", None | Some("1.0.0" | "0.0.1")) => open = weight.max(open),
            ("text/plain", None | Some("0.0.4")) | ("text/*" | "*/*", _) => text = weight.max(text),
            _ => {}
        }
    }
    if open > 0.0 && open >= text { Format::OpenMetrics } else { Format::Text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_the_one_that_the_client_prefers() {
        let of = |accept: &'static str| {
            preferred(&HeaderMap::from_iter([(header::ACCEPT, accept.parse().expect("the header is valid"))]))
        };
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
                          application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;q=0.4,\
                          text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        assert_eq!(of(prometheus), Format::OpenMetrics);
        assert_eq!(of("application/openmetrics-text"), Format::OpenMetrics);
        assert_eq!(of("text/plain;version=0.0.4"), Format::Text);
        assert_eq!(of("text/plain, application/openmetrics-text;q=0.9"), Format::Text);
        assert_eq!(of("application/openmetrics-text; q=0, */*"), Format::Text);
        assert_eq!(of("*/*"), Format::Text);
        assert_eq!(of("application/json"), Format::Text);
        assert_eq!(preferred(&HeaderMap::new()), Format::Text);
    }
}
