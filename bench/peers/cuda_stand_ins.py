"""Stand-ins for the CUDA libraries that PyTorch's wheel is linked against and that are not here,
so that its CPU part can be loaded. They have the right names, and every function of theirs does nothing and returns 0.

Usage: cuda_stand_ins.py PREFIX OUT
"""

import collections
import pathlib
import re
import subprocess
import sys


def output(*command):
    return subprocess.run(command, capture_output=True, text=True).stdout


def main():
    prefix, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    libraries = list(prefix.glob("lib/python3*/site-packages/torch/lib/*.so*"))
    own = {library.name for library in libraries}
    system = output("ldconfig", "-p")
    needed, symbols = set(), collections.defaultdict(lambda: collections.defaultdict(set))
    for library in libraries:
        names = re.findall(r"\(NEEDED\).*\[(.+)\]", output("readelf", "-d", library))
        needed.update(name for name in names if re.match(r"lib(cu|nv|nccl)", name))
        # The symbols, and the library and version that each is wanted from.
        versions = re.findall(r"File: (\S+)|Name: (\S+)", output("readelf", "-W", "-V", library))
        owner, file = {}, None
        for name, version in versions:
            file = name or file
            if version:
                owner[version] = file
        for symbol in output("nm", "-D", "--undefined-only", library).split():
            name, _, version = symbol.partition("@")
            if version in owner and owner[version] in needed:
                symbols[owner[version]][version].add(name)
            elif not version and re.match(r"(_?cu|nv|nccl|__cuda)", name):
                symbols["unversioned"][""].add(name)
    for name in sorted(needed - own):
        if f"\t{name} " in system:
            continue
        # Names without a version may be anywhere: every library without versions has them all.
        wanted = dict(symbols[name] or symbols["unversioned"])
        functions = sorted(set().union(*wanted.values()) if wanted else set())
        code = [f"long {function}(void) {{ return 0; }}" for function in functions]
        script = [f"{version} {{ global: {'; '.join(sorted(names))}; }};"
                  for version, names in wanted.items() if version and names]
        (out / "stand_in.c").write_text("\n".join(code))
        (out / "stand_in.map").write_text("\n".join(script))
        versioned = [f"-Wl,--version-script={out / 'stand_in.map'}"] if script else []
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-w", "-fno-builtin", *versioned, f"-Wl,-soname,{name}",
             "-o", out / name, out / "stand_in.c"],
            check=True,
        )
        print(name, len(functions))


if __name__ == "__main__":
    main()
