"""Checks that the lock files of the benchmarks and of the fuzz targets have the versions of the workspace.

With other versions, the benchmarks and the fuzz targets would compile their dependencies again. They would also measure or
attack another program than the one that is tested.
"""

import pathlib
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent


def versions(path):
    """Returns the versions of each crate of a lock file that comes from a registry."""
    found = {}
    for package in tomllib.loads((ROOT / path).read_text())["package"]:
        if "source" in package:
            found.setdefault(package["name"], set()).add(package["version"])
    return found


def main():
    ours = versions("Cargo.lock")
    problems = []
    for path in ("bench/Cargo.lock", "fuzz/Cargo.lock"):
        for name, theirs in versions(path).items():
            others = sorted(theirs - ours.get(name, theirs))
            if others:
                problems.append(f"{path}: {name} {', '.join(others)} (Cargo.lock has {', '.join(sorted(ours[name]))})")
    if problems:
        print("the lock files disagree; update them with `cargo update -p NAME --precise VERSION`:", file=sys.stderr)
        print("\n".join(problems), file=sys.stderr)
        sys.exit(1)


main()
