//! The way to libvirt on another host: ssh, told by us alone what to trust.
//!
//! libvirt's own ssh transport silently ignores the host keys that a URI names, and
//! offers every key that it finds. So it is given a Unix socket of ours instead, and
//! whoever connects there is ssh: the socket's other end becomes its standard input
//! and output, and no byte passes through this process.

use std::fs::{DirBuilder, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::config::SshSettings;
use crate::model::{Fault, FaultKind};
use crate::provider::Places;

/// From the first packet to the end of the key exchange.
const CONNECT_TIMEOUT_SECONDS: u32 = 10;
/// From the first packet to libvirt's answer: behind a good sshd can be a bad libvirtd.
const OPEN_LIMIT: Duration = Duration::from_secs(30);
/// How often ssh is looked at.
const LOOK: u16 = 200;
/// The most that is kept of what ssh says.
const MOST_WORDS: usize = 4096;
/// How long an end of ssh that is near is waited for.
const END: Duration = Duration::from_secs(2);
/// The exit status of ssh for its own failures, by its manual.
const SSH_FAILED: i32 = 255;

/// How to get to a host.
pub(super) struct Route {
    ssh: SshSettings,
    places: Places,
}

/// A connection through ssh; dropped, ssh is ended.
pub(super) struct Tunnel {
    home: PathBuf,
    ssh: Arc<Ssh>,
}

/// ssh, from before its start to after its end.
#[derive(Default)]
struct Ssh {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    child: Option<Child>,
    /// Nobody wants it any more.
    dropped: bool,
    /// libvirt has answered through it.
    settled: bool,
    /// How it ended, and what it had said.
    end: Option<End>,
}

#[derive(Clone)]
struct End {
    status: Option<ExitStatus>,
    words: String,
}

impl Route {
    pub(super) fn new(ssh: &SshSettings, places: &Places) -> Self {
        Self { ssh: ssh.clone(), places: places.clone() }
    }

    /// Makes ready for one connection by libvirt to [`Tunnel::uri`].
    ///
    /// # Errors
    /// `ProviderUnavailable` without the key, or where the socket can't be made.
    pub(super) fn open(&self) -> Result<Tunnel, Fault> {
        let key = self.key()?;
        let home = self.places.runtime.join(format!("ssh-{}", uuid::Uuid::new_v4().simple()));
        let failed = |error: io::Error| {
            let text = format!("{} can't be made for ssh: {error}", home.display());
            Fault::new(FaultKind::ProviderUnavailable, text)
        };
        DirBuilder::new().recursive(true).mode(0o700).create(&home).map_err(failed)?;
        // From here on it is removed when it is dropped.
        let tunnel = Tunnel { home: home.clone(), ssh: Arc::default() };
        let command = self.command(&key, &tunnel.known_hosts());
        let begun = write_private(&tunnel.known_hosts(), self.ssh.known_hosts.as_bytes())
            .and_then(|()| UnixListener::bind(tunnel.socket()))
            .and_then(|listener| {
                let ssh = tunnel.ssh.clone();
                let serve = move || ssh.serve(&listener, command);
                std::thread::Builder::new().name("ssh".into()).spawn(serve)
            });
        begun.map_err(failed)?;
        Ok(tunnel)
    }

    /// Where the private key is.
    fn key(&self) -> Result<PathBuf, Fault> {
        let name = &self.ssh.key_credential;
        let missing = |why: String| {
            let text = format!(
                "the credential {name:?}, which holds the private key for {}, {why}: give it to \
                 the service with LoadCredential={name}:FILE (`systemctl edit proxyd`) and restart \
                 it",
                self.shown()
            );
            Fault::new(FaultKind::ProviderUnavailable, text)
        };
        let Some(directory) = &self.places.credentials else {
            return Err(missing("is not there: systemd gave this process no credentials".into()));
        };
        let path = directory.join(name);
        File::open(&path).map_err(|error| missing(format!("can't be read: {error}")))?;
        Ok(path)
    }

    /// Host and user as an operator writes them.
    pub(super) fn shown(&self) -> String {
        let destination = &self.ssh.destination;
        let user = destination.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
        let port = destination.port.map(|port| format!(" port {port}")).unwrap_or_default();
        format!("{user}{}{port}", destination.host)
    }

    /// ssh as it is started: whatever a configuration file or an agent would add is off.
    fn command(&self, key: &Path, known_hosts: &Path) -> Command {
        let destination = &self.ssh.destination;
        let mut command = Command::new("ssh");
        command.env_clear().env("LC_ALL", "C");
        command.envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
        command.args(["-F", "none", "-T", "-x", "-a", "-e", "none", "-i"]).arg(key);
        let options = [
            "BatchMode=yes".to_owned(),
            "ClearAllForwardings=yes".to_owned(),
            "ControlMaster=no".to_owned(),
            "ControlPath=none".to_owned(),
            "GlobalKnownHostsFile=none".to_owned(),
            "IdentitiesOnly=yes".to_owned(),
            "IdentityAgent=none".to_owned(),
            "KnownHostsCommand=none".to_owned(),
            "LogLevel=ERROR".to_owned(),
            "PermitLocalCommand=no".to_owned(),
            "PreferredAuthentications=publickey".to_owned(),
            "StrictHostKeyChecking=yes".to_owned(),
            "UpdateHostKeys=no".to_owned(),
            "VerifyHostKeyDNS=no".to_owned(),
            format!("ConnectTimeout={CONNECT_TIMEOUT_SECONDS}"),
            "ServerAliveInterval=5".to_owned(),
            "ServerAliveCountMax=3".to_owned(),
            // In quotes: the value is a list, and a path may have a space.
            format!("UserKnownHostsFile=\"{}\"", known_hosts.display()),
        ];
        for option in options {
            command.arg("-o").arg(option);
        }
        if let Some(user) = &destination.user {
            command.args(["-l", user]);
        }
        if let Some(port) = destination.port {
            command.arg("-p").arg(port.to_string());
        }
        command.arg("--").arg(&destination.host).arg(remote_command());
        command
    }

    /// Names a connection that could not be had, or broke, with what ssh says of it.
    pub(super) fn advice(&self, tunnel: &Tunnel) -> String {
        let (host, key) = (self.shown(), &self.ssh.key_credential);
        let Some(End { status, words }) = tunnel.ssh.end() else {
            return format!(
                "ssh to {host} does not say why: check the network to it, and that libvirtd runs there"
            );
        };
        let said = if words.is_empty() { String::new() } else { format!(" ({words})") };
        match status.and_then(|status| status.code()) {
            Some(SSH_FAILED) => format!(
                "ssh to {host} failed{said}: check that the host is up, that its key is in \
                 ssh.knownHosts, and that it lets the key of the credential {key:?} in"
            ),
            Some(0) | None => format!("ssh to {host} has ended{said}: check the network to it"),
            Some(_) => format!(
                "ssh got to {host}, and there is no way to libvirt from there{said}: check that \
                 libvirtd runs, that this user is in the group libvirt, and that virt-ssh-helper \
                 (or nc) is installed there"
            ),
        }
    }
}

/// What runs on the other host. Its login shell may be any. virt-ssh-helper finds the
/// socket of a libvirtd as of the daemons that took its place; where there is none, nc
/// takes the one that all versions have.
fn remote_command() -> String {
    let socket = "/var/run/libvirt/libvirt-sock";
    format!(
        "sh -c 'if command -v virt-ssh-helper >/dev/null 2>&1; then exec virt-ssh-helper \
         qemu:///system; fi; if nc -q 2>&1 | grep -q \"requires an argument\"; then exec nc -q 0 \
         -U {socket}; fi; exec nc -U {socket}'"
    )
}

fn write_private(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut options = File::options();
    let mut file = options.write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(content)?;
    file.write_all(b"\n")
}

impl Tunnel {
    fn socket(&self) -> PathBuf {
        self.home.join("socket")
    }

    fn known_hosts(&self) -> PathBuf {
        self.home.join("known_hosts")
    }

    /// What libvirt is to open, once.
    pub(super) fn uri(&self) -> String {
        let socket = self.socket();
        let escaped = percent_encoding::utf8_percent_encode(
            socket.to_str().unwrap_or_default(),
            percent_encoding::NON_ALPHANUMERIC,
        );
        format!("qemu+unix:///system?socket={escaped}")
    }

    /// libvirt has answered: from now on its keepalive watches.
    pub(super) fn settle(&self) {
        self.ssh.lock().settled = true;
        self.clear();
    }

    fn clear(&self) {
        // A directory that stays is empty but for what only root and we can read.
        let _ = std::fs::remove_dir_all(&self.home);
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.ssh.abandon();
        self.clear();
    }
}

impl Ssh {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends it, or sees to it that it never begins.
    fn abandon(&self) {
        let mut state = self.lock();
        state.dropped = true;
        if let Some(child) = &mut state.child {
            // Whoever waits for it reaps it.
            let _ = child.kill();
        }
    }

    /// How it ended, when it has or does within a moment.
    fn end(&self) -> Option<End> {
        let state = self.lock();
        let waited = self.ended.wait_timeout_while(state, END, |state| state.end.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.end.clone()
    }

    /// Waits for libvirt, then runs ssh for it to its end.
    fn serve(&self, listener: &UnixListener, command: Command) {
        let end =
            self.accept(listener).and_then(|libvirt| self.start(command, libvirt)).map_or_else(
                |error| End { status: None, words: error.to_string() },
                |words| self.attend(words),
            );
        self.lock().end = Some(end);
        self.ended.notify_all();
    }

    fn accept(&self, listener: &UnixListener) -> io::Result<UnixStream> {
        let deadline = Instant::now() + OPEN_LIMIT;
        while !readable(listener.as_fd()) {
            if self.lock().dropped || Instant::now() > deadline {
                return Err(io::Error::other("libvirt did not come for it"));
            }
        }
        Ok(listener.accept()?.0)
    }

    /// Starts ssh over `libvirt`, and gives what it says.
    fn start(
        &self,
        mut command: Command,
        libvirt: UnixStream,
    ) -> io::Result<std::process::ChildStderr> {
        let input: OwnedFd = libvirt.into();
        let output = input.try_clone()?;
        let mut state = self.lock();
        if state.dropped {
            return Err(io::Error::other("it is not wanted any more"));
        }
        let started = command.stdin(input).stdout(output).stderr(Stdio::piped()).spawn();
        // The command holds the socket until it is dropped: ssh alone shall.
        drop(command);
        let mut child = started
            .map_err(|error| io::Error::other(format!("the program ssh can't be run: {error}")))?;
        let words = child.stderr.take().ok_or_else(|| io::Error::other("ssh says nothing"))?;
        state.child = Some(child);
        Ok(words)
    }

    /// Listens to ssh until it ends, and ends it when libvirt has no answer in time.
    fn attend(&self, mut said: std::process::ChildStderr) -> End {
        let deadline = Instant::now() + OPEN_LIMIT;
        let (mut words, mut buffer) = (Vec::new(), [0; 512]);
        loop {
            if readable(said.as_fd()) {
                match said.read(&mut buffer) {
                    Ok(0) | Err(_) => break,
                    Ok(got) if words.len() < MOST_WORDS => words.extend_from_slice(&buffer[..got]),
                    Ok(_) => {}
                }
            } else if !self.lock().settled && Instant::now() > deadline {
                self.abandon();
            }
        }
        let child = self.lock().child.take();
        let status = child.and_then(|mut child| child.wait().ok());
        End { status, words: shown_words(&words) }
    }
}

fn readable(descriptor: std::os::fd::BorrowedFd<'_>) -> bool {
    let mut watched = [PollFd::new(descriptor, PollFlags::POLLIN)];
    poll(&mut watched, PollTimeout::from(LOOK)).is_ok_and(|ready| ready > 0)
}

/// What ssh said, on one line and without its ornaments.
fn shown_words(words: &[u8]) -> String {
    let text = String::from_utf8_lossy(words);
    let plain = |line: &&str| !line.is_empty() && !line.starts_with("@@");
    let lines = text.lines().map(|line| line.trim_matches(['@', ' ', '\r', '.'])).filter(plain);
    let joined = lines.collect::<Vec<_>>().join("; ");
    joined.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SshDestination;

    fn route(home: &Path, credentials: Option<PathBuf>) -> Route {
        let destination = SshDestination {
            host: "attic.example".into(),
            user: Some("operator".into()),
            port: Some(2222),
        };
        let ssh = SshSettings {
            destination,
            key_credential: "ssh-attic".into(),
            known_hosts: "attic.example ssh-ed25519 AAAA".into(),
        };
        Route::new(&ssh, &Places { runtime: home.into(), credentials })
    }

    #[test]
    fn nothing_but_what_is_configured_is_trusted_or_offered() {
        let home = tempfile::tempdir().unwrap();
        let command =
            route(home.path(), None).command(Path::new("/c/ssh-attic"), Path::new("/k h"));
        let arguments: Vec<_> =
            command.get_args().map(|argument| argument.to_str().unwrap()).collect();
        let all = arguments.join(" ");
        for part in [
            "-F none",
            "-i /c/ssh-attic",
            "-o StrictHostKeyChecking=yes",
            "-o IdentitiesOnly=yes",
            "-o IdentityAgent=none",
            "-o BatchMode=yes",
            "-o GlobalKnownHostsFile=none",
            "-o UserKnownHostsFile=\"/k h\"",
            "-l operator -p 2222 -- attic.example",
        ] {
            assert!(all.contains(part), "no {part} in {all}");
        }
        let environment: Vec<_> = command.get_envs().map(|(name, _)| name).collect();
        assert_eq!(environment, ["LC_ALL", "PATH"]);
    }

    #[test]
    fn without_its_key_the_credential_is_named_and_nothing_is_left() {
        let home = tempfile::tempdir().unwrap();
        let credentials = home.path().join("credentials");
        for credentials in [None, Some(credentials)] {
            let fault = route(home.path(), credentials).open().err().unwrap();
            assert_eq!(fault.kind, FaultKind::ProviderUnavailable);
            for part in ["\"ssh-attic\"", "LoadCredential=ssh-attic:", "operator@attic.example"] {
                assert!(fault.message.contains(part), "{fault}");
            }
        }
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
    }

    /// The known hosts are for us alone while they are there.
    #[test]
    fn a_tunnel_that_nobody_uses_leaves_nothing() {
        use std::os::unix::fs::PermissionsExt as _;
        let home = tempfile::tempdir().unwrap();
        let (runtime, credentials) = (home.path().join("run"), home.path().join("credentials"));
        std::fs::create_dir(&credentials).unwrap();
        std::fs::write(credentials.join("ssh-attic"), "key").unwrap();
        let tunnel = route(&runtime, Some(credentials)).open().unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&tunnel.home), mode(&tunnel.known_hosts())), (0o700, 0o600));
        assert!(tunnel.uri().starts_with("qemu+unix:///system?socket=%2F"));
        drop(tunnel);
        assert_eq!(std::fs::read_dir(&runtime).unwrap().count(), 0);
    }

    #[test]
    fn what_ssh_says_is_shown_on_one_line_and_without_its_ornaments() {
        let said = b"@@@@@@@@@\r\n@    WARNING: CHANGED!    @\r\n@@@@@@\r\nIt is \x1b[1mnasty.\r\n\r\nNo.\r\n";
        assert_eq!(shown_words(said), "WARNING: CHANGED!; It is  [1mnasty; No");
    }

    /// The login shell there may be any: all of it is one word to sh.
    #[test]
    fn the_remote_command_is_one_word_to_sh() {
        let command = remote_command();
        assert_eq!(command.matches('\'').count(), 2, "{command}");
        let checked = Command::new("sh").args(["-n", "-c", &command]).status().unwrap();
        assert!(checked.success(), "{command}");
    }
}
