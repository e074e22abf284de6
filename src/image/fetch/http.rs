//! HTTP: a response that is worth reading, or the reason why not.

use std::time::Duration;

use reqwest::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG,
    HeaderMap, HeaderName, IF_RANGE, LAST_MODIFIED, RANGE, RETRY_AFTER, TRANSFER_ENCODING,
};
use reqwest::redirect::Policy;
use reqwest::{Client, Response, StatusCode, Version};

use crate::image::limits::Limits;
use crate::image::marker::Validators;
use crate::model::{Fault, FaultKind, ResourceUrl};

const MAX_REDIRECTS: usize = 10;
/// How long a server may take to tell the size of an image.
const ASK: Duration = Duration::from_secs(10);

/// What goes wrong with a download.
#[derive(Debug)]
pub(super) enum Broken {
    /// Another attempt may go better, after the wait that the server asked for.
    Again(Fault, Option<Duration>),
    /// It may when nothing is built upon that was received so far.
    Anew(Fault),
    /// It won't, for now.
    Final(Fault),
}

impl From<Fault> for Broken {
    fn from(fault: Fault) -> Self {
        Self::Final(fault)
    }
}

/// Where a download that broke off can go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Resume {
    /// Bytes that are there.
    pub(super) offset: u64,
    /// Of the whole, when that is known.
    pub(super) total: Option<u64>,
    /// The strong validator of what they belong to.
    pub(super) etag: String,
}

/// A server's answer: its body is what is asked for.
pub(super) struct Answer {
    pub(super) response: Response,
    /// Whether the body goes on where the last one broke off.
    pub(super) resumes: bool,
    /// Of the whole, when the server says so.
    pub(super) total: Option<u64>,
    /// Whether the end of the body can be told from a broken connection.
    pub(super) framed: bool,
    pub(super) validators: Validators,
}

/// The fault of a download.
pub(super) fn failed(url: &ResourceUrl, what: &str) -> Fault {
    Fault::new(FaultKind::FetchFailed, format!("{url} can't be fetched: {what}"))
}

/// The same for an error of the transport, whose own words would name the URL with
/// its credentials.
pub(super) fn broken(url: &ResourceUrl, error: reqwest::Error) -> Broken {
    let retry = !(error.is_redirect() || error.is_builder());
    let fault = failed(url, &words(error));
    if retry { Broken::Again(fault, None) } else { Broken::Final(fault) }
}

/// All that an error has to say, without its URL.
fn words(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut words = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(inner) = cause {
        words = format!("{words}: {inner}");
        cause = inner.source();
    }
    words
}

/// A client that honours the proxy environment.
///
/// # Errors
/// `FetchFailed` when TLS can't be set up, for want of certificates.
pub(super) fn client(url: &ResourceUrl, limits: &Limits) -> Result<Client, Fault> {
    Client::builder()
        .user_agent(concat!("proxyd/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(limits.connect)
        .read_timeout(limits.stall)
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
        .map_err(|error| failed(url, &words(error)))
}

/// The bytes that `url` has, as its server tells without giving them.
///
/// # Errors
/// `FetchFailed` when the server can't be asked; nothing when it doesn't tell.
pub(super) async fn length(url: &ResourceUrl, limits: &Limits) -> Result<Option<u64>, Fault> {
    let request =
        client(url, limits)?.head(url.expose().clone()).header(ACCEPT_ENCODING, "identity");
    let response = request.timeout(ASK).send().await;
    let response = response.map_err(|error| failed(url, &words(error)))?;
    let status = response.status();
    if matches!(status, StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED) {
        return Ok(None);
    }
    if !status.is_success() {
        return Err(failed(url, &format!("the server answers {status}")));
    }
    let told = response.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let told = told.and_then(|value| value.parse().ok());
    if let Some(bytes) = told.filter(|bytes| *bytes > limits.image_bytes) {
        let most = limits.image_bytes;
        return Err(failed(url, &format!("it has {bytes} bytes, and {most} are the most")));
    }
    Ok(told)
}

/// Asks for `url`, or for the rest of it.
pub(super) async fn get(
    client: &Client,
    url: &ResourceUrl,
    resume: Option<&Resume>,
) -> Result<Answer, Broken> {
    let mut request = client.get(url.expose().clone()).header(ACCEPT_ENCODING, "identity");
    if let Some(resume) = resume {
        request = request
            .header(RANGE, format!("bytes={}-", resume.offset))
            .header(IF_RANGE, &resume.etag);
    }
    let response = request.send().await.map_err(|error| broken(url, error))?;
    match (response.status(), resume) {
        (StatusCode::OK, _) => whole(url, response),
        (StatusCode::PARTIAL_CONTENT, Some(resume)) => rest(url, response, resume),
        (status, resume) => Err(refused(url, status, response.headers(), resume.is_some())),
    }
}

fn whole(url: &ResourceUrl, response: Response) -> Result<Answer, Broken> {
    let headers = response.headers();
    acceptable(url, headers)?;
    let total = response.content_length();
    let framed = total.is_some()
        || response.version() >= Version::HTTP_2
        || text(headers, &TRANSFER_ENCODING).is_some();
    let validators =
        Validators { etag: text(headers, &ETAG), last_modified: text(headers, &LAST_MODIFIED) };
    Ok(Answer { response, resumes: false, total, framed, validators })
}

/// The rest, if it is that of the file which was begun.
fn rest(url: &ResourceUrl, response: Response, resume: &Resume) -> Result<Answer, Broken> {
    let headers = response.headers();
    acceptable(url, headers)?;
    let range = text(headers, &CONTENT_RANGE).as_deref().and_then(content_range);
    let etag = text(headers, &ETAG);
    let fits = range.is_some_and(|(first, total)| {
        first == resume.offset && (resume.total.is_none() || total == resume.total)
    });
    if !fits || etag.is_some_and(|etag| etag != resume.etag) {
        let words = "the server sent another part than the one asked for";
        return Err(Broken::Anew(failed(url, words)));
    }
    let total = range.and_then(|(_, total)| total).or(resume.total);
    // Of an attempt that resumes, the validators are those that it began with.
    Ok(Answer { response, resumes: true, total, framed: true, validators: Validators::default() })
}

/// First byte and total of `bytes 100-199/200`.
fn content_range(value: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = value.strip_prefix("bytes ")?.split_once('/')?;
    let first = range.split_once('-')?.0.parse().ok()?;
    Some((first, total.parse().ok()))
}

fn acceptable(url: &ResourceUrl, headers: &HeaderMap) -> Result<(), Fault> {
    if let Some(encoding) = text(headers, &CONTENT_ENCODING).filter(|name| name != "identity") {
        return Err(failed(url, &format!("the server encoded it ({encoding}) unasked")));
    }
    if text(headers, &CONTENT_TYPE).is_some_and(|kind| kind.starts_with("text/html")) {
        return Err(failed(url, "the server sent a web page instead of a file"));
    }
    Ok(())
}

fn refused(url: &ResourceUrl, status: StatusCode, headers: &HeaderMap, resumed: bool) -> Broken {
    let fault = failed(url, &format!("the server answered {status}"));
    let passing = [408, 425, 429, 500, 502, 503, 504].contains(&status.as_u16());
    if passing {
        let wait = text(headers, &RETRY_AFTER).and_then(|seconds| seconds.parse().ok());
        return Broken::Again(fault, wait.map(Duration::from_secs));
    }
    if resumed {
        return Broken::Anew(fault);
    }
    Broken::Final(fault)
}

fn text(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_ranges() {
        assert_eq!(content_range("bytes 100-199/200"), Some((100, Some(200))));
        assert_eq!(content_range("bytes 0-0/*"), Some((0, None)));
        for bad in ["", "bytes */200", "bytes x-1/2", "items 0-1/2", "bytes 5"] {
            assert_eq!(content_range(bad), None, "{bad}");
        }
    }
}
