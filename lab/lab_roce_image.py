"""The kernel and the initial file system of the lab's virtual machines, made of Debian's packages and kept in a cache.

The kernel is unpacked, never installed. Only a shell, the boot script and the modules are in the image: everything
else a guest runs is this machine's own, read over a share. So the image changes when the kernel package, the list of
modules or the boot script does, and is found again by the hash of these.

Only the standard library. Needs apt-get and dpkg-deb the first time, and busybox-static.
"""

import contextlib
import fcntl
import hashlib
import lzma
import os
import re
import shutil
import stat
import subprocess
import tarfile
import tempfile
from pathlib import Path

from lab_netns import LabError

GUEST = Path(__file__).resolve().parent / "roce-guest"
BUSYBOX = Path("/usr/bin/busybox")
PACKAGE = "linux-image-amd64"
DOWNLOAD_LIMIT_S = 600.0
# A wait for another command that fills the same cache.
BUILD_LIMIT_S = 300.0
# Written into every hash: raised when the way an image is built changes.
FORMAT = "1"

# Loaded when a machine boots or when iproute2 asks the kernel for them; what they depend on is found.
MODULES = """
virtio_pci virtio_net virtio_console virtio_rng 9p 9pnet_virtio
rdma_rxe ib_uverbs rdma_ucm rdma_cm crc32_generic crc32_pclmul crc32c_generic crc32c_intel
veth dummy ifb af_packet ipv6 8021q
sch_ingress sch_netem sch_tbf sch_prio sch_htb cls_flower cls_matchall cls_u32 cls_bpf
act_mirred act_pedit act_skbedit act_skbmod act_csum act_gact act_police act_bpf act_vlan
""".split()


def cache():
    """The folder of the cache: below the user's own."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "railweave" / "roce"


def image(again=False, say=lambda _: None):
    """The kernel and the initial file system: two paths. Builds what the cache does not have.

    `again` asks the package system for its present kernel, even if the cache has one.
    """
    folder = cache()
    folder.mkdir(parents=True, exist_ok=True)
    with _lock(folder):
        kernel = None if again else _cached_kernel(folder)
        if kernel is None:
            kernel = _kernel(folder, say)
        return kernel / "vmlinux", _initramfs(folder, kernel, say)


@contextlib.contextmanager
def _lock(folder):
    with open(folder / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            # Another command downloads or unpacks; the kernel wakes this one when it is done.
            _wait_for(lock)
        yield


def _wait_for(lock):
    import time
    deadline = time.monotonic() + BUILD_LIMIT_S
    while True:
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        if time.monotonic() > deadline:
            raise LabError(f"another command has been building the lab's image for {BUILD_LIMIT_S:g} s; "
                           f"end it, or remove {lock.name}")
        time.sleep(0.1)


# The kernel: `kernel-HASH` holds `vmlinux` and a tree of modules as depmod left it.


def _kernel_hash(package):
    return _hash(FORMAT, package.name, str(package.stat().st_size), *MODULES)


def _cached_kernel(folder):
    """The newest kernel of the cache that was unpacked with these modules."""
    for package in sorted(folder.glob("linux-image-*.deb"), key=lambda one: one.stat().st_mtime, reverse=True):
        kernel = folder / f"kernel-{_kernel_hash(package)}"
        if (kernel / "vmlinux").exists():
            return kernel
    return None


def _kernel(folder, say):
    package = _package(folder, say)
    kernel = folder / f"kernel-{_kernel_hash(package)}"
    if (kernel / "vmlinux").exists():
        return kernel
    say(f"unpacking {package.name}")
    with tempfile.TemporaryDirectory(dir=folder, prefix="unpacking-") as work:
        work = Path(work)
        version, compressed = _unpack(package, work / "all")
        _choose_modules(work / "all", work / "kernel", version)
        (work / "kernel" / "vmlinux").write_bytes(_elf(compressed, package.name))
        _replace(work / "kernel", kernel)
    _keep_only(folder, "kernel-*", kernel)
    _keep_only(folder, "linux-image-*.deb", package)
    return kernel


def _package(folder, say):
    """The package of the kernel that the metapackage names: from the cache, or downloaded."""
    text = _run(["apt-cache", "depends", PACKAGE])
    names = re.findall(r"Depends: (linux-image-[0-9]\S*)", text)
    if not names:
        raise LabError(f"no package of a kernel is known for {PACKAGE}; as root: apt-get update")
    present = sorted(folder.glob(f"{names[0]}_*.deb"), key=lambda one: one.stat().st_mtime)
    if present:
        return present[-1]
    say(f"downloading {names[0]} (about 70 MiB)")
    with tempfile.TemporaryDirectory(dir=folder, prefix="downloading-") as work:
        _run(["apt-get", "--quiet=2", "-o", "APT::Sandbox::User=root", "download", names[0]], cwd=work,
             limit=DOWNLOAD_LIMIT_S)
        found = list(Path(work).glob("*.deb"))
        if len(found) != 1:
            raise LabError(f"apt-get download {names[0]} left {len(found)} packages; as root: apt-get update")
        package = folder / found[0].name
        found[0].replace(package)
    return package


def _unpack(package, root):
    """Writes the modules of a kernel's package below `root`; its version and its compressed kernel."""
    version = kernel = None
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as unpacking:
        with tarfile.open(fileobj=unpacking.stdout, mode="r|") as tar:
            for member in tar:
                name = member.name.removeprefix("./")
                if name.startswith("boot/vmlinuz-"):
                    version = name.removeprefix("boot/vmlinuz-")
                    kernel = tar.extractfile(member).read()
                elif member.isfile() and re.search(r"/lib/modules/|^lib/modules/", name):
                    path = root / name.removeprefix("usr/")
                    if not path.resolve().is_relative_to(root.resolve()):
                        raise LabError(f"{package.name}: {name} leads out of the package")
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(tar.extractfile(member).read())
    if unpacking.returncode or kernel is None:
        raise LabError(f"{package} holds no kernel; remove it and try again")
    return version, kernel


def _choose_modules(source, target, version):
    """Copies the named modules and what they depend on, and makes depmod's tables for these."""
    _run([str(BUSYBOX), "depmod", "-b", str(source), version])
    tree = Path("lib/modules") / version
    paths, needs = {}, {}
    for line in (source / tree / "modules.dep").read_text().splitlines():
        path, _, others = line.partition(":")
        paths[_module_name(path)] = path
        needs[path] = others.split()
    builtin = {_module_name(line) for line in (source / tree / "modules.builtin").read_text().splitlines()}
    missing = [name for name in MODULES if name not in paths and name not in builtin]
    if missing:
        raise LabError(f"kernel {version} has no module {', '.join(missing)}")
    wanted = {path for name in MODULES if name in paths for path in (paths[name], *needs[paths[name]])}
    for path in sorted(wanted):
        (target / tree / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / tree / path, target / tree / path)
    for table in (source / tree).glob("modules.*"):
        if table.name.startswith(("modules.builtin", "modules.order")):
            shutil.copyfile(table, target / tree / table.name)
    _run([str(BUSYBOX), "depmod", "-b", str(target), version])


def _module_name(path):
    return Path(path).name.split(".ko")[0].replace("-", "_")


def _elf(compressed, name):
    """The kernel's own ELF file, out of the file that a boot loader starts.

    A machine that boots it saves unpacking it, which emulated costs more than all the rest of the boot.
    """
    start = compressed.find(b"\xfd7zXZ\0")
    with contextlib.suppress(lzma.LZMAError):
        if start >= 0:
            kernel = lzma.LZMADecompressor(lzma.FORMAT_XZ).decompress(compressed[start:])
            if kernel.startswith(b"\x7fELF"):
                return kernel
    raise LabError(f"{name}: its kernel is not packed with xz, as Debian's are")


# The initial file system: an archive in the format `newc`, not compressed, since unpacking is what costs.


def _initramfs(folder, kernel, say):
    files = {"bin/busybox": BUSYBOX, "lab/boot": GUEST / "boot", "etc/inittab": GUEST / "inittab"}
    for path in files.values():
        if not path.exists():
            raise LabError(f"{path} is missing" + ("; install busybox-static" if path == BUSYBOX else ""))
    # A program that needs shared libraries names their loader at its start; the image has none.
    if b"/ld-linux" in BUSYBOX.read_bytes()[:4096]:
        raise LabError(f"{BUSYBOX} needs shared libraries; install busybox-static")
    target = folder / f"image-{_hash(FORMAT, kernel.name, *(path.read_bytes() for path in files.values()))}.cpio"
    if target.exists():
        return target
    say("building the image")
    applets = _run([str(BUSYBOX), "--list"]).split()
    new = folder / f"image-new-{os.getpid()}"
    with contextlib.ExitStack() as clean:
        clean.callback(lambda: new.unlink(missing_ok=True))
        with open(new, "wb") as out:
            archive = Archive(out)
            for name in ("dev", "proc", "sys", "run", "tmp", "host", "root"):
                archive.folder(name)
            archive.link("init", "bin/busybox")
            # The kernel asks for modules by this path.
            archive.link("sbin/modprobe", "../bin/busybox")
            for applet in applets:
                if applet != "busybox":
                    archive.link(f"bin/{applet}", "busybox")
            for name, path in files.items():
                archive.file(name, path.read_bytes(), executable=name != "etc/inittab")
            for path in sorted((kernel / "lib").rglob("*")):
                if path.is_file():
                    archive.file(path.relative_to(kernel).as_posix(), path.read_bytes())
            archive.end()
        new.replace(target)
    _keep_only(folder, "image-*.cpio", target)
    return target


class Archive:
    """Writes a cpio archive in the format that the kernel unpacks at boot."""

    def __init__(self, out):
        self.out, self.folders, self.number = out, set(), 0

    def folder(self, name):
        if name and name != "." and name not in self.folders:
            self.folder(os.path.dirname(name))
            self.folders.add(name)
            self._entry(name, stat.S_IFDIR | 0o755, b"")

    def file(self, name, content, executable=False):
        self.folder(os.path.dirname(name))
        self._entry(name, stat.S_IFREG | (0o755 if executable else 0o644), content)

    def link(self, name, target):
        self.folder(os.path.dirname(name))
        self._entry(name, stat.S_IFLNK | 0o777, target.encode())

    def end(self):
        self._entry("TRAILER!!!", 0, b"")

    def _entry(self, name, mode, content):
        self.number += 1
        coded = name.encode() + b"\0"
        # Magic, then thirteen numbers of eight hexadecimal digits: serial number, mode, owner, group, links, time,
        # size, four for devices, length of the name, checksum (unused).
        numbers = (self.number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(coded), 0)
        head = b"070701" + b"".join(b"%08X" % number for number in numbers) + coded
        for part in (head, content):
            self.out.write(part + b"\0" * (-len(part) % 4))


def _hash(*parts):
    """Of all the parts, each with its length: sixteen digits."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "big") + data)
    return total.hexdigest()[:16]


def _replace(source, target):
    if target.exists():
        shutil.rmtree(target)
    source.replace(target)


def _keep_only(folder, pattern, kept):
    """Removes what an older kernel or script left. A machine that runs has long read its files."""
    for path in folder.glob(pattern):
        if path != kept:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def _run(command, cwd=None, limit=120.0):
    try:
        done = subprocess.run(command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit,
                              check=False)
    except FileNotFoundError:
        raise LabError(f"there is no `{command[0]}` here; the lab's image is made of Debian's packages") from None
    except subprocess.TimeoutExpired:
        raise LabError(f"`{' '.join(command)}` did not end within {limit:g} s") from None
    if done.returncode:
        raise LabError(f"`{' '.join(command)}` failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout
