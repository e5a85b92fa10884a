//! Asks the admin listeners of servers over HTTP.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use http::{HeaderValue, Method, StatusCode, header};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use super::tls;
use crate::cli::{DEFAULT_ADMIN, TlsFiles};
use crate::command::open::secret_file;
use crate::command::terminal::Problem;
use crate::runtime::block_on;
use crate::settings::{ADMIN_TLS_VARIABLES, ADMIN_URL_VARIABLE};

/// A server has to answer within this time.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);
/// If an answer takes longer than this, the command says that it is waiting.
const PATIENCE: Duration = Duration::from_millis(300);
/// At most this many servers are asked at the same time, because their answers are in memory together.
const AT_ONCE: usize = 4;
/// The most bytes of an answer. An answer with the readings of 16 full samples has about a tenth of this.
const MAX_BYTES: usize = 256 << 20;

/// The address of an admin listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::command) enum Admin {
    Tcp(String),
    /// An address whose listener has TLS.
    Tls(String, TlsOptions),
    Unix(PathBuf),
}

/// What a command uses for addresses with `https`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::command) struct TlsOptions {
    /// The file with the authorities that may have signed the server's certificate. `None` means those of the system.
    pub(super) ca: Option<PathBuf>,
    /// The files with the certificate of the client, and with its key.
    pub(super) client: Option<(PathBuf, PathBuf)>,
    /// A flag of the command line about TLS, if there is one.
    flag: Option<&'static str>,
}

impl TlsOptions {
    /// Returns the files that the command line names. The environment names the others.
    pub(in crate::command) fn new(flags: &TlsFiles) -> Result<TlsOptions, Problem> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let given = [&flags.ca, &flags.cert, &flags.key];
        let flag = given.iter().zip(TLS_FLAGS).find_map(|(file, flag)| file.is_some().then_some(flag));
        let mut files = given.into_iter().zip(ADMIN_TLS_VARIABLES);
        let mut file = || files.next().and_then(|(file, name)| file.clone().or_else(|| variable(name)));
        let (ca, cert, key) = (file(), file(), file());
        if cert.is_some() != key.is_some() {
            let [_, cert, key] = ADMIN_TLS_VARIABLES;
            let help = format!("give both --client-cert and --client-key, or both {cert} and {key}");
            return Err(Problem::new("the certificate of the client or its key is missing", help));
        }
        Ok(TlsOptions { ca, client: cert.zip(key), flag })
    }

    /// Refuses an address without TLS if the command line has a flag about TLS: who gives one expects that nobody reads the
    /// token on its way. The environment can have files for other servers.
    pub(in crate::command) fn check(&self, admin: Admin) -> Result<Admin, Problem> {
        match (&admin, self.flag) {
            (Admin::Tls(..), _) | (_, None) => Ok(admin),
            (_, Some(flag)) => {
                let help = format!("write https://HOST:PORT, or leave out {flag}");
                Err(Problem::new(format!("{flag} is for https, but {admin} is an address without TLS"), help))
            }
        }
    }
}

const TLS_FLAGS: [&str; 3] = ["--ca", "--client-cert", "--client-key"];

impl fmt::Display for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Admin::Tcp(address) => write!(f, "http://{address}"),
            Admin::Tls(address, _) => write!(f, "https://{address}"),
            Admin::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Admin {
    /// Reads `http://HOST:PORT`, `HOST:PORT`, `https://HOST:PORT` or `unix:/path`. `tls` is for `https`. If it is none of these,
    /// the error says that the URL `is_not` what was expected.
    pub(in crate::command) fn parse(url: &str, tls: &TlsOptions, is_not: &str) -> Result<Admin, Problem> {
        let admin = Admin::read(url, tls).ok_or_else(|| {
            let help = "write http://HOST:PORT, https://HOST:PORT (if the listener has TLS) or unix:/path";
            Problem::new(format!("`{url}` {is_not}"), help)
        })?;
        tls.check(admin)
    }

    fn read(url: &str, tls: &TlsOptions) -> Option<Admin> {
        if let Some(path) = url.strip_prefix("unix:") {
            return Some(Admin::Unix(path.into()));
        }
        let secure = url.strip_prefix("https://");
        let address = secure.or(url.strip_prefix("http://")).unwrap_or(url).trim_end_matches('/');
        let port = address.rsplit_once(':').map(|(host, port)| (host, port.parse::<u16>()));
        match port {
            Some((host, Ok(_))) if !host.is_empty() && !host.contains(['/', '@']) => Some(match secure {
                Some(_) => Admin::Tls(address.to_owned(), tls.clone()),
                None => Admin::Tcp(address.to_owned()),
            }),
            _ => None,
        }
    }
}

/// Asks all servers `GET path`, a few at a time. `answered` gets each answer, in the order of the servers. While an
/// answer is late, `waiting` is called again and again with the number of servers that have not answered.
pub(in crate::command) fn get_all(
    admins: &[Admin],
    (path, token): (&'static str, Option<&str>),
    mut answered: impl FnMut(&Admin, Result<Bytes, Problem>),
    mut waiting: impl FnMut(usize),
) -> Result<(), Problem> {
    // A thread of its own reads the answers. So no answer has to wait while a long one is parsed here.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.map_err(|error| Problem::no_resources(&error))?;
    block_on(runtime, async {
        let ask = |admin: &Admin| tokio::spawn(get(admin.clone(), path, token.map(str::to_owned)));
        let mut answers = futures_util::stream::iter(admins).map(ask).buffered(AT_ONCE);
        let mut asked = admins.iter();
        loop {
            match tokio::time::timeout(PATIENCE, answers.next()).await {
                Err(_) => waiting(asked.len()),
                Ok(None) => return,
                Ok(Some(answer)) => {
                    let Some(admin) = asked.next() else { return };
                    answered(admin, answer.unwrap_or_else(|error| Err(Problem::new(error.to_string(), HELP))));
                }
            }
        }
    });
    Ok(())
}

/// Sends one request, and returns the status and the body of the answer. While the answer is late, `waiting` is called
/// again and again.
pub(in crate::command) fn send(
    admin: &Admin,
    request: Request,
    mut waiting: impl FnMut(),
) -> Result<(StatusCode, Bytes), Problem> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Problem::no_resources(&error))?;
    block_on(runtime, async {
        let mut answer = std::pin::pin!(request.answer(admin));
        loop {
            match tokio::time::timeout(PATIENCE, &mut answer).await {
                Err(_) => waiting(),
                Ok(answer) => return answer,
            }
        }
    })
}

/// Returns the body of the answer to `GET path`.
async fn get(admin: Admin, path: &'static str, token: Option<String>) -> Result<Bytes, Problem> {
    let shows_token = token.is_some();
    let request = Request { method: Method::GET, path: path.into(), token, body: None, within: TIMEOUT };
    let (status, body) = request.answer(&admin).await?;
    match status {
        StatusCode::OK => Ok(body),
        StatusCode::UNAUTHORIZED => Err(no_token(&admin, shows_token)),
        status => Err(other_status(&admin, status)),
    }
}

/// Returns the problem of a server that has answered 401.
pub(super) fn no_token(admin: &Admin, was_sent: bool) -> Problem {
    let help = "give --admin-token-file a file with the text of the server's admin_token_file or admin_read_token_file";
    Problem::new(
        format!("{admin} {}", if was_sent { "refuses this admin token" } else { "needs its admin token" }),
        help,
    )
}

/// Returns the problem of an answer that says nothing but its status.
pub(super) fn other_status(admin: &Admin, status: StatusCode) -> Problem {
    if status == StatusCode::FORBIDDEN {
        let help = "give --admin an IP address, or add the name to the setting `admin_hosts` of the server";
        return Problem::new(format!("{admin} answered {status}"), help);
    }
    if status.is_redirection() {
        let help = "give --admin the address of the admin listener itself";
        return Problem::new(format!("{admin} answered {status}, and this command follows no redirection"), help);
    }
    Problem::new(format!("{admin} answered {status}"), HELP)
}

/// Returns the address of the admin listener that the flag gives. Without the flag, the environment variable has it.
pub(in crate::command) fn address(flag: Option<&str>, tls: &TlsOptions) -> Result<Admin, Problem> {
    let variable = std::env::var(ADMIN_URL_VARIABLE).ok().filter(|value| !value.is_empty());
    match (flag, variable) {
        (Some(url), _) => Admin::parse(url, tls, NO_ADMIN),
        (None, Some(url)) => Admin::parse(&url, tls, &format!("in {ADMIN_URL_VARIABLE} {NO_ADMIN}")),
        (None, None) => Admin::parse(DEFAULT_ADMIN, tls, NO_ADMIN),
    }
}

/// What is wrong with a URL that is none of an admin listener.
pub(in crate::command) const NO_ADMIN: &str = "is no address of an admin listener";

/// Reads the file with the admin token. `file` is the flag. Without it, the environment variable names the file.
pub(in crate::command) fn token(file: Option<&Path>) -> Result<Option<String>, Problem> {
    let variable = std::env::var_os(TOKEN_VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
    match (file, variable) {
        (Some(file), _) => secret_file::token(file, "--admin-token-file").map(Some),
        (None, Some(file)) => secret_file::token(&file, TOKEN_VARIABLE).map(Some),
        (None, None) => Ok(None),
    }
}

/// The environment variable with the name of the file of the admin token. A server has the same variable.
const TOKEN_VARIABLE: &str = "SPILLGATE_ADMIN_TOKEN_FILE";

pub(super) const HELP: &str = "check that spillgate serves its admin listener there: the setting `admin` is its address. If it has TLS, write https://";

/// What to do if a change was sent, and its answer is lost.
const HELP_OF_CHANGE: &str = "the change may have been made: look at `spillgate blocks`, `spillgate shadows`, `spillgate regions` or the log of the server";

/// A request to an admin listener.
pub(in crate::command) struct Request {
    pub(in crate::command) method: Method,
    pub(in crate::command) path: Cow<'static, str>,
    pub(in crate::command) token: Option<String>,
    /// JSON, or `None` for an empty body.
    pub(in crate::command) body: Option<String>,
    /// The answer has to come within this time.
    pub(in crate::command) within: Duration,
}

impl Request {
    /// Returns what to do if the answer is lost.
    fn help(&self) -> &'static str {
        // Explanations change nothing.
        let is_change = self.method == Method::POST && !matches!(&*self.path, "/explain" | "/caller");
        if is_change { HELP_OF_CHANGE } else { HELP }
    }

    async fn answer(&self, admin: &Admin) -> Result<(StatusCode, Bytes), Problem> {
        let answer = tokio::time::timeout(self.within, self.exchange(admin)).await;
        let late = || Problem::new(format!("{admin} did not answer within {} s", self.within.as_secs()), self.help());
        answer.map_err(|_| late())?
    }

    async fn exchange(&self, admin: &Admin) -> Result<(StatusCode, Bytes), Problem> {
        let unreachable = |error: std::io::Error| Problem::new(format!("{admin} cannot be reached: {error}"), HELP);
        match admin {
            Admin::Tcp(address) => {
                self.ask(TcpStream::connect(address).await.map_err(unreachable)?, admin, address).await
            }
            Admin::Tls(address, options) => {
                let connector = tls::connector(options)?;
                let name = tls::server_name(address)?;
                let stream = TcpStream::connect(address).await.map_err(unreachable)?;
                let stream = connector.connect(name, stream).await.map_err(|error| tls::failed(admin, &error))?;
                self.ask(stream, admin, address).await
            }
            Admin::Unix(file) => {
                self.ask(UnixStream::connect(file).await.map_err(unreachable)?, admin, "localhost").await
            }
        }
    }

    async fn ask<S>(&self, stream: S, admin: &Admin, host: &str) -> Result<(StatusCode, Bytes), Problem>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let help = match admin {
            // The reset of a refused client can overtake the message that says why.
            Admin::Tls(_, TlsOptions { client: None, .. }) => Cow::Owned(format!(
                "{}. If it wants certificates of clients, give --client-cert and --client-key",
                self.help()
            )),
            _ => Cow::Borrowed(self.help()),
        };
        let broken = |error: &(dyn Error + 'static)| {
            tls::refused(admin, error).unwrap_or_else(|| Problem::new(format!("{admin} broke off: {error}"), &*help))
        };
        let mut request = http::Request::builder().method(&self.method).uri(&*self.path).header(header::HOST, host);
        if let Some(token) = &self.token {
            let value = HeaderValue::try_from(format!("Bearer {token}")).map_err(|error| broken(&error))?;
            request = request.header(header::AUTHORIZATION, value);
        }
        if self.method == Method::POST {
            // Without a token, the listener wants this field from programs that are no web pages.
            request = request.header("x-spillgate-admin", "1");
        }
        let body = Full::new(Bytes::from(self.body.clone().unwrap_or_default()));
        let request = request.body(body).map_err(|error| broken(&error))?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| broken(&error))?;
        // After the answer the runtime ends, and this task with it.
        tokio::spawn(connection);
        let response = sender.send_request(request).await.map_err(|error| broken(&error))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_BYTES).collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                let help =
                    "lower the setting `insight.max_callers` of this server, and check that the address is right";
                let most = MAX_BYTES >> 20;
                return Problem::new(format!("the answer of {admin} has more than {most} MiB"), help);
            }
            broken(&*error)
        })?;
        Ok((status, body.to_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::sync::mpsc::channel;
    use std::sync::{Arc, Barrier};
    use std::thread;

    use super::*;

    #[test]
    fn addresses_of_admin_listeners_are_read() {
        let tcp = |address: &str| Admin::Tcp(address.to_owned());
        let tls = |flag| TlsOptions { ca: Some("ca.pem".into()), client: None, flag };
        let parse = |url| Admin::parse(url, &tls(None), NO_ADMIN).ok();
        assert_eq!(parse("http://127.0.0.1:6070"), Some(tcp("127.0.0.1:6070")));
        assert_eq!(parse("http://[::1]:6070/"), Some(tcp("[::1]:6070")));
        assert_eq!(parse("admin.internal:6070"), Some(tcp("admin.internal:6070")));
        assert_eq!(parse("https://a:1/"), Some(Admin::Tls("a:1".to_owned(), tls(None))));
        assert_eq!(parse("unix:/run/a.sock"), Some(Admin::Unix("/run/a.sock".into())));
        for wrong in
            ["", "http://", "https://a", "http://a", "http://a:x", "http://a:6070/insight", "http://u:p@a:1", ":1"]
        {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        let with_flag = |url| Admin::parse(url, &tls(Some("--ca")), NO_ADMIN);
        assert!(with_flag("https://a:1").is_ok());
        for plain in ["http://a:1", "a:1", "unix:/run/a.sock"] {
            let problem = with_flag(plain).expect_err(plain).to_string();
            assert!(problem.contains("--ca is for https"), "{problem}");
        }
    }

    /// Starts a server for one request. The server answers when `may_answer` returns.
    fn serve(may_answer: impl FnOnce() + Send + 'static) -> Admin {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("the listener has an address").to_string();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client connects");
            // If the answer came before the request, the client would report an error.
            let (mut request, mut chunk) = (Vec::new(), [0; 1024]);
            while !request.ends_with(b"\r\n\r\n") {
                let length = stream.read(&mut chunk).expect("the client sends its request");
                assert_ne!(length, 0, "the client sends its whole request");
                request.extend_from_slice(&chunk[..length]);
            }
            may_answer();
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi").expect("the client reads");
        });
        Admin::Tcp(address)
    }

    #[test]
    fn the_command_says_that_it_waits() {
        let (says, hears) = channel();
        let admin = serve(move || hears.recv().expect("the command says that it waits"));
        let mut answers = Vec::new();
        let answered = |_: &Admin, answer: Result<Bytes, Problem>| answers.push(answer.expect("the server answers"));
        get_all(&[admin], ("/", None), answered, |_| _ = says.send(())).expect("there is a runtime");
        assert_eq!(answers, ["hi"]);
    }

    #[test]
    fn servers_are_asked_at_the_same_time_and_answer_in_their_order() {
        let all_are_asked = Arc::new(Barrier::new(AT_ONCE));
        let admins: Vec<_> = (0..AT_ONCE)
            .map(|_| {
                let all_are_asked = Arc::clone(&all_are_asked);
                serve(move || _ = all_are_asked.wait())
            })
            .collect();
        let mut order = Vec::new();
        let answered = |admin: &Admin, answer: Result<Bytes, Problem>| {
            answer.expect("the server answers");
            order.push(admin.clone());
        };
        get_all(&admins, ("/", None), answered, |_| {}).expect("there is a runtime");
        assert_eq!(order, admins);
    }
}
