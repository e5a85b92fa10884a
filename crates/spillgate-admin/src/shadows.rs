//! `POST /shadow` and `GET /shadows`: shadow switches. While one is on, its rule refuses nothing, but still counts what
//! it would refuse.
//!
//! If a limit refuses the wrong callers, an operator can stop the refusals at once, and still see what the limit would
//! do.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{ErrorResponse, IntoResponse, Response};
use axum::{Extension, Json};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};
use spillgate::Clock;
use spillgate::rules::Rule;
use spillgate_http::json::{Text, object};
use spillgate_http::problem::Problem;
use spillgate_http::read_body;
use spillgate_service::Service;
use spillgate_service::operator::{Scope, ShadowOf};

use super::in_force::{SwitchJson, refused, shown};
use super::writes::Change;
use super::{AdminState, BODY_BYTES};

const SHADOW: &str = r#"{"rule":{"domain":"api","path":"user_id"},"on":true,"for":"30m"}, or "rule":"all""#;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WireShadow<'a> {
    #[serde(borrow)]
    rule: WireRule<'a>,
    on: bool,
    #[serde(borrow, rename = "for")]
    lasts: Option<Text<'a>>,
    scope: Option<WireScope>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum WireScope {
    Server,
    Fleet,
}

enum WireRule<'a> {
    All,
    One(OneRule<'a>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OneRule<'a> {
    #[serde(borrow)]
    domain: Text<'a>,
    #[serde(borrow)]
    path: Text<'a>,
}

impl<'de: 'a, 'a> Deserialize<'de> for WireRule<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct RuleVisitor<'a>(PhantomData<&'a ()>);

        impl<'de: 'a, 'a> Visitor<'de> for RuleVisitor<'a> {
            type Value = WireRule<'a>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(r#""all", or a rule such as {"domain":"api","path":"user_id"}"#)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<WireRule<'a>, E> {
                if text == "all" { Ok(WireRule::All) } else { Err(E::invalid_value(Unexpected::Str(text), &self)) }
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<WireRule<'a>, A::Error> {
                OneRule::deserialize(MapAccessDeserializer::new(map)).map(WireRule::One)
            }
        }

        deserializer.deserialize_any(RuleVisitor(PhantomData))
    }
}

impl WireRule<'_> {
    fn of(&self) -> ShadowOf<'_> {
        match self {
            WireRule::All => ShadowOf::All,
            WireRule::One(rule) => ShadowOf::Rule { domain: &rule.domain, path: &rule.path },
        }
    }

    fn json(&self) -> Value {
        match self {
            WireRule::All => json!("all"),
            WireRule::One(rule) => json!({"domain": &*rule.domain, "path": &*rule.path}),
        }
    }

    /// Returns the text by which the log names the rule.
    fn shown(&self) -> String {
        match self {
            WireRule::All => "all rules".to_owned(),
            WireRule::One(rule) => format!("rule {} of domain {}", shown(&rule.path), shown(&rule.domain)),
        }
    }
}

/// `GET /shadows` names at most this many rules that are in shadow by their file.
const BY_FILE_MAX: usize = 100;

/// A rule with a shadow switch that is on.
#[derive(Serialize)]
struct SwitchedRule<'a> {
    domain: &'a str,
    path: &'a str,
    #[serde(flatten)]
    switch: SwitchJson,
}

/// What keeps a rule, or all rules, in shadow beside the switch that was changed.
#[derive(Serialize)]
struct Also {
    /// `server`: the setting `shadow`. `file`: `shadow_mode` of the rule. `all`: a switch for all rules. `switch`: another
    /// switch of the rule.
    by: &'static str,
    /// The switch, if it is one.
    #[serde(flatten)]
    switch: Option<SwitchJson>,
}

/// Returns what keeps `of` in shadow, apart from its switches of the scopes `changed`.
fn also<C: Clock>(service: &Service<C>, of: ShadowOf<'_>, changed: &[Scope], now_ms: u64) -> Vec<Also> {
    let (in_force, loaded) = (service.operator().in_force(), service.rules());
    let by_switch = |by, on| Also { by, switch: Some(SwitchJson::of(on, now_ms)) };
    let mut also = Vec::new();
    if service.options().shadow {
        also.push(Also { by: "server", switch: None });
    }
    let own = match of {
        ShadowOf::All => "all",
        ShadowOf::Rule { domain, path } => {
            let mut rules = loaded.rules().filter(|rule| (&*rule.domain, &*rule.path) == (domain, path));
            if rules.any(|rule| rule.shadow_mode) {
                also.push(Also { by: "file", switch: None });
            }
            also.extend(in_force.switch_of_all().on(now_ms).map(|on| by_switch("all", on)));
            "switch"
        }
    };
    let others = in_force.switch_of(of).on(now_ms).filter(|(scope, _)| !changed.contains(scope));
    also.extend(others.map(|on| by_switch(own, on)));
    also
}

pub(super) async fn shadow<C: Clock>(
    State(state): State<Arc<AdminState<C>>>,
    request: Request,
) -> Result<Response, ErrorResponse> {
    let body = read_body(request.into_body(), BODY_BYTES).await?;
    let wire: WireShadow<'_> = object(&body).map_err(|error| Problem::bad_json(&error, SHADOW))?;
    let scope = wire.scope.map(|scope| match scope {
        WireScope::Server => Scope::Server,
        WireScope::Fleet => Scope::Fleet,
    });
    let (scopes, term, what) = match (wire.on, &wire.lasts) {
        (true, Some(lasts)) => {
            let (scope, term) = state.service.shadow_on(wire.rule.of(), lasts, scope).await.map_err(refused)?;
            (vec![scope], Some(term), format!("shadow on for {}", shown(lasts)))
        }
        (false, None) => {
            (state.service.shadow_off(wire.rule.of(), scope).await.map_err(refused)?, None, "shadow off".to_owned())
        }
        (true, None) => {
            return Err(Problem::bad_request("`for` is missing", "write how long, such as \"for\":\"30m\"").into());
        }
        (false, Some(_)) => {
            return Err(Problem::bad_request("`for` has no meaning with \"on\":false", "leave it out").into());
        }
    };
    let now_ms = state.service.now_ms();
    let also = also(&state.service, wire.rule.of(), &scopes, now_ms);
    let scopes: Vec<_> = scopes.into_iter().map(Scope::as_str).collect();
    let change = Change(format!("{what}: {}, scope {}", wire.rule.shown(), scopes.join(" and ")));
    let answer = json!({"shadow": {
        "rule": wire.rule.json(),
        "on": wire.on,
        "scopes": scopes,
        "until_ms": term.map(|term| term.until_ms),
        "ends_in_ms": term.map(|term| term.until_ms.saturating_sub(now_ms)),
        "since_ms": term.map(|term| term.since_ms),
        "also": also,
    }});
    Ok((Extension(change), Json(answer)).into_response())
}

pub(super) async fn shadows<C: Clock>(State(state): State<Arc<AdminState<C>>>) -> Response {
    let (in_force, now_ms) = (state.service.operator().in_force(), state.service.now_ms());
    let mut rules = Vec::new();
    for (domain, path, switch) in in_force.switches() {
        rules.extend(switch.on(now_ms).map(|on| SwitchedRule { domain, path, switch: SwitchJson::of(on, now_ms) }));
    }
    rules.sort_by_key(|rule| (rule.domain, rule.path));
    let all = in_force.switch_of_all().on(now_ms).max_by_key(|(_, term)| term.until_ms);
    let all = all.map(|on| SwitchJson::of(on, now_ms));
    let (scope_default, read_ms_ago) = (state.service.scope().as_str(), state.service.operator().read_ms_ago(now_ms));
    let loaded = state.service.rules();
    // A rule without limits refuses nothing anyway.
    let by_file = || loaded.rules().filter(|rule| rule.shadow_mode && !rule.limits.is_empty());
    let named = |rule: &Rule| json!({"domain": *rule.domain, "path": *rule.path});
    Json(json!({
        "scope_default": scope_default,
        "read_ms_ago": read_ms_ago,
        "all": all,
        "rules": rules,
        "by_file": by_file().take(BY_FILE_MAX).map(named).collect::<Vec<_>>(),
        "by_file_left_out": by_file().count().saturating_sub(BY_FILE_MAX),
        "by_server": state.service.options().shadow,
    }))
    .into_response()
}
