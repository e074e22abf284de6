//! Probing: the health URL is fetched through a proxy, and the verdict names the
//! hop that failed.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use reqwest::header::{CACHE_CONTROL, HeaderMap};
use reqwest::{Client, StatusCode};

use crate::model::ResourceUrl;

/// What to fetch through which proxy, and what counts as an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The proxy.
    pub proxy: SocketAddr,
    /// What is fetched.
    pub url: ResourceUrl,
    /// The HTTP status that is expected.
    pub expect_status: u16,
    /// The most the whole probe may take.
    pub timeout: Duration,
}

/// The hop at which a probe failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hop {
    /// Nothing listens on the proxy's port.
    Refused,
    /// The proxy's host does not answer.
    Unreachable,
    /// The proxy asks for a login.
    ProxyAuthentication,
    /// The proxy refuses to serve this host or URL.
    ProxyDenied,
    /// The proxy can't resolve the name in the URL.
    NameResolution,
    /// The proxy can't reach the server of the URL.
    Upstream,
    /// The answer has another status than expected.
    WrongStatus,
    /// There was no whole answer in time.
    TooSlow,
    /// The connection broke, or what came back is not HTTP.
    Broken,
}

/// The outcome of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The expected status came back through the proxy.
    Healthy {
        /// How long it took.
        latency: Duration,
    },
    /// It did not.
    Unhealthy {
        /// Where it failed.
        hop: Hop,
        /// For people.
        message: String,
    },
}

impl Verdict {
    fn failed(hop: Hop, message: String) -> Self {
        Self::Unhealthy { hop, message }
    }
}

/// Probes one proxy after the other, usually the same: an HTTP client is made only
/// when another proxy or another limit is asked for.
#[derive(Debug, Default)]
pub struct Prober {
    client: Option<((SocketAddr, Duration), Client)>,
}

impl Prober {
    /// Fetches `target.url` through `target.proxy` on a fresh connection.
    pub async fn probe(&mut self, target: &Target) -> Verdict {
        let client = match self.client(target) {
            Ok(client) => client,
            Err(error) => {
                let message = format!("no HTTP client can be made: {}", innermost(&error));
                return Verdict::failed(Hop::Broken, message);
            }
        };
        let started = Instant::now();
        // HEAD would be lighter, but "generate_204" servers promise their answer to GET.
        let request = client.get(target.url.expose().clone());
        // What a proxy has in its cache tells nothing about its way to the server.
        match request.header(CACHE_CONTROL, "no-cache").send().await {
            Ok(response) => judge(target, response.status(), response.headers(), started.elapsed()),
            Err(error) => explain(target, &error),
        }
    }

    fn client(&mut self, target: &Target) -> reqwest::Result<Client> {
        let key = (target.proxy, target.timeout);
        match &self.client {
            Some((made_for, client)) if *made_for == key => Ok(client.clone()),
            _ => Ok(self.client.insert((key, client(target)?)).1.clone()),
        }
    }
}

/// A client that goes through the proxy whatever the environment says, and reports
/// the first answer as it is.
fn client(target: &Target) -> reqwest::Result<Client> {
    Client::builder()
        .proxy(reqwest::Proxy::all(format!("http://{}", target.proxy))?)
        .redirect(reqwest::redirect::Policy::none())
        .timeout(target.timeout)
        .pool_max_idle_per_host(0)
        .user_agent(concat!("proxyd/", env!("CARGO_PKG_VERSION")))
        .build()
}

fn judge(target: &Target, status: StatusCode, headers: &HeaderMap, latency: Duration) -> Verdict {
    if status.as_u16() == target.expect_status {
        return Verdict::Healthy { latency };
    }
    // squid names the cause of an answer of its own in this header:
    // https://wiki.squid-cache.org/Features/CustomErrors
    let squid = headers.get("x-squid-error").and_then(|value| value.to_str().ok());
    let (hop, what) = match (status, squid) {
        (StatusCode::PROXY_AUTHENTICATION_REQUIRED, _) => {
            (Hop::ProxyAuthentication, "the proxy asks for a login".to_owned())
        }
        (_, Some(error)) if error.starts_with("ERR_ACCESS_DENIED") => {
            let advice = "the proxy denies this host or URL (where AllowedClients are listed, \
                          the host that probes has to be among them)";
            (Hop::ProxyDenied, advice.to_owned())
        }
        (_, Some(error)) if error.starts_with("ERR_DNS_FAIL") => {
            (Hop::NameResolution, "the proxy can't resolve the name in the URL".to_owned())
        }
        (_, Some(error)) => (Hop::Upstream, format!("the proxy can't fetch it ({error})")),
        (StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT, None) => {
            (Hop::Upstream, "the proxy can't reach the server".to_owned())
        }
        _ => (Hop::WrongStatus, format!("status {} was expected", target.expect_status)),
    };
    let status = status.as_u16();
    Verdict::failed(hop, format!("{what}: {} through {} gave {status}", target.url, target.proxy))
}

fn explain(target: &Target, error: &reqwest::Error) -> Verdict {
    let refused = io_kind(error) == Some(std::io::ErrorKind::ConnectionRefused);
    let (hop, what) = match (error.is_timeout(), error.is_connect(), refused) {
        (_, _, true) => (Hop::Refused, "nothing listens there yet".to_owned()),
        (true, true, _) => (Hop::Unreachable, "the host does not answer".to_owned()),
        (true, false, _) => (Hop::TooSlow, format!("no whole answer within {:?}", target.timeout)),
        (false, true, _) => (Hop::Unreachable, innermost(error)),
        (false, false, _) => (Hop::Broken, innermost(error)),
    };
    Verdict::failed(hop, format!("{}: {what}", target.proxy))
}

/// The cause at the bottom: reqwest's own words name the URL, credentials included.
fn innermost(error: &reqwest::Error) -> String {
    let mut deepest: Option<&dyn std::error::Error> = std::error::Error::source(error);
    while let Some(next) = deepest.and_then(std::error::Error::source) {
        deepest = Some(next);
    }
    deepest.map_or_else(|| "the request failed".to_owned(), ToString::to_string)
}

fn io_kind(error: &reqwest::Error) -> Option<std::io::ErrorKind> {
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        if let Some(io) = inner.downcast_ref::<std::io::Error>() {
            return Some(io.kind());
        }
        cause = inner.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;
    use crate::model::UrlOrigin;

    /// A proxy that gives every request the same answer; nothing when it is empty.
    async fn proxy(answer: &'static str) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = [0; 1024];
                let _ = stream.read(&mut request).await;
                if answer.is_empty() {
                    tokio::time::sleep(Duration::from_secs(60)).await;
                }
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        address
    }

    async fn verdict(proxy: SocketAddr) -> Verdict {
        let url = ResourceUrl::parse("http://u:secret@example.test/204", UrlOrigin::Api).unwrap();
        Prober::default()
            .probe(&Target { proxy, url, expect_status: 204, timeout: Duration::from_millis(500) })
            .await
    }

    async fn hop(answer: &'static str) -> Hop {
        match verdict(proxy(answer).await).await {
            Verdict::Unhealthy { hop, message } => {
                assert!(!message.contains("secret"), "{message}");
                hop
            }
            Verdict::Healthy { .. } => panic!("{answer:?} was taken as healthy"),
        }
    }

    #[tokio::test]
    async fn the_expected_status_is_healthy() {
        let answer = "HTTP/1.1 204 No Content\r\n\r\n";
        let verdict = verdict(proxy(answer).await).await;
        assert!(matches!(verdict, Verdict::Healthy { .. }), "{verdict:?}");
    }

    #[tokio::test]
    async fn every_failure_names_its_hop() {
        let denied = "HTTP/1.1 403 Forbidden\r\nX-Squid-Error: ERR_ACCESS_DENIED 0\r\n\
                      Content-Length: 0\r\n\r\n";
        assert_eq!(hop(denied).await, Hop::ProxyDenied);
        let dns = "HTTP/1.1 503 X\r\nX-Squid-Error: ERR_DNS_FAIL 0\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(hop(dns).await, Hop::NameResolution);
        let upstream =
            "HTTP/1.1 503 X\r\nX-Squid-Error: ERR_CONNECT_FAIL 111\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(hop(upstream).await, Hop::Upstream);
        let login = "HTTP/1.1 407 X\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(hop(login).await, Hop::ProxyAuthentication);
        let other = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(hop(other).await, Hop::WrongStatus);
        assert_eq!(hop("220 mail ready\r\n").await, Hop::Broken);
        assert_eq!(hop("").await, Hop::TooSlow);
    }

    #[tokio::test]
    async fn a_closed_port_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let verdict = verdict(address).await;
        assert!(matches!(verdict, Verdict::Unhealthy { hop: Hop::Refused, .. }), "{verdict:?}");
    }
}
