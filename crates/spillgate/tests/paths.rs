//! Code that was written when this project was one crate still compiles: all its paths exist.
//!
//! rustdoc listed these paths at commit 8498c924, with all features.

#![allow(unused_imports, reason = "the paths are the test")]

mod in_root {
    use spillgate::{
        Algorithm, Anchor, Binding, Circuit, Clock, Decision, Denied, FallbackStore, Hit, Key, KeyBuilder, KeyHasher,
        Limiter, MAX_HITS, MAX_LATE_NS, MAX_UNITS, ManualClock, MemoryOptions, MemoryStore, OnFull, OnStoreFailure, Op,
        OpKind, Packed, Permit, Quota, QuotaBuilder, QuotaError, Reason, Receipt, Reservation, Reservations, Restored,
        Saved, SnapshotError, Source, State, Store, StoreCalls, StoreError, StoreErrorKind, StoreHealth, SystemClock,
        TickingClock, Time, Timing, TokioClock, Verdict, Wait, decide, decide_late, network_of,
    };
}

mod in_client {
    use spillgate::client::{ClientError, ClientLayer, ClientService, FarSide, Turn};
}

mod in_clock {
    use spillgate::clock::{Clock, ManualClock, SystemClock, TickingClock, TokioClock};
}

mod in_headers {
    use spillgate::headers::{HeaderStyle, Policy, UnknownStyle, label, write_fields};
}

mod in_insight {
    use spillgate::insight::{
        CallerId, CallerName, Callers, Counts, Estimate, LimitInsight, Options, Percentiles, Range, Reading, Report,
        SPANS_NS, Sampled, SampledCaller, Span, SpanReport, Suggestion, Take, TopCaller, TopCallers, Verdict,
        WaitPercentiles, Waits,
    };
}

mod in_pace {
    use spillgate::pace::{PaceError, Pacer};
}

mod in_recipes {
    use spillgate::recipes::{hit, hit_now, is_action_allowed, is_action_allowed_now};
}

mod in_reservation {
    use spillgate::reservation::{Reservation, Reservations, record, record_key};
}

mod in_rules {
    use spillgate::rules::{
        Action, Defaults, Descriptor, Diagnostic, Domain, How, Limit, LimitSketch, MAX_DEPTH, MAX_FILE_BYTES,
        MAX_LIMITS, MAX_PATH_BYTES, MAX_RULES, Metadata, NoMemory, Origin, Outcome, Plan, Planned, Request, Rule,
        RuleStep, Rules, RulesErrors, RulesFile, SCHEMA, Severity, Step, Unit, Unreleased, read_files,
    };
}

mod in_sketch {
    use spillgate::sketch::{BloomFilter, CountMin, Sketch, SketchError, has_memory};
}

mod in_text {
    use spillgate::text::{At, Diagnostic, Severity, Source, nearest};
}

mod in_text_yaml {
    use spillgate::text::yaml::{Advice, Node, Value, parse};
}

mod in_tower {
    use spillgate::tower::{
        Charge, Descriptors, IpNet, LimitOutcome, LimitedBody, Outcome, QuotaRef, RateLimitFuture, RateLimitLayer,
        RateLimitService, RequestHead, client_address,
    };
}

mod in_tower_key {
    use spillgate::tower::key::{
        RequestKey, address, everything, extension, from_request, header, matched_path, method, path, text,
    };
}

mod in_units {
    use spillgate::units::{
        UnitError, format_bytes, format_duration, parse_bytes, parse_count, parse_duration, parse_with_units,
    };
}

#[test]
fn every_path_of_the_one_crate_compiles() {
    // The compiler has checked the paths. These paths are modules.
    use spillgate::{client, clock, headers, insight, pace, recipes, reservation, rules, sketch, text, tower, units};
}
