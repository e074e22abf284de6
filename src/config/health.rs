//! `health`: how proxies are probed.

use std::time::Duration;

use super::section::{Node, Section};
use super::settings::HealthSettings;
use super::shown::shown;
use crate::model::{ResourceUrl, UrlOrigin};

/// What is fetched through a proxy unless the configuration says otherwise: a public
/// address that answers 204 with no body, meant for just this use. It is plain http,
/// so that the proxy itself makes the request and not a tunnel through it.
pub const DEFAULT_HEALTH_URL: &str = "http://connectivitycheck.gstatic.com/generate_204";

const KEYS: [&str; 6] =
    ["url", "expectStatus", "interval", "timeout", "unhealthyAfter", "healthyAfter"];
const DEFAULT_STATUS: u16 = 204;
const DEFAULT_INTERVAL: Duration = Duration::from_secs(30);
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
const DEFAULT_UNHEALTHY_AFTER: u32 = 3;
const DEFAULT_HEALTHY_AFTER: u32 = 1;
/// More often than this is an attack on whoever answers the health URL.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// More seldom than this is no supervision.
const MAX_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);
/// Quicker than this no far-off server answers.
const MIN_TIMEOUT: Duration = Duration::from_millis(100);

/// Reads the `health` section. A probe may take no longer than the interval, so that
/// one is over when the next begins; the default timeout is shortened to it.
pub(super) fn read(section: &Section<'_>) -> Option<HealthSettings> {
    let url = match section.get("url") {
        Some(node) => http_url(&node),
        None => section.node().take(ResourceUrl::parse(DEFAULT_HEALTH_URL, UrlOrigin::Api)),
    };
    let expect_status =
        section.read_or("expectStatus", DEFAULT_STATUS, |node| node.whole(100..=599));
    let interval = section
        .read_or("interval", DEFAULT_INTERVAL, |node| duration(node, MIN_INTERVAL, MAX_INTERVAL));
    let most = interval.unwrap_or(MAX_INTERVAL);
    let timeout = section
        .read_or("timeout", DEFAULT_TIMEOUT.min(most), |node| duration(node, MIN_TIMEOUT, most));
    let unhealthy_after =
        section.read_or("unhealthyAfter", DEFAULT_UNHEALTHY_AFTER, |node| node.whole(1..=u32::MAX));
    let healthy_after =
        section.read_or("healthyAfter", DEFAULT_HEALTHY_AFTER, |node| node.whole(1..=u32::MAX));
    Some(HealthSettings {
        url: url?,
        expect_status: expect_status?,
        interval: interval?,
        timeout: timeout?,
        unhealthy_after: unhealthy_after?,
        healthy_after: healthy_after?,
    })
}

/// Reads the `health` object itself.
pub(super) fn section<'a>(node: &Node<'a>) -> Option<Section<'a>> {
    node.section(&KEYS)
}

/// A URL that can be fetched through a proxy.
pub(super) fn http_url(node: &Node<'_>) -> Option<ResourceUrl> {
    let text = node.text()?;
    let parsed = ResourceUrl::parse(text, UrlOrigin::Api);
    node.take(parsed.map_err(|_| {
        format!("{} can't be fetched through a proxy: give an http:// or https:// URL", shown(text))
    }))
}

fn duration(node: &Node<'_>, least: Duration, most: Duration) -> Option<Duration> {
    let text = node.text_like("a duration such as \"30s\"")?;
    let ways = || {
        let [least, most] = [least, most].map(humantime::format_duration);
        format!("give {least} to {most}")
    };
    let parsed = humantime::parse_duration(text);
    let value = node.take(parsed.map_err(|error| {
        format!("{} is no duration ({error}): give one such as \"30s\" or \"1m 30s\"", shown(text))
    }))?;
    if (least..=most).contains(&value) {
        return Some(value);
    }
    node.refuse(format!("{} is out of range: {}", shown(text), ways()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::testing::{errors, errors_at, ok};

    fn health(section: &str) -> HealthSettings {
        ok(&format!(r#"{{"health": {section}}}"#)).health
    }

    #[test]
    fn defaults() {
        let settings = health("{}");
        assert_eq!(settings, ok("{}").health);
        assert_eq!(settings.url.expose().as_str(), DEFAULT_HEALTH_URL);
        assert_eq!((settings.expect_status, settings.unhealthy_after), (204, 3));
        assert_eq!((settings.interval, settings.timeout), (DEFAULT_INTERVAL, DEFAULT_TIMEOUT));
    }

    #[test]
    fn all_keys() {
        let settings = health(
            r#"{"url": "https://h/x", "expectStatus": 200, "interval": "1m 30s",
                "timeout": "500ms", "unhealthyAfter": 1, "healthyAfter": 2}"#,
        );
        assert_eq!((settings.expect_status, settings.unhealthy_after), (200, 1));
        assert_eq!(settings.healthy_after, 2);
        assert_eq!(settings.interval, Duration::from_secs(90));
        assert_eq!(settings.timeout, Duration::from_millis(500));
    }

    #[test]
    fn every_mistake_is_pointed_to() {
        let text = r#"{"health": {"url": "file:///etc/shadow", "expectStatus": 99,
            "interval": "soon", "timeout": 5, "unhealthyAfter": 0, "healthyAfter": 0,
            "intervall": "1s"}}"#;
        let expected = [
            "/health/intervall",
            "/health/url",
            "/health/expectStatus",
            "/health/interval",
            "/health/timeout",
            "/health/unhealthyAfter",
            "/health/healthyAfter",
        ];
        assert_eq!(errors_at(text), expected);
    }

    #[test]
    fn a_number_of_seconds_is_told_how_to_write_it() {
        let found = errors(r#"{"health": {"interval": 30}}"#);
        let expected = "expected a duration such as \"30s\", found the number 30";
        assert_eq!(found[0].message, expected);
    }

    #[test]
    fn durations_have_bounds() {
        for (interval, timeout) in [("1s", "1s"), ("24h", "24h"), ("1s", "100ms")] {
            health(&format!(r#"{{"interval": "{interval}", "timeout": "{timeout}"}}"#));
        }
        let refused = [
            (r#"{"interval": "999ms"}"#, "/health/interval"),
            (r#"{"interval": "24h 1ns"}"#, "/health/interval"),
            (r#"{"interval": "99999999999999999999s"}"#, "/health/interval"),
            (r#"{"timeout": "99ms"}"#, "/health/timeout"),
            (r#"{"timeout": "31s"}"#, "/health/timeout"),
            (r#"{"interval": "10s", "timeout": "11s"}"#, "/health/timeout"),
        ];
        for (section, pointer) in refused {
            assert_eq!(errors_at(&format!(r#"{{"health": {section}}}"#)), [pointer], "{section}");
        }
    }

    #[test]
    fn a_short_interval_shortens_the_default_timeout() {
        assert_eq!(health(r#"{"interval": "2s"}"#).timeout, Duration::from_secs(2));
    }
}
