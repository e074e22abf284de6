//! Images, and the jobs about them.

use serde_json::Value;

use crate::bench::Bench;
use crate::pool::{self, SIZE, Server};

const IMAGE: &str = "/org/proxyd1/image/home/blank";

fn of(bench: &Bench, path: &str, interface: &str, name: &str) -> Value {
    let output = bench.busctl(&format!(
        "--json=short get-property org.proxyd1 {path} org.proxyd1.{interface} {name}"
    ));
    let parsed: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    parsed["data"].clone()
}

fn state(bench: &Bench) -> Value {
    of(bench, IMAGE, "Image", "State")
}

#[test]
fn an_image_is_fetched_by_one_job_that_tells_its_progress() {
    let server = Server::start(true);
    let (bench, pool) = pool::bench(&server);
    assert_eq!(state(&bench), "absent");
    let job = bench.job("FetchImage ss home blank");
    assert_eq!(bench.job("FetchImage ss home blank"), job, "the same work is one job");
    bench.wait("half of the image", || of(&bench, &job, "Job", "BytesDone") == SIZE / 2);
    assert_eq!(of(&bench, &job, "Job", "State"), "running");
    assert_eq!(of(&bench, &job, "Job", "Progress"), 0.5);
    assert_eq!(of(&bench, &job, "Job", "BytesTotal"), SIZE);
    assert_eq!(state(&bench), "fetching");
    let planned = bench.call("PlanProxy 'sa{sv}' web 1 Image s blank").unwrap();
    assert!(planned.contains("fetching"), "{planned}");
    // Nobody else waits for a server.
    assert_eq!(bench.call("ListProxies").unwrap(), "a(ssbsso) 0");
    server.let_go();
    bench.wait("the end of the job", || of(&bench, &job, "Job", "State") == "done");
    bench.wait("the image to be ready", || state(&bench) == "ready");
    assert_eq!(of(&bench, IMAGE, "Image", "Size"), SIZE);
    let path = pool.join("base-home-blank.raw");
    assert_eq!(of(&bench, IMAGE, "Image", "Path"), path.to_str().unwrap());
    assert_eq!(of(&bench, IMAGE, "Image", "Digest").as_str().unwrap().len(), 64);
    assert!(of(&bench, IMAGE, "Image", "FetchedAt").as_u64() > Some(0));

    let verify = bench.job("VerifyImage ss home blank");
    bench.wait("the base to be hashed", || of(&bench, &verify, "Job", "State") == "done");
    // A damaged one is found, and told by a typed error.
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[9] = 8;
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, bytes).unwrap();
    let verify = bench.job("VerifyImage ss home blank");
    bench.wait("the damage to be found", || of(&bench, &verify, "Job", "State") == "failed");
    assert_eq!(of(&bench, &verify, "Job", "Error"), "org.proxyd1.Error.BaseChanged");
    bench.wait("the image to be in conflict", || state(&bench) == "conflict");
    bench.call("EvictImage ss home blank").unwrap();
    assert_eq!(state(&bench), "absent");
    assert!(!path.exists());
}

#[test]
fn a_job_is_called_off_and_leaves_nothing() {
    let server = Server::start(true);
    let (bench, pool) = pool::bench(&server);
    let job = bench.job("FetchImage ss home blank");
    bench.wait("half of the image", || of(&bench, &job, "Job", "BytesDone") == SIZE / 2);
    bench.busctl(&format!("call org.proxyd1 {job} org.proxyd1.Job Cancel"));
    bench.wait("the job to end", || of(&bench, &job, "Job", "State") == "canceled");
    bench.wait("the image to be absent", || state(&bench) == "absent");
    let left: Vec<_> =
        std::fs::read_dir(&pool).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(left, [pool.join("base-home-blank.raw.lock")]);
    let next = bench.job("FetchImage ss home blank");
    assert_ne!(next, job);
    server.let_go();
    bench.wait("the image to be ready", || state(&bench) == "ready");
}

#[test]
fn what_is_not_there_is_not_fetched() {
    let (bench, _) = pool::bench(&Server::start(false));
    let rows = [
        ("FetchImage ss home ../x", "key: "),
        ("FetchImage ss Home x", "entry: "),
        ("FetchImage ss nowhere blank", "no provider entry nowhere"),
        ("FetchImage ss home fedora", "offers no image fedora"),
        ("VerifyImage ss nowhere blank", "no provider entry nowhere"),
    ];
    for (call, words) in rows {
        let refused = bench.call(call).unwrap_err();
        assert!(refused.contains(words), "{call}: {refused}");
    }
    let job = bench.job("VerifyImage ss home blank");
    bench.wait("the job to fail", || of(&bench, &job, "Job", "State") == "failed");
    assert_eq!(of(&bench, &job, "Job", "Error"), "org.proxyd1.Error.NoSuchImage");
}

#[test]
fn a_plan_tells_all_and_changes_nothing() {
    let (bench, pool) = pool::bench(&Server::start(false));
    let plan = |spec: &str| {
        let output = bench.busctl(&format!(
            "--json=short call org.proxyd1 /org/proxyd1 org.proxyd1.Manager PlanProxy \
             'sa{{sv}}' web {spec}"
        ));
        let answer: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
        serde_json::from_str::<Value>(answer["data"][0].as_str().unwrap()).unwrap()
    };
    let planned = plan("3 Image s blank DiskGiB t 5 Vcpus u 3");
    assert_eq!(planned["action"], "create");
    assert_eq!(planned["base"]["state"], "absent");
    assert_eq!(planned["base"]["bytesToFetch"], SIZE);
    assert_eq!(planned["volumes"][0]["name"], "proxy-web.qcow2");
    assert_eq!(planned["volumes"][0]["capacity"], 5_u64 << 30);
    let xml = planned["domain"]["xml"].as_str().unwrap();
    for part in ["<name>proxy-web</name>", "<vcpu>3</vcpu>", "proxy-web-seed.img"] {
        assert!(xml.contains(part), "{xml}");
    }
    assert_eq!(std::fs::read_dir(&pool).unwrap().count(), 0);
    assert_eq!(bench.call("ListProxies").unwrap(), "a(ssbsso) 0");

    let job = bench.job("FetchImage ss home blank");
    bench.wait("the end of the job", || of(&bench, &job, "Job", "State") == "done");
    let planned = plan("1 Image s blank");
    assert_eq!(planned["base"]["bytesToFetch"], 0);
    assert_eq!(planned["volumes"][0]["capacity"], SIZE);
    // What creating it would refuse, planning it refuses.
    let call = "PlanProxy 'sa{sv}' web 2 Image s blank Vcpus u 0";
    assert!(bench.call(call).unwrap_err().contains("Vcpus: 0 is out of range"));
}

#[test]
fn an_image_names_its_users_and_one_that_nobody_offers_any_more_is_shown() {
    let server = Server::start(false);
    let (bench, pool) = pool::bench(&server);
    bench.create("web", &format!("2 Image s {} ImageFormat s raw", server.url)).unwrap();
    let used = || {
        let images = bench.proxyctl(&["--json", "image", "list"]);
        let images: Value = serde_json::from_slice(&images.stdout).unwrap();
        let of_url = |image: &&Value| image["key"].as_str().unwrap().len() == 16;
        images.as_array().unwrap().iter().find(of_url).cloned().unwrap_or_default()
    };
    bench.wait("the image of a URL to be ready", || used()["state"] == "ready");
    assert_eq!(used()["usedBy"], serde_json::json!(["/org/proxyd1/proxy/web"]));
    assert_eq!(used()["url"], server.url);
    // An image that leaves the configuration is shown as long as it is in the pool.
    let job = bench.job("FetchImage ss home blank");
    bench.wait("the end of the job", || of(&bench, &job, "Job", "State") == "done");
    let configured = std::fs::read_to_string(bench.config_path()).unwrap();
    let mut next: Value = serde_json::from_str(&configured).unwrap();
    next["images"] = serde_json::json!({});
    bench.configure(&next);
    bench.call("Reload").unwrap();
    assert_eq!(state(&bench), "ready", "it is still in the pool");
    let pruned = bench.call("PruneImages b false").unwrap();
    assert!(pruned.contains("and the configuration"), "{pruned}");
    assert!(!pool.join("base-home-blank.raw").exists());
    bench.wait("its object to go", || state(&bench) == Value::Null);
}

/// A server that takes a call and says nothing is what is waited for, and is named so.
#[test]
fn a_silent_server_is_told() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Server::start(false);
    let (bench, _) = pool::bench(&server);
    let silent = format!("http://{}/x.raw", listener.local_addr().unwrap());
    let configured = std::fs::read_to_string(bench.config_path()).unwrap();
    std::fs::write(bench.config_path(), configured.replace(&server.url, &silent)).unwrap();
    bench.call("Reload").unwrap();
    let job = bench.job("FetchImage ss home blank");
    bench.wait("the wait to be told", || {
        of(&bench, &job, "Job", "Message") == "waiting for the server to answer"
    });
    bench.wait("the image to count as being fetched", || state(&bench) == "fetching");
    bench.busctl(&format!("call org.proxyd1 {job} org.proxyd1.Job Cancel"));
    bench.wait("the job to end", || of(&bench, &job, "Job", "State") == "canceled");
    assert_eq!(of(&bench, &job, "Job", "Error"), "org.proxyd1.Error.Canceled");
}
