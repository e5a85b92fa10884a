//! One request: the buckets of all its hits are locked, the kernel decides, the states go back.

use std::slice;
use std::sync::Arc;

use arc_swap::Guard;
use smallvec::SmallVec;
use spillgate_core::{Decision, Hit, Op, OpKind, Quota, State, Time, Verdict, decide_late};

use super::MemoryStore;
use super::fingerprint::Fingerprint;
use super::place::{Home, Insists, Place};
use super::table::{Locked, Obstacle, Table};

/// A state that hits of a request count in.
struct Member<'s, 'q> {
    key: Fingerprint,
    home: Home<'s>,
    quota: &'q Quota,
    /// The quota of a hit that may need room, if there is one.
    charging: Option<&'q Quota>,
}

/// The quota under which the hit may need room.
#[inline]
fn charging<'q>(hit: &Hit<'q>) -> Option<&'q Quota> {
    // A take of nothing adds nothing to what is used, but the penalty that its refusal starts has to lie somewhere.
    let punishes = || matches!(hit.op, Op::Take { cost: 0, .. }) && hit.quota.penalty_ns() > 0;
    (matches!(hit.op.kind(), OpKind::Take | OpKind::Force) || punishes()).then_some(hit.quota)
}

/// A request of several hits.
struct Request<'r, 's, 'q> {
    now: Time,
    hits: &'r [Hit<'q>],
    members: SmallVec<[Member<'s, 'q>; 4]>,
    /// For each hit, the index of its member.
    state_of: SmallVec<[usize; 4]>,
    /// The members in the order of their buckets: all requests take their locks in this order.
    order: SmallVec<[usize; 4]>,
}

impl<'r, 's, 'q> Request<'r, 's, 'q> {
    fn new(store: &'s MemoryStore, now: Time, hits: &'r [Hit<'q>]) -> Request<'r, 's, 'q> {
        let mut members: SmallVec<[Member<'s, 'q>; 4]> = SmallVec::new();
        let mut state_of = SmallVec::new();
        for hit in hits {
            let (key, home) = store.home(hit);
            let known = members.iter().position(|m| m.key == key && m.home == home);
            state_of.push(known.unwrap_or(members.len()));
            match known {
                Some(known) => members[known].charging = members[known].charging.or(charging(hit)),
                None => members.push(Member { key, home, quota: hit.quota, charging: charging(hit) }),
            }
        }
        let mut order: SmallVec<[usize; 4]> = (0..members.len()).collect();
        order.sort_unstable_by_key(|&i| (members[i].home.order(), members[i].key.high));
        Request { now, hits, members, state_of, order }
    }
}

/// The verdict, and for each member whether it is new; or which member met an obstacle.
type Tried = Result<(Verdict, SmallVec<[bool; 4]>), (usize, Obstacle)>;

/// What a request has locked, bucket by bucket upward, and where its states are.
struct Held<'t> {
    locked: SmallVec<[Locked<'t>; 4]>,
    /// For each member, the index of its locks and its place.
    places: SmallVec<[(usize, Place); 4]>,
}

impl MemoryStore {
    /// A request of one hit: as [`decide_all`](MemoryStore::decide_all), without its lists.
    #[inline]
    pub(super) fn decide_one(&self, now: Time, hit: &Hit<'_>, decision: &mut Decision) {
        let (key, home) = self.home(hit);
        let mut insists = Insists::default();
        loop {
            let table = home.load();
            match self.try_one(now, hit, (key, home, &table), insists, decision) {
                Ok(new) => {
                    drop(table);
                    return self.tend_after(home, key, new, now);
                }
                Err(obstacle) => self.overcome(home, &obstacle, now, &mut insists),
            }
        }
    }

    /// Whether the key is new, or what is in the way.
    #[inline]
    pub(super) fn try_one(
        &self,
        now: Time,
        hit: &Hit<'_>,
        (key, home, table): (Fingerprint, Home<'_>, &Table),
        insists: Insists,
        decision: &mut Decision,
    ) -> Result<bool, Obstacle> {
        let mut locked = Locked::from(table, table.home(key));
        if let Some(at) = locked.find(key)?
            && self.decide_in_slot(now, hit, (&locked, at), decision)
        {
            return Ok(false);
        }
        self.try_any(now, hit, (key, home, &mut locked), insists, decision)
    }

    /// One hit of any kind, new keys among them.
    #[inline(never)]
    fn try_any(
        &self,
        now: Time,
        hit: &Hit<'_>,
        (key, home, locked): (Fingerprint, Home<'_>, &mut Locked<'_>),
        insists: Insists,
        decision: &mut Decision,
    ) -> Result<bool, Obstacle> {
        let place = self.find(home, locked, key, charging(hit), insists)?;
        let mut state = self.take(home, locked, &place, hit.quota);
        let (states, hits, decisions) = (slice::from_mut(&mut state), slice::from_ref(hit), slice::from_mut(decision));
        let newest = self.newest(locked, &place, hit.quota, now);
        if place.shut {
            self.decide_shut((now, newest), hits, (states, &[0]), &[true], decisions);
        } else {
            decide_late(states, &[0], hits, now, newest, decisions);
        }
        self.put(home, locked, (key, &place), state, (hit.quota, now));
        Ok(place.new)
    }

    /// A request of any number of hits.
    pub(super) fn decide_all(&self, now: Time, hits: &[Hit<'_>], decisions: &mut [Decision]) -> Verdict {
        let request = Request::new(self, now, hits);
        let mut insists = Insists::default();
        loop {
            let tables: SmallVec<[Guard<Arc<Table>>; 4]> = request.members.iter().map(|m| m.home.load()).collect();
            let tried = self.try_all(&request, &tables, insists, decisions);
            drop(tables);
            match tried {
                Ok((verdict, new)) => {
                    for (member, new) in request.members.iter().zip(new) {
                        self.tend_after(member.home, member.key, new, now);
                    }
                    return verdict;
                }
                Err((member, obstacle)) => {
                    self.overcome(request.members[member].home, &obstacle, now, &mut insists);
                }
            }
        }
    }

    fn try_all(
        &self,
        request: &Request<'_, '_, '_>,
        tables: &[Guard<Arc<Table>>],
        insists: Insists,
        decisions: &mut [Decision],
    ) -> Tried {
        let Held { locked, places } = self.hold(request, tables, insists)?;
        let members = || request.members.iter().zip(&places);
        let mut states: SmallVec<[State; 4]> =
            members().map(|(m, (held, place))| self.take(m.home, &locked[*held], place, m.quota)).collect();
        let shut: SmallVec<[bool; 4]> = places.iter().map(|(_, place)| place.shut).collect();
        let now = request.now;
        let newest = members().map(|(m, (held, place))| self.newest(&locked[*held], place, m.quota, now));
        let newest = newest.max().unwrap_or(now);
        let verdict = if shut.contains(&true) {
            self.decide_shut((now, newest), request.hits, (&mut states, &request.state_of), &shut, decisions)
        } else {
            decide_late(&mut states, &request.state_of, request.hits, now, newest, decisions)
        };
        // All remember the time up to which debt was not converted, also those that have known an older one.
        for ((m, (held, place)), state) in members().zip(states) {
            self.put(m.home, &locked[*held], (m.key, place), state, (m.quota, newest));
        }
        Ok((verdict, places.iter().map(|(_, place)| place.new).collect()))
    }

    /// Locks all buckets that the request needs and finds or claims its slots; all or nothing.
    fn hold<'t>(
        &self,
        request: &Request<'_, '_, '_>,
        tables: &'t [Guard<Arc<Table>>],
        insists: Insists,
    ) -> Result<Held<'t>, (usize, Obstacle)> {
        let mut locked: SmallVec<[Locked<'t>; 4]> = SmallVec::new();
        let mut places: SmallVec<[(usize, Place); 4]> =
            smallvec::smallvec![(0, Place::default()); request.members.len()];
        for (done, &i) in request.order.iter().enumerate() {
            let member = &request.members[i];
            let first = tables[i].home(member.key);
            // Chains may overlap: what is locked already is not locked again.
            if !locked.last().is_some_and(|last| last.holds(&tables[i], first)) {
                locked.push(Locked::from(&tables[i], first));
            }
            let last = locked.len() - 1;
            match self.find(member.home, &mut locked[last], member.key, member.charging, insists) {
                Ok(place) => places[i] = (last, place),
                Err(obstacle) => {
                    for &i in &request.order[..done] {
                        let (held, place) = &places[i];
                        self.unclaim(request.members[i].home, &locked[*held], request.members[i].key, place);
                    }
                    return Err((i, obstacle));
                }
            }
        }
        Ok(Held { locked, places })
    }
}
