//! Servers that do what servers do, and worse.

use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};

use super::agent::{Finished, Image, Orders, Process, Work};
use super::server::{Exchange, Server, response};
use super::*;

const SIZE: usize = 3 << 20;

type Answer = fn(Exchange);

fn body() -> Vec<u8> {
    numbered(1, SIZE)
}

/// Fetches `image` in a process of its own, and gives the pool, too.
fn fetch(image: Image) -> (TempDir, Finished) {
    let home = home();
    let finished = Orders::new(home.path(), image.ensure()).run();
    (home, finished)
}

/// Nothing but the lock file is left, which is never removed.
fn is_clean(home: &TempDir) {
    assert_eq!(listing(home.path()), [LOCK]);
}

fn is_published(home: &TempDir, body: &[u8]) {
    assert_eq!(listing(home.path()), [BASE, MARKER, LOCK]);
    assert!(std::fs::read(home.path().join(BASE)).unwrap() == body, "the base has other bytes");
    let MarkerState::Valid(marker) = marker(home.path(), BASE) else { panic!("no marker") };
    assert_eq!(marker.content(), Sha256Digest::of(body));
}

/// Head of a whole answer, without its body.
fn head(headers: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\nConnection: close\r\n{headers}\r\n")
        .into_bytes()
}

#[test]
fn what_never_gets_better_is_given_up_after_a_few_attempts() {
    let rows: [(&str, Answer, &str, usize); 9] = [
        ("truncated", |mut at| at.send(&[head(""), body()[..SIZE - 1].to_vec()].concat()), "", 3),
        (
            "reset",
            |mut at| {
                at.send(&[head(""), body()[..SIZE / 2].to_vec()].concat());
                at.reset();
            },
            "",
            3,
        ),
        (
            "chunked without end",
            |mut at| {
                let begin = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n300000\r\n";
                at.send(&[begin.as_bytes(), &body(), b"\r\n"].concat());
            },
            "",
            3,
        ),
        (
            "silent",
            |mut at| {
                at.send(&head(""));
                let _ = at.stream.read(&mut [0]);
            },
            "",
            3,
        ),
        (
            "silent in mid-body",
            |mut at| {
                at.send(&[head(""), body()[..SIZE / 2].to_vec()].concat());
                let _ = at.stream.read(&mut [0]);
            },
            "",
            3,
        ),
        (
            "trickling",
            |mut at| {
                at.send(&head(""));
                while at.stream.write_all(b"Q").is_ok() {
                    std::thread::sleep(std::time::Duration::from_millis(50));
                }
            },
            "next to nothing",
            3,
        ),
        ("404", |mut at| at.respond("404 Not Found", "", b""), "404", 1),
        ("403", |mut at| at.respond("403 Forbidden", "", b""), "403", 1),
        ("503", |mut at| at.respond("503 Service Unavailable", "", b""), "503", 3),
    ];
    for (name, answer, words, requests) in rows {
        let server = Server::with(answer);
        let (home, finished) = fetch(Image::at(&server.url));
        let (kind, message) = finished.fault();
        assert_eq!((kind, finished.is_permanent()), ("FetchFailed", false), "{name}: {message}");
        assert!(message.contains(words) && message.contains(&server.url), "{name}: {message}");
        assert_eq!(server.requests(), requests, "{name}");
        is_clean(&home);
    }
}

#[test]
fn answers_that_are_no_image_are_refused_at_once() {
    let rows = [
        ("Content-Type: text/html; charset=utf-8\r\n", "FetchFailed", "web page"),
        ("Content-Encoding: gzip\r\n", "FetchFailed", "encoded it (gzip)"),
        ("", "ImageRejected", "not a qcow2"),
    ];
    for (headers, kind, words) in rows {
        let server = Server::new(response("200 OK", headers, b"<html>Please log in</html>"));
        let (home, finished) = fetch(Image::at(&server.url));
        let fault = finished.fault();
        assert!(fault.0 == kind && fault.1.contains(words), "{fault:?}");
        assert_eq!(server.requests(), 1);
        is_clean(&home);
    }
    let server = Server::with(|mut at| at.respond("206 Partial Content", "", &body()));
    let (home, finished) = fetch(Image::at(&server.url));
    assert!(finished.fault().1.contains("206"), "{finished:?}");
    is_clean(&home);
}

#[test]
fn what_passes_is_waited_for() {
    let server = Server::with(|mut at| match at.number {
        0 => at.respond("503 Service Unavailable", "Retry-After: 0\r\n", b""),
        1 => at.reset(),
        _ => at.respond("200 OK", "", &body()),
    });
    let (home, finished) = fetch(Image::at(&server.url));
    assert_eq!(finished.done(), Sha256Digest::of(&body()).to_string());
    assert!(finished.log.contains("503") && finished.log.contains("trying again"));
    is_published(&home, &body());
}

/// The length that was declared is what counts: what comes after it is not taken for
/// part of the image.
#[test]
fn a_body_that_goes_on_beyond_its_length_is_cut_there() {
    let server = Server::with(|mut at| at.send(&[head(""), body(), vec![9; 4096]].concat()));
    let (home, _) = fetch(Image::at(&server.url).pinned(&body()));
    is_published(&home, &body());
}

/// Without a length nobody can tell a cut: only a digest can.
#[test]
fn a_body_without_a_length_needs_a_digest() {
    let answer = [b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n".to_vec(), body()].concat();
    let server = Server::new(answer);
    let (home, finished) = fetch(Image::at(&server.url));
    assert!(finished.fault().1.contains("give its sha256"), "{finished:?}");
    is_clean(&home);
    let (home, _) = fetch(Image::at(&server.url).pinned(&body()));
    is_published(&home, &body());
}

#[test]
fn redirects_are_followed_within_bounds() {
    let server = Server::with(|mut at| match at.path().as_str() {
        "/x.qcow2" => at.respond("302 Found", "Location: /real\r\n", b""),
        "/real" => at.respond("200 OK", "", &body()),
        _ => at.respond("302 Found", "Location: /again\r\n", b""),
    });
    let (home, _) = fetch(Image::at(&server.url));
    is_published(&home, &body());
    let before = server.requests();
    let (home, finished) = fetch(Image::at(&server.at("/loop")));
    assert!(finished.fault().1.contains("too many redirects"), "{finished:?}");
    assert!(server.requests() - before <= 11);
    is_clean(&home);
}

/// A real TLS server, whose certificate is trusted, sends the client away to http.
#[test]
fn a_redirect_must_not_leave_https() {
    let plain = Server::of(&body());
    let keys = home();
    let (key, certificate) = (keys.path().join("key"), keys.path().join("certificate"));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"])
        .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .stderr(Stdio::null())
        .status()
        .expect("openssl runs: make deps installs it");
    assert!(made.success());
    let answer = format!("HTTP/1.1 302 Found\r\nLocation: {}\r\n\r\n", plain.url);
    std::fs::write(keys.path().join("image.qcow2"), answer).unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut tls = Command::new("openssl")
        .args(["s_server", "-HTTP", "-quiet", "-accept", &format!("127.0.0.1:{port}"), "-key"])
        .arg(&key)
        .arg("-cert")
        .arg(&certificate)
        .current_dir(keys.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    super::agent::until("the TLS server", || {
        std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    let home = home();
    let url = format!("https://127.0.0.1:{port}/image.qcow2");
    let orders = Orders::new(home.path(), Image::at(&url).ensure());
    let trusted = certificate.to_str().unwrap();
    let finished = Process::spawn(&orders, &[("SSL_CERT_FILE", trusted)]).finish();
    tls.kill().unwrap();
    tls.wait().unwrap();
    assert!(finished.fault().1.contains("leaves https"), "{finished:?}");
    assert_eq!(plain.requests(), 0);
    is_clean(&home);
}

/// Serves parts as `etag` has them, and breaks off the first answer half-way.
fn breaking_off(etag: &'static str, rest: Answer) -> Server {
    Server::with(move |mut at| {
        if at.number == 0 {
            let headers = format!("ETag: {etag}\r\nAccept-Ranges: bytes\r\n");
            at.send(&[head(&headers), body()[..SIZE / 2].to_vec()].concat());
            at.reset();
        } else {
            rest(at);
        }
    })
}

fn serve_part(mut at: Exchange, etag: &str, body: &[u8]) {
    let Some(first) = at.first() else { return at.respond("200 OK", "", body) };
    let headers =
        format!("Content-Range: bytes {first}-{}/{}\r\nETag: {etag}\r\n", SIZE - 1, body.len());
    at.respond("206 Partial Content", &headers, &body[first..]);
}

#[test]
fn a_download_goes_on_where_it_broke_off() {
    let server = breaking_off("\"one\"", |at| serve_part(at, "\"one\"", &body()));
    let (home, finished) = fetch(Image::at(&server.url).pinned(&body()));
    is_published(&home, &body());
    assert_eq!(server.requests(), 2, "{}", finished.log);
    let second = server.heads().pop().unwrap().to_ascii_lowercase();
    assert!(second.contains("if-range: \"one\""), "{second}");
    // At most what was under way is asked for again.
    let first: usize =
        second.split("range: bytes=").nth(1).unwrap().split('-').next().unwrap().parse().unwrap();
    assert!(first > 0 && first <= SIZE / 2, "{second}");
}

#[test]
fn a_rest_that_is_not_safe_to_take_is_not_asked_for() {
    let whole: Answer = |mut at| {
        assert!(at.first().is_none(), "{}", at.head);
        at.respond("200 OK", "", &body());
    };
    let server = breaking_off("W/\"weak\"", whole);
    let (home, _) = fetch(Image::at(&server.url).pinned(&body()));
    is_published(&home, &body());
    let server = breaking_off("\"strong\"", whole);
    let (home, _) = fetch(Image::at(&server.url));
    is_published(&home, &body());
    assert_eq!(server.requests(), 2);
}

#[test]
fn a_rest_that_does_not_fit_is_thrown_away() {
    let rows: [(&str, Answer); 5] = [
        // The file changed, and the server says so.
        ("another ETag", |at| match at.first() {
            Some(_) => serve_part(at, "\"two\"", &body()),
            None => serve_part(at, "\"two\"", &body()),
        }),
        ("200 to a Range request", |mut at| at.respond("200 OK", "ETag: \"two\"\r\n", &body())),
        ("416", |mut at| match at.first() {
            Some(_) => at.respond("416 Range Not Satisfiable", "", b""),
            None => at.respond("200 OK", "", &body()),
        }),
        ("another part", |mut at| match at.first() {
            Some(_) => at.respond(
                "206 Partial Content",
                "Content-Range: bytes 0-99/3145728\r\n",
                &body()[..100],
            ),
            None => at.respond("200 OK", "", &body()),
        }),
        // And when it doesn't say so, the digest does.
        ("other bytes under the same ETag", |at| match at.first() {
            Some(_) => serve_part(at, "\"one\"", &numbered(2, SIZE)),
            None => serve_part(at, "\"one\"", &body()),
        }),
    ];
    for (name, rest) in rows {
        let server = breaking_off("\"one\"", rest);
        let (home, finished) = fetch(Image::at(&server.url).pinned(&body()));
        assert!(
            matches!(finished.outcome, Some(super::agent::Outcome::Done(_))),
            "{name}: {finished:?}"
        );
        is_published(&home, &body());
    }
}

#[test]
fn a_complete_body_with_another_digest_is_final() {
    let server = Server::of(&body());
    let wanted = Sha256Digest::of(b"else").to_string();
    let (home, finished) = fetch(Image::at(&server.url).pinned(b"else"));
    let (kind, message) = finished.fault();
    assert_eq!((kind, finished.is_permanent()), ("DigestMismatch", true));
    let found = Sha256Digest::of(&body()).to_string();
    assert!(message.contains(&wanted) && message.contains(&found), "{message}");
    assert_eq!(server.requests(), 1);
    is_clean(&home);
}

#[test]
fn sizes_have_bounds() {
    let huge = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 1_u64 << 40);
    let server = Server::new(huge.into_bytes());
    let (home, finished) = fetch(Image::at(&server.url));
    assert!(finished.is_permanent() && finished.fault().1.contains("the most"), "{finished:?}");
    is_clean(&home);
    // Where the length isn't told before, it shows while it arrives.
    let server = Server::with(|mut at| {
        at.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        while at.stream.write_all(b"1000\r\n").is_ok() {
            at.send(&[vec![7; 4096], b"\r\n".to_vec()].concat());
        }
    });
    let home = self::home();
    let finished = Orders::new(home.path(), Image::at(&server.url).ensure()).at_most(1 << 20).run();
    assert_eq!(finished.fault().0, "ImageRejected");
    is_clean(&home);
}

/// Packs `content` with a tool of the host, as publishers do.
fn packed(tool: &[&str], content: &[u8]) -> Vec<u8> {
    let mut child = Command::new(tool[0])
        .args(&tool[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{} runs ({error}): make deps installs it", tool[0]));
    let (mut input, content) = (child.stdin.take().unwrap(), content.to_vec());
    let writer = std::thread::spawn(move || input.write_all(&content));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success());
    output.stdout
}

const PACKERS: [(&str, &[&str]); 4] = [
    ("/x.qcow2.xz", &["xz", "-0", "-T2", "--block-size=1MiB"]),
    ("/x.qcow2.gz", &["gzip", "-1"]),
    ("/x.qcow2.zst", &["zstd", "-q", "-1"]),
    ("/x.qcow2.ZST", &["zstd", "-q", "--ultra", "-22"]),
];

#[test]
fn compressed_images_are_unpacked_on_the_way() {
    for (path, tool) in PACKERS {
        let packed = packed(tool, &body());
        let server = Server::of(&packed);
        let image = Image::at(&server.at(path)).pinned(&packed);
        let home = home();
        let finished = Orders::new(home.path(), image.clone().ensure()).run();
        // The digest is that of the downloaded file, which is what publishers give.
        assert_eq!(finished.done(), Sha256Digest::of(&packed).to_string(), "{path}");
        is_published(&home, &body());
        // And the base is known again, hashed again, and found good.
        let verify = Work::Verify { entry: "a-b".into(), key: "c".into() };
        let again = Work::All(vec![image.ensure(), verify]);
        assert_eq!(Orders::new(home.path(), again).run().done(), finished.done());
        assert_eq!(server.requests(), 1);
    }
}

#[test]
fn several_streams_in_one_file_are_all_of_it() {
    let body = body();
    let (one, two) = body.split_at(SIZE / 3);
    for (path, tool) in PACKERS {
        let both = [packed(tool, one), packed(tool, two)].concat();
        let server = Server::of(&both);
        let (home, finished) = fetch(Image::at(&server.at(path)).pinned(&both));
        assert_eq!(finished.done(), Sha256Digest::of(&both).to_string(), "{path}");
        is_published(&home, &body);
    }
}

#[test]
fn compressed_data_that_is_broken_or_a_bomb_is_refused() {
    for (path, tool) in PACKERS {
        let whole = packed(tool, &body());
        let mut flipped = whole.clone();
        let middle = flipped.len() / 2;
        for byte in &mut flipped[middle..middle + 64] {
            *byte = !*byte;
        }
        let bomb = packed(tool, &vec![0; 60 << 20]);
        let short = whole[..whole.len() - 100].to_vec();
        let rows = [
            ("cut", &short, "no whole"),
            ("flipped", &flipped, "no whole"),
            ("bomb", &bomb, "times its size"),
        ];
        for (name, bytes, words) in rows {
            let server = Server::of(bytes);
            let (home, finished) = fetch(Image::at(&server.at(path)));
            let (kind, message) = finished.fault();
            assert_eq!(kind, "ImageRejected", "{path} {name}: {message}");
            assert!(message.contains(words), "{path} {name}: {message}");
            is_clean(&home);
        }
        // When a digest is configured, it is what tells first.
        let server = Server::of(&flipped);
        let (home, finished) = fetch(Image::at(&server.at(path)).pinned(&whole));
        assert_eq!(finished.fault().0, "DigestMismatch", "{path}");
        is_clean(&home);
        // And one that breaks off in transit is no broken file.
        let server = Server::with(move |mut at| {
            let answer = response("200 OK", "", &whole);
            let cut = if at.number == 0 { answer.len() / 2 } else { answer.len() };
            at.send(&answer[..cut]);
        });
        let (home, _) = fetch(Image::at(&server.at(path)));
        is_published(&home, &body());
    }
}

#[test]
fn a_listed_digest_is_found_by_the_file_name() {
    let good = format!(
        "{}  other.qcow2\n{} *x.qcow2\n",
        Sha256Digest::of(b"other"),
        Sha256Digest::of(&body())
    );
    let server = Server::with(move |mut at| match at.path().as_str() {
        "/SHA256SUMS" => at.respond("200 OK", "", good.as_bytes()),
        "/wrong" => {
            let wrong = format!("{}  x.qcow2\n", Sha256Digest::of(b"other"));
            at.respond("200 OK", "", wrong.as_bytes());
        }
        "/empty" => at.respond("200 OK", "", b"nothing here\n"),
        "/gone" => at.respond("404 Not Found", "", b""),
        _ => at.respond("200 OK", "", &body()),
    });
    let image = |list: &str| Image::at(&server.url).listed(&server.at(list));
    let (home, _) = fetch(image("/SHA256SUMS"));
    is_published(&home, &body());
    // Once it is there, nobody is asked again.
    let before = server.requests();
    Orders::new(home.path(), image("/gone").ensure()).run().done();
    assert_eq!(server.requests(), before);
    // A list of this host will do, unless it is none.
    let files = self::home();
    let path = files.path().join("SHA256SUMS");
    let listed = |name: &str| {
        let list = format!("file://{}", files.path().join(name).display());
        fetch(Image::at(&server.url).listed(&list))
    };
    std::fs::write(&path, format!("{}  x.qcow2\n", Sha256Digest::of(&body()))).unwrap();
    is_published(&listed("SHA256SUMS").0, &body());
    nix::unistd::mkfifo(&files.path().join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::fs::write(files.path().join("huge"), vec![b'\n'; (1 << 20) + 1]).unwrap();
    for (name, words) in [("fifo", "not a file"), ("gone", "No such file"), ("huge", "longer than")]
    {
        let (home, finished) = listed(name);
        let fault = finished.fault();
        assert!(fault.0 == "FetchFailed" && fault.1.contains(words), "{name}: {fault:?}");
        is_clean(&home);
    }
    let rows = [
        ("/wrong", "DigestMismatch", "is expected"),
        ("/empty", "FetchFailed", "no sha256 for \"x.qcow2\""),
        ("/gone", "FetchFailed", "404"),
    ];
    for (list, kind, words) in rows {
        let (home, finished) = fetch(image(list));
        let fault = finished.fault();
        assert!(fault.0 == kind && fault.1.contains(words), "{list}: {fault:?}");
        is_clean(&home);
    }
}

/// A mirror change is vouched for by the list, and a list that appears later is held
/// against what is there.
#[test]
fn a_listed_digest_vouches_for_a_base_that_is_there() {
    let server = Server::with(|mut at| match at.path().as_str() {
        "/wrong" => {
            let wrong = format!("{}  y.qcow2\n", Sha256Digest::of(b"other"));
            at.respond("200 OK", "", wrong.as_bytes());
        }
        "/SHA256SUMS" => {
            let digest = Sha256Digest::of(&body());
            at.respond("200 OK", "", format!("{digest}  x.qcow2\n{digest}  y.qcow2\n").as_bytes());
        }
        _ => at.respond("200 OK", "", &body()),
    });
    let home = home();
    let run = |image: Image| Orders::new(home.path(), image.ensure()).run();
    run(Image::at(&server.url)).done();
    run(Image::at(&server.url).listed(&server.at("/SHA256SUMS"))).done();
    let moved = Image::at(&server.at("/y.qcow2"));
    assert_eq!(run(moved.clone().listed(&server.at("/wrong"))).fault().0, "DigestMismatch");
    run(moved.clone().listed(&server.at("/SHA256SUMS"))).done();
    run(moved).done();
    let images = server.heads().iter().filter(|head| head.contains("qcow2")).count();
    assert_eq!(images, 1);
}

const SECRET: &str = "hunter2";

/// User name and password of the URL reach their server, no other one, and nobody
/// else: not the log, not the marker, not the message.
#[test]
fn credentials_go_to_their_server_alone() {
    let elsewhere = Server::of(&body());
    let location = format!("Location: {}\r\n", elsewhere.url.replace("127.0.0.1", "localhost"));
    let server = Server::with(move |mut at| match at.number {
        0 => at.respond("503 Service Unavailable", "", b""),
        _ => at.respond("302 Found", &location, b""),
    });
    let url = server.url.replace("http://", &format!("http://user:{SECRET}@")) + "?token=hunter2";
    let (home, finished) = fetch(Image::at(&url));
    is_published(&home, &body());
    assert!(
        server.heads().iter().all(|head| head.contains("authorization: Basic dXNlcjpodW50ZXIy"))
    );
    assert!(elsewhere.heads().iter().all(|head| !head.to_lowercase().contains("authorization")));
    let marker = std::fs::read_to_string(home.path().join(MARKER)).unwrap();
    assert!(finished.log.contains("503"), "{}", finished.log);
    for text in [&marker, &finished.log] {
        assert!(!text.contains(SECRET) && !text.contains("dXNlcjpodW50ZXIy"), "{text}");
    }
    let refused = Server::new(response("401 Unauthorized", "", b""));
    let (_, finished) = fetch(Image::at(&refused.url.replace("http://", "http://user:hunter2@")));
    assert!(!finished.fault().1.contains(SECRET) && !finished.log.contains(SECRET));
}

#[test]
fn the_proxy_environment_is_honoured() {
    let proxy = Server::of(&body());
    let home = home();
    let orders = Orders::new(home.path(), Image::at("http://images.invalid/x.qcow2").ensure());
    let address = proxy.at("");
    let finished = Process::spawn(&orders, &[("http_proxy", &address)]).finish();
    finished.done();
    assert!(proxy.heads()[0].starts_with("GET http://images.invalid/x.qcow2 HTTP/1.1"));
    is_published(&home, &body());
    // And so is the exception from it.
    let direct = Server::of(&body());
    let home = self::home();
    let orders = Orders::new(home.path(), Image::at(&direct.url).ensure());
    let environment = [("http_proxy", address.as_str()), ("no_proxy", "127.0.0.1")];
    Process::spawn(&orders, &environment).finish().done();
    assert_eq!((proxy.requests(), direct.requests()), (1, 1));
}

#[test]
fn files_of_this_host_are_images_too() {
    let files = home();
    let path = files.path().join("x.qcow2.gz");
    std::fs::write(&path, packed(&["gzip", "-1"], &body())).unwrap();
    let (home, _) = fetch(Image::at(&format!("file://{}", path.display())));
    is_published(&home, &body());
    nix::unistd::mkfifo(&files.path().join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    for (name, words) in [("gone", "No such file"), ("", "not a file"), ("fifo", "not a file")] {
        let (home, finished) =
            fetch(Image::at(&format!("file://{}/{name}", files.path().display())));
        let fault = finished.fault();
        assert!(fault.0 == "FetchFailed" && fault.1.contains(words), "{fault:?}");
        is_clean(&home);
    }
}
