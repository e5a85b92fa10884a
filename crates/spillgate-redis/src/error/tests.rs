//! Tests of the kinds of errors.

use super::{ErrorKind, kind_of_code};

#[test]
fn errors_of_servers_are_classed_by_their_first_word() {
    let classed = [
        ("READONLY", ErrorKind::ReadOnly),
        ("NOREPLICAS", ErrorKind::ReadOnly),
        ("MISCONF", ErrorKind::ReadOnly),
        ("LOADING", ErrorKind::Loading),
        ("MASTERDOWN", ErrorKind::Loading),
        ("BUSY", ErrorKind::Busy),
        ("OOM", ErrorKind::OutOfMemory),
        ("NOPERM", ErrorKind::NoPermission),
        ("NOAUTH", ErrorKind::NoPermission),
        ("WRONGTYPE", ErrorKind::WrongType),
        ("MOVED", ErrorKind::Moved),
        ("ASK", ErrorKind::Moved),
        ("TRYAGAIN", ErrorKind::Moved),
        ("CLUSTERDOWN", ErrorKind::ClusterDown),
        ("NOSCRIPT", ErrorKind::NoScript),
        ("ERR", ErrorKind::Other),
    ];
    for (code, kind) in classed {
        assert_eq!(kind_of_code(code), kind, "{code}");
    }
}
