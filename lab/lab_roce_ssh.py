"""SSH between the hosts of a lab of virtual machines, for commands that reach other hosts: keys and servers of its own.

Nothing of this machine's SSH is read or changed: keys and settings lie in a folder that the caller gives, in which the
hosts read them, and servers listen on the management network only.
"""

import subprocess
from pathlib import Path

from lab_netns import LabError

# Where a host finds `ssh` with these settings, before the real one.
BIN = "/run/bin"
PATH = f"{BIN}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
KEYS_LIMIT_S = 30.0

SERVER = """\
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
StrictModes no
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
PrintMotd no
KexAlgorithms curve25519-sha256
MaxStartups 100
MaxSessions 100
PidFile /run/sshd.pid
SetEnv TMPDIR=/run/tmp PATH={path}
"""
CLIENT = """\
Host *
  User root
  IdentityFile {folder}/user
  IdentitiesOnly yes
  UserKnownHostsFile /dev/null
  StrictHostKeyChecking no
  KexAlgorithms curve25519-sha256
  LogLevel ERROR
"""
START = """\
set -e
mkdir -p /run/sshd {bin}
printf '#!/bin/sh\\nexec /usr/bin/ssh -F {folder}/client "$@"\\n' > {bin}/ssh
chmod +x {bin}/ssh
# The administrator's own shell here may read settings that take an emulated machine half a minute.
if ! grep -q '^root:.*:/run/home:/bin/sh$' /etc/passwd; then
  sed 's,^\\(root:[^:]*:0:0:[^:]*\\):.*,\\1:/run/home:/bin/sh,' /etc/passwd > /run/passwd
  mount --bind /run/passwd /etc/passwd
fi
/usr/sbin/sshd -f {folder}/server -o ListenAddress="$1"
"""


def start(lab, folder):
    """Starts a server in every host. Commands that use it need `env`: the variables that this answers.

    `folder` has to lie where the hosts see it: not below /run or /dev.
    """
    folder = Path(folder)
    folder.mkdir(mode=0o755, exist_ok=True)
    try:
        for key in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", folder / key], check=True,
                           timeout=KEYS_LIMIT_S, stdin=subprocess.DEVNULL, capture_output=True)
    except FileNotFoundError:
        raise LabError("there is no ssh-keygen here; install openssh-client and openssh-server") from None
    (folder / "server").write_text(SERVER.format(folder=folder, path=PATH))
    (folder / "client").write_text(CLIENT.format(folder=folder))
    jobs = {host: lab.start(host, "sh", "-c", START.format(folder=folder, bin=BIN), "sh", lab.management(host),
                            directory="/") for host in lab.hosts}
    for host, job in jobs.items():
        done = job.result(60)
        if done.returncode:
            raise LabError(f"{host}: no SSH server: {(done.stderr or done.stdout).strip()}")
    return {"PATH": PATH}
