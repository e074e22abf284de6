//! `file://` URLs, which only the configuration may have.

use std::io;

use tokio::fs::File;

use crate::model::ResourceUrl;

/// Whether `url` names a file of this host.
pub(super) fn is_local(url: &ResourceUrl) -> bool {
    url.expose().scheme() == "file"
}

/// Opens it, unless it is a directory, a FIFO or a device; and its length.
pub(super) async fn open(url: &ResourceUrl) -> io::Result<(File, u64)> {
    let path = url.expose().to_file_path().map_err(|()| io::Error::other("it is no path"))?;
    if !tokio::fs::metadata(&path).await?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let file = File::open(path).await?;
    let length = file.metadata().await?.len();
    Ok((file, length))
}
