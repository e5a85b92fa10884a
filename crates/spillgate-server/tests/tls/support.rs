//! Certificates for tests, and clients of listeners with TLS.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType, date_time_ymd};

use crate::cli_support::Folder;
use crate::support::spillgate::Spillgate;
use crate::support::{eventually, from_environment, http, root};

/// How long a client may take, in seconds. On a busy machine it takes a part of that.
const CLIENT_SECONDS: &str = "180";

const RULES: &str =
    "domain: api\ndescriptors:\n  - key: user\n    rate_limit: {unit: hour, requests_per_unit: 1000000}\n";

/// An authority that signs certificates.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new(name: &str) -> Authority {
        Authority::new_with(name, |_| {})
    }

    /// `change` can change the certificate before it is signed.
    pub(super) fn new_with(name: &str, change: impl FnOnce(&mut CertificateParams)) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).expect("no names are valid");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        change(&mut params);
        let key = KeyPair::generate().expect("a key can be made");
        Authority(CertifiedIssuer::self_signed(params, key).expect("it can be signed"))
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// Writes the certificate `NAME.pem` and the key `NAME.key` into the folder. The certificate has the given names: addresses,
    /// DNS names or URIs. `change` can change it before it is signed.
    pub(crate) fn issue(
        &self,
        folder: &Folder,
        name: &str,
        names: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) {
        let (params, key) = params(name, names, change);
        folder.write(&format!("{name}.pem"), &params.signed_by(&key, &self.0).expect("it can be signed").pem());
        folder.write(&format!("{name}.key"), &key.serialize_pem());
    }
}

/// Writes a certificate that nobody else has signed.
pub(crate) fn self_signed(folder: &Folder, name: &str, names: &[&str]) {
    let (params, key) = params(name, names, |_| {});
    folder.write(&format!("{name}.pem"), &params.self_signed(&key).expect("it can be signed").pem());
    folder.write(&format!("{name}.key"), &key.serialize_pem());
}

fn params(name: &str, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> (CertificateParams, KeyPair) {
    let (uris, others): (Vec<&str>, Vec<&str>) = names.iter().partition(|name| name.contains("://"));
    let others: Vec<_> = others.into_iter().map(str::to_owned).collect();
    let mut params = CertificateParams::new(others).expect("the names are valid");
    params
        .subject_alt_names
        .extend(uris.into_iter().map(|uri| SanType::URI(uri.try_into().expect("the name is valid"))));
    params.distinguished_name.push(DnType::CommonName, name);
    change(&mut params);
    (params, KeyPair::generate().expect("a key can be made"))
}

/// Makes a certificate that has ended.
pub(crate) fn ended(params: &mut CertificateParams) {
    (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
}

/// Returns a folder with rules, an authority `ca.pem`, and the certificate `server.pem` of 127.0.0.1 and localhost.
pub(crate) fn folder() -> (Folder, Authority) {
    let (folder, authority) = (Folder::new(&[("rules.yaml", RULES)]), Authority::new("authority"));
    folder.write("ca.pem", &authority.pem());
    authority.issue(&folder, "server", &["127.0.0.1", "localhost"], |_| {});
    (folder, authority)
}

/// Starts a server whose listeners for clients have TLS, and whose admin listener has none.
pub(crate) fn serve(folder: &Folder, arguments: &[&str]) -> Spillgate {
    let path = |name: &str| folder.path(name).display().to_string();
    let (cert, key) = (path("server.pem"), path("server.key"));
    let mut all = vec!["--tls-cert", &cert, "--tls-key", &key];
    if !arguments.contains(&"--tls-listeners") {
        all.extend(["--tls-listeners", "http,grpc"]);
    }
    all.extend(arguments);
    Spillgate::serve(&folder.path("rules.yaml"), &all)
}

/// Starts a server that wants certificates of `ca.pem`.
pub(crate) fn serve_with_client_ca(folder: &Folder, arguments: &[&str]) -> Spillgate {
    let ca = folder.path("ca.pem").display().to_string();
    serve(folder, &[&["--tls-client-ca", &ca], arguments].concat())
}

/// Runs curl in the folder. Returns the status, or the exit code of curl and its error.
pub(crate) fn curl(folder: &Folder, url: &str, arguments: &[&str]) -> Result<(u16, String), (i32, String)> {
    let mut command = Command::new("curl");
    command.args([
        "--silent",
        "--show-error",
        "--noproxy",
        "*",
        "--max-time",
        CLIENT_SECONDS,
        "--write-out",
        "\n%{http_code}",
    ]);
    let output = command.args(arguments).arg(url).current_dir(folder.path(".")).output().expect("curl runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let printed = text(&output.stdout);
    let (body, status) = printed.rsplit_once('\n').unwrap_or(("", &printed));
    match (output.status.success(), status.parse()) {
        (true, Ok(status)) => Ok((status, body.to_owned())),
        _ => Err((output.status.code().unwrap_or(-1), text(&output.stderr))),
    }
}

/// Asks for a path that does not exist. Returns the status, which is 404 if the client may connect, or the error of curl.
pub(crate) fn status(folder: &Folder, server: SocketAddr, arguments: &[&str]) -> Result<u16, (i32, String)> {
    let arguments = [&["--cacert", "ca.pem"], arguments].concat();
    curl(folder, &format!("https://{server}/no-such-path"), &arguments).map(|(status, _)| status)
}

/// Runs `openssl s_client` in the folder, sends `input`, and returns everything that it prints.
pub(crate) fn s_client(folder: &Folder, server: SocketAddr, arguments: &[&str], input: &str) -> String {
    let mut command = Command::new("timeout");
    command.args([CLIENT_SECONDS, "openssl", "s_client", "-connect", &server.to_string(), "-CAfile", "ca.pem"]);
    command.args(arguments).current_dir(folder.path("."));
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.expect("openssl runs");
    let mut stdin = child.stdin.take().expect("it has a pipe");
    // If the server has refused the client, the client does not read any more.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

/// Returns the subject of the certificate that the server shows.
pub(super) fn subject(folder: &Folder, server: SocketAddr) -> String {
    let printed = s_client(folder, server, &["-servername", "localhost"], "");
    let line = printed.lines().find(|line| line.starts_with("subject="));
    line.unwrap_or_else(|| panic!("the server shows a certificate: {printed}")).to_owned()
}

/// Returns the command that calls the gRPC listener, with the arguments after its address.
pub(crate) fn grpc(folder: &Folder, server: SocketAddr, arguments: &[&str]) -> Command {
    let script = root().join("crates/spillgate-server/tests/python/tls_client.py");
    let mut command = Command::new(from_environment("rls", "bin/python"));
    command.env_remove("PYTHONPATH").env("PYTHONDONTWRITEBYTECODE", "1").current_dir(folder.path("."));
    command.arg(script).arg(server.to_string()).args(arguments);
    command
}

/// Makes one call over gRPC. Returns OK or the status.
pub(crate) fn call(folder: &Folder, server: SocketAddr, arguments: &[&str]) -> String {
    let mut command = grpc(folder, server, arguments);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("python runs");
    child.stdin.take().expect("it has a pipe").write_all(b"7\n").expect("it reads its input");
    let output = child.wait_with_output().expect("it ends");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// A client with one gRPC connection, which it keeps.
pub(crate) struct Caller {
    child: Child,
    stdin: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Caller {
    pub(crate) fn start(folder: &Folder, server: SocketAddr, arguments: &[&str]) -> Caller {
        let mut child = grpc(folder, server, arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("python runs");
        let stdin = child.stdin.take().expect("it has a pipe");
        let answers = BufReader::new(child.stdout.take().expect("it has a pipe")).lines();
        Caller { child, stdin, answers }
    }

    pub(crate) fn call(&mut self) -> String {
        self.stdin.write_all(b"7\n").expect("the client reads");
        self.answers.next().expect("the client answers").expect("the answer is text")
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        // The client may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the value of a sample on the page of metrics, with all its labels, or 0.
pub(crate) fn metric(server: &Spillgate, sample: &str) -> u64 {
    let page = http::get(server.admin(), "/metrics", &[]).body;
    let line = page.lines().find_map(|line| line.strip_prefix(&format!("spillgate_{sample} ")));
    line.map_or(0, |value| value.parse().expect("the value is a whole number"))
}

pub(crate) fn failed(server: &Spillgate, reason: &str) -> u64 {
    metric(server, &format!("tls_handshakes_failed_total{{reason=\"{reason}\"}}"))
}

/// Waits until a handshake has failed for this reason.
pub(crate) fn until_failed(server: &Spillgate, reason: &str) {
    eventually(&format!("a handshake fails: {reason}"), || (failed(server, reason) > 0).then_some(()));
}

/// Puts a file in the place of another, as a program does that never leaves a file half written.
pub(crate) fn replace(folder: &Folder, from: &str, to: &str) {
    std::fs::copy(folder.path(from), folder.path("next")).expect("the file is copied");
    std::fs::rename(folder.path("next"), folder.path(to)).expect("the file is renamed");
}

/// Reloads, and returns what has changed, or the answer with the errors.
pub(crate) fn reload(server: &Spillgate) -> String {
    let answer = http::request(server.admin(), "POST", "/reload", &[("x-spillgate-admin", "1")], "");
    let answer = answer.expect("the server answers");
    if answer.status != 200 {
        assert_eq!(answer.status, 422, "{}", answer.body);
        return answer.body;
    }
    let answer: serde_json::Value = serde_json::from_str(&answer.body).expect("the answer is JSON");
    answer["reload"]["changes"]["lines"].to_string()
}
