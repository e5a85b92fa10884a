//! Says whether a request can come from a web page of another site.
//!
//! If an operator opens a page of another site in a browser, this page can send requests to this listener.
//! [`spillgate_http::browsers`] finds such requests by their header fields.
//!
//! Because of DNS rebinding, `Host` must be an address, `localhost`, or in the setting `admin_hosts` if the settings
//! have no token. With a token, every name is accepted, because a page of another site does not know the token.

use axum::extract::Request;
use axum::http::{HeaderName, Method, StatusCode};
use spillgate_http::browsers::{self, Origin};
use spillgate_http::problem::Problem;
use spillgate_service::metrics::AdminRefusal;

use super::Refused;

const MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// Checks that each name of a server in the request is an address, `localhost`, or one of `hosts`.
pub(super) fn known_host(hosts: &[String], request: &Request) -> Result<(), Refused> {
    if browsers::is_known_host(hosts, request.uri(), authority(request)?) {
        return Ok(());
    }
    let detail = "the name of this server in the URL (the header field `Host`) is unknown";
    let help = "use an IP address or localhost, add the name to the setting `admin_hosts`, or set a token (`admin_token_file`)";
    Err(Refused::new(AdminRefusal::Host, Problem::new(StatusCode::FORBIDDEN, detail, help)))
}

/// Checks that the request does not come from a page of another site.
pub(super) fn same_origin(request: &Request) -> Result<(), Refused> {
    // A repeated `Host` is refused as such, whatever the rest of the request says.
    authority(request)?;
    let of_origin = |problem| Refused::new(AdminRefusal::Origin, problem);
    if browsers::origin(request.headers(), request.uri(), &[]).map_err(of_origin)? == Some(Origin::Other) {
        return Err(other_site("Origin"));
    }
    if browsers::is_of_other_site(request.headers()).map_err(of_origin)? && !is_link(request) {
        return Err(other_site("Sec-Fetch-Site"));
    }
    Ok(())
}

fn authority(request: &Request) -> Result<Option<&str>, Refused> {
    let of_host = |problem| Refused::new(AdminRefusal::Host, problem);
    browsers::authority(request.headers(), request.uri()).map_err(of_host)
}

/// Returns whether the request opens the page of the listener in a window and not in a frame, for example after a click
/// on a link in a wiki. Such a request is harmless: the page holds no secret, and the wiki cannot read the page.
fn is_link(request: &Request) -> bool {
    let is = |name: &HeaderName, value: &str| {
        let mut values = request.headers().get_all(name).iter();
        values.next().is_some_and(|first| first == value) && values.next().is_none()
    };
    let is_page = request.method() == Method::GET && request.uri().path() == "/";
    is_page && is(&MODE, "navigate") && is(&DEST, "document")
}

fn other_site(field: &str) -> Refused {
    let detail = format!("the request comes from a web page of another site (the header field `{field}`)");
    let help = "send the request from a program, without `Origin` and `Sec-Fetch-Site`";
    Refused::new(AdminRefusal::Origin, Problem::new(StatusCode::FORBIDDEN, detail, help))
}
