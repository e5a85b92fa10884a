//! Reads the hash of a caller, and finds the caller.
//!
//! With `insight.keys: hashed`, an operator knows only the hash of a caller that does harm. `/block` and `/explain` take
//! it in place of the caller's entries.

use axum::http::StatusCode;
use spillgate::Clock;
use spillgate::insight::CallerId;
use spillgate_http::problem::Problem;
use spillgate_service::Service;
use spillgate_service::seek::{SeekError, SeenCaller};

/// Returns the next request of the caller with this hash, which the member `hash` of a body has.
pub(super) async fn caller<C: Clock>(service: &Service<C>, hash: &str) -> Result<SeenCaller, Problem> {
    let is_hash = hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    let id = hash.parse::<CallerId>().ok().filter(|_| is_hash).ok_or_else(|| {
        let help = "write its 16 hexadecimal digits as GET /top and GET /insight show them";
        Problem::bad_request("`hash` is not the hash of a caller", help)
    })?;
    service.seek(id).await.map_err(|error| {
        let status = match error {
            SeekError::Busy => StatusCode::SERVICE_UNAVAILABLE,
            SeekError::Off | SeekError::NotSeen => StatusCode::NOT_FOUND,
        };
        Problem::new(status, error.to_string(), error.help())
    })
}
