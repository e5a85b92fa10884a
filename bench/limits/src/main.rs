//! Servers for comparison. All of them except `script` answer without a decision, so they show the highest speed of
//! each protocol stack on a machine.
//!
//! `tonic` and `axum` decode the same requests as spillgate, and send the same answers as spillgate sends for a rule
//! that allows the request. So the difference between spillgate and these servers is the cost of the decision.
//!
//! `script` makes decisions, on the Redis whose address is in the variable `REDIS`. It makes one script call for each
//! descriptor of a request, and sends only one call at a time on each connection. The variable `CONNECTIONS` sets the
//! number of connections. `script` shows the speed of a server that is built in this simple way.
//!
//! If the environment variable `RT` is `current`, a server runs on a single thread. If not, the server uses tokio's
//! default runtime. The servers whose names begin with `raw-` always run on a single thread, without a runtime.

mod answer;
mod axum_server;
mod h2_server;
mod hyper_server;
mod raw;
mod resp;
mod script_server;
mod tonic_server;

use std::error::Error;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpStream};

type Outcome = Result<(), Box<dyn Error>>;

const USAGE: &str = "usage: limits tonic|script|h2|h2-inline|axum|hyper|resp|raw-h2|raw-http|raw-resp ADDRESS

The environment may have RT=current (one thread) and, for `script`, REDIS=HOST:PORT and CONNECTIONS=COUNT.";

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (server, address) = match arguments.as_slice() {
        [server, address] => (server, address),
        [help] if help == "--help" => {
            println!("{USAGE}");
            return Ok(());
        }
        _ => return Err(USAGE.into()),
    };
    let address = address.parse()?;
    match server.as_str() {
        "raw-h2" => return raw::serve::<raw::h2::State>(address, raw::h2::replies),
        "raw-http" => return raw::serve(address, raw::http::replies),
        "raw-resp" => return raw::serve(address, raw::resp_replies),
        _ => {}
    }
    let current = std::env::var("RT").as_deref() == Ok("current");
    let mut runtime = match current {
        true => tokio::runtime::Builder::new_current_thread(),
        false => tokio::runtime::Builder::new_multi_thread(),
    };
    runtime.enable_all().build()?.block_on(serve(server, address))
}

async fn serve(server: &str, address: SocketAddr) -> Outcome {
    match server {
        "tonic" => tonic_server::serve(address).await,
        "script" => script_server::serve(address).await,
        "axum" => axum_server::serve(TcpListener::bind(address).await?).await,
        "h2" => each(address, h2_server::serve_spawning).await,
        "h2-inline" => each(address, h2_server::serve_inline).await,
        "hyper" => each(address, hyper_server::serve).await,
        "resp" => each(address, resp::serve).await,
        other => Err(format!("no server {other:?}").into()),
    }
}

/// Accepts connections, and serves each of them in a task of its own.
async fn each<F>(address: SocketAddr, serve: fn(TcpStream) -> F) -> Outcome
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind(address).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(serve(stream));
    }
}
