//! What is in a pool, and what goes from it.

use super::*;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two lab hosts: make test"]
async fn a_full_disk_is_told_beforehand_and_libvirtd_survives_it() {
    let picture = picture(3);
    let disk = |size: &str| {
        there(&format!(
            "mkdir -p /srv/small; mount -t tmpfs -o size={size} small /srv/small; \
             virsh -q pool-define-as small dir --target /srv/small; virsh -q pool-start small"
        ));
    };
    let remove = "virsh -q pool-destroy small; virsh -q pool-undefine small; umount /srv/small";
    disk("20M");
    let pid = there("pidof libvirtd");
    let spool = Arc::new(tempfile::tempdir_in("/var/tmp").unwrap());
    let writer = Writer::with(settings("small", "small"), spool, Pace::default());
    let fault = writer.ensure(&picture.source("small", "x", true)).await.unwrap_err();
    assert_eq!(fault.kind, FaultKind::NoSpace, "{fault}");
    assert!(fault.message.contains("free some"), "{fault}");
    assert_eq!(there("ls /srv/small"), "");
    assert_eq!(there("pidof libvirtd"), pid);
    there(remove);

    // Room that others take in the middle was set aside before.
    disk("64M");
    let (pace, stop) = stopping(half);
    let spool = Arc::new(tempfile::tempdir_in("/var/tmp").unwrap());
    let writer = Writer::with(settings("small", "small"), spool, pace);
    let task = writer.begin(&picture.source("small", "x", true));
    stop.wait();
    there("cat /dev/zero > /srv/small/filler 2>/dev/null || true");
    stop.go.send(()).unwrap();
    task.await.unwrap().unwrap();
    let found = there("sha256sum < /srv/small/base-small-x.raw | cut -d' ' -f1");
    assert_eq!(found, picture.digest.to_string());
    assert_eq!(there("pidof libvirtd"), pid);
    there(remove);
}

/// What stands at a name that is needed and isn't ours.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two lab hosts: make test"]
async fn what_is_not_ours_is_told_and_left_alone() {
    let picture = picture(9);
    let writer = Writer::new("foreign", Pace::default());
    let refused = async |key: &str, plant: &str, kind: FaultKind, words: &str| {
        let source = picture.source("foreign", key, true);
        let base = format!("{POOL}/{}", source.base_name());
        there(&format!("base={base}; {plant}; virsh -q pool-refresh default >/dev/null"));
        let before = there(&format!("ls -ld --time-style=full-iso {base}* | sha256sum"));
        let fault = writer.ensure(&source).await.unwrap_err();
        assert_eq!(fault.kind, kind, "{key}: {fault}");
        assert!(fault.message.contains(words), "{key}: {fault}");
        let after = there(&format!("ls -ld --time-style=full-iso {base}* | sha256sum"));
        assert_eq!(after, before, "{key} was touched");
    };
    let foreign = FaultKind::ForeignFile;
    refused("base-dir", "mkdir $base", foreign, "not a file that proxyd made").await;
    refused("mark-dir", "mkdir $base.json", foreign, "not a file that proxyd made").await;
    // Nor do they keep anybody from looking at all others, and from removing them.
    let sources = ["base-dir", "mark-dir", "none"].map(|key| picture.source("foreign", key, true));
    let seen = writer.storage.survey(sources.to_vec()).await.unwrap();
    let standing = seen.iter().map(|image| image.standing).collect::<Vec<_>>();
    assert_eq!(standing, [Standing::Conflict, Standing::Conflict, Standing::Absent]);
    assert_eq!(writer.storage.survey(Vec::new()).await.unwrap(), []);
    assert_eq!(writer.storage.prune(Vec::new(), false).await.unwrap(), []);

    // Debris that nothing uses is replaced, and that something uses is not.
    let source = picture.source("foreign", "debris", true);
    there(&format!("echo theirs > {POOL}/{}; echo x > {POOL}/{0}.json", source.base_name()));
    writer.ensure_at_last(&source).await;
    assert_eq!(digest_there(&source.base_name()), picture.digest.to_string());
    refused(
        "used",
        "echo theirs > $base; qemu-img create -q -f qcow2 -F raw -b $base /var/lib/libvirt/images/theirs.qcow2",
        FaultKind::BaseChanged,
        "theirs.qcow2",
    )
    .await;

    // A base that lost its marker under an overlay is just what it should be.
    let source = picture.source("foreign", "adopted", true);
    let base = writer.ensure(&source).await.unwrap();
    writer.storage.overlay(&base, "proxy-adopted.qcow2", 32 << 20).await.unwrap();
    there(&format!("rm {POOL}/{}.json; virsh -q pool-refresh default", base.file));
    let inode = there(&format!("stat -c %i {POOL}/{}", base.file));
    writer.ensure(&source).await.unwrap();
    assert_eq!(there(&format!("stat -c %i {POOL}/{}", base.file)), inode);

    // The names of two images can be one.
    let other = picture.source("foreign-a", "b", true);
    Writer::new("foreign-a", Pace::default()).ensure(&other).await.unwrap();
    let same = picture.source("foreign", "a-b", true);
    let fault = writer.ensure(&same).await.unwrap_err();
    assert_eq!(fault.kind, foreign, "{fault}");
    assert_eq!(digest_there(&other.base_name()), picture.digest.to_string());
}

/// Evicting, pruning, hashing and looking, as with a directory.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two lab hosts: make test"]
async fn bases_are_let_go_of_only_when_nothing_uses_them() {
    let picture = picture(10);
    let source = picture.source("evict", "x", true);
    let writer = Writer::new("evict", Pace::default());
    let storage = &writer.storage;
    let (progress, cancel) = (Progress::default(), CancellationToken::new());
    let gone = storage.evict(&source.key).await.unwrap_err();
    assert_eq!(gone.kind, FaultKind::NoSuchImage, "{gone}");
    let base = writer.ensure(&source).await.unwrap();
    let seen = storage.survey(vec![source.clone()]).await.unwrap();
    assert_eq!((seen.len(), seen[0].standing), (1, Standing::Ready));
    assert_eq!(storage.verify(&source.key, &progress, &cancel).await.unwrap(), picture.digest);

    // An overlay in this pool, one elsewhere that a domain names, and a domain alone.
    let used = async |words: &str| {
        let fault = storage.evict(&source.key).await.unwrap_err();
        assert_eq!(fault.kind, FaultKind::ImageInUse, "{fault}");
        assert!(fault.message.contains(words), "{fault}");
        assert_eq!(storage.prune(Vec::new(), true).await.unwrap(), []);
        assert!(matches!(marker_there(&base.file), MarkerState::Valid(_)));
    };
    there("virsh -q pool-define-as asleep dir --target /srv/asleep");
    storage.overlay(&base, "proxy-evict.qcow2", 32 << 20).await.unwrap();
    used("proxy-evict.qcow2").await;
    there("virsh -q vol-delete --pool default proxy-evict.qcow2");
    for (disk, words) in [
        ("file='/srv/theirs/o.qcow2'", "no active storage pool"),
        ("pool='default' volume='base-evict-x.raw'", "used by domain theirs"),
        ("pool='asleep' volume='o.qcow2'", "perhaps domain theirs, whose disk o.qcow2"),
        ("dev='/dev/theirs'", "perhaps domain theirs, whose disk /dev/theirs"),
    ] {
        let kind = match disk.split_once('=') {
            Some(("file", _)) => "file",
            Some(("dev", _)) => "block",
            _ => "volume",
        };
        there(&format!(
            "mkdir -p /srv/theirs; qemu-img create -q -f qcow2 -F raw -b {POOL}/{} \
             /srv/theirs/o.qcow2; echo \"<domain type='qemu'><name>theirs</name><memory>1024\
             </memory><os><type>hvm</type></os><devices><disk type='{kind}' device='disk'>\
             <driver name='qemu' type='qcow2'/><source {disk}/><target dev='vda' bus='virtio'/>\
             </disk></devices></domain>\" > /srv/theirs/d.xml; virsh -q define /srv/theirs/d.xml",
            base.file
        ));
        used(words).await;
        // What it backs onto is not known, and yet nothing new is held up by that.
        let fresh = picture.source("fresh", kind, false);
        let (pace, stop) = stopping(half);
        let dying = Writer::new("fresh", pace);
        let task = dying.begin(&fresh);
        stop.wait();
        let fresh = dying.again("fresh", Pace::default()).ensure(&fresh).await.unwrap();
        drop(stop);
        assert_eq!(task.await.unwrap().unwrap_err().kind, FaultKind::Busy);
        there(&format!("rm {POOL}/{0} {POOL}/{0}.json", fresh.file));
        there("virsh -q undefine theirs");
    }

    // An overlay over one that no pool has.
    there(&format!(
        "qemu-img create -q -f qcow2 -F qcow2 -b /srv/theirs/o.qcow2 {POOL}/theirs-snap.qcow2"
    ));
    used("theirs-snap.qcow2, whose backing file /srv/theirs/o.qcow2").await;
    there(&format!("rm {POOL}/theirs-snap.qcow2; virsh -q pool-undefine asleep"));

    // Damage: no overlay is made over it any more, and it is hashed before it is used.
    there(&format!("printf x | dd of={POOL}/{} bs=1 seek=9 conv=notrunc status=none", base.file));
    assert_eq!(storage.unchanged(&base).await.unwrap_err().kind, FaultKind::BaseChanged);
    let damaged = storage.verify(&source.key, &progress, &cancel).await.unwrap_err();
    assert!(damaged.message.contains("is damaged"), "{damaged}");
    let seen = storage.survey(vec![source.clone()]).await.unwrap();
    assert_eq!(seen[0].standing, Standing::Conflict, "{:?}", seen[0]);
    writer.ensure(&source).await.unwrap();
    assert_eq!(digest_there(&base.file), picture.digest.to_string());

    let listed = storage.prune(vec![source.clone()], true).await.unwrap();
    let expected = [&*base.file, "base-evict-x.raw.json"].map(|name| Path::new(POOL).join(name));
    assert_eq!(listed.iter().map(|left| left.path.clone()).collect::<Vec<_>>(), expected);
    assert_eq!(storage.prune(vec![source.clone()], false).await.unwrap(), listed);
    assert_eq!(names_there("base-evict"), "");
    writer.ensure(&source).await.unwrap();
    assert_eq!(storage.evict(&source.key).await.unwrap(), SIZE as u64);
    assert_eq!(names_there("base-evict"), "");
}

/// Who makes an overlay while the base is being removed: one of the two sees the other.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two lab hosts: make test"]
async fn an_overlay_and_an_eviction_see_each_other() {
    let picture = picture(11);
    let source = picture.source("race", "x", true);
    let (pace, stop) = stopping(|step| step == Step::Unmarked);
    let writer = Writer::new("race", pace);
    let base = writer.ensure(&source).await.unwrap();
    let (storage, key) = (writer.storage.clone(), source.key.clone());
    let evicted = tokio::spawn(async move { storage.evict(&key).await });
    stop.wait();
    // Made by somebody who looked at the marker just before it went.
    there(&format!(
        "qemu-img create -q -f qcow2 -F raw -b {POOL}/{} {POOL}/proxy-race.qcow2",
        base.file
    ));
    let late = writer.storage.overlay(&base, "proxy-race-late.qcow2", 32 << 20).await.unwrap_err();
    assert!(matches!(late.kind, FaultKind::Busy | FaultKind::BaseChanged), "{late}");
    stop.go.send(()).unwrap();
    let fault = evicted.await.unwrap().unwrap_err();
    assert_eq!(fault.kind, FaultKind::ImageInUse, "{fault}");
    // Its marker is there again, and it can be used.
    writer.storage.unchanged(&base).await.unwrap();
    assert_eq!(names_there("proxy-race"), "proxy-race.qcow2");
}
