//! What a person sees: proxyctl on a terminal of 80 columns, recorded by script(1) and
//! read off the screen that a terminal would show.

use std::num::NonZero;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::json;

use crate::bench::Bench;
use crate::config;
use crate::pool::{self, Server};

const COLUMNS: NonZero<u16> = NonZero::new(80).unwrap();
const ROWS: NonZero<u16> = NonZero::new(40).unwrap();

/// A command on a terminal; it ends with this.
struct Terminal {
    recording: PathBuf,
    script: Child,
}

impl Terminal {
    fn run(bench: &Bench, name: &str, arguments: &str) -> Self {
        Self::of_width(COLUMNS, bench, name, arguments)
    }

    fn of_width(columns: NonZero<u16>, bench: &Bench, name: &str, arguments: &str) -> Self {
        let recording = bench.home.path().join(name);
        let command = format!(
            "stty cols {columns} rows {ROWS}; {} {arguments}",
            env!("CARGO_BIN_EXE_proxyctl")
        );
        let script = Command::new("script")
            .args(["--quiet", "--return", "--flush", "--command", &command])
            .arg(&recording)
            .env("DBUS_SYSTEM_BUS_ADDRESS", &bench.address)
            .env("TERM", "xterm-256color")
            .env_remove("NO_COLOR")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("script (Debian: package bsdutils)");
        Self { recording, script }
    }

    fn recorded(&self) -> Vec<u8> {
        let bytes = std::fs::read(&self.recording).unwrap_or_default();
        // The first line and the last are script's own.
        let begin = bytes.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        bytes[begin..].to_vec()
    }

    /// The screen as it is now.
    fn screen(&self) -> String {
        let mut parser = vt100::Parser::new(ROWS, COLUMNS, 0);
        parser.process(&self.recorded());
        // Row by row: a terminal that folds a line shows two.
        let rows: Vec<_> = parser.screen().rows(0, COLUMNS.get()).collect();
        let screen = rows.iter().map(|row| row.trim_end()).collect::<Vec<_>>().join("\n");
        screen.split("\nScript done").next().unwrap_or_default().trim().to_owned()
    }

    /// The screen at the end, and whether the command ended well.
    fn end(mut self) -> (String, Vec<u8>, bool) {
        let status = self.script.wait().unwrap();
        (self.screen(), self.recorded(), status.success())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}

fn shown(bench: &Bench, arguments: &str) -> (String, bool) {
    let (screen, recorded, _) = Terminal::run(bench, "recording", arguments).end();
    (screen, String::from_utf8_lossy(&recorded).contains("\x1b["))
}

#[test]
fn a_fetch_shows_how_far_it_has_come_and_lists_fit_the_terminal() {
    let server = Server::start(true);
    let (bench, _) = pool::bench(&server);
    let fetch = Terminal::run(&bench, "fetch", "image fetch home blank");
    let halfway = || {
        let screen = fetch.screen();
        screen.contains("2.00 MiB/4.00 MiB") && screen.contains("/s") && screen.contains("left")
    };
    bench.wait("half of the bar", halfway);
    let (listed, _) = shown(&bench, "image list");
    assert!(listed.contains("fetching"), "{listed}");
    let (jobs, _) = shown(&bench, "job list");
    assert!(jobs.contains("running") && jobs.contains("2048 KiB"), "{jobs}");
    server.let_go();
    let (screen, _, well) = fetch.end();
    assert!(well && screen.contains("base-home-blank.raw is in the pool, sha256"), "{screen}");
    assert!(!screen.contains("MiB/s"), "the bar is gone at the end: {screen}");

    bench.wait("the image to be ready", || shown(&bench, "image list").0.contains("ready"));
    let (listed, coloured) = shown(&bench, "image list");
    assert!(coloured, "no colours on a terminal");
    let rows: Vec<_> = listed.lines().collect();
    assert!(rows[0].starts_with("PROVIDER") && rows[0].contains("USED BY"), "{listed}");
    assert!(listed.contains("4.00 MiB") && listed.contains("1 images listed."), "{listed}");
    // Elsewhere there are neither colours nor bounds, and a row is a line.
    let plain = bench.proxyctl(&["image", "list"]).stdout;
    let plain = String::from_utf8(plain).unwrap();
    assert!(!plain.contains('\x1b') && plain.lines().count() == 2, "{plain}");
}

#[test]
fn a_long_row_is_folded_and_never_cut() {
    let long = "z".repeat(63);
    let mut settings = config();
    settings["providers"] = json!({ (long.clone()): settings["providers"]["home"] });
    let bench = Bench::started(&settings);
    let name = "q".repeat(63);
    bench.create(&name, "1 Image s debian-13").unwrap();
    let (screen, _) = shown(&bench, "list");
    let letters = |of: char| screen.chars().filter(|letter| *letter == of).count();
    assert_eq!((letters('q'), letters('z')), (63, 63), "{screen}");
    assert!(
        screen.lines().all(|line| line.chars().count() <= usize::from(COLUMNS.get())),
        "{screen}"
    );
    // With fewer columns even what is never folded else is.
    let narrow = NonZero::new(40).unwrap();
    let (_, recorded, _) = Terminal::of_width(narrow, &bench, "narrow", "list").end();
    let recorded = String::from_utf8_lossy(&recorded).into_owned();
    let table = recorded.split("\nScript done").next().unwrap();
    let mut parser = vt100::Parser::new(ROWS, COLUMNS, 0);
    parser.process(table.as_bytes());
    let widest = parser.screen().rows(0, COLUMNS.get()).map(|row| row.trim_end().len()).max();
    assert!(widest <= Some(40), "{table}");
}

#[test]
fn a_creation_that_is_waited_for_shows_its_steps_and_its_evidence() {
    let server = Server::start(true);
    let (bench, _) = pool::bench(&server);
    let create = Terminal::run(&bench, "create", "create web --image blank --wait");
    bench.wait("the image's step", || create.screen().contains("FetchingImage"));
    bench.wait("its progress", || create.screen().contains("2048 KiB of 4096 KiB"));
    server.let_go();
    let (screen, _, well) = create.end();
    assert!(well, "{screen}");
    for step in ["Provisioning", "FetchingImage", "Ready"] {
        assert!(screen.contains(step), "{step} is not shown: {screen}");
    }
    assert!(screen.lines().last().unwrap().starts_with("http://10.77."), "{screen}");
    let (listed, _) = shown(&bench, "list");
    assert!(listed.contains("web") && listed.contains("Ready"), "{listed}");

    let create = "create bad --image blank --disk 1 --user-data=/dev/null --wait --wait-timeout=1";
    let (screen, _, _) = Terminal::run(&bench, "slow", create).end();
    // The test driver is quick: either it is there, or it is told that it isn't yet.
    assert!(screen.contains("http://10.77.") || screen.contains("is not there after"), "{screen}");

    let wrong = format!("create lost --image {} --image-format qcow2 --wait", server.url);
    let (screen, recorded, well) = Terminal::run(&bench, "lost", &wrong).end();
    assert!(!well && screen.contains("lost failed (ImageRejected)"), "{screen}");
    // The evidence is longer than the screen.
    assert!(String::from_utf8_lossy(&recorded).contains("\"proxy\": \"lost\""), "{screen}");
}

#[test]
fn the_monitor_tells_what_happens() {
    let server = Server::start(false);
    let (bench, _) = pool::bench(&server);
    let monitor = Terminal::run(&bench, "monitor", "monitor");
    // It tells that it listens by what it hears.
    bench.wait("the monitor to hear", || {
        bench.call("Reload").unwrap();
        let job = bench.job("FetchImage ss home blank");
        bench.wait("the job to end", || {
            let state = format!("get-property org.proxyd1 {job} org.proxyd1.Job State");
            String::from_utf8_lossy(&bench.busctl(&state).stdout).contains("done")
        });
        monitor.screen().contains("done")
    });
    bench.create("web", "1 Image s blank").unwrap();
    bench.wait("the Proxy to be told of", || {
        let screen = monitor.screen();
        screen.contains("proxy web: new") && screen.contains("proxy web: phase Ready")
    });
    let (screen, json) = (monitor.screen(), Terminal::run(&bench, "json", "--json monitor"));
    assert!(screen.lines().all(|line| !line.contains("conditions")), "{screen}");
    bench.wait("lines of JSON", || {
        bench.job("VerifyImage ss home blank");
        let recorded = String::from_utf8_lossy(&json.recorded()).into_owned();
        let lines = recorded.lines().filter_map(|line| serde_json::from_str(line).ok());
        lines.into_iter().any(|line: serde_json::Value| line["signal"] == "JobNew")
    });
}
