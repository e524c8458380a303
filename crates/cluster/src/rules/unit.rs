//! The systemd unit that applies and checks at boot: nothing of it survives one in the kernel.

/// Why no unit can be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} {text:?} cannot stand in a systemd unit: {why}")]
pub struct UnitError {
    /// What it is.
    pub what: &'static str,
    /// As given.
    pub text: String,
    /// What is wrong with it.
    pub why: &'static str,
}

/// A word of an `ExecStart` line: systemd replaces `%` and `$` and reads backslashes, so they are doubled.
fn word(what: &'static str, text: &str) -> Result<String, UnitError> {
    let wrong = |why| UnitError { what, text: text.to_owned(), why };
    if text.is_empty() {
        return Err(wrong("it is empty"));
    }
    if text.chars().any(char::is_control) {
        return Err(wrong("it has a control character"));
    }
    let escaped =
        text.replace('\\', r"\\").replace('"', "\\\"").replace('%', "%%").replace('$', "$$");
    Ok(if escaped.chars().any(|c| c == ' ' || c == '\'' || c == ';' || c == '"') {
        format!("\"{escaped}\"")
    } else {
        escaped
    })
}

/// The unit `railweave-apply.service` for one host: the text of `/etc/systemd/system/railweave-apply.service`.
///
/// `binary` and `file` are absolute paths on that host, `host` is its name in the cluster file. `plan` are further
/// arguments of both commands, `apply` those of the first.
///
/// # Errors
///
/// If one of them cannot stand in a unit.
pub fn unit(
    binary: &str,
    file: &str,
    host: &str,
    plan: &[String],
    apply: &[String],
) -> Result<String, UnitError> {
    for (what, path) in [("the program", binary), ("the cluster file", file)] {
        if !path.starts_with('/') {
            let why = "it is not an absolute path, and a unit has no folder of its own";
            return Err(UnitError { what, text: path.to_owned(), why });
        }
    }
    let (binary, file) = (word("the program", binary)?, word("the cluster file", file)?);
    let host = word("the host", host)?;
    let words = |list: &[String]| -> Result<String, UnitError> {
        let words = list.iter().map(|one| Ok(format!("{} ", word("an argument", one)?)));
        words.collect()
    };
    let (plan, apply) = (words(plan)?, words(apply)?);
    Ok(format!(
        "\
# Written by `railweave apply --unit`. Routes, filters, markers and NIC settings do not survive a boot;
# this makes them again before anything that uses the cables starts, and checks the result.
[Unit]
Description=Railweave: forwarding rules of this host
Wants=network-online.target
After=network-online.target
# Containers open queue pairs, and a reload of a NIC's function would end them.
Before=docker.service containerd.service kubelet.service slurmd.service
StartLimitIntervalSec=600
StartLimitBurst=5

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={binary} apply --apply {apply}{plan}--host {host} {file}
ExecStart={binary} check {plan}--host {host} {file}
# A netdev that was late, or a peer that is still booting: try again, at most five times.
Restart=on-failure
RestartSec=20
TimeoutStartSec=300

# What it needs: netlink, devlink and ethtool (NET_ADMIN), and starting marker units (SYS_ADMIN, which systemd asks of
# those who start units). Everything else is taken away.
CapabilityBoundingSet=CAP_NET_ADMIN CAP_NET_RAW CAP_SYS_ADMIN CAP_DAC_READ_SEARCH
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
RestrictAddressFamilies=AF_UNIX AF_NETLINK AF_INET AF_INET6
RestrictNamespaces=yes
RestrictRealtime=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes

[Install]
WantedBy=multi-user.target
"
    ))
}
