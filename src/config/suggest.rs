//! The way out of a misspelling: the nearest of the words that are known.

/// A long list helps nobody.
const MOST_LISTED: usize = 20;

/// `did you mean "pool"?`, or, when nothing is near, the whole list introduced by
/// `intro`.
pub(super) fn hint(word: &str, known: &[&str], intro: &str) -> String {
    match nearest(word, known) {
        Some(near) => format!("did you mean {near:?}?"),
        None => format!("{intro} {}", list(known)),
    }
}

/// Suggestion and list both.
pub(super) fn hint_and_list(word: &str, known: &[&str], intro: &str) -> String {
    match nearest(word, known) {
        Some(near) => format!("did you mean {near:?}? {intro} {}", list(known)),
        None => format!("{intro} {}", list(known)),
    }
}

/// The words, quoted, separated by commas, with an end.
pub(super) fn list(words: &[&str]) -> String {
    let shown: Vec<_> = words.iter().take(MOST_LISTED).map(|word| format!("{word:?}")).collect();
    match words.len().saturating_sub(MOST_LISTED) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let measured = known.iter().filter_map(|&candidate| {
        let wanted = fold(candidate, usize::MAX);
        let limit = wanted.len().div_ceil(2).min(3);
        // More letters than this are too far off anyway, however many there are.
        let given = fold(word, wanted.len() + limit + 1);
        let distance = distance(&given, &wanted);
        (distance <= limit).then_some((distance, candidate))
    });
    measured.min_by_key(|(distance, _)| *distance).map(|(_, candidate)| candidate)
}

/// `virt_type`, `VirtType` and `virtType` are the same slip or none.
fn fold(word: &str, most: usize) -> Vec<char> {
    let letters = word.chars().filter(|c| c.is_alphanumeric());
    letters.take(most).map(|c| c.to_ascii_lowercase()).collect()
}

/// Levenshtein's edit distance, row by row.
fn distance(from: &[char], to: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (index, a) in from.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], index + 1);
        for (column, b) in to.iter().enumerate() {
            let substitute = diagonal + usize::from(a != b);
            diagonal = row[column + 1];
            row[column + 1] = substitute.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [&str; 4] = ["pool", "virtType", "installGuestAgent", "uri"];

    #[test]
    fn distances() {
        let measure = |a: &str, b: &str| distance(&fold(a, 99), &fold(b, 99));
        assert_eq!(measure("kitten", "sitting"), 3);
        assert_eq!(measure("", "abc"), 3);
        assert_eq!(measure("abc", ""), 3);
        assert_eq!(measure("virt_type", "virtType"), 0);
    }

    #[test]
    fn the_nearest_word_is_suggested() {
        let cases =
            [("poool", "pool"), ("virt-type", "virtType"), ("URL", "uri"), ("opol", "pool")];
        for (slip, meant) in cases {
            assert_eq!(nearest(slip, &KEYS), Some(meant), "{slip}");
        }
    }

    #[test]
    fn nothing_near_lists_all() {
        let text = hint("bananas", &KEYS, "known keys:");
        assert_eq!(text, r#"known keys: "pool", "virtType", "installGuestAgent", "uri""#);
        assert!(hint(&"x".repeat(1 << 20), &KEYS, "").contains("pool"));
    }

    #[test]
    fn a_long_list_ends() {
        let words = vec!["w"; 50];
        assert!(list(&words).ends_with("and 30 more"));
    }
}
