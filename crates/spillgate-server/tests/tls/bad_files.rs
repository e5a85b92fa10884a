//! Wrong files and settings. Each is found before the server listens, with its file, the reason, and what to do.

use std::process::Command;

use crate::cli_support::Folder;
use crate::support::http;
use crate::tls::support::{Authority, curl, folder, reload, replace, serve, serve_with_client_ca};

/// Runs openssl in the folder.
fn openssl(folder: &Folder, arguments: &str) {
    let output = Command::new("openssl").args(arguments.split(' ')).current_dir(folder.path(".")).output();
    let output = output.expect("openssl runs");
    assert!(output.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Starts a server that has to refuse its settings. Returns what it prints.
fn refused(folder: &Folder, arguments: &str) -> String {
    let all = format!("serve rules.yaml --http 127.0.0.1:0 --grpc 127.0.0.1:0 --admin 127.0.0.1:0 {arguments}");
    let output = folder.run(&all);
    assert_eq!((output.code, output.stdout.as_str()), (2, ""), "{arguments}: {}", output.stderr);
    output.stderr
}

#[test]
fn wrong_files_are_refused_with_what_to_do() {
    let (folder, authority) = folder();
    authority.issue(&folder, "other", &["127.0.0.1"], |_| {});
    folder.write("empty", "");
    folder.write("text", "this is not PEM\n");
    folder.write("damaged", "-----BEGIN CERTIFICATE-----\n!!!!\n-----END CERTIFICATE-----\n");
    folder.write("nonsense", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    folder.write("large", &"x".repeat(1 << 21));
    std::fs::create_dir(folder.path("folder")).expect("the folder is made");
    openssl(&folder, "req -x509 -newkey rsa:1024 -nodes -keyout small.key -out small.pem -subj /CN=a");
    openssl(
        &folder,
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-521 -nodes -keyout p521.key -out p521.pem -subj /CN=a",
    );
    openssl(&folder, "pkey -in server.key -aes256 -passout pass:secret -out locked.key");
    openssl(&folder, "x509 -in server.pem -outform der -out server.der");
    for (cert, key, message, help) in [
        (
            "server.pem",
            "other.key",
            "does not belong to the first certificate in server.pem",
            "have to be of the same pair",
        ),
        ("missing", "server.key", "missing cannot be read: No such file", "`tls.cert`"),
        ("server.pem", "missing", "missing cannot be read: No such file", "`tls.key`"),
        ("empty", "server.key", "empty is empty", "in PEM"),
        ("server.pem", "empty", "empty is empty", "in PEM"),
        ("text", "server.key", "text has no certificate in PEM", "-----BEGIN CERTIFICATE-----"),
        ("server.der", "server.key", "server.der has no certificate in PEM", "openssl x509 -inform der"),
        (
            "server.key",
            "server.pem",
            "server.key has a private key and no certificate",
            "name the file of the certificate",
        ),
        ("server.pem", "text", "text has no private key in PEM", "-----BEGIN PRIVATE KEY-----"),
        ("folder", "server.key", "folder cannot be read: it is a directory", "`tls.cert`"),
        ("damaged", "server.key", "damaged is not valid PEM", "write the file of `tls.cert` again"),
        ("nonsense", "server.key", "a certificate in nonsense has no dates", "make the certificate again"),
        ("large", "server.key", "it is larger than 1 MiB", "`tls.cert`"),
        ("small.pem", "small.key", "the key in small.key is of a kind or size", "RSA with 2048 to 4096 bits"),
        ("p521.pem", "p521.key", "the key in p521.key is of a kind or size", "ECDSA P-256"),
        ("server.pem", "locked.key", "the key in locked.key has a password", "openssl pkey -in FILE -out NEW"),
    ] {
        let printed = refused(&folder, &format!("--tls-cert {cert} --tls-key {key}"));
        assert!(printed.contains(message) && printed.contains(help), "{cert}, {key}: {printed}");
    }
    for (ca, message) in [
        ("missing", "missing cannot be read"),
        ("empty", "empty is empty"),
        ("text", "text has no certificate in PEM"),
        ("server.key", "server.key has a private key and no certificate"),
        ("nonsense", "a certificate in nonsense has no dates"),
    ] {
        let printed = refused(&folder, &format!("--tls-cert server.pem --tls-key server.key --tls-client-ca {ca}"));
        assert!(printed.contains(message), "{ca}: {printed}");
    }
}

#[test]
fn settings_that_contradict_each_other_are_refused() {
    let (folder, _authority) = folder();
    let pair = "--tls-cert server.pem --tls-key server.key";
    for (arguments, message) in [
        ("--tls-cert server.pem".to_owned(), "`tls.cert` is set without `tls.key`"),
        ("--tls-key server.key".to_owned(), "`tls.key` is set without `tls.cert`"),
        ("--tls-client-ca ca.pem".to_owned(), "`tls.client_ca` has no effect without `tls.cert`"),
        ("--tls-plain allow".to_owned(), "`tls.plain` has no effect without `tls.cert`"),
        (format!("{pair} --tls-client-ca ca.pem --tls-client-names []"), "`tls.client_names` names no client"),
        (format!("{pair} --tls-client-names a.internal"), "`tls.client_names` has no effect without `tls.client_ca`"),
        (format!("{pair} --tls-client-listeners grpc"), "`tls.client_listeners` has no effect without `tls.client_ca`"),
        (
            format!("{pair} --tls-client-ca ca.pem --tls-plain allow"),
            "`tls.plain: allow` lets in clients without a certificate",
        ),
        (format!("{pair} --http unix:a.sock --tls-listeners http"), "`http`, which is a Unix socket"),
        (format!("{pair} --http off --tls-listeners http"), "`http`, which is off"),
        (format!("{pair} --tls-listeners []"), "no listener has TLS"),
        (
            format!("{pair} --tls-listeners http --tls-client-ca ca.pem --tls-client-listeners grpc"),
            "`grpc`, which has no TLS",
        ),
        (format!("{pair} --tls-client-ca ca.pem --tls-client-listeners []"), "names no listener"),
        (format!("{pair} --tls-client-ca ca.pem --tls-client-names *"), "`*` is not the name of a client"),
        (format!("{pair} --tls-client-ca ca.pem --tls-client-names spiffe://*"), "is not the name of a client"),
        (format!("{pair} --tls-listeners https"), "`https` is not a value of `tls.listeners`"),
    ] {
        let arguments =
            if arguments.contains("--http") { arguments } else { format!("--http 127.0.0.1:0 {arguments}") };
        let all = format!("serve rules.yaml --grpc 127.0.0.1:0 --admin 127.0.0.1:0 {arguments}");
        let output = folder.run(&all);
        assert_eq!(output.code, 2, "{arguments}: {}", output.stderr);
        assert!(output.stderr.contains(message), "{arguments}: {}", output.stderr);
    }
}

#[test]
fn validate_reads_the_files_of_tls() {
    let (folder, _authority) = folder();
    for (tls, wrong) in [
        ("cert: server.pem, key: server.key, client_ca: ca.pem", None),
        ("cert: missing, key: server.key", Some("missing cannot be read")),
        ("cert: server.pem, key: ca.pem", Some("ca.pem has no private key")),
        ("cert: ca.pem, key: server.key", Some("does not belong to the first certificate in ca.pem")),
        ("cert: server.pem, key: server.key, client_ca: rules.yaml", Some("rules.yaml has no certificate")),
    ] {
        folder.write("settings.yaml", &format!("rules: [rules.yaml]\ntls: {{{tls}}}\n"));
        let output = folder.run("validate --config settings.yaml");
        assert_eq!(output.code, if wrong.is_some() { 2 } else { 0 }, "{tls}: {output:?}");
        assert!(output.stderr.contains(wrong.unwrap_or_default()), "{tls}: {output:?}");
    }
}

#[test]
fn a_snapshot_never_replaces_a_key_or_a_certificate() {
    let (folder, _authority) = folder();
    let tls = "--tls-cert server.pem --tls-key server.key --tls-client-ca ca.pem";
    for file in ["server.pem", "server.key", "ca.pem"] {
        let read = || std::fs::read(folder.path(file)).expect("the file exists");
        let before = read();
        let printed = refused(&folder, &format!("{tls} --memory-snapshot-path {file}"));
        assert!(printed.contains(&format!("the snapshot {file} would replace a file that is read from")), "{printed}");
        assert_eq!(read(), before);
    }
}

/// TLS has two bytes for the length of all names together. A server that wrote more would refuse every client.
#[test]
fn authorities_whose_names_do_not_fit_into_a_handshake_are_refused() {
    let (folder, authority) = folder();
    authority.issue(&folder, "client", &["shop.internal"], |_| {});
    let long = Authority::new(&"x".repeat(9_000)).pem();
    folder.write("six.pem", &(authority.pem() + &long.repeat(6)));
    folder.write("seven.pem", &(authority.pem() + &long.repeat(7)));
    let tls = "--tls-cert server.pem --tls-key server.key --tls-client-ca";
    let printed = refused(&folder, &format!("{tls} seven.pem"));
    assert!(printed.contains("the names of the 8 certificates in seven.pem have"), "{printed}");
    assert!(printed.contains("leave only those authorities in `tls.client_ca`"), "{printed}");
    let asked = folder.run("blocks --admin https://127.0.0.1:1 --ca seven.pem");
    assert!(asked.stderr.contains("cannot be reached"), "a client sends no names: {asked:?}");
    replace(&folder, "six.pem", "ca.pem");
    let server = serve_with_client_ca(&folder, &[]);
    let client = ["--insecure", "--cert", "client.pem", "--key", "client.key"];
    let url = format!("https://{}/no-such-path", server.http());
    for version in ["1.2", "1.3"] {
        let asked = curl(&folder, &url, &[&client[..], &["--tls-max", version]].concat());
        assert_eq!(asked.map(|(status, _)| status), Ok(404), "{version}");
    }
    replace(&folder, "seven.pem", "ca.pem");
    let answer = reload(&server);
    assert!(answer.contains("the names of the 8 certificates"), "{answer}");
    assert_eq!(curl(&folder, &url, &client).map(|(status, _)| status), Ok(404), "the earlier authorities stay");
}

/// Asserts that a text has no part of a key, neither as it is written nor as the numbers of its bytes.
fn assert_hides(key: &str, text: &str) {
    let base64: String = key.lines().filter(|line| !line.starts_with('-')).collect();
    for part in base64.as_bytes().chunks_exact(6) {
        let numbers = part.iter().map(u8::to_string).collect::<Vec<_>>().join(", ");
        let written = String::from_utf8_lossy(part);
        assert!(!text.contains(&*written) && !text.contains(&numbers), "{written} is shown: {text}");
    }
}

/// The errors of the library repeat the line that is wrong, and such a key is one line.
#[test]
fn a_key_without_its_line_breaks_is_shown_nowhere() {
    let (folder, _authority) = folder();
    let key = std::fs::read_to_string(folder.path("server.key")).expect("the file exists");
    folder.write("joined.key", &key.replace('\n', ""));
    folder.write("spaces.key", &key.replace('\n', " "));
    folder.write("escaped.key", &key.replace('\n', "\\n"));
    folder.write("cut.key", &key.replace('\n', "")[..80]);
    let store = "--store rediss://127.0.0.1:1 --store-expected-nodes 2";
    for wrong in ["joined.key", "spaces.key", "escaped.key", "cut.key"] {
        for arguments in [
            format!("serve rules.yaml --tls-cert server.pem --tls-key {wrong}"),
            format!("serve rules.yaml --tls-cert {wrong} --tls-key server.key"),
            format!("serve rules.yaml --tls-cert server.pem --tls-key server.key --tls-client-ca {wrong}"),
            format!("serve rules.yaml {store} --store-tls-cert server.pem --store-tls-key {wrong}"),
            format!("serve rules.yaml {store} --store-tls-cert {wrong} --store-tls-key server.key"),
            format!("doctor --store rediss://127.0.0.1:1 --store-tls-cert server.pem --store-tls-key {wrong}"),
            format!("doctor --json --store rediss://127.0.0.1:1 --store-tls-ca {wrong}"),
            format!("blocks --admin https://127.0.0.1:1 --ca {wrong}"),
        ] {
            let output = folder.run(&arguments);
            let printed = output.stdout + &output.stderr;
            assert!(output.code == 2 || output.code == 3, "{arguments}: {printed}");
            assert!(printed.contains("line breaks are lost"), "{arguments}: {printed}");
            assert_hides(&key, &printed);
        }
        let peers = format!(
            "regions: {{name: eu, default: each, peers: {{us: {{url: 'rediss://127.0.0.1:2', tls: {{cert: server.pem, key: {wrong}}}}}}}}}\n\
             store: {{url: 'redis://127.0.0.1:1', expected_nodes: 2}}\nrules: [rules.yaml]\n"
        );
        folder.write("regions.yaml", &peers);
        let output = folder.run("validate --config regions.yaml");
        assert!(output.code == 2 && output.stderr.contains("line breaks are lost"), "{output:?}");
        assert_hides(&key, &output.stderr);
    }
    let server = serve(&folder, &[]);
    replace(&folder, "joined.key", "server.key");
    let answer = reload(&server);
    assert!(answer.contains("line breaks are lost"), "{answer}");
    assert_hides(&key, &answer);
    assert_hides(&key, &http::get(server.admin(), "/reloads", &[]).body);
    server.process.logged("line breaks are lost");
    assert_hides(&key, &server.process.stderr().join("\n"));
}
