//! The HTTP side: one page, for whoever is on this host.

use std::convert::Infallible;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::CONTENT_TYPE;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio_util::sync::CancellationToken;

use crate::config::MetricsListen;

/// The text format of OpenMetrics.
const FORMAT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// How long a client may take over its request.
const PATIENCE: Duration = Duration::from_secs(10);
/// Clients served at once.
const CLIENTS: usize = 16;

/// Writes the page.
pub type Page = Arc<dyn Fn() -> String + Send + Sync>;

/// Serves `page` at /metrics until `stop`.
///
/// # Errors
/// When the address can't be listened at.
pub async fn serve(at: &MetricsListen, page: Page, stop: CancellationToken) -> io::Result<()> {
    let listener = match at {
        MetricsListen::Tcp(address) => Listener::Tcp(TcpListener::bind(address).await?),
        MetricsListen::Unix(path) => {
            remove_stale(path)?;
            let listener = UnixListener::bind(path)?;
            // Nothing in it is secret, and who may get at the socket is its directory's to say.
            std::fs::set_permissions(path, Permissions::from_mode(0o666))?;
            Listener::Unix(listener)
        }
    };
    tokio::spawn(async move { stop.run_until_cancelled(each(listener, page)).await });
    Ok(())
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

impl Listener {
    async fn accept(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Tcp(listener) => Box::new(listener.accept().await?.0),
            Self::Unix(listener) => Box::new(listener.accept().await?.0),
        })
    }
}

/// A socket that an earlier run left is in the way; anything else stays.
fn remove_stale(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => std::fs::remove_file(path),
        _ => Ok(()),
    }
}

async fn each(listener: Listener, page: Page) {
    let places = Arc::new(tokio::sync::Semaphore::new(CLIENTS));
    loop {
        // Never closed, so there is always a place in the end.
        let Ok(place) = places.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok(stream) => {
                let page = page.clone();
                tokio::spawn(async move {
                    answer(stream, page).await;
                    drop(place);
                });
            }
            // Out of descriptors, as a rule: it passes.
            Err(_) => tokio::time::sleep(Duration::from_secs(1)).await,
        }
    }
}

async fn answer(stream: Box<dyn Stream>, page: Page) {
    let service = service_fn(move |request: Request<hyper::body::Incoming>| {
        let response = respond(request.method(), request.uri().path(), &page);
        async move { Ok::<_, Infallible>(response) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    // A client that goes away in the middle harms nobody.
    let _ = tokio::time::timeout(PATIENCE, served).await;
}

fn respond(method: &Method, path: &str, page: &Page) -> Response<Full<Bytes>> {
    let (status, body) = match (method, path) {
        (&Method::GET, "/metrics") => (StatusCode::OK, page()),
        (_, "/metrics") => (StatusCode::METHOD_NOT_ALLOWED, "only GET\n".to_owned()),
        _ => (StatusCode::NOT_FOUND, "the metrics are at /metrics\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    if status == StatusCode::OK {
        let format = hyper::header::HeaderValue::from_static(FORMAT);
        response.headers_mut().insert(CONTENT_TYPE, format);
    }
    response
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    async fn ask(path: &Path, request: &str) -> String {
        let mut stream = tokio::net::UnixStream::connect(path).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn a_socket_gives_the_page_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.sock");
        // What an earlier run left.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let stop = CancellationToken::new();
        let page: Page = Arc::new(|| "the page\n".to_owned());
        serve(&MetricsListen::Unix(path.clone()), page, stop.clone()).await.unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o666);
        let got = ask(&path, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert!(got.starts_with("HTTP/1.1 200") && got.ends_with("the page\n"), "{got}");
        let got = ask(&path, "GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert!(got.starts_with("HTTP/1.1 404"), "{got}");
        let got =
            ask(&path, "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n").await;
        assert!(got.starts_with("HTTP/1.1 405"), "{got}");
        let file = directory.path().join("file");
        std::fs::write(&file, "kept").unwrap();
        let page: Page = Arc::new(String::new);
        assert!(serve(&MetricsListen::Unix(file.clone()), page, stop).await.is_err());
        assert_eq!(std::fs::read(&file).unwrap(), b"kept");
    }
}
