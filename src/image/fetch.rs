//! HTTP: a response that is worth reading, or the reason why not.

use std::sync::OnceLock;
use std::time::Duration;

use reqwest::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, ETAG, HeaderMap, HeaderName, LAST_MODIFIED,
};
use reqwest::redirect::Policy;
use reqwest::{Client, Response};

use super::marker::Validators;
use crate::model::{Fault, FaultKind, ResourceUrl};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// The longest silence of a server.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_REDIRECTS: usize = 10;

/// A server's answer: its body is what is asked for.
pub(super) struct Answer {
    pub(super) response: Response,
    /// Of the body, when the server says so; the transport holds it to that.
    pub(super) length: Option<u64>,
    pub(super) validators: Validators,
}

fn failed(url: &ResourceUrl, what: &str) -> Fault {
    Fault::new(FaultKind::FetchFailed, format!("{url} can't be fetched: {what}"))
}

/// The same for an error of the transport, whose own words would name the URL with
/// its credentials.
pub(super) fn broken(url: &ResourceUrl, error: reqwest::Error) -> Fault {
    let error = error.without_url();
    let mut words = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(inner) = cause {
        words = format!("{words}: {inner}");
        cause = inner.source();
    }
    failed(url, &words)
}

/// The one client of this process; the proxy environment is honoured.
fn client(url: &ResourceUrl) -> Result<Client, Fault> {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    if let Some(client) = CLIENT.get() {
        return Ok(client.clone());
    }
    let built = Client::builder()
        .user_agent(concat!("proxyd/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECT_TIMEOUT)
        .read_timeout(STALL_TIMEOUT)
        .redirect(Policy::custom(|attempt| {
            let was_secure = attempt.previous().iter().any(|url| url.scheme() == "https");
            if attempt.previous().len() > MAX_REDIRECTS {
                attempt.error("too many redirects")
            } else if was_secure && attempt.url().scheme() != "https" {
                attempt.error("a redirect leaves https")
            } else {
                attempt.follow()
            }
        }))
        .build()
        .map_err(|error| broken(url, error))?;
    Ok(CLIENT.get_or_init(|| built).clone())
}

/// Asks for `url`.
///
/// # Errors
/// `FetchFailed`, with the status or the transport's words.
pub(super) async fn get(url: &ResourceUrl) -> Result<Answer, Fault> {
    let request = client(url)?.get(url.expose().clone()).header(ACCEPT_ENCODING, "identity");
    let response = request.send().await.map_err(|error| broken(url, error))?;
    let status = response.status();
    if status != reqwest::StatusCode::OK {
        return Err(failed(url, &format!("the server answered {status}")));
    }
    let headers = response.headers();
    if let Some(encoding) = text(headers, &CONTENT_ENCODING).filter(|name| name != "identity") {
        return Err(failed(url, &format!("the server encoded it ({encoding}) unasked")));
    }
    if text(headers, &CONTENT_TYPE).is_some_and(|kind| kind.starts_with("text/html")) {
        return Err(failed(url, "the server sent a web page instead of an image"));
    }
    let validators =
        Validators { etag: text(headers, &ETAG), last_modified: text(headers, &LAST_MODIFIED) };
    Ok(Answer { length: response.content_length(), validators, response })
}

fn text(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}
