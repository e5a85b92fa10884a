//! Tests of URLs that are accepted and of URLs that are rejected.

use redis::ConnectionAddr;

use super::{Servers, Url, address_text};

/// Returns the addresses, the name of the primary, and the user. `None` if the URL is invalid.
fn parsed(url: &str) -> Option<(Vec<String>, String, String)> {
    let Url { servers, user, is_secure } = Url::parse(url).ok()?;
    let (addresses, name) = match servers {
        Servers::One(address) => (vec![address], String::new()),
        Servers::Cluster(addresses) => (addresses, String::new()),
        Servers::Sentinels(addresses, name) => (addresses, name),
    };
    let user = format!("{:?} {:?} {} {is_secure}", user.username(), user.password(), user.db());
    Some((addresses.iter().map(ToString::to_string).collect(), name, user))
}

#[test]
fn an_address_is_shown_as_it_can_be_pasted() {
    let tcp = |host: &str| address_text(&ConnectionAddr::Tcp(host.to_owned(), 7000));
    assert_eq!(["h", "127.0.0.1", "::1"].map(tcp), ["h:7000", "127.0.0.1:7000", "[::1]:7000"]);
    assert_eq!(address_text(&ConnectionAddr::Unix("/r.sock".into())), "/r.sock");
}

#[test]
fn several_addresses_share_what_else_the_url_says() {
    let (addresses, _, user) = parsed("rediss-cluster://limiter:p%40ss@a:7000,b,[::1]:7002").expect("the URL is valid");
    assert_eq!(addresses, ["a:7000", "b:6379", "::1:7002"]);
    assert_eq!(user, "Some(\"limiter\") Some(\"p@ss\") 0 true");
    let (addresses, name, user) = parsed("redis-sentinel://:p@a,b:1,[::1],[::2]:3/main/2").expect("the URL is valid");
    assert_eq!(addresses, ["a:26379", "b:1", "::1:26379", "::2:3"]);
    assert_eq!((name.as_str(), user.as_str()), ("main", "None Some(\"p\") 2 false"));
    let (addresses, name, _) = parsed("redis-sentinel://a:1/main").expect("the URL is valid");
    assert_eq!((addresses.as_slice(), name.as_str()), (["a:1".to_owned()].as_slice(), "main"));
    for url in ["redis-cluster://a:1/", "redis-cluster://a:1,b:2/0", "valkeys://a", "redis+unix:///socket"] {
        assert!(parsed(url).is_some(), "the URL is valid: {url}");
    }
}

#[test]
fn an_invalid_url_is_rejected() {
    let many = format!("redis-cluster://{}", vec!["a"; 65].join(","));
    let none = [
        "",
        "a:6379",
        "http://a",
        "redis-cluster://",
        "redis-cluster://a,",
        "redis-cluster://a:x",
        "redis-cluster://a/1",
        "redis-sentinel://a:1",
        "redis-sentinel://a:1/",
        "redis-sentinel://a:1/main?sentinel_password=p",
        "redis-sentinel://a:1/main#p",
        "redis-sentinel:///main",
        "redis-sentinel://a/main/x",
        &many,
    ];
    for url in none {
        assert!(parsed(url).is_none(), "the URL is invalid: {url}");
    }
}

#[test]
fn nothing_in_a_url_is_ignored() {
    let wrong = [
        ("redis://:a@b#c@d", "write %2F, %3F or %23"),
        ("rediss://u:a?c@d", "write %2F, %3F or %23"),
        ("redis-cluster://:a/c@d", "write %2F, %3F or %23"),
        ("redis-sentinel://:a@b#c@d:1/m", "write %2F, %3F or %23"),
        ("redis://a?db=5", "a database is its path"),
        ("redis://a/5?db=6", "a database is its path"),
        ("redis-cluster://a,b?x", "a database is its path"),
        ("redis://u@a", "a user without a password"),
        ("redis-cluster://u@a,b", "a user without a password"),
        ("unix:///socket?user=u", "a user without a password"),
        ("unix:///socket?password=p", "user, pass and db"),
        ("redis://a:1,b:2", "redis-cluster://"),
        ("redis://::1", "in brackets"),
        ("redis://a:x", "port"),
        ("redis://a:65536", "port"),
        ("redis://a:", "port"),
        ("redis://u:p@a/x", "database"),
    ];
    for (url, why) in wrong {
        let error = Url::parse(url).err().expect(url);
        assert!(error.detail.contains(why), "{url}: {error}");
    }
    for url in ["redis://:p@a", "redis://u:p@[::1]/3", "redis://a:1/", "unix:///s?user=u&pass=p&db=2", "valkey://a"] {
        assert!(parsed(url).is_some(), "the URL is valid: {url}");
    }
}
