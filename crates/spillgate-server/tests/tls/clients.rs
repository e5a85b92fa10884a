//! Certificates of clients: who may connect, and what the log says about them.

use crate::cli_support::{Folder, command};
use crate::support::http;
use crate::support::process::Process;
use crate::support::spillgate::Spillgate;
use crate::tls::support::{
    Authority, call, curl, ended, failed, folder, metric, s_client, self_signed, serve_with_client_ca, status,
    until_failed,
};

/// Makes one client of each kind.
fn clients() -> Folder {
    let (folder, authority) = folder();
    authority.issue(&folder, "good", &["shop.internal", "spiffe://cluster/ns/shop"], |_| {});
    authority.issue(&folder, "expired", &["shop.internal"], ended);
    authority.issue(&folder, "unlisted", &["other.example", "spiffe://cluster/other"], |_| {});
    authority.issue(&folder, "unnamed", &[], |_| {});
    // It has the same name, but another key.
    Authority::new("authority").issue(&folder, "stranger", &["shop.internal"], |_| {});
    self_signed(&folder, "self", &["shop.internal"]);
    folder
}

fn http_status(folder: &Folder, server: &Spillgate, client: &str) -> Result<u16, (i32, String)> {
    let (cert, key) = (format!("{client}.pem"), format!("{client}.key"));
    status(folder, server.http(), &["--cert", &cert, "--key", &key])
}

#[test]
fn only_clients_of_the_authority_with_a_listed_name_may_connect() {
    let folder = clients();
    let server = serve_with_client_ca(&folder, &["--tls-client-names", "*.internal,spiffe://cluster/ns/*"]);
    assert_eq!(http_status(&folder, &server, "good"), Ok(404));
    assert_eq!(call(&folder, server.grpc(), &["ca.pem", "good.pem", "good.key"]), "OK");
    for (client, alert, reason) in [
        ("expired", "certificate expired", "expired"),
        ("stranger", "unknown ca", "unknown_ca"),
        ("self", "unknown ca", "unknown_ca"),
        ("unlisted", "access denied", "name"),
        ("unnamed", "access denied", "name"),
    ] {
        let before = failed(&server, reason);
        let (cert, key) = (format!("{client}.pem"), format!("{client}.key"));
        let printed = s_client(&folder, server.http(), &["-cert", &cert, "-key", &key, "-ign_eof"], "");
        assert!(printed.contains(&format!("alert {alert}")), "{client}: {printed}");
        assert!(http_status(&folder, &server, client).is_err(), "{client}");
        assert_eq!(call(&folder, server.grpc(), &["ca.pem", &cert, &key]), "UNAVAILABLE", "{client}");
        assert!(failed(&server, reason) >= before + 3, "{client}");
        server.process.logged(&format!("reason=\"{reason}\""));
    }
    assert!(
        server.process.logged("reason=\"name\"").contains("names=\"spiffe://cluster/other, other.example\""),
        "the log names them"
    );
    let printed = s_client(&folder, server.http(), &["-ign_eof"], "");
    assert!(printed.contains("alert certificate required"), "{printed}");
    // A client that sends its request at once reads why it is refused too.
    for _ in 0..20 {
        let (_, error) = status(&folder, server.http(), &[]).expect_err("it has no certificate");
        assert!(error.contains("alert certificate required"), "{error}");
    }
    assert!(status(&folder, server.http(), &[]).is_err());
    assert_eq!(call(&folder, server.grpc(), &["ca.pem"]), "UNAVAILABLE");
    until_failed(&server, "no_certificate");
    assert_eq!(metric(&server, "tls_connections_total{kind=\"tls\"}"), 2);
}

#[test]
fn without_names_every_client_of_the_authority_may_connect() {
    let folder = clients();
    let server = serve_with_client_ca(&folder, &[]);
    for client in ["good", "unlisted", "unnamed"] {
        assert_eq!(http_status(&folder, &server, client), Ok(404), "{client}");
    }
    for client in ["expired", "stranger", "self"] {
        assert!(http_status(&folder, &server, client).is_err(), "{client}");
    }
}

#[test]
fn only_the_named_listeners_want_certificates() {
    let folder = clients();
    let server = serve_with_client_ca(&folder, &["--tls-client-listeners", "grpc"]);
    assert_eq!(status(&folder, server.http(), &[]), Ok(404));
    assert_eq!(call(&folder, server.grpc(), &["ca.pem"]), "UNAVAILABLE");
    assert_eq!(call(&folder, server.grpc(), &["ca.pem", "good.pem", "good.key"]), "OK");
}

#[test]
fn a_write_has_the_name_of_its_client_and_a_certificate_is_no_token() {
    let folder = clients();
    folder.write("token", "a-token-of-an-operator");
    let token = folder.path("token").display().to_string();
    let arguments = ["--tls-listeners", "admin", "--admin-token-file", &token];
    let server = serve_with_client_ca(&folder, &arguments);
    let url = format!("https://{}/reload", server.admin());
    let own = ["--cacert", "ca.pem", "--cert", "good.pem", "--key", "good.key", "-X", "POST"];
    assert_eq!(
        curl(&folder, &url, &own).map(|(status, _)| status),
        Ok(401),
        "a certificate does not replace the token"
    );
    let token = ["-H", "Authorization: Bearer a-token-of-an-operator"];
    let answer = curl(&folder, &url, &[&own[..], &token].concat());
    assert_eq!(answer.map(|(status, _)| status), Ok(200));
    let line = server.process.logged("a write on the admin listener");
    assert!(line.contains("client=\"spiffe://cluster/ns/shop\""), "{line}");
    assert!(
        curl(&folder, &url, &["--cacert", "ca.pem", token[0], token[1]]).is_err(),
        "a token does not replace a certificate"
    );
}

/// The commands for operators show a certificate too, and no token leaves without TLS if a flag asks for it.
#[test]
fn commands_speak_tls_with_a_certificate_of_the_client() {
    let folder = clients();
    folder.write("token", "a-token-of-an-operator");
    let token = folder.path("token").display().to_string();
    let arguments = ["--tls-listeners", "admin", "--admin-token-file", &token];
    let server = serve_with_client_ca(&folder, &arguments);
    let url = format!("https://{}", server.admin());
    let run = |arguments: &str, variables: &[(&str, &str)]| {
        folder.run_with(&arguments.split(' ').collect::<Vec<_>>(), variables)
    };
    let own = "--client-cert good.pem --client-key good.key";
    let operator = "--admin-token-file token --ca ca.pem";
    let variables = [
        ("SPILLGATE_ADMIN_URL", &*url),
        ("SPILLGATE_ADMIN_CA", "ca.pem"),
        ("SPILLGATE_ADMIN_CLIENT_CERT", "good.pem"),
        ("SPILLGATE_ADMIN_CLIENT_KEY", "good.key"),
    ];
    for (arguments, variables) in [
        (format!("blocks --admin {url} {operator} {own}"), &[][..]),
        (format!("block user=7 --for 1m --admin {url} {operator} {own}"), &[]),
        (format!("insight --admin {url} {operator} {own}"), &[]),
        (format!("health {url} --ca ca.pem {own}"), &[]),
        ("blocks --admin-token-file token".to_owned(), &variables),
        ("insight --admin-token-file token".to_owned(), &variables),
        ("health".to_owned(), &variables),
    ] {
        let output = run(&arguments, variables);
        assert_eq!(output.code, 0, "{arguments}: {output:?}");
    }
    let without = run(&format!("blocks --admin {url} {operator}"), &[]);
    assert!(without.code == 3 && without.stderr.contains("give --client-cert and --client-key"), "{without:?}");
    let strange = run(&format!("blocks --admin {url} {operator} --client-cert self.pem --client-key self.key"), &[]);
    assert!(strange.code == 3 && strange.stderr.contains("the server refuses this client"), "{strange:?}");
    let ill = run(&format!("health {url} --ca ca.pem"), &[]);
    assert!(ill.code == 1 && ill.stdout.contains("give --client-cert and --client-key"), "{ill:?}");
    for (arguments, message) in [
        (format!("blocks --admin {url} --client-cert good.pem"), "the certificate of the client or its key is missing"),
        (format!("blocks --admin {url} --client-cert good.pem --client-key self.key"), "does not belong to"),
        (format!("blocks --admin {url} --client-cert good.pem --client-key none"), "check `--client-key`"),
        (format!("blocks --admin http://{} {operator}", server.admin()), "--ca is for https, but http://"),
        (format!("blocks {operator}"), "--ca is for https, but http://127.0.0.1:6070"),
        (format!("insight --admin {url} --admin {} {operator}", server.admin()), "--ca is for https"),
        (format!("blocks --admin unix:admin.sock {own}"), "--client-cert is for https, but unix:admin.sock"),
        ("health --ca ca.pem".to_owned(), "--ca is for https"),
        ("health nowhere".to_owned(), "https://HOST:PORT (if the listener has TLS)"),
    ] {
        let output = run(&arguments, &[]);
        assert!(output.code > 1 && output.stderr.contains(message), "{arguments}: {output:?}");
        let is_usage = !arguments.contains("none") && !message.contains("belong");
        assert!(output.code == 2 || !is_usage, "{arguments}: {output:?}");
    }
    // The variable may be for other servers.
    let plain = Spillgate::serve(&folder.path("rules.yaml"), &["--admin-token-file", &token]);
    let asked = run(&format!("blocks --admin http://{} --admin-token-file token", plain.admin()), &variables);
    assert_eq!(asked.code, 0, "{asked:?}");
}

/// A kubelet asks `health` without TLS, and restarts a server whose probe fails.
#[test]
fn the_health_listener_has_no_tls_and_wants_no_certificate() {
    let folder = clients();
    let tls = "--tls-cert server.pem --tls-key server.key --tls-client-ca ca.pem";
    let path = |name: &str| folder.path(name).display().to_string();
    let (cert, key, ca) = (path("server.pem"), path("server.key"), path("ca.pem"));
    let arguments = ["--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", &ca, "--health", "127.0.0.1:0"];
    let server = Spillgate::serve(&folder.path("rules.yaml"), &arguments);
    assert!(status(&folder, server.admin(), &[]).is_err(), "admin wants a certificate");
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(http::get(server.health(), path, &[]).status, 200, "{path}");
    }
    let health = server.health().to_string();
    for (arguments, variable) in [(&["health", &health][..], ""), (&["health"], &*health)] {
        let asked = folder.run_with(arguments, &[("SPILLGATE_HEALTH", variable)]);
        assert_eq!(asked.code, 0, "{asked:?}");
    }
    let memory = |listeners: &str| {
        let all = format!("serve --show-settings --json --health 127.0.0.1:0 {tls} {listeners}");
        let shown: serde_json::Value = serde_json::from_str(&folder.run(&all).stdout).expect("it is JSON");
        shown["memory_of_clients"]["value"].clone()
    };
    assert_eq!(memory(""), memory("--tls-listeners http,grpc,admin"));
    let mut command = command(&folder.path("."));
    command.args(["serve", "rules.yaml", "--http", "off", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    let server = Process::start("spillgate", command.args(arguments).args(["--watch", "off"]));
    let lines: Vec<_> = (0..5).filter_map(|_| server.line()).collect();
    let line =
        |name: &str| lines.iter().find(|line| line.trim_start().starts_with(name)).expect("it is listed").trim_end();
    assert!(line("grpc").ends_with(", TLS with client certificates"), "{lines:?}");
    assert!(!line("health").contains("TLS"), "{lines:?}");
}
