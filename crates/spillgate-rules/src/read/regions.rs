//! Reads `across_regions` of a limit: what it means for all regions together.
//!
//! A limit that cannot be shared is an error, also if `shared` is only the default of the settings. If it were counted by
//! each region instead, all regions together would admit more than its author thinks.

use std::time::Duration;

use spillgate_core::{AcrossRegions, Algorithm, Quota, QuotaError, Regions};

use super::errors::Reporter;
use super::limit::LimitContext;
use super::scalar::choice;
use super::section::Fields;
use crate::model::RuleStep;
use crate::path::path_text;

/// Windows that regions share have to be at least this long. Until a region knows what another has admitted, a part of a
/// second passes.
const SHORT_WINDOW: Duration = Duration::from_secs(10);

/// What a quota does not know of its limit.
#[derive(Clone, Copy)]
pub(super) struct Plain {
    pub(super) post_paid: bool,
    pub(super) is_sketch: bool,
}

/// Returns the quota that this region uses. Returns `None` after an error.
pub(super) fn across(
    whole: &Quota,
    limit: Plain,
    fields: &Fields<'_>,
    around: &LimitContext<'_>,
    reporter: &mut Reporter<'_>,
) -> Option<Quota> {
    let default = around.defaults.across;
    // The number of regions of these names does not matter.
    let two = Regions::new(2)?;
    let names = [AcrossRegions::Each, AcrossRegions::Split(two), AcrossRegions::Shared(two)];
    let words = names.map(|across| (across.as_str(), across));
    let node = fields.get("across_regions");
    let across = match node {
        Some(node) => choice(node, "across_regions", &words, reporter)?,
        None => default,
    };
    let at = fields.key_at("across_regions").unwrap_or(around.at);
    let across = match (across, around.defaults.regions) {
        (AcrossRegions::Each, _) => return Some(whole.clone()),
        (AcrossRegions::Split(_), Some(regions)) => AcrossRegions::Split(regions),
        (AcrossRegions::Shared(_), Some(regions)) => AcrossRegions::Shared(regions),
        (across, None) => {
            let message =
                format!("`across_regions: {}` needs other regions, and the settings name none", across.as_str());
            let help = "set `regions.name` and `regions.peers` in the settings, or remove `across_regions`. A command needs the \
                        settings too: --config FILE";
            reporter.error(at, message, "without regions", help);
            return None;
        }
    };
    let path = path_text(around.steps.iter().map(RuleStep::as_path));
    let by_default = if node.is_none() { " by the setting `regions.default`" } else { "" };
    let not_shared = match (across, limit) {
        (AcrossRegions::Shared(_), Plain { post_paid: true, .. }) => Some("a limit with `post_paid`"),
        (AcrossRegions::Shared(_), Plain { is_sketch: true, .. }) => Some("a limit with `representation: sketch`"),
        _ => None,
    };
    let result = match not_shared {
        Some(what) => Err(QuotaError::NotShared { what }),
        None => whole.across(across),
    };
    let quota = match result {
        Ok(quota) => quota,
        Err(error) => {
            let (message, help) = match error {
                QuotaError::NotShared { what } => (
                    format!("the limit of `{path}` is shared by regions{by_default}, but {what} cannot be shared"),
                    how_to_share(what, fields),
                ),
                QuotaError::TooDeepForRegions { capacity: 0, .. } => {
                    (error.to_string(), "shorten the window".to_owned())
                }
                QuotaError::TooDeepForRegions { capacity, .. } => {
                    (error.to_string(), format!("write `burst: {capacity}` or less, or shorten the window"))
                }
                _ => (error.to_string(), "write more permits, or `across_regions: each`".to_owned()),
            };
            reporter.error(at, message, "across regions", help);
            return None;
        }
    };
    warn(whole, across, at, &path, reporter);
    Some(quota)
}

/// Says how to write a limit that cannot be shared.
fn how_to_share(what: &str, fields: &Fields<'_>) -> String {
    let other = "write `across_regions: split` or `across_regions: each`";
    match what {
        // `compat: envoy` charges refusals if the limit does not say it.
        "a limit whose refusals are charged" if fields.get("denied").is_none() => {
            format!("write `denied: free`, because `compat: envoy` charges refusals, or {other}")
        }
        _ => other.to_owned(),
    }
}

fn warn(whole: &Quota, across: AcrossRegions, at: spillgate_text::At, path: &str, reporter: &mut Reporter<'_>) {
    match across {
        AcrossRegions::Split(regions) if whole.capacity() < regions.get().into() && whole.limit() > 0 => {
            let message = format!(
                "the limit of `{path}` has fewer units than there are regions, so all regions together can admit {} at once",
                regions.get()
            );
            let help = "write `across_regions: each` if that is too many for one region, or a larger limit";
            reporter.warning(at, message, "split", help.to_owned());
        }
        AcrossRegions::Shared(regions)
            if whole.algorithm() != Algorithm::TokenBucket
                && Duration::from_nanos(whole.window_ns()) < SHORT_WINDOW =>
        {
            let message = format!(
                "the window of `{path}` is so short that {} regions can admit nearly {} times the limit before they know of \
                 each other",
                regions.get(),
                regions.get()
            );
            let help = "write `algorithm: token_bucket`, or `across_regions: split`".to_owned();
            reporter.warning(at, message, "shared", help);
        }
        _ => {}
    }
}
