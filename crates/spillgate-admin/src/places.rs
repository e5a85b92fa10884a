//! Bounds how many answers are open at once: in all, and for each caller.
//!
//! Without the bound for each caller, one client that reads nothing could keep an answer from all other clients.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;

/// The places for open answers of one kind. A clone stands for the same places.
#[derive(Debug)]
pub(super) struct Places<K>(Arc<Shared<K>>);

#[derive(Debug)]
struct Shared<K> {
    most: usize,
    most_of_caller: usize,
    open: Mutex<Open<K>>,
}

#[derive(Debug)]
struct Open<K> {
    all: usize,
    /// The number of open answers of each caller that has one.
    of_callers: HashMap<K, usize>,
}

/// The place of one answer. It is free again when this value is dropped.
#[derive(Debug)]
pub(super) struct Place<K: Hash + Eq> {
    places: Places<K>,
    caller: K,
}

/// Why there is no place: the bound that is reached.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Full {
    All(usize),
    OfCaller(usize),
}

impl<K> Clone for Places<K> {
    fn clone(&self) -> Places<K> {
        Places(Arc::clone(&self.0))
    }
}

impl<K: Hash + Eq + Copy> Places<K> {
    pub(super) fn new(most: usize, most_of_caller: usize) -> Places<K> {
        let open = Mutex::new(Open { all: 0, of_callers: HashMap::new() });
        Places(Arc::new(Shared { most, most_of_caller, open }))
    }

    pub(super) fn take(&self, caller: K) -> Result<Place<K>, Full> {
        let Shared { most, most_of_caller, open } = &*self.0;
        let mut open = open.lock();
        if open.of_callers.get(&caller).is_some_and(|of_caller| of_caller >= most_of_caller) {
            return Err(Full::OfCaller(*most_of_caller));
        }
        if open.all >= *most {
            return Err(Full::All(*most));
        }
        *open.of_callers.entry(caller).or_default() += 1;
        open.all += 1;
        Ok(Place { places: self.clone(), caller })
    }

    /// Returns how many answers are open.
    pub(super) fn open(&self) -> usize {
        self.0.open.lock().all
    }
}

impl<K: Hash + Eq> Drop for Place<K> {
    fn drop(&mut self) {
        let mut open = self.places.0.open.lock();
        open.all -= 1;
        if let Some(of_caller) = open.of_callers.get_mut(&self.caller) {
            *of_caller -= 1;
            if *of_caller == 0 {
                open.of_callers.remove(&self.caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_takes_his_share_and_leaves_the_rest_to_others() {
        let places = Places::new(5, 2);
        let mut open: Vec<_> = [1, 1, 2, 2].map(|caller| places.take(caller).expect("there is a place")).into();
        assert_eq!(places.take(1).unwrap_err(), Full::OfCaller(2));
        open.push(places.take(3).expect("there is a place"));
        assert_eq!(places.take(4).unwrap_err(), Full::All(5));
        open.remove(0);
        assert!(places.take(1).is_ok(), "a place that was dropped is free");
        drop(open);
        assert_eq!((places.open(), places.0.open.lock().of_callers.len()), (0, 0));
    }
}
