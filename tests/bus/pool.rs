//! A host of libvirt's test driver whose pool is a real directory, and a web server for
//! images that a test can hold up.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};

use serde_json::{Value, json};

use crate::bench::Bench;

/// Bytes of the image.
pub const SIZE: usize = 4 << 20;

/// Serves one image. The second half of it waits until it is let go.
pub struct Server {
    pub url: String,
    gate: Arc<(Mutex<bool>, Condvar)>,
}

impl Server {
    /// `held`: whether the second half has to be let go.
    pub fn start(held: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/blank.raw", listener.local_addr().unwrap());
        let gate = Arc::new((Mutex::new(!held), Condvar::new()));
        let ours = gate.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let gate = ours.clone();
                std::thread::spawn(move || answer(stream, &gate));
            }
        });
        Self { url, gate }
    }

    pub fn let_go(&self) {
        *self.gate.0.lock().unwrap() = true;
        self.gate.1.notify_all();
    }
}

fn answer(mut stream: TcpStream, (open, opened): &(Mutex<bool>, Condvar)) {
    let mut request = [0; 4096];
    let got = stream.read(&mut request).unwrap_or(0);
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\nETag: \"one\"\r\nConnection: close\r\n\r\n"
    );
    let body = vec![7_u8; SIZE];
    // The client may have gone, which is its right.
    let _ = stream.write_all(head.as_bytes());
    if request[..got].starts_with(b"HEAD") {
        return;
    }
    let _ = stream.write_all(&body[..SIZE / 2]);
    let waited = opened.wait_while(open.lock().unwrap(), |open| !*open).unwrap();
    drop(waited);
    let _ = stream.write_all(&body[SIZE / 2..]);
}

/// A bench whose one entry has a pool that is a directory, and offers what `server` has.
pub fn bench(server: &Server) -> (Bench, PathBuf) {
    let mut bench = Bench::new();
    let pool = bench.home.path().join("pool");
    std::fs::create_dir(&pool).unwrap();
    let node = format!(
        "<node><network><name>default</name><bridge name='virbr0'/><ip address='10.77.0.1' \
         netmask='255.255.0.0'><dhcp><range start='10.77.0.2' end='10.77.255.254'/></dhcp></ip>\
         </network><pool type='dir'><name>default</name><target><path>{}</path></target></pool>\
         </node>",
        pool.display()
    );
    let file = bench.home.path().join("node.xml");
    std::fs::write(&file, node).unwrap();
    bench.configure(&config(&server.url, &file.display().to_string()));
    bench.start();
    (bench, pool)
}

fn config(url: &str, node: &str) -> Value {
    json!({
        "images": { "blank": { "url": url, "format": "raw" } },
        "providers": { "home": { "uri": format!("test://{node}") } },
        "health": { "url": "http://127.0.0.1:9/generate_204" }
    })
}
