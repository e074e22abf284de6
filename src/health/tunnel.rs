//! Probing through a tunnel that the proxy opens by CONNECT.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use hyper::Method;
use reqwest::Client;
use reqwest::header::CACHE_CONTROL;

use super::exchange::exchange;
use super::{Hop, Target, Verdict, refusal, told};

/// Makes an HTTP client only when another proxy or another limit is asked for: one
/// with TLS is costly.
#[derive(Debug, Default)]
pub(super) struct Tunnels {
    client: Option<((SocketAddr, Duration), Client)>,
}

impl Tunnels {
    pub(super) async fn probe(&mut self, target: &Target) -> Verdict {
        let client = match self.client(target) {
            Ok(client) => client,
            Err(error) => {
                return Verdict::failed(Hop::Broken, format!("no client: {}", innermost(&error)));
            }
        };
        let started = Instant::now();
        let request = client.get(target.url.expose().clone()).header(CACHE_CONTROL, "no-cache");
        match request.send().await {
            Ok(answer) if answer.status().as_u16() == target.expect_status => {
                Verdict::Healthy { latency: started.elapsed() }
            }
            Ok(answer) => {
                let (expected, status) = (target.expect_status, answer.status().as_u16());
                let text = format!("{} gave {status}, and {expected} was expected", target.url);
                Verdict::failed(Hop::WrongStatus, text)
            }
            Err(error) => name_hop(target, &error).await,
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

/// The client tells that there is no tunnel and not why: the proxy is asked for one
/// again, by hand.
async fn name_hop(target: &Target, error: &reqwest::Error) -> Verdict {
    let url = target.url.expose();
    let port = url.port_or_known_default().unwrap_or(443);
    let authority = format!("{}:{port}", url.host_str().unwrap_or_default());
    match exchange(target, Method::CONNECT, &authority).await {
        Err(trouble) => told(target, trouble),
        Ok((status, headers)) if !status.is_success() => refusal(target, status, &headers),
        Ok(_) if error.is_timeout() => {
            let text = format!("{}: no whole answer within {:?}", target.proxy, target.timeout);
            Verdict::failed(Hop::TooSlow, text)
        }
        Ok(_) => {
            let text = format!(
                "{} opens a tunnel, and {} does not answer in it: {}",
                target.proxy,
                target.url,
                innermost(error)
            );
            Verdict::failed(Hop::Upstream, text)
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

/// The cause at the bottom: reqwest's own words name the URL, credentials included.
fn innermost(error: &reqwest::Error) -> String {
    let mut deepest: Option<&dyn std::error::Error> = std::error::Error::source(error);
    while let Some(next) = deepest.and_then(std::error::Error::source) {
        deepest = Some(next);
    }
    deepest.map_or_else(|| "the request failed".to_owned(), ToString::to_string)
}
