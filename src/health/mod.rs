//! Probing: the health URL is fetched through a proxy, and the verdict names the
//! hop that failed.

mod exchange;
mod judge;
mod tunnel;

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use hyper::header::HeaderMap;
use hyper::{Method, StatusCode};

pub use judge::Judge;

use self::exchange::{Trouble, exchange, without_login};
use self::tunnel::Tunnels;
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
    /// The address of this host to ask from; the one that the route suggests when absent.
    pub source: Option<IpAddr>,
}

/// The hop at which a probe failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Hop {
    /// The guest has no known address.
    NoAddress,
    /// Nothing listens on the proxy's port.
    Refused,
    /// The proxy's host does not answer in time.
    ConnectTimeout,
    /// There is no way to the proxy's host.
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

impl Hop {
    /// The word for messages and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::NoAddress => "NoAddress",
            Self::Refused => "Refused",
            Self::ConnectTimeout => "ConnectTimeout",
            Self::Unreachable => "Unreachable",
            Self::ProxyAuthentication => "ProxyAuthentication",
            Self::ProxyDenied => "ProxyDenied",
            Self::NameResolution => "NameResolution",
            Self::Upstream => "Upstream",
            Self::WrongStatus => "WrongStatus",
            Self::TooSlow => "TooSlow",
            Self::Broken => "Broken",
        }
    }
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

/// Probes proxies, each time on a fresh connection.
#[derive(Debug, Default)]
pub struct Prober {
    tunnels: Tunnels,
}

impl Prober {
    /// Fetches `target.url` through `target.proxy`: an https URL through a tunnel that
    /// the proxy opens by CONNECT.
    pub async fn probe(&mut self, target: &Target) -> Verdict {
        if target.url.expose().scheme() == "https" {
            return self.tunnels.probe(target).await;
        }
        let started = Instant::now();
        // HEAD would be lighter, but "generate_204" servers promise their answer to GET.
        let answer = exchange(target, Method::GET, &without_login(target.url.expose())).await;
        match answer {
            Ok((status, headers)) if status.as_u16() != target.expect_status => {
                refusal(target, status, &headers)
            }
            Ok(_) => Verdict::Healthy { latency: started.elapsed() },
            Err(trouble) => told(target, trouble),
        }
    }
}

/// What an answer that isn't the expected one means.
fn refusal(target: &Target, status: StatusCode, headers: &HeaderMap) -> Verdict {
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

fn told(target: &Target, trouble: Trouble) -> Verdict {
    let (hop, what) = match trouble {
        Trouble::Refused => (Hop::Refused, "nothing listens there yet".to_owned()),
        Trouble::ConnectTimeout => {
            (Hop::ConnectTimeout, format!("the host does not answer within {:?}", target.timeout))
        }
        Trouble::Unreachable(error) => (Hop::Unreachable, error),
        Trouble::TooSlow => (Hop::TooSlow, format!("no whole answer within {:?}", target.timeout)),
        Trouble::Broken(error) => (Hop::Broken, error),
    };
    Verdict::failed(hop, format!("{}: {what}", target.proxy))
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

    fn target(proxy: SocketAddr, url: ResourceUrl) -> Target {
        let timeout = Duration::from_millis(500);
        Target { proxy, url, expect_status: 204, timeout, source: None }
    }

    async fn verdict(proxy: SocketAddr) -> Verdict {
        let url = ResourceUrl::parse("http://u:secret@example.test/204", UrlOrigin::Api).unwrap();
        Prober::default().probe(&target(proxy, url)).await
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
    #[tokio::test]
    async fn a_host_that_swallows_packets_is_told_from_one_that_is_slow() {
        // A full backlog takes no more connections, and sends no refusal either.
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(1).unwrap();
        let address = listener.local_addr().unwrap();
        let mut held = Vec::new();
        for _ in 0..4 {
            let connect = tokio::net::TcpStream::connect(address);
            held.extend(tokio::time::timeout(Duration::from_millis(200), connect).await.ok());
        }
        let verdict = verdict(address).await;
        let expected = matches!(verdict, Verdict::Unhealthy { hop: Hop::ConnectTimeout, .. });
        assert!(expected, "{verdict:?}");
    }

    /// What a proxy that answers CONNECT so is taken for.
    async fn tunnel_hop(answer: &'static str) -> Hop {
        let url = ResourceUrl::parse("https://example.test/204", UrlOrigin::Api).unwrap();
        match Prober::default().probe(&target(proxy(answer).await, url)).await {
            Verdict::Unhealthy { hop, .. } => hop,
            Verdict::Healthy { .. } => panic!("{answer:?} was taken as healthy"),
        }
    }

    #[tokio::test]
    async fn a_tunnel_that_is_not_opened_names_its_hop() {
        let of = |line: &str| format!("HTTP/1.1 {line}\r\nContent-Length: 0\r\n\r\n").leak();
        assert_eq!(tunnel_hop(of("407 X")).await, Hop::ProxyAuthentication);
        let denied = of("403 X\r\nX-Squid-Error: ERR_ACCESS_DENIED 0");
        assert_eq!(tunnel_hop(denied).await, Hop::ProxyDenied);
        let dns = of("503 X\r\nX-Squid-Error: ERR_DNS_FAIL 0");
        assert_eq!(tunnel_hop(dns).await, Hop::NameResolution);
        assert_eq!(tunnel_hop(of("502 X")).await, Hop::Upstream);
        // It opens, and no TLS comes out of it.
        assert_eq!(tunnel_hop("HTTP/1.1 200 OK\r\n\r\nno TLS").await, Hop::Upstream);
        assert_eq!(tunnel_hop("").await, Hop::TooSlow);
    }

    #[tokio::test]
    async fn a_login_goes_to_the_server_and_not_into_the_line() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = listener.local_addr().unwrap();
        let url = ResourceUrl::parse("http://u:s%40x@example.test:81/a?b", UrlOrigin::Api);
        let target = target(proxy, url.unwrap());
        let probe = tokio::spawn(async move { Prober::default().probe(&target).await });
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = vec![0; 1024];
        let length = stream.read(&mut request).await.unwrap();
        let request = String::from_utf8_lossy(&request[..length]).to_lowercase();
        assert!(request.starts_with("get http://example.test:81/a?b http/1.1\r\n"), "{request}");
        // u:s@x
        for line in ["host: example.test:81\r\n", "authorization: basic dtpzqhg=\r\n"] {
            assert!(request.contains(line), "{request}");
        }
        probe.abort();
    }

    #[tokio::test]
    async fn the_source_can_be_chosen() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = listener.local_addr().unwrap();
        let url = ResourceUrl::parse("http://example.test/", UrlOrigin::Api).unwrap();
        let source = Some("127.0.0.9".parse().unwrap());
        let target = Target { source, ..target(proxy, url) };
        let probe = tokio::spawn(async move { Prober::default().probe(&target).await });
        let (_, from) = listener.accept().await.unwrap();
        assert_eq!(Some(from.ip()), source);
        probe.abort();
    }
}
