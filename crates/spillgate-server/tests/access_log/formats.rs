use spillgate_replay::access_log::{FORMATS, Reader, Unreadable};

use super::read;

const COMBINED: &str = r#"203.0.113.7 - bob [10/Oct/2000:13:55:36 -0700] "GET /a/b?c=d HTTP/1.1" 200 2326 "http://e/" "Mozilla/5.0 (X11) \x22q\x22""#;
const TIME_NS: u64 = 971_211_336_000_000_000;

fn values(format: &str, wanted: &[&str], line: &str) -> Vec<String> {
    read(format, wanted, line).unwrap_or_else(|why| panic!("{format}: {line}: {why}")).1
}

fn error(format: &str, wanted: &[&str], time_field: Option<&str>) -> String {
    let wanted: Vec<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
    Reader::new(format, &wanted, time_field).expect_err("the format is invalid").to_string()
}

#[test]
fn every_field_of_a_combined_line_is_read() {
    for (field, value) in [
        ("remote_addr", "203.0.113.7"),
        ("remote_user", "bob"),
        ("time_local", "10/Oct/2000:13:55:36 -0700"),
        ("request", "GET /a/b?c=d HTTP/1.1"),
        ("request_method", "GET"),
        ("method", "GET"),
        ("request_uri", "/a/b?c=d"),
        ("uri", "/a/b?c=d"),
        ("path", "/a/b"),
        ("args", "c=d"),
        ("query", "c=d"),
        ("server_protocol", "HTTP/1.1"),
        ("protocol", "HTTP/1.1"),
        ("status", "200"),
        ("body_bytes_sent", "2326"),
        ("bytes", "2326"),
        ("http_referer", "http://e/"),
        ("referer", "http://e/"),
        ("http_user_agent", "Mozilla/5.0 (X11) \"q\""),
        ("user_agent", "Mozilla/5.0 (X11) \"q\""),
    ] {
        for format in ["combined", "nginx"] {
            assert_eq!(read(format, &[field], COMBINED), Ok((TIME_NS, vec![value.to_owned()])), "{field}");
        }
    }
    let several = values("combined", &["path", "remote_addr", "path"], COMBINED);
    assert_eq!(several, ["/a/b", "203.0.113.7", "/a/b"]);
}

#[test]
fn what_follows_the_format_is_ignored() {
    let longer = format!("{COMBINED} \"198.51.100.1\" 0.003");
    assert_eq!(values("combined", &["user_agent"], &longer), ["Mozilla/5.0 (X11) \"q\""]);
    assert_eq!(values("common", &["bytes"], COMBINED), ["2326"]);
    assert_eq!(values("common", &["bytes"], r#"::1 - - [10/Oct/2000:13:55:36 -0700] "GET /" 200 7"#), ["7"]);
}

#[test]
fn a_value_that_does_not_exist_is_empty() {
    let line = r#"- - - [10/Oct/2000:13:55:36 -0700] "-" 400 0 "-" """#;
    for field in ["remote_addr", "remote_user", "request", "method", "path", "args", "referer", "user_agent"] {
        assert_eq!(values("combined", &[field], line), [""], "{field}");
    }
}

#[test]
fn a_client_cannot_move_the_fields_of_its_line() {
    // A client chooses its user name, its request and its user agent. Apache writes `\"` for a quote.
    for (user, request, agent) in [
        ("a b", "GET /x HTTP/1.1", "-"),
        ("a [11/Nov/2011:11:11:11 +0000] b", "GET /x HTTP/1.1", "-"),
        (r#"a [11/Nov/2011:11:11:11 +0000] \"b"#, "GET /x HTTP/1.1", "-"),
        ("a [b] c", "GET /x HTTP/1.1", r#"\" 1 2 \""#),
        ("-", r#"GET /x HTTP/1.1"#, r#"[11/Nov/2011:11:11:11 +0000] \"GET /y HTTP/1.1\""#),
    ] {
        let line = format!(r#"::1 - {user} [10/Oct/2000:13:55:36 -0700] "{request}" 200 1 "-" "{agent}""#);
        let read = read("combined", &["remote_addr", "path", "status", "bytes"], &line);
        let expected = ["::1", "/x", "200", "1"].map(String::from).to_vec();
        assert_eq!(read, Ok((TIME_NS, expected)), "{line}");
    }
    let line = r#"::1 - - [10/Oct/2000:13:55:36 -0700] "GET /a\" 500 9 \"b\\" 200 1 "-" "-""#;
    assert_eq!(values("combined", &["path", "status"], line), ["/a\" 500 9 \"b\\", "200"]);
}

#[test]
fn requests_that_are_not_http_have_no_path() {
    for request in [r"\x16\x03\x01\x02\x00", "-", "", "quit", r"\x03\x00\x00 x"] {
        let line = format!(r#"::1 - - [10/Oct/2000:13:55:36 -0700] "{request}" 400 1 "-" "-""#);
        assert_eq!(values("combined", &["path", "method", "remote_addr"], &line), ["", "", "::1"], "{request}");
    }
}

#[test]
fn a_pattern_of_nginx_is_read() {
    let line = r#"example.org:443 203.0.113.7 [2000-10-10T13:55:36-07:00] "GET /a HTTP/2.0" 0.120 ms"#;
    let pattern = r#"$host:${server_port} $remote_addr [$time_iso8601] "$request" ${request_time} ms"#;
    let wanted = ["host", "server_port", "remote_addr", "path", "request_time"];
    let expected = ["example.org", "443", "203.0.113.7", "/a", "0.120"].map(String::from).to_vec();
    assert_eq!(read(pattern, &wanted, line), Ok((TIME_NS, expected)));
    let expected = vec![String::from("/b")];
    assert_eq!(read("$msec|$request_uri", &["path"], "971211336.5|/b?c"), Ok((TIME_NS + 500_000_000, expected)));
    assert_eq!(values("$time_iso8601 $uri", &["uri", "path"], "2000-10-10T13:55:36Z /c"), ["/c", "/c"]);
    assert_eq!(values("$time_local,$http_x_api_key", &["http_x_api_key"], "10/Oct/2000:13:55:36 +0000,k"), ["k"]);
}

#[test]
fn a_time_keeps_its_zone_and_its_date_without_brackets() {
    const TIME: &str = "10/Oct/2000:13:55:36 -0700";
    for (pattern, line) in [
        ("$time_local $remote_addr", format!("{TIME} ::1")),
        ("$time_local - $remote_addr", format!("{TIME} - ::1")),
        ("$time_local-$remote_addr", format!("{TIME}-::1")),
        ("$remote_addr $time_local", format!("::1 {TIME}")),
        ("$remote_addr $time_local", format!("::1 {TIME} more")),
        ("$remote_addr - [$time_local", format!("::1 - [{TIME}] more")),
        ("$time_local - $remote_addr", String::from("10/Oct/2000:20:55:36 - ::1")),
        ("$time $remote_addr", String::from("2000-10-10 13:55:36 -07:00 ::1")),
        ("$time_iso8601 $remote_addr", String::from("2000-10-10T13:55:36 -0700 ::1")),
        // IIS writes the date and the time of day (UTC) into two columns.
        ("$time $s_ip $remote_addr", String::from("2000-10-10 20:55:36 10.0.0.1 ::1")),
        ("$msec $remote_addr", String::from("971211336 ::1")),
    ] {
        assert_eq!(
            read(pattern, &["remote_addr"], &line),
            Ok((TIME_NS, vec![String::from("::1")])),
            "{pattern}: {line}"
        );
    }
    let wanted = [String::from("remote_addr")];
    let mut fields = spillgate_replay::access_log::Fields::default();
    let mut reader = Reader::new("$began $remote_addr", &wanted, Some("began")).unwrap();
    assert_eq!(reader.read(format!("{TIME} ::1").as_bytes(), &mut fields).unwrap().as_nanos(), TIME_NS);
    assert_eq!(fields.value(0), Some("::1"));
    assert_eq!(values("$msec $a $remote_addr", &["a", "remote_addr"], "971211336 -0700 ::1"), ["-0700", "::1"]);
}

/// Returns the pattern that an error quotes.
fn pattern_of(why: Unreadable) -> String {
    why.to_string().split('\'').nth(1).expect("the text has a pattern").to_owned()
}

#[test]
fn words_before_the_address_are_not_the_address() {
    let rest = COMBINED;
    for (line, why) in [
        (format!("Mar 26 10:00:00 host nginx: {rest}"), Unreadable::Syslog),
        (format!("<190>Mar 26 10:00:00 host nginx: {rest}"), Unreadable::Syslog),
        (format!("2026-03-26T10:00:00Z host nginx[7]: {rest}"), Unreadable::Syslog),
        (format!("example.com:443 {rest}"), Unreadable::Prefix),
        (format!("example.com {}", rest.replace("bob", "-")), Unreadable::Prefix),
    ] {
        for format in ["combined", "common", "nginx"] {
            assert_eq!(read(format, &["remote_addr"], &line), Err(why), "{format}: {line}");
        }
        let expected = ["203.0.113.7", "/a/b", "200"].map(String::from).to_vec();
        assert_eq!(
            read(&pattern_of(why), &["remote_addr", "path", "status"], &line),
            Ok((TIME_NS, expected)),
            "{line}"
        );
    }
    for prefix in [" ", "web_1  | ", "2026-03-26T10:00:00.1Z stdout F ", "198.51.100.1, "] {
        assert_eq!(read("combined", &[], &format!("{prefix}{rest}")), Err(Unreadable::Prefix), "{prefix}");
    }
    for user in ["- -", "- a b", "- a: b", "identity bob"] {
        let line = rest.replace("- bob", user);
        assert_eq!(values("combined", &["remote_addr"], &line), ["203.0.113.7"], "{line}");
    }
}

#[test]
fn the_address_of_a_line_of_envoy_is_the_last_one() {
    let line = |forwarded: &str| {
        format!(r#"[2000-10-10T20:55:36.000Z] "GET /a HTTP/1.1" 200 - 0 1 2 3 "{forwarded}" "a" "b" "c" "d""#)
    };
    for (forwarded, address) in
        [("203.0.113.7, 127.0.0.1", "127.0.0.1"), ("203.0.113.7,::1", "::1"), ("::1", "::1"), ("-", "")]
    {
        assert_eq!(values("envoy", &["remote_addr"], &line(forwarded)), [address], "{forwarded}");
    }
    let all = values("envoy", &["http_x_forwarded_for"], &line("203.0.113.7, 127.0.0.1"));
    assert_eq!(all, ["203.0.113.7, 127.0.0.1"]);
    let not_http = line("::1").replace("GET /a HTTP/1.1", "- - -");
    assert_eq!(values("envoy", &["path", "method"], &not_http), ["", ""]);
    assert!(error("envoy", &["remote_adr"], None).contains("did you mean remote_addr?"));
}

#[test]
fn a_line_of_another_form_is_unreadable() {
    let why = |format, line| read(format, &["remote_addr"], line).expect_err(line);
    assert_eq!(why("combined", ""), Unreadable::Empty);
    assert_eq!(why("combined", " \t "), Unreadable::Empty);
    assert_eq!(why("combined", "hello"), Unreadable::Form);
    assert_eq!(why("combined", r#"::1 - - [10/Oct/9999:13:55:36 -0700] "GET /" 1 2 "-" "-""#), Unreadable::Time);
    assert_eq!(why("combined", r#"::1 - - [10/Oct/0000:13:55:36 -0700] "GET /" 1 2 "-" "-""#), Unreadable::Time);
    assert_eq!(why("$msec $remote_addr", "- ::1"), Unreadable::NoTime);
    assert_eq!(why("json", "{}"), Unreadable::NoTime);
    assert_eq!(why("json", r#"{"ts": "yesterday"}"#), Unreadable::Time);
    for line in ["[]", "1", "{", r#"{"ts":1700000000} x"#, r#"{"ts":1700000000"#, "\u{0}"] {
        assert_eq!(why("json", line), Unreadable::Json, "{line}");
    }
}

#[test]
fn values_of_json_are_read_by_their_paths() {
    let line = r#"{"a":{"b":[{"c":"d\u0065\"\n"},{"c":7.50}],"e":true,"f":null,"g":{}},"h.i":"j","time":"2000-10-10T13:55:36-07:00","":"k"}"#;
    assert_eq!(values("json", &["a.b"], r#"{"ts":971211336,"a.b":"c"}"#), ["c"]);
    assert_eq!(values("json", &["x.a.b"], r#"{"ts":971211336,"x":{"a.b":"c"}}"#), [""]);
    let wanted = ["a.b.0.c", "a.b.1.c", "a.e", "a.f", "a.g", "h.i", "x", "a.b.2.c", "time"];
    let expected = ["de\"\n", "7.50", "true", "", "", "j", "", "", "2000-10-10T13:55:36-07:00"];
    assert_eq!(values("json", &wanted, line), expected);
}

#[test]
fn json_with_the_names_of_nginx_has_their_parts() {
    let line = r#"{"time_local":"10/Oct/2000:13:55:36 -0700","remote_addr":"::1","request":"GET /a?b HTTP/1.1","status":"200"}"#;
    let expected = ["::1", "/a", "b", "GET", "200"].map(String::from).to_vec();
    assert_eq!(read("json", &["remote_addr", "path", "args", "method", "status"], line), Ok((TIME_NS, expected)));
}

#[test]
fn the_time_of_json_is_the_first_known_name_or_the_given_field() {
    for name in ["date", "datetime", "StartUTC", "@timestamp"] {
        let line = format!(r#"{{"{name}":"2000-10-10T20:55:36Z"}}"#);
        assert_eq!(read("json", &[], &line).map(|(time_ns, _)| time_ns), Ok(TIME_NS), "{name}");
    }
    let line = r#"{"x":{"y":971211336000},"ts":971211337.25,"msec":"971211338"}"#;
    assert_eq!(read("json", &[], line).map(|(time_ns, _)| time_ns), Ok(TIME_NS + 1_250_000_000));
    let mut fields = spillgate_replay::access_log::Fields::default();
    let mut reader = Reader::new("json", &[], Some("x.y")).unwrap();
    assert_eq!(reader.read(line.as_bytes(), &mut fields).unwrap().as_nanos(), TIME_NS);
    let why = Reader::new("json", &[], Some("x")).unwrap().read(line.as_bytes(), &mut fields).unwrap_err().to_string();
    let names: Vec<_> =
        why.split("(without it, ").nth(1).unwrap().split(" are tried").next().unwrap().split(", ").collect();
    let page = include_str!("../../../../docs/src/how-to/replay.md").replace('\n', " ");
    assert!(page.contains(&format!("these names: `{}`.", names.join("`, `"))), "the page has the same list: {names:?}");
    assert!(why.contains("no time: name its field with --time-field") && why.contains("start_time, datetime"), "{why}");
}

#[test]
fn csv_is_read_by_the_names_of_its_columns() {
    let wanted = ["remote_addr", "path", "User-Agent"].map(String::from);
    for separator in [",", ";", "\t"] {
        let mut reader = Reader::new("csv", &wanted, None).unwrap();
        let mut fields = spillgate_replay::access_log::Fields::default();
        let mut read = |line: &str| {
            reader.read(line.replace('|', separator).as_bytes(), &mut fields).map(|time| {
                let value = |index| fields.value(index).unwrap_or_default().to_owned();
                (time.as_nanos(), [value(0), value(1), value(2)])
            })
        };
        assert_eq!(read("Timestamp|x|user-agent|\"request_uri\"|remote_addr"), Err(Unreadable::Header));
        let expected = [String::from("::1"), String::from("/a"), String::from("say \"a|b\"").replace('|', separator)];
        let line = r#"971211336|"1|""2"|"say ""a|b"""|/a?b|::1"#;
        assert_eq!(read(line), Ok((TIME_NS, expected)), "{separator}");
        assert_eq!(read("971211336||||"), Ok((TIME_NS, [const { String::new() }; 3])));
        for wrong in ["971211336|||", "971211336|||||", "971211336|||\"|", "971211336"] {
            assert_eq!(read(wrong), Err(Unreadable::Columns), "{wrong}");
        }
    }
}

#[test]
fn bytes_that_are_not_utf8_are_replaced() {
    let mut fields = spillgate_replay::access_log::Fields::default();
    let wanted = [String::from("path")];
    for (format, line) in [("$msec $path", &b"971211336 /\xff"[..]), ("json", b"{\"ts\":971211336,\"path\":\"/\xff\"}")]
    {
        Reader::new(format, &wanted, None).unwrap().read(line, &mut fields).unwrap();
        assert_eq!(fields.value(0), Some("/\u{fffd}"), "{format}");
    }
}

#[test]
fn a_wrong_format_is_explained() {
    let unknown = error("combind", &[], None);
    assert!(
        unknown.contains("did you mean combined?") && FORMATS.iter().all(|name| unknown.contains(name)),
        "{unknown}"
    );
    assert!(error("%h %l %u %t", &[], None).contains("$remote_addr"));
    let field = error("combined", &["remote_adr"], None);
    assert!(field.contains("no field remote_adr: did you mean remote_addr?"), "{field}");
    assert!(field.contains("http_user_agent, method"), "{field}");
    let no_request = error("$time_local $status", &["path"], None);
    assert!(no_request.ends_with("Its fields are time_local, status"), "{no_request}");
    assert!(error("$remote_addr", &[], None).contains("no time"));
    assert!(error("$time_local", &[], Some("msec")).contains("no field msec: "));
    assert!(error("$a$time_local", &[], None).contains("between $a and $time_local"));
    for pattern in ["$", "$ a", "${", "${a b}", "${}", "$time_local $"] {
        assert!(error(pattern, &[], None).contains("no name"), "{pattern}");
    }
    assert!(error(&"$a ".repeat(2000), &[], None).contains("longer than 4096 bytes"));
    assert!(error("json", &["a"; 65], None).contains("64 is the maximum"));
}

#[test]
fn the_objects_of_a_json_array_are_its_lines() {
    let object =
        |second: u64, more: &str| format!("{{\n  \"ts\": {second},\n  \"remote_addr\": \"::{second}\"{more}\n}}");
    let long = format!(", \"a\": \"{}\"", "]}\\\"".repeat(50_000));
    let text = format!(
        "\u{feff}\n [\n{},{}\n,{} , nothing\n, {}]\n",
        object(971_211_336, ", \"b\": [{\"c\": \"}]\"}]"),
        object(971_211_337, ""),
        object(971_211_338, &long),
        object(971_211_339, "")
    );
    for text in [text.clone(), text.replace('\n', "")] {
        let has_lines = text.contains('\n');
        let (requests, counts) = super::read_all("json", vec![super::file(text.clone())], std::time::Duration::ZERO);
        let found: Vec<_> = requests.iter().map(|request| (request.line, request.values[0].as_deref())).collect();
        if has_lines {
            assert_eq!(found, [(3, Some("::971211336")), (6, Some("::971211337")), (14, Some("::971211339"))]);
            let why: Vec<_> = counts.unreadable.first.iter().map(|line| (line.line, &*line.why)).collect();
            assert_eq!(why, [(10, "it is longer than 64 KiB"), (13, "it is not JSON")]);
        } else {
            // Without lines, the text that is no object lasts until the end of the file.
            assert_eq!(found, [(1, Some("::971211336")), (1, Some("::971211337"))]);
        }
        assert_eq!(counts.bytes, text.len() as u64);
    }
    let cut = "[{\"ts\":971211336,\"remote_addr\":\"::1\"},{\"ts\":97";
    let (requests, counts) = super::read_all("json", vec![super::file(cut)], std::time::Duration::ZERO);
    assert_eq!((requests.len(), counts.unreadable.count, counts.lines), (1, 1, 2));
}

#[test]
fn a_line_of_docker_is_the_line_inside_of_it() {
    let outer =
        |log: &str| serde_json::json!({"log": log, "stream": "stdout", "time": "2026-01-01T00:00:00Z"}).to_string();
    let expected = Ok((TIME_NS, vec![String::from("/a/b")]));
    assert_eq!(read("docker", &["path"], &outer(&format!("{COMBINED}\n"))), expected);
    assert_eq!(read("docker:common", &["path"], &outer(COMBINED)), expected);
    assert_eq!(read("docker:$msec $path", &["path"], &outer("971211336 /a/b\r\n")), expected);
    for line in ["{}", "{\"log\":7}", COMBINED, "{\"log\":\"\"", ""] {
        assert!(read("docker", &["path"], line).is_err(), "{line}");
    }
    assert!(error("docker:combind", &[], None).contains("did you mean combined?"));
    assert!(error("docker:docker:json", &[], None).contains("docker:FORMAT"));
}

#[test]
fn columns_are_named_by_the_line_before_them() {
    let wanted = ["remote_addr", "path", "user_agent", "sc-status"].map(String::from);
    let mut reader = Reader::new("iis", &wanted, None).unwrap();
    let mut fields = spillgate_replay::access_log::Fields::default();
    let mut read = |line: &str| {
        reader.read(line.as_bytes(), &mut fields).map(|time| {
            let value = |index| fields.value(index).unwrap_or_default().to_owned();
            (time.as_nanos(), [value(0), value(1), value(2), value(3)])
        })
    };
    let expected = |path: &str| Ok((TIME_NS, ["::1", path, "a+b", "200"].map(str::to_owned)));
    assert_eq!(read("2000-10-10 20:55:36 ::1 /a"), Err(Unreadable::Unnamed));
    assert_eq!(read("#Software: x"), Err(Unreadable::Header));
    assert_eq!(read("#Fields: date time c-ip cs-uri-stem cs(User-Agent) sc-status"), Err(Unreadable::Header));
    assert_eq!(read("2000-10-10 20:55:36 ::1 /a a+b 200"), expected("/a"));
    assert_eq!(read("2000-10-10 20:55:36 ::1 /a a+b"), Err(Unreadable::Columns));
    assert_eq!(read("#Fields: sc-status time date cs(user-agent) c-ip cs-uri-stem"), Err(Unreadable::Header));
    assert_eq!(read("200\t20:55:36\t2000-10-10\ta+b\t::1\t/b"), expected("/b"));
}

#[test]
fn a_time_of_day_needs_a_date() {
    assert_eq!(read("json", &[], r#"{"date":"2000-10-10","time":"20:55:36"}"#).map(|(time, _)| time), Ok(TIME_NS));
    assert_eq!(read("json", &[], r#"{"date":"10/Oct/2000","time":"20:55:36"}"#).map(|(time, _)| time), Ok(TIME_NS));
    assert_eq!(
        read("$date|$time|$a", &["a"], "2000-10-10|20:55:36.5|x").map(|(time, _)| time),
        Ok(TIME_NS + 500_000_000)
    );
    assert_eq!(read("$date $time $a", &["a"], "2000-10-10 20:55:36 x"), Ok((TIME_NS, vec!["x".to_owned()])));
    assert_eq!(read("$time $a", &["a"], "2000-10-10 20:55:36 UTC x"), Ok((TIME_NS, vec!["x".to_owned()])));
    assert_eq!(read("json", &[], r#"{"time":"20:55:36"}"#), Err(Unreadable::NoTime));
}

#[test]
fn padded_columns_are_read_if_the_pattern_has_two_spaces() {
    for line in ["971211336      3 ::1 x", "971211336 3     ::1 x"] {
        assert_eq!(
            values("$msec  $duration  $remote_addr $a", &["duration", "remote_addr", "a"], line),
            ["3", "::1", "x"]
        );
    }
    assert_eq!(values("$msec $a $b", &["a", "b"], "971211336  x"), ["", "x"], "one space is one space");
}
