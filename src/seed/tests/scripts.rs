//! The scripts that run in guests, under the shells that distributions have, with a
//! path that holds nothing but stand-ins for what they would change, and the real
//! tools that they use.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::super::script;

/// Tools that may do in the test what they do in a guest.
const TOOLS: [&str; 6] = ["cat", "cp", "grep", "sed", "tail", "env"];

/// A guest of some distribution, as far as a script sees it.
struct Guest {
    home: tempfile::TempDir,
    shell: &'static [&'static str],
}

impl Guest {
    /// A guest whose package manager, agent and squid are what `stubs` says: name and
    /// body of a shell script. Nothing else is there but a network.
    fn new(shell: &'static [&'static str], stubs: &[(&str, &str)]) -> Self {
        let guest = Self { home: tempfile::tempdir().unwrap(), shell };
        for directory in ["bin", "squid"] {
            std::fs::create_dir(guest.path(directory)).unwrap();
        }
        for tool in TOOLS {
            std::os::unix::fs::symlink(tool_path(tool), guest.path("bin").join(tool)).unwrap();
        }
        std::fs::write(guest.path("uptime"), "100.00 50.00\n").unwrap();
        // Time passes when somebody sleeps, and at no other time.
        guest.stub("sleep", "read -r now _ <$H/uptime; echo $((${now%%.*} + $1)).00 0 >$H/uptime");
        guest.stub("timeout", "shift; \"$@\"");
        guest.stub("pidof", "test -e $H/agent-runs");
        guest.stub("ip", "case $* in *default*) echo default via 192.0.2.1 ;; esac");
        for (name, body) in stubs {
            guest.stub(name, body);
        }
        guest
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn stub(&self, name: &str, body: &str) {
        let home = self.home.path().display();
        let note = if matches!(name, "sleep" | "timeout" | "pidof" | "ip") { ":" } else { "echo" };
        let script = format!("#!/bin/sh\nH={home}\n{note} \"{name} $*\" >>$H/calls\n{body}\n");
        let path = self.path("bin").join(name);
        std::fs::write(&path, script).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(path, mode).unwrap();
    }

    /// Runs `script` with this guest's files in place of the real ones.
    fn run(&self, script: &str) -> Output {
        let home = self.home.path().display().to_string();
        let script = script
            .replace("/dev/console", &format!("{home}/console"))
            .replace("/proc/uptime", &format!("{home}/uptime"))
            .replace("/etc/squid", &format!("{home}/squid"));
        std::fs::write(self.path("script"), script).unwrap();
        Command::new(self.shell[0])
            .args(&self.shell[1..])
            .arg(self.path("script"))
            .env_clear()
            .env("PATH", self.path("bin"))
            .output()
            .unwrap()
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// What was called, without the arguments' own names for files.
    fn calls(&self) -> Vec<String> {
        self.read("calls").lines().map(str::to_owned).collect()
    }

    /// Seconds that the script has waited.
    fn waited(&self) -> u64 {
        self.read("uptime").split('.').next().unwrap().parse::<u64>().unwrap() - 100
    }
}

fn tool_path(tool: &str) -> PathBuf {
    let places = ["/usr/bin", "/bin"];
    places.map(|place| Path::new(place).join(tool)).into_iter().find(|path| path.exists()).unwrap()
}

/// Debian's, Fedora's and Alpine's shell for scripts.
fn shells() -> Vec<&'static [&'static str]> {
    let shells: [&[&str]; 3] = [&["/bin/sh"], &["/bin/bash", "--posix"], &["/bin/busybox", "ash"]];
    shells.into_iter().filter(|shell| Path::new(shell[0]).exists()).collect()
}

/// Everything that starts the agent.
const SYSTEMD: (&str, &str) =
    ("systemctl", "case $1 in start) : >$H/agent-runs ;; is-active) test -e $H/agent-runs ;; esac");
const UDEV: (&str, &str) = ("udevadm", "");

#[test]
fn an_agent_that_runs_is_left_alone() {
    for shell in shells() {
        let guest = Guest::new(shell, &[("pidof", "true"), ("apt-get", ""), SYSTEMD]);
        let output = guest.run(&script::agent());
        assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
        assert_eq!((guest.calls().len(), guest.read("console")), (0, String::new()));
    }
}

#[test]
fn every_distribution_installs_and_starts_the_agent() {
    let managers: [(&str, &[&str]); 5] = [
        ("apt-get", &["apt-get -qq update", "--download-only", "DPkg::Lock::Timeout=120"]),
        ("dnf", &["--downloadonly", "dnf -q -y"]),
        (
            "zypper",
            &["refresh", "--download-only qemu", "install --no-recommends qemu-guest-agent"],
        ),
        ("pacman", &["pacman -Sy", "pacman -S --noconfirm --needed qemu-guest-agent"]),
        ("apk", &["update", "apk --wait 120 -q add qemu-guest-agent"]),
    ];
    for shell in shells() {
        for (manager, wanted) in managers {
            let openrc = ("rc-service", ": >$H/agent-runs");
            let service = if manager == "apk" { openrc } else { SYSTEMD };
            let stubs = [(manager, "echo done"), service, ("rc-update", ""), UDEV];
            let guest = Guest::new(shell, &stubs);
            let output = guest.run(&script::agent());
            assert!(output.status.success(), "{manager}: {output:?}");
            let calls = guest.calls().join("\n");
            for part in wanted {
                assert!(calls.contains(part), "{part} is not in\n{calls}");
            }
            let console = guest.read("console");
            assert!(console.ends_with("proxyd: agent: qemu-guest-agent runs\n"), "{console}");
        }
    }
}

#[test]
fn a_package_manager_that_fails_is_tried_five_times_and_quoted() {
    for shell in shells() {
        let failing =
            ("apt-get", r"echo 'E: no servers'; printf '%s\n' 'E: last \n words'; exit 100");
        let guest = Guest::new(shell, &[failing, SYSTEMD, UDEV]);
        let output = guest.run(&script::agent());
        assert!(output.status.success(), "a boot would be marked as failed: {output:?}");
        let attempts = guest.calls().iter().filter(|call| call.starts_with("apt-get")).count();
        assert_eq!(attempts, 5, "{:?}", guest.calls());
        let told = "proxyd: agent: failed: qemu-guest-agent can't be installed after 5 attempts: \
                    E: last \\n words\n";
        assert!(guest.read("console").ends_with(told), "{}", guest.read("console"));
        let log = String::from_utf8(output.stdout).unwrap();
        assert!(log.contains("E: no servers") && log.ends_with(told), "{log}");
    }
}

#[test]
fn what_fails_for_a_while_succeeds_in_the_end() {
    for shell in shells() {
        let counting = "echo x >>$H/tries; [ $(cat $H/tries | grep -c x) -gt 2 ]";
        let guest = Guest::new(shell, &[("dnf", counting), SYSTEMD, UDEV]);
        assert!(guest.run(&script::agent()).status.success());
        assert!(guest.read("console").ends_with("qemu-guest-agent runs\n"));
    }
}

/// With slow failures the script ends by the clock, so that the rest of the boot goes on.
#[test]
fn the_whole_has_a_bound() {
    for shell in shells() {
        let slow = ("zypper", "sleep 400; exit 4");
        let guest = Guest::new(shell, &[slow, SYSTEMD, UDEV]);
        assert!(guest.run(&script::agent()).status.success());
        assert!(guest.read("console").contains("after 2 attempts"), "{}", guest.read("console"));
        assert!(guest.waited() < 900, "{}", guest.waited());
    }
}

#[test]
fn without_a_route_the_network_is_awaited_for_a_minute() {
    for shell in shells() {
        let guest = Guest::new(shell, &[("ip", ""), ("apk", ""), SYSTEMD, UDEV]);
        guest.run(&script::agent());
        assert_eq!(guest.waited(), 60);
        assert!(guest.read("console").ends_with("qemu-guest-agent runs\n"));
    }
}

#[test]
fn an_agent_that_does_not_start_is_told() {
    for shell in shells() {
        let guest = Guest::new(shell, &[("qemu-ga", ""), ("systemctl", "[ $1 = start ]"), UDEV]);
        assert!(guest.run(&script::agent()).status.success());
        let told = "proxyd: agent: failed: qemu-guest-agent is installed and does not start\n";
        assert_eq!(guest.read("console"), told);
    }
}

#[test]
fn without_a_known_package_manager_it_says_so() {
    for shell in shells() {
        let guest = Guest::new(shell, &[SYSTEMD, UDEV]);
        assert!(guest.run(&script::agent()).status.success());
        assert!(guest.read("console").contains("this distribution has none of"));
    }
}

/// A console that can't be written to changes nothing.
#[test]
fn without_a_console_it_works_as_well() {
    for shell in shells() {
        let guest = Guest::new(shell, &[("apk", ""), SYSTEMD, UDEV]);
        std::fs::create_dir(guest.path("console")).unwrap();
        let output = guest.run(&script::agent());
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    }
}

const ROUTES: &str = "case $* in
    *' -4 '*link) echo '192.0.2.0/24 dev eth0 proto kernel scope link src 192.0.2.7' ;;
    *' -6 '*) echo '2001:db8:1::/64 dev eth0 proto ra metric 100'
        echo '2001:db8:2::7 dev eth0 proto kernel metric 100'
        echo 'fe80::/64 dev eth0 proto kernel'
        echo '2001:db8:3::/64 via fe80::1 dev eth0'
        echo 'default via fe80::1 dev eth0' ;;
    *) echo default ;;
esac";

fn with_squid(shell: &'static [&'static str], stubs: &[(&str, &str)], clients: &str) -> Guest {
    let mut all = vec![("squid", ""), ("systemctl", ""), ("ip", ROUTES)];
    all.extend(stubs);
    let guest = Guest::new(shell, &all);
    std::fs::write(guest.path("squid/proxyd.conf"), "http_port 3129\n").unwrap();
    std::fs::write(guest.path("squid/proxyd.clients"), clients).unwrap();
    std::fs::write(guest.path("squid/squid.conf"), "stock\n").unwrap();
    guest
}

#[test]
fn without_listed_clients_squid_serves_the_networks_of_the_guest() {
    for shell in shells() {
        let guest = with_squid(shell, &[], "# none\n");
        let output = guest.run(&script::squid());
        assert!(output.status.success(), "{output:?}");
        let listed = "192.0.2.0/24\n2001:db8:1::/64\n2001:db8:2::7\n";
        assert_eq!(guest.read("squid/proxyd.clients"), listed);
        assert_eq!(guest.read("squid/squid.conf"), "http_port 3129\n");
        assert!(guest.calls().contains(&"systemctl reload-or-restart squid".to_owned()));
        assert_eq!(guest.read("console"), "proxyd: squid: squid serves\n");
    }
}

#[test]
fn listed_clients_stay_as_they_are() {
    for shell in shells() {
        let guest = with_squid(shell, &[], "2001:db8::/32\n");
        assert!(guest.run(&script::squid()).status.success());
        assert_eq!(guest.read("squid/proxyd.clients"), "2001:db8::/32\n");
    }
}

#[test]
fn a_configuration_that_squid_refuses_never_takes_the_place_of_the_stock_one() {
    for shell in shells() {
        let refusing = ("squid", "echo 'FATAL: Bungled proxyd.conf line 1'; exit 1");
        let guest = with_squid(shell, &[refusing], "192.0.2.1\n");
        assert!(!guest.run(&script::squid()).status.success());
        assert_eq!(guest.read("squid/squid.conf"), "stock\n");
        let console = guest.read("console");
        assert!(console.contains("failed: squid does not accept") && console.contains("Bungled"));
    }
}

#[test]
fn a_firewall_that_runs_is_told_the_port() {
    for shell in shells() {
        let guest = with_squid(shell, &[("firewall-cmd", "")], "192.0.2.1\n");
        assert!(guest.run(&script::squid()).status.success());
        assert!(guest.calls().iter().any(|call| call.contains("--add-port=3129/tcp")));
        let guest = with_squid(shell, &[("firewall-cmd", "exit 252")], "192.0.2.1\n");
        assert!(guest.run(&script::squid()).status.success());
        assert!(!guest.calls().iter().any(|call| call.contains("--add-port")));
    }
}

#[test]
fn squid_is_installed_where_it_is_missing() {
    for shell in shells() {
        let apt = "case $* in *install*--download-only*) : ;; *install*) cp $H/bin/true $H/bin/squid; cp $H/squid/squid.conf $H/started-with ;; esac";
        let stubs = [("apt-get", apt), ("true", ""), ("systemctl", ""), ("ip", ROUTES)];
        let guest = Guest::new(shell, &stubs);
        std::fs::write(guest.path("squid/proxyd.conf"), "http_port 3128\n").unwrap();
        std::fs::write(guest.path("squid/proxyd.clients"), "#\n").unwrap();
        let output = guest.run(&script::squid());
        assert!(output.status.success(), "{output:?} {:?}", guest.calls());
        assert_eq!(guest.read("console"), "proxyd: squid: squid serves\n");
        // The package started it with what was there.
        assert_eq!(guest.read("started-with"), "http_port 3128\n");
    }
}

#[test]
fn the_scripts_are_posix() {
    for text in [script::agent(), script::squid()] {
        let guest = Guest::new(&["/bin/sh", "-n"], &[]);
        let output = guest.run(&text);
        assert!(output.status.success(), "{output:?}");
    }
}
