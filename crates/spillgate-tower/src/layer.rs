//! The layer: which requests are limited, by what, and what a refusal looks like.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};
use ipnet::IpNet;
use spillgate_core::{Algorithm, MAX_HITS, Store, StoreError};
use spillgate_limiter::headers::HeaderStyle;
use spillgate_limiter::{Clock, KeyBuilder, Limiter};
#[cfg(feature = "rules")]
use spillgate_rules::Rules;
use tower_layer::Layer;

#[cfg(feature = "rules")]
use super::by_rules::{ByRules, Descriptors};
use super::client_address::unmapped;
use super::fields::Fields;
use super::head::RequestHead;
use super::key::RequestKey;
use super::{Outcome, QuotaRef, RateLimitService};

/// A layer that limits the requests of a service. See the [module](super) for examples.
///
/// All clones of a layer, and all services that they wrap, ask the same limiter. So all connections and all workers
/// share the limits.
///
/// # What happens to a request
///
/// 1. If it [may skip](RateLimitLayer::skip_if) the limits, or comes from an [allowed
///    network](RateLimitLayer::allow_networks), it goes to the service, and nothing is counted.
/// 2. All [limits](RateLimitLayer::limit) are asked together. If one of them refuses, the limits that would allow the
///    request are not charged, and the answer is a [refusal](RateLimitLayer::refusal).
/// 3. If no limit refuses, the service answers. Its answer gets the [header fields](RateLimitLayer::header_style), and
///    can [change what was charged](RateLimitLayer::charge_after).
///
/// If an option is set twice, the last value counts. Only limits add up.
///
/// # When the store fails
///
/// The memory store never fails. If it is full, it refuses requests with new keys, unless its
/// [options](spillgate_limiter::MemoryOptions) say otherwise. If a shared store fails, the layer does what each quota
/// says ([`on_store_failure`](spillgate_limiter::QuotaBuilder::on_store_failure)):
///
/// * `Allow` lets the request pass.
/// * `Deny` refuses the request.
/// * `Error` answers 503.
/// * `Local`, the default, needs a [`FallbackStore`](spillgate_limiter::FallbackStore), which decides locally. Without
///   such a store, `Local` answers 503 too.
///
/// If the quotas of a request disagree, a 503 wins over a refusal, and a refusal wins over passing. Limits in shadow
/// mode do not matter. Without a decision of a store, an answer has no header fields about limits.
///
/// A store that works, but does not support a limit, has not failed. An example is a [`Sketch`](spillgate_limiter::sketch::Sketch)
/// that gets a quota with another rate. The program has to be changed, so such a request is answered with 500, and
/// [`on_error`](RateLimitLayer::on_error) gets the reason.
pub struct RateLimitLayer<S = spillgate_limiter::MemoryStore, C = spillgate_limiter::SystemClock> {
    pub(super) config: Arc<Config<S, C>>,
}

pub(super) struct Config<S, C> {
    pub(super) limiter: Arc<Limiter<S, C>>,
    pub(super) options: Options,
}

/// All options of a layer. Each setter changes a copy, so later setters do not change a service that was already made.
#[derive(Clone)]
pub(super) struct Options {
    pub(super) limits: Vec<Limit>,
    #[cfg(feature = "rules")]
    pub(super) rules: Option<ByRules>,
    pub(super) trusted_proxies: Vec<IpNet>,
    pub(super) ipv6_prefix: u8,
    pub(super) allowed_networks: Vec<IpNet>,
    pub(super) skip_if: Option<Arc<SkipIf>>,
    pub(super) cost: Option<Arc<Cost>>,
    pub(super) charge_after: Option<Arc<ChargeAfter>>,
    pub(super) is_shadow: bool,
    pub(super) fields: Fields,
    pub(super) refusal: Option<Arc<Refusal>>,
    pub(super) on_error: Option<Arc<OnError>>,
    pub(super) outcome_in_extensions: bool,
}

type SkipIf = dyn Fn(&RequestHead<'_>) -> bool + Send + Sync;
type Cost = dyn Fn(&RequestHead<'_>) -> u64 + Send + Sync;
/// The first argument is the head of the answer. It is `None` if the service returned an error instead of an answer.
type ChargeAfter = dyn Fn(Option<&http::response::Parts>, Option<u64>) -> Charge + Send + Sync;
type Refusal = dyn Fn(&RequestHead<'_>, &Outcome) -> Response<Bytes> + Send + Sync;
type OnError = dyn Fn(&StoreError) + Send + Sync;

#[derive(Clone)]
pub(super) struct Limit {
    pub(super) name: Cow<'static, str>,
    /// The start of each key: the hash of the limit's name.
    pub(super) start: KeyBuilder,
    pub(super) quota: QuotaOf,
    pub(super) key: RequestKey,
}

/// The quota of a limit, which can depend on the request.
#[derive(Clone)]
pub(super) enum QuotaOf {
    Same(QuotaRef),
    ByRequest(Arc<dyn Fn(&RequestHead<'_>) -> QuotaRef + Send + Sync>),
}

/// What an answer changes about the charge of its request; [`RateLimitLayer::charge_after`] has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charge {
    /// The units that were taken stay taken.
    Keep,
    /// All units that were taken are given back. A [`Sketch`](spillgate_limiter::sketch::Sketch) cannot give units
    /// back: they stay counted, and [`on_error`](RateLimitLayer::on_error) gets an error. The same is true for new keys
    /// in a full memory store with [`OnFull::Sketch`](spillgate_limiter::OnFull::Sketch).
    Refund,
    /// This many further units are counted, even if they do not fit. A token bucket counts at most twice its burst. So
    /// if an answer can need more units than that, use another algorithm, for example a fixed window.
    Add(u64),
}

impl<S: Store, C: Clock> RateLimitLayer<S, C> {
    /// Makes a layer without limits, which lets every request pass.
    #[must_use]
    pub fn new(limiter: impl Into<Arc<Limiter<S, C>>>) -> RateLimitLayer<S, C> {
        let options = Options {
            limits: Vec::new(),
            #[cfg(feature = "rules")]
            rules: None,
            trusted_proxies: Vec::new(),
            ipv6_prefix: 64,
            allowed_networks: Vec::new(),
            skip_if: None,
            cost: None,
            charge_after: None,
            is_shadow: false,
            fields: Fields { style: HeaderStyle::default(), exposed: false },
            refusal: None,
            on_error: None,
            outcome_in_extensions: false,
        };
        RateLimitLayer { config: Arc::new(Config { limiter: limiter.into(), options }) }
    }

    /// Adds a limit.
    ///
    /// `name` distinguishes this limit from all other limits that the limiter counts, also in other layers. Two layers
    /// count together only if they use the same limiter, the same name, the same key, and quotas with the same
    /// algorithm and window. Clients see the name in the header fields.
    ///
    /// The limiter counts by a tuple: the name of the limit, and the parts of the key. With this tuple, the program can
    /// read the count or change it. For the limit "client" with [`key::address()`](super::key::address), a handler
    /// calls `limiter.peek(&QUOTA, ("client", network_of(address, 64)))`, with
    /// [`network_of`](spillgate_limiter::network_of). The key of a header field has two parts: the value of the field,
    /// and 1 (0 if the field is missing). Units that the program takes by such a tuple count for the limit of the layer
    /// too.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use spillgate::tower::{RateLimitLayer, key};
    /// use spillgate::{Limiter, Quota};
    ///
    /// const PER_ADDRESS: Quota = Quota::per_second(10).burst(20).constant();
    /// const ALL: Quota = Quota::per_second(5_000).constant();
    ///
    /// let layer = RateLimitLayer::new(Limiter::in_memory())
    ///     .limit("address", &PER_ADDRESS, key::address())
    ///     .limit("all", &ALL, key::everything());
    /// # let _ = layer;
    /// ```
    ///
    /// # Panics
    /// Panics if `quota` is a concurrency limit, because the layer does not hold permits. Use `Limiter::hold` in the
    /// handler. Also panics if the layer already has [`MAX_HITS`](spillgate_limiter::MAX_HITS) limits, or a limit with
    /// this name: with the same key, each request would count twice in one count.
    #[must_use]
    pub fn limit(
        self,
        name: impl Into<Cow<'static, str>>,
        quota: impl Into<QuotaRef>,
        key: RequestKey,
    ) -> RateLimitLayer<S, C> {
        let quota = quota.into();
        assert!(
            quota.algorithm() != Algorithm::Concurrency,
            "a layer cannot hold the permits of a concurrency limit; use Limiter::hold in the handler"
        );
        self.with_limit(name.into(), QuotaOf::Same(quota), key)
    }

    /// Adds a limit whose quota depends on the request, for example on the plan of a customer.
    ///
    /// ```
    /// use spillgate::tower::{RateLimitLayer, key};
    /// use spillgate::{Limiter, Quota};
    ///
    /// const FREE: Quota = Quota::per_minute(60).constant();
    /// const PRO: Quota = Quota::per_minute(6_000).constant();
    ///
    /// let layer = RateLimitLayer::new(Limiter::in_memory()).limit_by(
    ///     "plan",
    ///     |request| if request.headers.get("x-plan").is_some_and(|plan| plan == "pro") { &PRO } else { &FREE },
    ///     key::header("x-api-key"),
    /// );
    /// # let _ = layer;
    /// ```
    ///
    /// A request whose quota is a concurrency limit is answered with 500.
    ///
    /// # Panics
    /// Panics if the layer already has [`MAX_HITS`](spillgate_limiter::MAX_HITS) limits, or a limit with this name.
    #[must_use]
    pub fn limit_by<Q: Into<QuotaRef>>(
        self,
        name: impl Into<Cow<'static, str>>,
        quota: impl Fn(&RequestHead<'_>) -> Q + Send + Sync + 'static,
        key: RequestKey,
    ) -> RateLimitLayer<S, C> {
        self.with_limit(name.into(), QuotaOf::ByRequest(Arc::new(move |request| quota(request).into())), key)
    }

    fn with_limit(self, name: Cow<'static, str>, quota: QuotaOf, key: RequestKey) -> RateLimitLayer<S, C> {
        assert!(self.config.options.limits.len() < MAX_HITS, "a layer can have at most {MAX_HITS} limits");
        let is_new = self.config.options.limits.iter().all(|limit| limit.name != name);
        assert!(is_new, "a layer has two limits with the name `{name}`; give each limit its own name");
        let mut start = self.config.limiter.keys().start();
        start.part(name.as_bytes());
        self.with(|options| options.limits.push(Limit { name, start, quota, key }))
    }

    /// Also asks the limits that rules files have for a request.
    ///
    /// No limit of the rules shares a count with a limit of a layer or a key of the program. A concurrency limit in the
    /// rules is an error, because a layer does not hold permits. Only if the rule of this limit is in shadow mode, the
    /// limit is left out instead.
    ///
    /// A limit with `post_paid` is charged before the answer, like all limits of a layer. If the cost is known only
    /// after the answer, use a [`cost`](RateLimitLayer::cost) of 0 and [`charge_after`](RateLimitLayer::charge_after).
    ///
    /// `describe` sets the domain and adds the descriptors. The limits of the rules and the
    /// [limits](RateLimitLayer::limit) of the layer are decided together. In a domain with `compat: envoy`, the
    /// descriptors of a request are decided together too, and not one after the other as in the spillgate server.
    ///
    /// ```
    /// use spillgate::Limiter;
    /// use spillgate::rules::{Rules, RulesFile};
    /// use spillgate::tower::RateLimitLayer;
    ///
    /// let text = "domain: api\ndescriptors: [{key: path, rate_limit: {unit: second, requests_per_unit: 100}}]";
    /// let rules = Rules::parse(&[RulesFile { name: "api.yaml".into(), text: text.into() }])?;
    /// let layer = RateLimitLayer::new(Limiter::in_memory()).rules(rules, |request, descriptors| {
    ///     descriptors.domain("api").add("path", request.uri.path());
    ///     if let Some(address) = request.client_address() {
    ///         descriptors.add("remote_address", address.to_string()).and("method", request.method.as_str());
    ///     }
    /// });
    /// # let _ = layer;
    /// # Ok::<(), spillgate::rules::RulesErrors>(())
    /// ```
    #[cfg(feature = "rules")]
    #[must_use]
    pub fn rules(
        self,
        rules: impl Into<Arc<Rules>>,
        describe: impl for<'r> Fn(&RequestHead<'r>, &mut Descriptors<'r>) + Send + Sync + 'static,
    ) -> RateLimitLayer<S, C> {
        let rules = ByRules { rules: rules.into(), describe: Arc::new(describe) };
        self.with(|options| options.rules = Some(rules))
    }

    /// Sets the networks of the proxies in front of this server. The layer believes X-Forwarded-For only if one of
    /// these proxies has sent it. Name only the addresses of proxies: a client in one of these networks can write any
    /// address into the field.
    ///
    /// ```
    /// use spillgate::Limiter;
    /// use spillgate::tower::RateLimitLayer;
    ///
    /// let layer = RateLimitLayer::new(Limiter::in_memory()).trusted_proxies(["10.0.0.0/24".parse()?]);
    /// # let _ = layer;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn trusted_proxies(self, networks: impl IntoIterator<Item = IpNet>) -> RateLimitLayer<S, C> {
        self.with(|options| options.trusted_proxies = networks.into_iter().map(unmapped).collect())
    }

    /// Sets how many leading bits of an IPv6 address identify a client. The default is 64, because one client usually
    /// has a whole /64.
    #[must_use]
    pub fn ipv6_prefix(self, bits: u8) -> RateLimitLayer<S, C> {
        self.with(|options| options.ipv6_prefix = bits.min(128))
    }

    /// Never limits clients whose address is in one of these networks.
    #[must_use]
    pub fn allow_networks(self, networks: impl IntoIterator<Item = IpNet>) -> RateLimitLayer<S, C> {
        self.with(|options| options.allowed_networks = networks.into_iter().map(unmapped).collect())
    }

    /// Never limits requests for which `skip` returns true, for example health checks, or the OPTIONS requests of CORS.
    #[must_use]
    pub fn skip_if(self, skip: impl Fn(&RequestHead<'_>) -> bool + Send + Sync + 'static) -> RateLimitLayer<S, C> {
        self.with(|options| options.skip_if = Some(Arc::new(skip)))
    }

    /// Sets how many units a request takes from each limit. The default is 1.
    ///
    /// ```
    /// use spillgate::Limiter;
    /// use spillgate::tower::RateLimitLayer;
    ///
    /// // An export costs as much as 20 other requests.
    /// let layer = RateLimitLayer::new(Limiter::in_memory())
    ///     .cost(|request| if request.uri.path() == "/export" { 20 } else { 1 });
    /// # let _ = layer;
    /// ```
    #[must_use]
    pub fn cost(self, cost: impl Fn(&RequestHead<'_>) -> u64 + Send + Sync + 'static) -> RateLimitLayer<S, C> {
        self.with(|options| options.cost = Some(Arc::new(cost)))
    }

    /// Sets what an answer changes about the charge. The first argument is the head of the answer. The second argument
    /// is the size of the answer's body in bytes, if the service says it in advance.
    ///
    /// The change applies to all limits of the layer. To change the charge of one limit only, put this limit into a
    /// second layer. The header fields show the state before the change. The change is made before the answer is sent,
    /// so with Redis a change takes one more round trip. If the store fails, the change is lost, and
    /// [`on_error`](RateLimitLayer::on_error) reports it. Nothing is changed if the client closes the connection before
    /// the answer, or if the service returns an error instead of an answer.
    ///
    /// ```
    /// use spillgate::Limiter;
    /// use spillgate::tower::{Charge, RateLimitLayer};
    ///
    /// // Units are kilobytes of answers. They are known only afterwards.
    /// let layer = RateLimitLayer::new(Limiter::in_memory())
    ///     .cost(|_| 0)
    ///     .charge_after(|_, bytes| Charge::Add(bytes.unwrap_or(0).div_ceil(1_000)));
    /// # let _ = layer;
    /// ```
    #[must_use]
    pub fn charge_after(
        self,
        charge: impl Fn(&http::response::Parts, Option<u64>) -> Charge + Send + Sync + 'static,
    ) -> RateLimitLayer<S, C> {
        let charge = move |answer: Option<&_>, bytes| answer.map_or(Charge::Keep, |answer| charge(answer, bytes));
        self.with(|options| options.charge_after = Some(Arc::new(charge)))
    }

    /// Counts only requests whose answer is a failure, for example because of a wrong password. This option is a form
    /// of [`charge_after`](RateLimitLayer::charge_after), and replaces an earlier `charge_after`. It does not find
    /// failures of gRPC, because gRPC answers have the status 200 even if the call failed.
    ///
    /// A request takes its units before the service is called. If its answer is no failure, the units are given back.
    /// So the failures never exceed the limit, even if many requests arrive at once. While the service works on a
    /// request, the request counts. A request without an answer counts as a failure: the client closed the connection,
    /// or the service returned an error. A sketch cannot give units back, so with a sketch [every request
    /// counts](Charge::Refund).
    ///
    /// ```
    /// use http::StatusCode;
    /// use spillgate::Limiter;
    /// use spillgate::tower::RateLimitLayer;
    ///
    /// let layer =
    ///     RateLimitLayer::new(Limiter::in_memory()).count_only(|status| status == StatusCode::UNAUTHORIZED);
    /// # let _ = layer;
    /// ```
    #[must_use]
    pub fn count_only(self, failed: impl Fn(StatusCode) -> bool + Send + Sync + 'static) -> RateLimitLayer<S, C> {
        self.charge_after(move |answer, _| if failed(answer.status) { Charge::Keep } else { Charge::Refund })
    }

    /// Gives the units of a request back if the service fails: its answer has a status 5xx, or it returns an error
    /// instead of an answer. This option is a form of [`charge_after`](RateLimitLayer::charge_after), and replaces an
    /// earlier `charge_after`. It does not find failures of gRPC, because gRPC answers have the status 200 even if the
    /// call failed. A sketch [cannot](Charge::Refund) give units back.
    #[must_use]
    pub fn refund_server_errors(self) -> RateLimitLayer<S, C> {
        let charge = |answer: Option<&http::response::Parts>, _| match answer {
            Some(answer) if !answer.status.is_server_error() => Charge::Keep,
            Some(_) | None => Charge::Refund,
        };
        self.with(|options| options.charge_after = Some(Arc::new(charge)))
    }

    /// Makes the layer a shadow: it decides and charges, but it refuses nothing and shows nothing to clients. A request
    /// that lacks what a limit counts by passes too, and is not answered with 500.
    ///
    /// With [`outcome_in_extensions`](RateLimitLayer::outcome_in_extensions), a handler or a layer behind this one sees
    /// what would have been refused.
    #[must_use]
    pub fn shadow(self, is_shadow: bool) -> RateLimitLayer<S, C> {
        self.with(|options| options.is_shadow = is_shadow)
    }

    /// Sets which header fields tell clients about the limits.
    #[must_use]
    pub fn header_style(self, style: HeaderStyle) -> RateLimitLayer<S, C> {
        self.with(|options| options.fields.style = style)
    }

    /// Names the header fields about the limits in `Access-Control-Expose-Headers` of CORS, so that JavaScript of other
    /// sites can read them.
    ///
    /// This works only with a CORS layer outside of this layer. With axum, the outer layer is the one that is added
    /// later. A CORS layer inside adds nothing to refusals. Some CORS layers, such as that of `tower_http`, can have a
    /// list of exposed fields, which replaces the list of this layer. In this case, add the fields to the list of the
    /// CORS layer.
    #[must_use]
    pub fn expose_headers(self, expose: bool) -> RateLimitLayer<S, C> {
        self.with(|options| options.fields.exposed = expose)
    }

    /// Sets the answer to refused requests. The layer adds the header fields about the limits.
    ///
    /// Without this option, HTTP clients get 429 with a body of `application/problem+json`. Clients of gRPC get
    /// RESOURCE_EXHAUSTED with `google.rpc.RetryInfo`.
    ///
    /// ```
    /// use http::{Response, StatusCode};
    /// use spillgate::Limiter;
    /// use spillgate::tower::RateLimitLayer;
    ///
    /// let layer = RateLimitLayer::new(Limiter::in_memory()).refusal(|_, outcome| {
    ///     let seconds = outcome.verdict.retry_after.secs_ceil().unwrap_or(60);
    ///     let mut response = Response::new(format!("slow down, try again in {seconds} s").into());
    ///     *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    ///     response
    /// });
    /// # let _ = layer;
    /// ```
    #[must_use]
    pub fn refusal(
        self,
        refusal: impl Fn(&RequestHead<'_>, &Outcome) -> Response<Bytes> + Send + Sync + 'static,
    ) -> RateLimitLayer<S, C> {
        self.with(|options| options.refusal = Some(Arc::new(refusal)))
    }

    /// Calls `report` with each error, for example to log it. An error means that the store failed, that the store does
    /// not support a limit or a refund, or that a request lacks what a limit counts by.
    #[must_use]
    pub fn on_error(self, report: impl Fn(&StoreError) + Send + Sync + 'static) -> RateLimitLayer<S, C> {
        self.with(|options| options.on_error = Some(Arc::new(report)))
    }

    /// Stores the [`Outcome`] in the extensions of each request that limits have allowed, so that a handler can read
    /// it. In axum, a handler gets it with the argument `outcome: Option<Extension<Outcome>>`. If no limit has decided
    /// a request, there is no outcome: for example for [skipped](RateLimitLayer::skip_if) requests, and for requests
    /// that pass while the store fails.
    ///
    /// This option is off by default, because with it each allowed request allocates memory for the outcome.
    #[must_use]
    pub fn outcome_in_extensions(self, store: bool) -> RateLimitLayer<S, C> {
        self.with(|options| options.outcome_in_extensions = store)
    }

    pub(super) fn with(self, change: impl FnOnce(&mut Options)) -> RateLimitLayer<S, C> {
        let limiter = Arc::clone(&self.config.limiter);
        let mut options = self.config.options.clone();
        change(&mut options);
        RateLimitLayer { config: Arc::new(Config { limiter, options }) }
    }
}

impl<S, C> Clone for RateLimitLayer<S, C> {
    fn clone(&self) -> Self {
        RateLimitLayer { config: Arc::clone(&self.config) }
    }
}

impl<S, C> fmt::Debug for RateLimitLayer<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits = self.config.options.limits.iter().map(|limit| (&limit.name, &limit.key));
        f.debug_map().entries(limits).finish()
    }
}

impl<I, S, C> Layer<I> for RateLimitLayer<S, C> {
    type Service = RateLimitService<I, S, C>;

    fn layer(&self, inner: I) -> Self::Service {
        RateLimitService::new(inner, Arc::clone(&self.config))
    }
}
