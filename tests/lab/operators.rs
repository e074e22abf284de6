//! The whole API, member by member, by the real `busctl` and `proxyctl`: as root, as a
//! user whom a rule of polkit lets in, and as one whom nothing lets in.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::host::{Host, url};

const STEP: Duration = Duration::from_secs(90);
const SECRET: &str = "s3cret-user-data";
/// The rule that docs/dbus.md shows.
const RULE: &str = r#"polkit.addRule(function (action, subject) {
    if (action.id.indexOf("org.proxyd1.manage-") == 0 && subject.isInGroup("proxy-admins"))
        return polkit.Result.YES;
});
"#;

fn config() -> Value {
    let image = |file: &str| json!({ "url": url(file), "format": "raw", "firmware": "bios" });
    json!({
        "images": { "blank": image("blank.raw"), "spare": image("spare.raw") },
        "providers": { "home": { "virtType": "qemu" } },
        "health": { "url": url("generate_204"), "interval": "2s", "timeout": "1s" }
    })
}

#[test]
#[ignore = "needs the lab: make test"]
fn every_member_for_everybody_who_may() {
    let host = Host::up("api", &config());
    host.run("truncate -s 16M /srv/lab/blank.raw; truncate -s 8M /srv/lab/spare.raw");
    host.run("groupadd proxy-admins; useradd -m -G proxy-admins alice; useradd -m bob");
    host.write("/etc/polkit-1/rules.d/50-proxyd.rules", RULE.as_bytes());
    assert!(include_str!("../../docs/dbus.md").contains(RULE.trim()), "docs/dbus.md has the rule");
    host.create(
        "keep",
        &format!("4 Image s blank MemoryMiB t 128 UserData s {SECRET} Port q 3129"),
    );
    host.await_text("keep", "Reason", "AwaitingAddress", STEP);

    the_table_has_every_member();
    the_lists_have_every_command();
    for user in ["root", "alice"] {
        everything_is_allowed(&host, user);
    }
    nothing_is_allowed(&host, "bob");
    proxyctl_does_it_all(&host, "root");
    proxyctl_does_it_all(&host, "alice");
    proxyctl_is_refused(&host, "bob");
    the_bus_lets_nothing_else_through(&host);
    user_data_is_not_given_back(&host);
    what_the_shells_and_man_read_is_installed(&host);
    the_first_call_starts_the_daemon(&host);
    another_host_is_reached_by_ssh(&host);
    a_program_in_python_does_it(&host);
}

/// A method, where it is, and a call of it in busctl's words, with `USER` in place of
/// who calls, and `JOB` in place of a job.
struct Call {
    member: &'static str,
    path: &'static str,
    arguments: &'static str,
    /// Whether everybody may.
    open: bool,
    /// The error that it gives to one who may, if it can't but give one.
    error: Option<&'static str>,
}

const fn call(member: &'static str, path: &'static str, arguments: &'static str) -> Call {
    Call { member, path, arguments, open: false, error: None }
}

const fn open(member: &'static str, path: &'static str, arguments: &'static str) -> Call {
    Call { open: true, ..call(member, path, arguments) }
}

const fn vain(
    member: &'static str,
    path: &'static str,
    arguments: &'static str,
    error: &'static str,
) -> Call {
    Call { error: Some(error), ..call(member, path, arguments) }
}

const ROOT: &str = "/org/proxyd1";
const OWN: &str = "/org/proxyd1/proxy/of_2dUSER";
const HOME: &str = "/org/proxyd1/provider/home";

/// In an order in which each finds what it needs.
const CALLS: [Call; 27] = [
    open("Manager.ListProxies", ROOT, ""),
    open("Manager.GetProxy", ROOT, "s keep"),
    open("Manager.PlanProxy", ROOT, "sa{sv} new 2 Image s blank MemoryMiB t 128"),
    call("Manager.PlanProxy", ROOT, "sa{sv} new 1 Image s http://192.168.122.1:8080/x.qcow2"),
    call("Manager.CreateProxy", ROOT, "sa{sv} of-USER 2 Image s blank MemoryMiB t 128"),
    call("Proxy.Update", OWN, "a{sv} 1 Vcpus u 2"),
    call("Proxy.Stop", OWN, ""),
    call("Proxy.Start", OWN, ""),
    call("Proxy.Restart", OWN, ""),
    call("Proxy.Rebuild", OWN, ""),
    call("Proxy.RebuildWithOptions", OWN, "a{sv} 0"),
    call("Proxy.Probe", OWN, ""),
    call("Proxy.Evidence", OWN, ""),
    call("Proxy.ConsoleLog", "/org/proxyd1/proxy/keep", "t 1024"),
    call("Proxy.Delete", OWN, ""),
    call("Manager.CreateProxy", ROOT, "sa{sv} and-USER 2 Image s blank MemoryMiB t 128"),
    call("Manager.DeleteProxy", ROOT, "s and-USER"),
    call("Manager.FetchImage", ROOT, "ss home spare"),
    call("Manager.VerifyImage", ROOT, "ss home blank"),
    call("Job.Cancel", "JOB", ""),
    call("Manager.EvictImage", ROOT, "ss home spare"),
    open("Manager.PruneImages", ROOT, "b true"),
    call("Manager.PruneImages", ROOT, "b false"),
    call("Manager.Reload", ROOT, ""),
    open("Provider.Check", HOME, ""),
    open("Provider.ListLeftovers", HOME, ""),
    vain("Provider.RemoveLeftover", HOME, "s proxy-nobody", "nobody"),
];
const ADOPT: Call = vain("Provider.Adopt", HOME, "sa{sv} nobody 1 Image s blank", "nobody");

fn calls() -> impl Iterator<Item = &'static Call> {
    CALLS.iter().chain(std::iter::once(&ADOPT))
}

fn the_table_has_every_member() {
    for interface in ["Manager", "Proxy", "Provider", "Image", "Job"] {
        let file = format!("dbus/org.proxyd1.{interface}.xml");
        let xml =
            std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
        for line in xml.lines().filter(|line| line.contains("<method ")) {
            let name = line.split('"').nth(1).unwrap();
            let member = format!("{interface}.{name}");
            assert!(calls().any(|call| call.member == member), "{member} is not called");
        }
    }
}

/// Every command has a man page of its own; those of groups have others below them.
fn the_lists_have_every_command() {
    let pages = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/man")).unwrap();
    let names = pages.map(|page| page.unwrap().file_name().into_string().unwrap());
    let names: Vec<String> = names
        .filter_map(|name| Some(name.strip_prefix("proxyctl-")?.strip_suffix(".1")?.to_owned()))
        .collect();
    // The terminal's tests follow the monitor, and a unit test the completions.
    let elsewhere =
        |name: &str| name.contains("help") || ["monitor", "completions"].contains(&name);
    for name in names.iter().filter(|name| !elsewhere(name)) {
        let group = names.iter().any(|other| other.starts_with(&format!("{name}-")));
        let listed = CHANGES.iter().chain(&READS).any(|arguments| {
            arguments.trim_start_matches("--json ").replace(' ', "-").starts_with(name)
        });
        assert!(group || listed, "proxyctl {name} is not called");
    }
}

/// Runs `command` as `user`; whether it succeeded, and what it said.
fn as_user(host: &Host, user: &str, command: &str) -> (bool, String) {
    let output = host.attempt(&format!("runuser -u {user} -- {command}"));
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

fn make(host: &Host, user: &str, call: &Call, job: &str) -> (bool, String) {
    let (interface, method) = call.member.split_once('.').unwrap();
    let (path, arguments) = (call.path.replace("JOB", job), call.arguments);
    let (path, arguments) = (path.replace("USER", user), arguments.replace("USER", user));
    let (signature, rest) = arguments.split_once(' ').unwrap_or((&arguments, ""));
    let quoted = if signature.is_empty() { String::new() } else { format!("'{signature}'") };
    as_user(
        host,
        user,
        &format!(
            "busctl --allow-interactive-authorization=no call org.proxyd1 {path} \
             org.proxyd1.{interface} {method} {quoted} {rest}"
        ),
    )
}

/// A job that can still be found.
fn job(host: &Host) -> String {
    let manager = "busctl call org.proxyd1 /org/proxyd1 org.proxyd1.Manager";
    let said = host.run(&format!("{manager} VerifyImage ss home blank"));
    said.trim_start_matches("o ").trim_matches('"').to_owned()
}

fn everything_is_allowed(host: &Host, user: &str) {
    for call in calls() {
        let job = if call.path == "JOB" { job(host) } else { String::new() };
        let (done, said) = make(host, user, call, &job);
        match call.error {
            None => assert!(done, "{user}: {}: {said}", call.member),
            Some(words) => {
                assert!(!done && said.contains(words), "{user}: {}: {said}", call.member);
                assert!(!said.contains("not authorized"), "{user}: {}: {said}", call.member);
            }
        }
        match call.member {
            "Proxy.Restart" => {
                host.await_text(&format!("of-{user}"), "Reason", "AwaitingAddress", STEP);
            }
            "Manager.FetchImage" => host.wait("the image to be fetched", STEP, || {
                host.run("proxyctl image show home spare").contains("State: ready")
            }),
            _ => {}
        }
    }
    for gone in [format!("of-{user}"), format!("and-{user}")] {
        host.wait(&format!("{gone} to go"), STEP, || host.property(&gone, "Phase").is_none());
    }
}

/// Everything that a denied call might have changed.
fn all_there_is(host: &Host) -> String {
    host.run(
        "busctl call org.proxyd1 /org/proxyd1 org.proxyd1.Manager ListProxies; \
         ls -l --time-style=full-iso -I '*.lock' /var/lib/libvirt/images; virsh list --all; \
         sha256sum /var/lib/proxyd/proxies/*",
    )
}

fn nothing_is_allowed(host: &Host, user: &str) {
    host.create("of-bob", "2 Image s blank MemoryMiB t 128");
    host.await_text("of-bob", "Reason", "AwaitingAddress", STEP);
    let job = job(host);
    host.wait("the job to end", STEP, || {
        host.run(&format!("busctl get-property org.proxyd1 {job} org.proxyd1.Job State"))
            .contains("done")
    });
    let before = all_there_is(host);
    for call in calls() {
        let (done, said) = make(host, user, call, &job);
        if call.open {
            assert!(done, "{}: {said}", call.member);
            continue;
        }
        assert!(
            !done && said.contains("not authorized for org.proxyd1.manage-"),
            "{}: {said}",
            call.member
        );
        let images = ["Image", "Job."].iter().any(|of| call.member.contains(of));
        let action = if images { "manage-images" } else { "manage-proxies" };
        assert!(said.contains(action), "{}: {said}", call.member);
    }
    assert_eq!(all_there_is(host), before, "a denied call changed something");
    // Every property of every object can be read.
    let objects = ["", "/proxy/keep", "/provider/home", "/image/home/blank"];
    for (path, interface) in objects.iter().zip(["Manager", "Proxy", "Provider", "Image"]) {
        let (done, said) = as_user(
            host,
            user,
            &format!(
                "busctl call org.proxyd1 /org/proxyd1{path} org.freedesktop.DBus.Properties \
                 GetAll s org.proxyd1.{interface}"
            ),
        );
        assert!(done, "{interface}: {said}");
    }
    for command in ["tree org.proxyd1", "introspect org.proxyd1 /org/proxyd1/proxy/keep"] {
        let (done, said) = as_user(host, user, &format!("busctl {command}"));
        assert!(done && said.contains("proxyd1"), "{command}: {said}");
    }
    host.delete("of-bob");
}

/// What changes something, and what doesn't, with `USER` in place of who calls.
const CHANGES: [&str; 18] = [
    "create by-USER --image blank --memory 128",
    "update by-USER --vcpus 2",
    "stop by-USER",
    "start by-USER",
    "restart by-USER",
    "rebuild by-USER",
    "evidence by-USER",
    "console keep",
    "probe by-USER",
    "delete by-USER",
    "image fetch home spare",
    "image verify home spare",
    "image evict home spare",
    "image prune",
    "job cancel JOB",
    "provider remove-leftover home proxy-nobody",
    "provider adopt home nobody --image blank",
    "config reload",
];
const READS: [&str; 15] = [
    "list",
    "--json list",
    "show keep",
    "--json show keep",
    "plan new --image blank --memory 128",
    "--json plan new --image blank --memory 128",
    "image list",
    "image show home blank",
    "image prune --dry-run",
    "provider list",
    "provider check home",
    "provider leftovers home",
    "job list",
    "config check /etc/proxyd/config.json",
    "preset show",
];

fn proxyctl(host: &Host, user: &str, arguments: &str) -> (bool, String) {
    let job = if arguments.contains("JOB") { job(host) } else { String::new() };
    let id = job.rsplit('/').next().unwrap_or_default();
    let arguments = arguments.replace("USER", user).replace("JOB", id);
    as_user(host, user, &format!("proxyctl {arguments}"))
}

fn proxyctl_does_it_all(host: &Host, user: &str) {
    for arguments in CHANGES.iter().chain(&READS) {
        let (done, said) = proxyctl(host, user, arguments);
        // These can't succeed here, and say why.
        let vain =
            ["probe", "remove-leftover", "adopt"].iter().find(|word| arguments.contains(**word));
        match vain {
            None => assert!(done, "{user}: {arguments}: {said}"),
            Some(_) => assert!(said.contains("NoAddress") || said.contains("nobody"), "{said}"),
        }
        if arguments.starts_with("restart") {
            host.await_text(&format!("by-{user}"), "Reason", "AwaitingAddress", STEP);
        }
    }
    let name = format!("by-{user}");
    host.wait(&format!("{name} to go"), STEP, || host.property(&name, "Phase").is_none());
    let listed: Value = serde_json::from_str(&proxyctl(host, user, "--json list").1).unwrap();
    assert_eq!(listed[0]["name"], "keep");
    assert_eq!((&listed[0]["port"], &listed[0]["memoryMiB"]), (&json!(3129), &json!(128)));
    assert_eq!(listed[0]["conditions"].as_array().unwrap().len(), 6, "{listed:#}");
}

fn proxyctl_is_refused(host: &Host, user: &str) {
    host.create("by-bob", "2 Image s blank MemoryMiB t 128");
    for arguments in CHANGES {
        let refused = host.attempt(&format!(
            "runuser -u {user} -- proxyctl {}",
            arguments.replace("USER", user).replace("JOB", job(host).rsplit('/').next().unwrap())
        ));
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(77), "{arguments}: {said}");
        assert!(said.contains("not authorized for org.proxyd1.manage-"), "{arguments}: {said}");
    }
    for arguments in READS {
        let (done, said) = proxyctl(host, user, arguments);
        assert!(done, "{arguments}: {said}");
    }
    host.delete("by-bob");
}

fn the_bus_lets_nothing_else_through(host: &Host) {
    let rows = [
        "busctl call org.proxyd1 /org/proxyd1 org.freedesktop.DBus.Monitoring BecomeMonitor asu 0 0",
        "busctl call org.proxyd1 /org/proxyd1 org.example.Other Do",
        "python3 -c 'import dbus; dbus.SystemBus().request_name(\"org.proxyd1\")'",
    ];
    for command in rows {
        let (done, said) = as_user(host, "bob", command);
        let denied = ["AccessDenied", "Access denied", "not allowed"];
        assert!(!done && denied.iter().any(|words| said.contains(words)), "{command}: {said}");
    }
}

fn user_data_is_not_given_back(host: &Host) {
    let told = host.run(
        "busctl call org.proxyd1 /org/proxyd1 org.freedesktop.DBus.ObjectManager \
         GetManagedObjects; proxyctl --json show keep; proxyctl evidence keep; \
         proxyctl --json plan keep --image blank --memory 128 --port 3129 2>&1 || true; \
         journalctl -u proxyd --no-pager",
    );
    assert!(!told.contains(SECRET), "user-data was told");
    let (done, said) = as_user(host, "alice", "cat /var/lib/proxyd/proxies/keep.json");
    assert!(!done && said.contains("Permission denied"), "{said}");
    let decoded = host.run(
        "python3 -c 'import base64,json; print(base64.b64decode(json.load(open(\
         \"/var/lib/proxyd/proxies/keep.json\"))[\"spec\"][\"userData\"]).decode())'",
    );
    assert_eq!(decoded, SECRET);
}

fn what_the_shells_and_man_read_is_installed(host: &Host) {
    host.run(
        "cd /usr/share; bash -n bash-completion/completions/proxyctl; \
         grep -q '#compdef proxyctl' zsh/site-functions/_proxyctl; \
         grep -q 'complete -c proxyctl' fish/vendor_completions.d/proxyctl.fish; \
         test -s man/man1/proxyctl.1; test -s man/man5/org.proxyd1.5; test -s man/man8/proxyd.8",
    );
}

fn the_first_call_starts_the_daemon(host: &Host) {
    host.run("systemctl stop proxyd");
    let (done, said) = as_user(host, "bob", "proxyctl list");
    assert!(done && said.contains("keep"), "{said}");
    assert_eq!(host.run("systemctl is-active proxyd"), "active");
    // Disabled, it stays down, and whoever asks is told how to start it.
    host.run("systemctl disable --quiet --now proxyd");
    let refused = host.attempt("proxyctl list");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(69), "{said}");
    assert!(said.contains("systemctl start proxyd"), "{said}");
    host.run("systemctl enable --quiet --now proxyd");
}

fn another_host_is_reached_by_ssh(host: &Host) {
    host.run(
        "ssh-keygen -A > /dev/null; systemctl start ssh; mkdir -p -m 700 /root/.ssh; ssh-keygen -q -t ed25519 -N '' -f /root/.ssh/id_ed25519; \
         cp /root/.ssh/id_ed25519.pub /root/.ssh/authorized_keys; \
         ssh-keyscan -t ed25519 127.0.0.1 > /root/.ssh/known_hosts 2> /dev/null",
    );
    let there = host.run("proxyctl -H root@127.0.0.1 --json show keep");
    assert_eq!(serde_json::from_str::<Value>(&there).unwrap()["name"], "keep");
    let refused = host.attempt("proxyctl -H root@127.0.0.9 list");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(69), "{said}");
    assert!(said.contains("by ssh"), "{said}");
}

/// The example of docs/dbus.md, as it stands. The guest has no agent and takes no
/// lease, so its address is put into the host's neighbour table.
fn a_program_in_python_does_it(host: &Host) {
    host.write("/srv/proxies.py", include_bytes!("../../docs/examples/proxies.py"));
    let neighbour = "(until mac=$(virsh -q domiflist proxy-example 2>/dev/null | grep -o '52:.*'); \
                     do sleep 0.2; done; ip neigh replace 192.168.122.77 lladdr $mac dev virbr0 \
                     nud stale) &";
    let said = host.run(&format!("{neighbour} python3 /srv/proxies.py example blank; wait"));
    for words in ["Provisioning AwaitingAddress", "endpoint http://192.168.122.77:3128"] {
        assert!(said.contains(words), "{said}");
    }
    host.wait("the example's Proxy to go", STEP, || host.property("example", "Phase").is_none());
    let refused = host.attempt("runuser -u bob -- python3 /srv/proxies.py other blank");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("org.proxyd1.Error.NotAuthorized"), "{said}");
}
