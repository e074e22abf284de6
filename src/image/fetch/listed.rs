//! Digests that a publisher lists, as `sha256sum` writes them, plain or with
//! `--tag`, signed or not.

use percent_encoding::percent_decode_str;
use tokio::io::AsyncReadExt as _;

use super::http::{self, Broken, failed};
use super::local;
use super::retry::Retry;
use crate::image::limits::Limits;
use crate::image::progress::Progress;
use crate::model::{Fault, ResourceUrl, Sha256Digest};

/// A longer list is none.
const MAX_LIST: usize = 1 << 20;

/// The sha256 that the list at `list` has for the file of `image`.
///
/// # Errors
/// `FetchFailed` when the list can't be had, or has none, or has two.
pub(super) async fn digest(
    list: &ResourceUrl,
    image: &ResourceUrl,
    limits: &Limits,
    progress: &Progress,
) -> Result<Sha256Digest, Fault> {
    let text = read(list, limits, progress).await?;
    let name = file_name(image);
    find(&text, &name)
        .map_err(|why| failed(list, &format!("{why} {name:?}, so its digest is unknown")))
}

async fn read(list: &ResourceUrl, limits: &Limits, progress: &Progress) -> Result<String, Fault> {
    if local::is_local(list) {
        return read_local(list).await.map_err(|error| failed(list, &error.to_string()));
    }
    let client = http::client(list, limits)?;
    let mut retry = Retry::new(limits);
    loop {
        match get(&client, list).await {
            Ok(text) => return Ok(text),
            Err(broken) => retry.wait(broken, progress).await?,
        }
    }
}

async fn read_local(list: &ResourceUrl) -> std::io::Result<String> {
    let (file, _) = local::open(list).await?;
    let mut text = String::new();
    // It may grow while it is read.
    let read = file.take(MAX_LIST as u64 + 1).read_to_string(&mut text).await?;
    if read > MAX_LIST { Err(std::io::Error::other(too_long())) } else { Ok(text) }
}

async fn get(client: &reqwest::Client, list: &ResourceUrl) -> Result<String, Broken> {
    let mut response = http::get(client, list, None).await?.response;
    let mut bytes = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(|error| http::broken(list, error))? {
        bytes.extend_from_slice(&piece);
        if bytes.len() > MAX_LIST {
            return Err(Broken::Final(failed(list, &too_long())));
        }
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn too_long() -> String {
    format!("it is longer than {MAX_LIST} bytes, and so no list of digests")
}

/// The last part of a URL's path.
fn file_name(url: &ResourceUrl) -> String {
    let path = url.expose().path();
    let last = path.rsplit('/').next().unwrap_or_default();
    percent_decode_str(last).decode_utf8_lossy().into_owned()
}

/// The digest of `name` in `text`, or why there is none.
fn find(text: &str, name: &str) -> Result<Sha256Digest, &'static str> {
    let mut found: Option<Sha256Digest> = None;
    for (digest, _) in text.lines().filter_map(entry).filter(|(_, of)| *of == name) {
        if found.is_some_and(|other| other != digest) {
            return Err("it has two different digests for");
        }
        found = Some(digest);
    }
    let alone = || text.trim().parse().ok();
    found.or_else(alone).ok_or("it has no sha256 for")
}

/// Digest and file name of a line; nothing for any other line.
fn entry(line: &str) -> Option<(Sha256Digest, &str)> {
    let line = line.trim();
    let (digest, path) = match line.strip_prefix("SHA256 (") {
        Some(tagged) => tagged.rsplit_once(") = ").map(|(path, digest)| (digest, path))?,
        None => line.split_once(char::is_whitespace)?,
    };
    let path = path.trim_start().trim_start_matches('*');
    Some((digest.parse().ok()?, path.rsplit('/').next()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::UrlOrigin;

    fn digest(byte: &str) -> (String, Sha256Digest) {
        let text = byte.repeat(32);
        (text.clone(), text.parse().unwrap())
    }

    #[test]
    fn the_forms_that_publishers_use() {
        let ((text, wanted), (other, _)) = (digest("ab"), digest("cd"));
        let lists = [
            format!("{other}  b.qcow2\n{text}  a.qcow2\n"),
            format!("{text} *a.qcow2\r\n"),
            format!("{text}  ./images/a.qcow2\n"),
            format!(
                "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\n# a.qcow2: 3 bytes\nSHA256 (a.qcow2) = {text}\n-----BEGIN PGP SIGNATURE-----\nx\n"
            ),
            format!("SHA512 (a.qcow2) = {other}\nSHA256 (a.qcow2) = {}\n", text.to_uppercase()),
            format!("{text}\n"),
            format!("{text}  a.qcow2\n{text}  x/a.qcow2\n"),
        ];
        for list in lists {
            assert_eq!(find(&list, "a.qcow2"), Ok(wanted), "{list}");
        }
    }

    #[test]
    fn what_tells_nothing_is_refused() {
        let ((text, _), (other, _)) = (digest("ab"), digest("cd"));
        let lists = [
            String::new(),
            format!("{text}  b.qcow2\n"),
            format!("{text}  a.qcow2.xz\n"),
            format!("{text}  a.qcow2\n{other}  a.qcow2\n"),
            format!("{text}{text}  a.qcow2\n"),
            "a.qcow2 a.qcow2".to_owned(),
        ];
        for list in lists {
            assert!(find(&list, "a.qcow2").is_err(), "{list}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read(text in "([0-9a-f]{60,64}|SHA256 \\(|\\) = | |\\*|/|é|\n|a.qcow2){0,20}") {
            let _ = find(&text, "a.qcow2");
        }
    }

    #[test]
    fn the_file_name_is_the_last_part_of_the_path() {
        let of =
            |text: &str| file_name(&ResourceUrl::parse(text, UrlOrigin::Configuration).unwrap());
        assert_eq!(of("http://h/x/a%20b.qcow2?q=/c#f"), "a b.qcow2");
        assert_eq!(of("http://h"), "");
    }
}
