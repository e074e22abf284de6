//! An HTTP server that does whatever a test wants, on threads of its own.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A request, and the connection to answer it on.
pub struct Exchange {
    /// Which one it is, from 0.
    pub number: usize,
    /// Request line and headers.
    pub head: String,
    pub stream: TcpStream,
}

impl Exchange {
    /// Sends bytes as they are; the client may have gone.
    pub fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Answers as one should.
    pub fn respond(&mut self, status: &str, headers: &str, body: &[u8]) {
        let answer = response(status, headers, body);
        self.send(&answer);
    }

    pub fn header(&self, name: &str) -> Option<String> {
        let lines = self.head.lines().filter_map(|line| line.split_once(':'));
        let mut found = lines.filter(|(key, _)| key.eq_ignore_ascii_case(name));
        found.next().map(|(_, value)| value.trim().to_owned())
    }

    /// The first byte that is asked for.
    pub fn first(&self) -> Option<usize> {
        self.header("range")?.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
    }

    pub fn path(&self) -> String {
        self.head.split(' ').nth(1).unwrap_or_default().to_owned()
    }

    /// Ends the connection with a reset.
    pub fn reset(self) {
        let linger = nix::libc::linger { l_onoff: 1, l_linger: 0 };
        nix::sys::socket::setsockopt(&self.stream, nix::sys::socket::sockopt::Linger, &linger)
            .unwrap();
    }
}

pub struct Server {
    /// Of `/x.qcow2` there.
    pub url: String,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// A server that hands every request to `answer`, each on a thread.
    pub fn with(answer: impl Fn(Exchange) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/x.qcow2", listener.local_addr().unwrap());
        let heads = Arc::new(Mutex::new(Vec::new()));
        let (log, answer) = (heads.clone(), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (log, answer) = (log.clone(), answer.clone());
                std::thread::spawn(move || {
                    let Some(head) = read_head(&stream) else { return };
                    let number = {
                        let mut log = log.lock().unwrap();
                        log.push(head.clone());
                        log.len() - 1
                    };
                    answer(Exchange { number, head, stream });
                });
            }
        });
        Self { url, heads }
    }

    /// A server that answers every request with the same bytes.
    pub fn new(answer: Vec<u8>) -> Self {
        Self::with(move |mut exchange| exchange.send(&answer))
    }

    /// Serves `body` as it should be.
    pub fn of(body: &[u8]) -> Self {
        Self::new(response("200 OK", "", body))
    }

    /// Another path there.
    pub fn at(&self, path: &str) -> String {
        self.url.replace("/x.qcow2", path)
    }

    pub fn requests(&self) -> usize {
        self.heads.lock().unwrap().len()
    }

    /// The heads of all requests.
    pub fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

fn read_head(mut stream: &TcpStream) -> Option<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        head.push(byte[0]);
    }
    String::from_utf8(head).ok()
}

pub fn response(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n{headers}\r\n"
    );
    [head.as_bytes(), body].concat()
}
