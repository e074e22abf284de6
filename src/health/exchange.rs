//! One HTTP/1.1 request to a proxy, over a connection of its own.

use std::future::Future;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::Empty;
use hyper::header::{AUTHORIZATION, CACHE_CONTROL, HOST, HeaderMap, USER_AGENT};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use percent_encoding::percent_decode_str;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, timeout_at};

use super::Target;

/// Why there was no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Trouble {
    Refused,
    ConnectTimeout,
    Unreachable(String),
    TooSlow,
    Broken(String),
}

/// Sends `method` for `uri`, and gives the head of the answer.
pub(super) async fn exchange(
    target: &Target,
    method: Method,
    uri: &str,
) -> Result<(StatusCode, HeaderMap), Trouble> {
    let deadline = Instant::now() + target.timeout;
    let connecting = within(deadline, Trouble::ConnectTimeout, connect(target));
    let stream = connecting.await?.map_err(|error| match error.kind() {
        ErrorKind::ConnectionRefused => Trouble::Refused,
        ErrorKind::TimedOut => Trouble::ConnectTimeout,
        _ => Trouble::Unreachable(error.to_string()),
    })?;
    let request = request(target, method, uri)?;
    within(deadline, Trouble::TooSlow, send(stream, request)).await?
}

async fn within<T>(
    deadline: Instant,
    late: Trouble,
    work: impl Future<Output = T>,
) -> Result<T, Trouble> {
    timeout_at(deadline, work).await.map_err(|_| late)
}

async fn connect(target: &Target) -> io::Result<TcpStream> {
    let socket = match target.proxy {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    if let Some(source) = target.source {
        socket.bind(SocketAddr::new(source, 0))?;
    }
    socket.connect(target.proxy).await
}

fn request(target: &Target, method: Method, uri: &str) -> Result<Request<Empty<Bytes>>, Trouble> {
    let url = target.url.expose();
    // A URL that was parsed has a host, and `Url` writes it as HTTP wants it.
    let host = &url[url::Position::BeforeHost..url::Position::AfterPort];
    let mut request = Request::builder();
    if !url.username().is_empty() && method != Method::CONNECT {
        request = request.header(AUTHORIZATION, login(url));
    }
    request
        .method(method)
        .uri(uri)
        .header(HOST, host)
        .header(USER_AGENT, concat!("proxyd/", env!("CARGO_PKG_VERSION")))
        // What a proxy has in its cache tells nothing about its way to the server.
        .header(CACHE_CONTROL, "no-cache")
        .body(Empty::new())
        .map_err(|error| Trouble::Broken(format!("no request can be made: {error}")))
}

/// The login of a URL, for its server.
fn login(url: &url::Url) -> String {
    let plain = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    let (user, password) = (plain(url.username()), plain(url.password().unwrap_or_default()));
    format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
}

/// `url` without its login, as it goes to the proxy.
pub(super) fn without_login(url: &url::Url) -> String {
    let mut url = url.clone();
    // Only a URL without a host refuses that, and it has no login.
    let _ = url.set_username("").and_then(|()| url.set_password(None));
    url.to_string()
}

async fn send(
    stream: TcpStream,
    request: Request<Empty<Bytes>>,
) -> Result<(StatusCode, HeaderMap), Trouble> {
    let broken = |error: hyper::Error| Trouble::Broken(error.to_string());
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    let answer = sender.send_request(request);
    tokio::pin!(answer);
    let answer = tokio::select! {
        answer = &mut answer => answer,
        // The connection's end comes with the answer, or as the answer's error.
        _ = connection => answer.await,
    };
    let (head, _) = answer.map_err(broken)?.into_parts();
    Ok((head.status, head.headers))
}
