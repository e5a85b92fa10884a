//! Whether a server can serve rules as its settings say.

use spillgate::rules::Rules;

use super::load::{self, Problems};
use super::store;
use crate::settings::Settings;

/// Everything that is wrong between rules and settings, so that no such rules are put in force.
pub(super) fn check(settings: &Settings, rules: &Rules) -> Result<(), Problems> {
    load::problems(store::unserved_by_server(settings, rules))
}
