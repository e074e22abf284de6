//! QEMU's own words about its end, out of the log that libvirt keeps for each domain.

/// How libvirt begins the entry of each start.
const STARTS: &str = ": starting up libvirt version";
/// Lines that say nothing about a failure.
const NOISE: [&str; 3] = ["char device redirected", "terminating on signal", "warning:"];
/// More than this are registers and call traces.
const LINES: usize = 3;

/// The entry of the latest start.
pub fn latest(log: &str) -> &str {
    match log.rfind(STARTS) {
        Some(at) => {
            let line = log[..at].rfind('\n').map_or(0, |end| end + 1);
            &log[line..]
        }
        None => log,
    }
}

/// What QEMU says about the end of its latest run; nothing when it ended in silence.
pub fn words(log: &str) -> Option<String> {
    let said: Vec<_> = latest(log).lines().filter_map(complaint).take(LINES).collect();
    (!said.is_empty()).then(|| said.join("; "))
}

/// A line by which QEMU or KVM complains, without its time.
fn complaint(line: &str) -> Option<&str> {
    if NOISE.iter().any(|noise| line.contains(noise)) {
        return None;
    }
    if line.starts_with("KVM internal error") || line.starts_with("error: kvm") {
        return Some(line.trim());
    }
    let at = line.find("qemu-system-")?;
    let (program, said) = line[at..].split_once(": ")?;
    // The command line has the program's name, too, and blanks before any colon.
    let is_message = !program.contains(char::is_whitespace) && !line[..at].contains('/');
    is_message.then(|| said.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: &str = "2026-12-01 14:00:00.000+0000: starting up libvirt version: 11.3.0, \
        qemu version: 10.0.2\nLC_ALL=C \\\nPATH=/usr/bin \\\n/usr/bin/qemu-system-x86_64 \\\n\
        -name guest=proxy-a,debug-threads=on \\\n-object '{\"a\": \"b\"}' \\\n\
        char device redirected to /dev/pts/0 (label charserial0)\n";

    #[test]
    fn a_refused_msr() {
        let log = format!(
            "{START}2026-12-01T14:00:01.1Z qemu-system-x86_64: error: failed to set MSR 0x10a to \
             0x0\nqemu-system-x86_64: ../target/i386/kvm/kvm.c:1: kvm_buf_set_msrs: Assertion \
             `ret == 1' failed.\n2026-12-01 14:00:01.2+0000: shutting down, reason=crashed\n"
        );
        let said = words(&log).unwrap();
        assert!(said.starts_with("error: failed to set MSR 0x10a to 0x0; "), "{said}");
    }

    #[test]
    fn an_emulation_failure() {
        let log = format!("{START}KVM internal error. Suberror: 1\nextra data[0]: 0x0\nRAX=00\n");
        assert_eq!(words(&log).unwrap(), "KVM internal error. Suberror: 1");
    }

    #[test]
    fn an_earlier_run_is_past() {
        let log = format!("{START}2026Z qemu-system-x86_64: error: old\n{START}");
        assert_eq!(words(&log), None);
        let told = "2026-12-01T14:00:01.1Z qemu-system-x86_64: terminating on signal 15 from pid 1";
        assert_eq!(words(told), None);
    }
}
