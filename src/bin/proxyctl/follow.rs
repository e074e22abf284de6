//! Waiting for what goes on in the daemon, and showing how far it has come. What is
//! shown goes to standard error: standard output is for results.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::Form;
use crate::arguments::{Until, Wait};
use crate::client::Object;
use crate::failure::Failure;
use crate::output::{printable, write, write_json};
use crate::value::{Properties, flag, number, text};

/// How often is looked.
const INTERVAL: Duration = Duration::from_millis(250);
/// How long the daemon may be away, as when it is restarted.
const AWAY: Duration = Duration::from_secs(30);

/// Waits for a Proxy as `wait` says, and shows the steps on its way.
pub(crate) async fn proxy(proxy: &Object<'_>, wait: &Wait, form: Form) -> Result<(), Failure> {
    let Some(until) = wait.until else { return Ok(()) };
    let mut steps = Steps::new();
    let began = Instant::now();
    loop {
        let of = patiently(proxy).await?;
        steps.show(&of);
        if is_there(&of, until) {
            steps.end();
            return if form == Form::Json { write_json(&of) } else { told(&of) };
        }
        if flag(&of, "permanent") || text(&of, "phase") == "Failed" {
            steps.end();
            return Err(failed(proxy, &of).await);
        }
        if wait.seconds > 0 && began.elapsed() >= Duration::from_secs(wait.seconds) {
            steps.end();
            let name = text(&of, "name");
            let message = format!(
                "{name} is not there after {} s: {}; it goes on by itself, and `proxyctl evidence \
                 {name}` tells more",
                wait.seconds,
                text(&of, "message")
            );
            return Err(Failure::timeout(message));
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

fn is_there(of: &Properties, until: Until) -> bool {
    let seen = number(of, "observedGeneration") >= number(of, "generation");
    let ready = seen && text(of, "phase") == "Ready";
    ready && (until == Until::Ready || flag(of, "healthy"))
}

fn told(of: &Properties) -> Result<(), Failure> {
    write(format!("{}\n", text(of, "endpoint")).as_bytes())
}

/// The properties, once the daemon is there if it is away for a moment.
async fn patiently(object: &Object<'_>) -> Result<Properties, Failure> {
    let began = Instant::now();
    loop {
        match object.properties().await {
            Err(failure) if failure.is_unavailable() && began.elapsed() < AWAY => {
                tokio::time::sleep(INTERVAL).await;
            }
            answer => return answer,
        }
    }
}

/// What a Proxy that failed has to say for itself.
async fn failed(proxy: &Object<'_>, of: &Properties) -> Failure {
    match proxy.call::<String>("Evidence", &()).await {
        // As JSON it has no control characters.
        Ok(evidence) => eprintln!("{evidence}"),
        Err(failure) => eprintln!("proxyctl: no evidence: {failure}"),
    }
    let (name, reason, message) = (text(of, "name"), text(of, "reason"), text(of, "message"));
    Failure::named(
        &format!("org.proxyd1.Error.{reason}"),
        format!("{name} failed ({reason}): {message}"),
    )
}

/// The steps of a Proxy: on a terminal the present one moves, elsewhere each is a line.
struct Steps {
    bar: Option<ProgressBar>,
    began: Instant,
    last: Option<(String, String)>,
    line: String,
}

impl Steps {
    fn new() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        Self { bar, began: Instant::now(), last: None, line: String::new() }
    }

    fn show(&mut self, of: &Properties) {
        let step = (text(of, "phase").to_owned(), text(of, "reason").to_owned());
        let seconds = self.began.elapsed().as_secs();
        let message = printable(text(of, "message"));
        let line = format!("[{seconds:>3} s] {:<12} {:<16} {message}", step.0, step.1);
        let new = self.last.as_ref() != Some(&step);
        match &self.bar {
            Some(bar) => {
                if new && self.last.is_some() {
                    bar.println(&self.line);
                }
                bar.set_message(line.clone());
            }
            None if new => eprintln!("{line}"),
            None => {}
        }
        (self.last, self.line) = (Some(step), line);
    }

    fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.println(&self.line);
            bar.finish_and_clear();
        }
    }
}

/// Waits for a job, and shows how far it has come.
pub(crate) async fn job(job: &Object<'_>, form: Form) -> Result<(), Failure> {
    let bar = if std::io::stderr().is_terminal() { bar() } else { ProgressBar::hidden() };
    loop {
        let of = job.properties().await?;
        show(&bar, &of);
        match text(&of, "state") {
            "running" => tokio::time::sleep(INTERVAL).await,
            state => {
                bar.finish_and_clear();
                if form == Form::Json {
                    write_json(&of)?;
                }
                let message = text(&of, "message").to_owned();
                return match (state, form) {
                    ("done", Form::Json) => Ok(()),
                    ("done", Form::Text) => write(format!("{message}\n").as_bytes()),
                    _ => Err(Failure::named(text(&of, "error"), message)),
                };
            }
        }
    }
}

fn show(bar: &ProgressBar, of: &Properties) {
    let (done, total) = (number(of, "bytesDone"), number(of, "bytesTotal"));
    let template = match total {
        0 => "{spinner} {msg}",
        _ => "{wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta} left",
    };
    // The templates are fixed, and these two are sound.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_length(total);
    bar.set_position(done);
    bar.set_message(printable(text(of, "message")));
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}
