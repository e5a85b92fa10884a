//! A quota that many requests share without copies.

use std::ops::Deref;
use std::sync::Arc;

use spillgate_core::Quota;

/// A quota of the layer: a constant of the program, or a quota that was built when the program started.
///
/// A request copies only a reference to the quota. `into` makes a `QuotaRef` from `&'static Quota`, [`Quota`] and
/// [`Arc<Quota>`].
///
/// ```
/// use spillgate::Quota;
/// use spillgate::tower::QuotaRef;
///
/// const SEARCH: Quota = Quota::per_second(5).constant();
/// let constant: QuotaRef = (&SEARCH).into();
/// let from_settings: QuotaRef = Quota::per_second(5).build()?.into();
/// assert_eq!(*constant, *from_settings);
/// # Ok::<(), spillgate::QuotaError>(())
/// ```
#[derive(Clone, Debug)]
pub struct QuotaRef(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Constant(&'static Quota),
    Shared(Arc<Quota>),
}

impl Deref for QuotaRef {
    type Target = Quota;

    fn deref(&self) -> &Quota {
        match &self.0 {
            Kind::Constant(quota) => quota,
            Kind::Shared(quota) => quota,
        }
    }
}

impl From<&'static Quota> for QuotaRef {
    fn from(quota: &'static Quota) -> QuotaRef {
        QuotaRef(Kind::Constant(quota))
    }
}

impl From<Quota> for QuotaRef {
    fn from(quota: Quota) -> QuotaRef {
        Arc::new(quota).into()
    }
}

impl From<Arc<Quota>> for QuotaRef {
    fn from(quota: Arc<Quota>) -> QuotaRef {
        QuotaRef(Kind::Shared(quota))
    }
}
