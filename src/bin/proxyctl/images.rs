//! The commands about images and jobs.

use zbus::OwnedObjectPath;

use crate::Form;
use crate::arguments::{Image, ImageJob, ImageName, Job};
use crate::client::{Client, Kind};
use crate::failure::Failure;
use crate::follow;
use crate::output::{plain, printable, size, state, time, write, write_json, write_table};
use crate::path::name;
use crate::proxies::sheet;
use crate::value::{Properties, number, text};

pub(crate) async fn run(client: &Client, command: Image, form: Form) -> Result<(), Failure> {
    match command {
        Image::List => list(client, form).await,
        Image::Show(image) => show(client, &image, form).await,
        Image::Fetch(job) => begin(client, "FetchImage", &job, form).await,
        Image::Verify(job) => begin(client, "VerifyImage", &job, form).await,
        Image::Evict(ImageName { entry, key }) => {
            client.manager().await?.call("EvictImage", &(entry, key)).await
        }
        Image::Prune { dry_run } => prune(client, dry_run, form).await,
    }
}

async fn list(client: &Client, form: Form) -> Result<(), Failure> {
    let images = client.told_of(Kind::Image).await?;
    if form == Form::Json {
        return write_json(&images);
    }
    let row = |image: &Properties| {
        vec![
            plain(text(image, "entry")),
            plain(text(image, "key")),
            state(text(image, "state")),
            plain(&size(number(image, "size"))),
            plain(&size(number(image, "virtualSize"))),
            plain(&time(number(image, "fetchedAt"))),
            plain(&users(image).join(" ")),
        ]
    };
    let header = ["PROVIDER", "KEY", "STATE", "SIZE", "VIRTUAL", "FETCHED", "USED BY"];
    write_table(&header, images.iter().map(row).collect(), "images")?;
    // What a word does not tell stands beside the table, where there is room.
    for image in images.iter().filter(|image| !text(image, "message").is_empty()) {
        let [entry, key, message] = ["entry", "key", "message"].map(|name| text(image, name));
        eprintln!("{entry} {key}: {}", printable(message));
    }
    Ok(())
}

/// The names of the Proxies that use an image, out of their paths.
fn users(image: &Properties) -> Vec<String> {
    let paths = image.get("usedBy").and_then(serde_json::Value::as_array).into_iter().flatten();
    paths.filter_map(|path| name(path.as_str()?)).collect()
}

async fn show(client: &Client, image: &ImageName, form: Form) -> Result<(), Failure> {
    let of = client.image(&image.entry, &image.key).await?.properties().await?;
    if form == Form::Json {
        return write_json(&of);
    }
    let lines = [
        ("State", text(&of, "state").to_owned()),
        ("Message", text(&of, "message").to_owned()),
        ("URL", text(&of, "url").to_owned()),
        ("Path", text(&of, "path").to_owned()),
        ("sha256", text(&of, "digest").to_owned()),
        ("expected", text(&of, "expectedDigest").to_owned()),
        ("Size", size(number(&of, "size"))),
        ("Virtual size", size(number(&of, "virtualSize"))),
        ("Fetched", time(number(&of, "fetchedAt"))),
        ("Used by", users(&of).join(" ")),
    ];
    write(sheet(&format!("{} {}", image.entry, image.key), &lines).as_bytes())
}

async fn begin(
    client: &Client,
    method: &'static str,
    command: &ImageJob,
    form: Form,
) -> Result<(), Failure> {
    let ImageName { entry, key } = &command.image;
    let path: OwnedObjectPath = client.manager().await?.call(method, &(entry, key)).await?;
    let id = path.as_str().rsplit('/').next().unwrap_or_default().to_owned();
    let job = client.object(Kind::Job, path).await?;
    if command.no_wait {
        return match form {
            Form::Json => write_json(&job.properties().await?),
            Form::Text => write(format!("{id}\n").as_bytes()),
        };
    }
    tokio::select! {
        ended = follow::job(&job, form) => ended,
        _ = tokio::signal::ctrl_c() => Err(Failure::other(format!(
            "job {id} goes on: `proxyctl job cancel {id}` calls it off"
        ))),
    }
}

async fn prune(client: &Client, dry_run: bool, form: Form) -> Result<(), Failure> {
    let rows: Vec<(String, u64, String)> =
        client.manager().await?.call("PruneImages", &dry_run).await?;
    if form == Form::Json {
        let row = |(path, bytes, reason): &(String, u64, String)| serde_json::json!({ "path": path, "bytes": bytes, "reason": reason });
        return write_json(&rows.iter().map(row).collect::<Vec<_>>());
    }
    let row = |(path, bytes, reason): &(String, u64, String)| {
        vec![plain(path), plain(&size(*bytes)), plain(reason)]
    };
    let what = if dry_run { "files to remove" } else { "removed files" };
    write_table(&["PATH", "SIZE", "REASON"], rows.iter().map(row).collect(), what)?;
    for provider in client.told_of(Kind::Provider).await? {
        let [name, state, message] = ["name", "state", "message"].map(|key| text(&provider, key));
        if state != "connected" {
            eprintln!("{name} was not looked at: {}", printable(message));
        }
    }
    Ok(())
}

pub(crate) async fn jobs(client: &Client, command: Job, form: Form) -> Result<(), Failure> {
    let jobs = match command {
        Job::Cancel { id } => return client.job(id).await?.call("Cancel", &()).await,
        Job::List => client.all(Kind::Job).await?,
    };
    if form == Form::Json {
        let with_id = |(path, mut job): (OwnedObjectPath, Properties)| {
            job.insert("path".into(), path.as_str().into());
            job
        };
        return write_json(&jobs.into_iter().map(with_id).collect::<Vec<_>>());
    }
    let row = |(path, job): &(OwnedObjectPath, Properties)| {
        vec![
            plain(&name(path.as_str()).unwrap_or_default()),
            plain(text(job, "kind")),
            plain(text(job, "entry")),
            plain(text(job, "key")),
            state(text(job, "state")),
            plain(text(job, "message")),
        ]
    };
    let header = ["ID", "KIND", "PROVIDER", "KEY", "STATE", "MESSAGE"];
    write_table(&header, jobs.iter().map(row).collect(), "jobs")
}
