//! A guest's serial console, read for signs of how far it has come.

/// How every line begins that the scripts in the guest leave for us.
const MARK: &str = "proxyd: ";
/// How the line of a failure goes on after the topic.
const FAILED: &str = "failed: ";

/// What only the firmware or the boot loader prints: a new boot begins there.
const BEGINS: [&str; 3] = ["BdsDxe: loading Boot", "SeaBIOS (version", "GRUB loading"];
/// What only a kernel, its initramfs or a service manager prints. Many images keep the
/// kernel itself quiet.
const BOOTED: [&str; 9] = [
    "Linux version",
    "EFI stub:",
    "Loading, please wait...",
    "dracut",
    "systemd",
    "cloud-init",
    "[  OK  ]",
    "OpenRC",
    " login:",
];
/// What cloud-init prints when it comes to the scripts, and when it is through.
const FINAL: [&str; 2] = ["running 'modules:final'", " finished at "];

/// What a script in the guest said last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mark {
    /// It is at work, or was done, in its own words.
    Said(String),
    /// It gave up, and why.
    Failed(String),
}

/// The console of the latest boot.
#[derive(Debug, Clone, Copy)]
pub struct Console<'a>(&'a str);

impl<'a> Console<'a> {
    /// The latest boot within `text`, which [`plain`] has cleaned.
    pub fn of(text: &'a str) -> Self {
        let begin = BEGINS.iter().filter_map(|sign| text.rfind(sign)).max();
        Self(begin.and_then(|at| text.get(at..)).unwrap_or(text))
    }

    /// Whether a kernel runs.
    pub fn booted(self) -> bool {
        BOOTED.iter().any(|sign| self.0.contains(sign))
    }

    /// Whether cloud-init has come to its final stage, in which scripts run.
    pub fn is_final(self) -> bool {
        self.0.lines().any(|line| {
            // Both words, lest any program's "finished at" be taken for it.
            line.to_lowercase().contains("cloud-init v.")
                && FINAL.iter().any(|at| line.contains(at))
        })
    }

    /// What the script about `topic` said last.
    pub fn mark(self, topic: &str) -> Option<Mark> {
        let mark = format!("{MARK}{topic}: ");
        let said = self.0.lines().rev().find_map(|line| Some(line.split_once(&mark)?.1.trim()))?;
        Some(match said.strip_prefix(FAILED) {
            Some(why) => Mark::Failed(why.to_owned()),
            None => Mark::Said(said.to_owned()),
        })
    }

    /// The last line with anything in it.
    pub fn last_line(self) -> &'a str {
        self.0.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default()
    }
}

/// `bytes` as lines of text: without the terminal's escape sequences and control
/// characters.
pub fn plain(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut plain = String::with_capacity(text.len());
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '\u{1b}' => skip_sequence(&mut letters),
            '\n' | '\t' => plain.push(letter),
            // A carriage return alone begins the line anew: keep both on lines of their own.
            '\r' if letters.peek() != Some(&'\n') => plain.push('\n'),
            _ if letter.is_control() => {}
            _ => plain.push(letter),
        }
    }
    plain
}

/// Skips what follows an escape (ECMA-48): a control sequence to its final byte, or one
/// letter.
fn skip_sequence(letters: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    if letters.next_if_eq(&'[').is_none() {
        letters.next();
        return;
    }
    while letters.next_if(|letter| !('@'..='~').contains(letter)).is_some() {}
    letters.next();
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_terminals_language_is_left_out() {
        let raw =
            b"\x1b[2J\x1b[01;01H\x1b[=3hBdsDxe: loading\r\n\x1b[0;32m  OK  \x1b[0m\x07done\rnext";
        assert_eq!(plain(raw), "BdsDxe: loading\n  OK  done\nnext");
    }

    #[test]
    fn only_the_latest_boot_counts() {
        let text = "BdsDxe: loading Boot0001\nLinux version 6\nproxyd: agent: failed: x\n\
                    BdsDxe: loading Boot0001\n  Booting `Debian'\n\n";
        let console = Console::of(text);
        assert!(!console.booted());
        assert_eq!(console.mark("agent"), None);
        assert_eq!(console.last_line(), "Booting `Debian'");
    }

    #[test]
    fn a_quiet_kernel_is_noticed_by_its_initramfs() {
        let booted = |text| Console::of(text).booted();
        assert!(booted("BdsDxe: starting Boot0001\nEFI stub: Loaded initrd\n"));
        assert!(booted("GRUB loading.\nLoading, please wait...\n"));
        assert!(!booted("BdsDxe: starting Boot0001\n>>Start PXE over IPv4.\n"));
    }

    #[test]
    fn the_last_word_of_a_script_is_found() {
        let text = "[   60.1] cloud-init[400]: proxyd: agent: installing qemu-guest-agent\n\
                    proxyd: squid: squid serves\n\
                    [   99.1] cloud-init[400]: proxyd: agent: failed: E: no route\n";
        let console = Console::of(text);
        assert_eq!(console.mark("agent"), Some(Mark::Failed("E: no route".into())));
        assert_eq!(console.mark("squid"), Some(Mark::Said("squid serves".into())));
        assert_eq!(console.mark("other"), None);
    }

    #[test]
    fn the_final_stage_is_told_by_cloud_init_alone() {
        let of = |text| Console::of(text).is_final();
        assert!(of("[ 60.] cloud-init[4]: Cloud-init v. 25.1.4 finished at Tue, 01 Dec 2026\n"));
        assert!(of("Cloud-init v. 22.4.2 running 'modules:final' at Tue\n"));
        assert!(!of("Cloud-init v. 25.1.4 running 'init' at Tue\nfsck finished at noon\n"));
    }

    proptest! {
        #[test]
        fn no_console_makes_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let text = plain(&bytes);
            let console = Console::of(&text);
            let _ = (console.booted(), console.is_final(), console.mark("agent"));
            let escaped = text.contains('\u{1b}');
            prop_assert!(!escaped);
        }
    }
}
