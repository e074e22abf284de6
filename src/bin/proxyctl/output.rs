//! What people and programs see: tables that fit the terminal, colours only there,
//! and JSON.

use std::io::{IsTerminal as _, Write as _};

use comfy_table::{Cell, Color, ColumnConstraint, ContentArrangement, Table, presets};
use serde::Serialize;

use crate::failure::Failure;

/// Writes to standard output.
pub(crate) fn write(bytes: &[u8]) -> Result<(), Failure> {
    let mut output = std::io::stdout().lock();
    match output.write_all(bytes).and_then(|()| output.flush()) {
        // A reader such as `head` has seen enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(|error| Failure::other(format!("can't write: {error}"))),
    }
}

/// Writes JSON on lines of its own: indented for a terminal, else one line.
pub(crate) fn write_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = match std::io::stdout().is_terminal() {
        true => serde_json::to_string_pretty(value),
        false => serde_json::to_string(value),
    };
    let text = text.map_err(|error| Failure::other(format!("no JSON: {error}")))?;
    write(format!("{text}\n").as_bytes())
}

/// Columns that are never folded: few words, and what people copy.
const FIRM: [&str; 7] = ["ID", "PHASE", "HEALTHY", "STATE", "RESULT", "SIZE", "ENDPOINT"];

/// On a terminal with fewer columns, those are folded, too.
const NARROW: u16 = 72;

/// Writes a table, and how many of `what` it has. Not on a terminal, lines are as long
/// as they need to be.
pub(crate) fn write_table(
    header: &[&str],
    rows: Vec<Vec<Cell>>,
    what: &str,
) -> Result<(), Failure> {
    let terminal = std::io::stdout().is_terminal();
    if rows.is_empty() {
        return if terminal { write(format!("No {what}.\n").as_bytes()) } else { Ok(()) };
    }
    let count = rows.len();
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header).add_rows(rows);
    table.set_content_arrangement(match terminal {
        true => ContentArrangement::Dynamic,
        false => ContentArrangement::Disabled,
    });
    let width = table.width();
    for (column, name) in table.column_iter_mut().zip(header) {
        column.set_padding((0, 2));
        if FIRM.contains(name) && width.is_some_and(|width| width >= NARROW) {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    let colourless = std::env::var_os("NO_COLOR").is_some_and(|set| !set.is_empty())
        || std::env::var_os("TERM").is_some_and(|name| name == "dumb");
    if colourless {
        // It would forget the terminal's width as well.
        table.force_no_tty();
        width.map(|width| table.set_width(width));
    }
    let lines = table.lines().map(|line| format!("{}\n", line.trim_end()));
    let footer = if terminal { format!("\n{count} {what} listed.\n") } else { String::new() };
    write((lines.collect::<String>() + &footer).as_bytes())
}

/// A cell that says how something stands.
pub(crate) fn state(word: &str) -> Cell {
    let color = match word {
        "Ready" | "ready" | "connected" | "yes" | "done" | "ok" => Some(Color::Green),
        "Failed" | "failed" | "conflict" | "debris" | "FAIL" => Some(Color::Red),
        "Stopped" | "absent" | "no" | "" => None,
        _ => Some(Color::Yellow),
    };
    let cell = plain(word);
    color.into_iter().fold(cell, Cell::fg)
}

/// A cell with text, or a dash for none.
pub(crate) fn plain(text: &str) -> Cell {
    if text.is_empty() { Cell::new("-") } else { Cell::new(printable(text)) }
}

/// Text on one line, without what would steer a terminal: messages may quote a server,
/// a guest or a file.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

/// The same for text of several lines.
pub(crate) fn printable_lines(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// Bytes for people.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        0 => String::new(),
        bytes => indicatif::BinaryBytes(bytes).to_string(),
    }
}

/// Microseconds since the epoch for people, in UTC; nothing for none.
pub(crate) fn time(micros: u64) -> String {
    if micros == 0 {
        return String::new();
    }
    let at = std::time::UNIX_EPOCH + std::time::Duration::from_micros(micros);
    humantime::format_rfc3339_seconds(at).to_string().replace('T', " ").replace('Z', " UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_is_quoted_steers_the_terminal() {
        assert_eq!(printable("a\x1b[2Jb\nc\u{9b}d"), "a [2Jb c d");
        assert_eq!(printable_lines("a\x07\nb"), "a \nb");
    }
}
