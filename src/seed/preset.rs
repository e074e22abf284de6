//! The built-in user-data: a cloud-config that makes squid serve the listed clients.

use std::fmt::Write as _;

use ipnet::IpNet;

use super::script;

/// The preset for a proxy on `port` for `clients`; for the networks of the guest's own
/// interfaces when there are none.
pub fn preset(port: u16, clients: &[IpNet]) -> String {
    let mut listed = String::new();
    for client in clients {
        // Writing to a string does not fail.
        let _ = writeln!(listed, "{client}");
    }
    let mut files = String::new();
    if listed.is_empty() {
        listed.push_str("# the networks of this guest's own interface\n");
    }
    file(&mut files, "/etc/squid/proxyd.conf", "0644", &squid_conf(port));
    file(&mut files, "/etc/squid/proxyd.clients", "0644", &listed);
    file(&mut files, "/usr/local/sbin/proxyd-squid", "0755", &script::squid());
    format!(
        "#cloud-config\n\
         # proxyd's built-in preset: squid as a forward proxy.\n\
         write_files:\n{files}\
         runcmd:\n  - [/bin/sh, /usr/local/sbin/proxyd-squid]\n"
    )
}

/// A file as a YAML block, which keeps its lines as they are.
fn file(yaml: &mut String, path: &str, mode: &str, content: &str) {
    let _ = write!(yaml, "  - path: {path}\n    permissions: \"{mode}\"\n    content: |\n");
    for line in content.lines() {
        let indent = if line.is_empty() { "" } else { "      " };
        let _ = writeln!(yaml, "{indent}{line}");
    }
}

/// squid's configuration. Reference: <http://www.squid-cache.org/Doc/config/>.
fn squid_conf(port: u16) -> String {
    format!(
        "# Written by proxyd's preset.\n\
         http_port {port}\n\
         # Left out, squid asks the name servers, and starts after minutes where they are\n\
         # silent about the guest's name.\n\
         visible_hostname proxyd\n\
         \n\
         acl clients src \"/etc/squid/proxyd.clients\"\n\
         acl safe_ports port 80 443 1025-65535\n\
         acl tls_ports port 443\n\
         acl CONNECT method CONNECT\n\
         # What only the guest itself may reach, its cloud's metadata included.\n\
         acl own_hosts dst 0.0.0.0/8 127.0.0.0/8 169.254.0.0/16 ::/128 ::1 fe80::/10\n\
         \n\
         http_access deny !safe_ports\n\
         http_access deny CONNECT !tls_ports\n\
         http_access deny own_hosts\n\
         http_access allow clients\n\
         http_access deny all\n\
         \n\
         # A small cache, in memory alone.\n\
         cache_mem 32 MB\n\
         maximum_object_size_in_memory 512 KB\n\
         via off\n\
         forwarded_for delete\n\
         connect_timeout 15 seconds\n\
         read_timeout 5 minutes\n\
         request_timeout 1 minute\n\
         shutdown_lifetime 1 seconds\n\
         pinger_enable off\n\
         # The distributions' logrotate does the rotation.\n\
         logfile_rotate 0\n"
    )
}
