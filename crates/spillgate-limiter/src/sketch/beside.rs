//! A request that has hits on sketches and hits on a store.
//!
//! The sketches decide first, because they are in this process and answer at once. So requests that a sketch refuses do
//! not reach Redis, however many of them come. There is one exception: a request that has an effect although it is
//! refused, because of a force, a penalty, or a limit that charges refusals.
//!
//! | store | a sketch refuses | the store refuses |
//! |---|---|---|
//! | in memory | nothing is taken | nothing is taken |
//! | shared (Redis) | nothing is taken | the sketches keep what they have charged |
//!
//! A sketch cannot give units back, and its locks cannot be held while a request waits for Redis. So if a shared store
//! refuses a request, the sketches have already charged it. A key can therefore get less than its limit, but never
//! more.

use smallvec::{SmallVec, smallvec};
use spillgate_core::{Decision, Hit, MAX_HITS, Op, Reason, Store, StoreError, Time, Timing, Verdict};

use super::Sketch;
use super::request::{LockedRequest, refusing};

/// The hits of one request, divided into those of sketches and those of the store.
struct Parts<'s, 'q> {
    sketches: SmallVec<[&'s Sketch; 4]>,
    /// The hits of the sketches, and their positions in the request.
    sketched: SmallVec<[Hit<'q>; 4]>,
    sketched_at: SmallVec<[usize; 4]>,
    /// The hits of the store, and their positions in the request.
    stored: SmallVec<[Hit<'q>; 4]>,
    stored_at: SmallVec<[usize; 4]>,
}

impl<'s, 'q> Parts<'s, 'q> {
    fn of(sketches: &[Option<&'s Sketch>], hits: &[Hit<'q>]) -> Parts<'s, 'q> {
        let mut parts = Parts {
            sketches: SmallVec::new(),
            sketched: SmallVec::new(),
            sketched_at: SmallVec::new(),
            stored: SmallVec::new(),
            stored_at: SmallVec::new(),
        };
        for (i, (hit, sketch)) in hits.iter().zip(sketches).enumerate() {
            match sketch {
                Some(sketch) => {
                    parts.sketches.push(sketch);
                    parts.sketched.push(*hit);
                    parts.sketched_at.push(i);
                }
                None => {
                    parts.stored.push(*hit);
                    parts.stored_at.push(i);
                }
            }
        }
        parts
    }

    /// Returns the hits for the store. If a sketch has refused the request, adds a hit that refuses, so that the store
    /// takes nothing either.
    fn for_store(&self, sketches_allow: bool) -> SmallVec<[Hit<'q>; 4]> {
        let mut hits = self.stored.clone();
        if !sketches_allow {
            // In a Redis Cluster, the key of this hit is in the hash slot of the first hit. So the request needs no
            // further slot.
            hits.push(refusing(self.stored.first().map_or(0, |hit| hit.key ^ 1)));
        }
        hits
    }

    /// Returns whether the store has something to do for this request even if a sketch refuses it.
    fn needs_store_if_refused(&self) -> bool {
        let is_free = |hit: &Hit<'_>| matches!(hit.op, Op::Take { .. } | Op::Peek) && hit.quota.refusal_is_free();
        !self.stored.iter().all(is_free)
    }
}

impl Sketch {
    /// Decides all `hits` of one request. If `sketches[i]` is a sketch, it decides `hits[i]`. The store decides all
    /// other hits. The sketches decide at the time `now`.
    ///
    /// If the store can answer without waiting ([`Store::try_decide`]), the request is all or nothing, as with one
    /// store. If the store has to wait, the sketches are charged first. If the store then refuses the request, the
    /// store takes nothing, but the sketches keep what they have charged.
    ///
    /// If a sketch refuses the request, a store that has to wait usually gets no request: the reason in the decisions
    /// on its hits is [not asked](Reason::NotAsked). The store gets the request only if it has an effect although it is
    /// refused, for example because of a [force](Op::Force).
    ///
    /// ```
    /// use spillgate::sketch::Sketch;
    /// use spillgate::{Decision, Limiter, Quota, StoreError, Timing};
    ///
    /// const PER_ADDRESS: Quota = Quota::per_second(10).constant();
    /// const PER_USER: Quota = Quota::per_day(1).constant();
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::in_memory();
    /// let addresses = Sketch::new(&PER_ADDRESS, 1 << 20)?;
    /// let hits = [limiter.hit(&PER_ADDRESS, "192.0.2.1", 1), limiter.hit(&PER_USER, "ann", 1)];
    /// let (sketches, now) = ([Some(&addresses), None], limiter.now());
    /// let mut decisions = [Decision::default(); 2];
    /// let first = Sketch::decide_beside(&sketches, limiter.store(), Timing::at(now), now, &hits, &mut decisions).await?;
    /// let second = Sketch::decide_beside(&sketches, limiter.store(), Timing::at(now), now, &hits, &mut decisions).await?;
    /// assert!(first.allowed && !second.allowed);
    /// assert_eq!(decisions[0].remaining, 9, "the second request is refused by the other limit, and takes nothing");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The store failed, or the lists have different lengths, or a sketch does not [support](Store::supports) its hit.
    pub async fn decide_beside<S: Store>(
        sketches: &[Option<&Sketch>],
        store: &S,
        timing: Timing,
        now: Time,
        hits: &[Hit<'_>],
        decisions: &mut [Decision],
    ) -> Result<Verdict, StoreError> {
        if hits.len() != decisions.len() || hits.len() != sketches.len() {
            return Err(StoreError::malformed("hits, sketches and decisions differ in length"));
        }
        if hits.len() > MAX_HITS {
            return Err(StoreError::malformed("more hits than one request can have"));
        }
        let parts = Parts::of(sketches, hits);
        let supported = |(sketch, hit): (&&Sketch, &Hit<'_>)| sketch.supports(hit.quota, hit.op.kind());
        if !parts.sketches.iter().zip(&parts.sketched).all(supported) {
            return Err(StoreError::malformed("a sketch does not support this operation on its limit"));
        }
        let mut own: SmallVec<[Decision; 4]> = smallvec![Decision::default(); parts.sketched.len()];
        let mut rest: SmallVec<[Decision; 4]> = smallvec![Decision::default(); parts.stored.len() + 1];
        let (sketches_allow, decided) = decide_now(&parts, store, timing, now, &mut own, &mut rest);
        let verdict = match decided {
            Some(decided) => decided?,
            None if !sketches_allow && !parts.needs_store_if_refused() => {
                rest.fill(Decision::default().with_reason(Reason::NotAsked));
                Verdict::unlimited(now)
            }
            None => {
                let asked = parts.for_store(sketches_allow);
                store.decide(timing, &asked, &mut rest[..asked.len()]).await?
            }
        };
        let positions = parts.sketched_at.iter().zip(own).chain(parts.stored_at.iter().zip(rest));
        positions.for_each(|(at, decision)| decisions[*at] = decision);
        Ok(Verdict::of(hits, decisions, verdict.now).with_source(verdict.source))
    }
}

/// Decides the hits of the sketches, and also the hits of the store if the store does not have to wait. Returns whether
/// the sketches allow the request, and the verdict of the store. The verdict is `None` if the store has to wait.
fn decide_now<S: Store>(
    parts: &Parts<'_, '_>,
    store: &S,
    timing: Timing,
    now: Time,
    own: &mut [Decision],
    rest: &mut [Decision],
) -> (bool, Option<Result<Verdict, StoreError>>) {
    let request = LockedRequest::new(&parts.sketches, now, &parts.sketched);
    let (verdict, states) = request.decide(true, own);
    let asked = parts.for_store(verdict.allowed);
    let decided = match parts.stored.is_empty() {
        true => Some(Ok(Verdict::unlimited(now))),
        false => store.try_decide(timing, &asked, &mut rest[..asked.len()]),
    };
    match &decided {
        // The sketches allowed the request, but the store refuses it. So the sketches decide again, and take nothing.
        Some(Ok(stored)) if verdict.allowed && !stored.allowed => {
            let (_, states) = request.decide(false, own);
            request.store(&states);
        }
        Some(Err(_)) => {}
        _ => request.store(&states),
    }
    (verdict.allowed, decided)
}
