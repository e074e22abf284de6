//! Object paths in words.

/// The last element of an object path, without its escapes.
pub(crate) fn name(path: &str) -> Option<String> {
    let mut rest = path.rsplit('/').next()?;
    let mut name = String::new();
    while let Some((before, after)) = rest.split_once('_') {
        let code = u8::from_str_radix(after.get(..2)?, 16).ok()?;
        name.push_str(before);
        name.push(char::from(code));
        rest = after.get(2..)?;
    }
    Some(name + rest)
}

/// `/org/proxyd1/image/home/debian_2d13` as `image home debian-13`.
pub(crate) fn object(path: &str) -> String {
    let rest = path.strip_prefix("/org/proxyd1/").unwrap_or(path);
    let names = rest.split('/').filter_map(name);
    names.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_from_paths() {
        assert_eq!(name("/org/proxyd1/proxy/a_2db").as_deref(), Some("a-b"));
        assert_eq!(name("/org/proxyd1/proxy/_39a9").as_deref(), Some("9a9"));
        assert_eq!(name("/org/proxyd1/proxy/a_2"), None);
        assert_eq!(name("/org/proxyd1/proxy/é_é"), None);
        assert_eq!(object("/org/proxyd1/image/home/debian_2d13"), "image home debian-13");
    }
}
