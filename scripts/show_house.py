"""Compares the source trees of two commits: size, documentation, cycles of folders, and dependencies.

The effort of a reader cannot be measured. But some things make this effort larger, and these things can be measured: long
files, folders that import each other, public items without documentation, a library with many dependencies, and a long README.

    scripts/show_house.py BEFORE [AFTER]

AFTER is HEAD if it is left out.
"""

import argparse
import os
import pathlib
import re
import statistics
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
# The unit tests of a file are at its end, because clippy accepts no item after them.
TEST_MODULE = re.compile(r"^#\[cfg\(test\)\]\n(?:#\[.*\]\n)*mod \w+ \{", re.MULTILINE)
LIBRARIES = ["spillgate-core", "spillgate", "spillgate-redis"]


def run(*command, **options):
    return subprocess.run(command, check=True, capture_output=True, text=True, **options).stdout


def lines_of(paths):
    return {path: len(path.read_text().splitlines()) for path in paths}


def doc_share(tree, crate):
    """Returns the share of lines of a library that are documentation comments. Blank lines and unit tests are not counted."""
    lines = []
    for path in (tree / "crates" / crate / "src").rglob("*.rs"):
        if not is_test(path):
            code = TEST_MODULE.split(path.read_text())[0]
            lines += [line.strip() for line in code.splitlines() if line.strip()]
    docs = sum(line.startswith(("///", "//!")) for line in lines)
    return f"{100 * docs / len(lines):.1f} %"


def is_test(path):
    return path.name == "tests.rs" or "tests" in path.parts or "spillgate-testkit" in path.parts


def folders_in_cycles(tree):
    """Counts the folders that import each other in a cycle. A file directly in `src` counts as a folder.

    The test `tidy` of the checked-out commit finds the cycles, also in the tree of an older commit.
    """
    test = "the_folders_of_each_crate_form_no_cycle"
    command = ["cargo", "test", "--quiet", "--locked", "--package", "spillgate-server", "--test", "tidy", "--", test]
    environment = {**os.environ, "TIDY_ROOT": str(tree)}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    groups = re.findall(r"^  spillgate[a-z-]*: (.*)$", ended.stdout + ended.stderr, re.MULTILINE)
    if (ended.returncode == 0) == bool(groups):
        raise SystemExit(f"the test {test} did not run:\n{ended.stdout}{ended.stderr}")
    return sum(len(group.split(", ")) for group in groups)


def bare_dependency(tree, folder):
    """Counts the crates that `spillgate` adds to a program without other dependencies, `spillgate` included."""
    project = folder / "bare"
    (project / "src").mkdir(parents=True)
    (project / "src" / "main.rs").write_text("fn main() {}\n")
    manifest = f'[package]\nname = "bare"\nversion = "0.0.0"\nedition = "2024"\n\n[workspace]\n\n[dependencies]\n'
    (project / "Cargo.toml").write_text(manifest + f'spillgate = {{ path = "{tree / "crates" / "spillgate"}" }}\n')
    (project / "Cargo.lock").write_text((tree / "Cargo.lock").read_text())
    target = ["--target", "x86_64-unknown-linux-gnu"]
    listed = run("cargo", "tree", "--edges", "normal", "--prefix", "none", *target, cwd=project)
    crates = {" ".join(line.split()[:2]) for line in listed.splitlines() if line.strip()}
    return len(crates) - 1


def measure(revision):
    """Measures a commit, and returns a list of (name, figure)."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder).resolve()
        tree = folder / "tree"
        tree.mkdir()
        archive = subprocess.run(["git", "archive", revision], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", tree], input=archive, check=True)
        rust = lines_of(tree.rglob("*.rs"))
        shipped = {path: lines for path, lines in rust.items() if "src" in path.parts and "crates" in path.parts}
        shipped = {path: lines for path, lines in shipped.items() if not is_test(path)}
        largest = max(shipped, key=shipped.get)
        readme = (tree / "README.md").read_text()
        return [
            ("lines of Rust, tests and measurements included", f"{sum(rust.values()):,}"),
            ("lines of Rust that are shipped", f"{sum(shipped.values()):,}"),
            ("files that are shipped", str(len(shipped))),
            ("lines of the median file", f"{statistics.median(shipped.values()):.0f}"),
            ("lines of the largest file", f"{shipped[largest]} ({largest.relative_to(tree / 'crates')})"),
            *((f"share of documentation lines, {crate}", doc_share(tree, crate)) for crate in LIBRARIES),
            ("folders in a cycle", str(folders_in_cycles(tree))),
            ("crates that a program gets from spillgate without features", str(bare_dependency(tree, folder))),
            ("lines of README.md", str(len(readme.splitlines()))),
            ("words of README.md", f"{len(readme.split()):,}"),
        ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after", nargs="?", default="HEAD")
    options = parser.parse_args()
    names = [run("git", "rev-parse", "--short", revision, cwd=ROOT).strip() for revision in (options.before, options.after)]
    before, after = measure(options.before), measure(options.after)
    print(f"| | before ({names[0]}) | after ({names[1]}) |\n|---|---|---|")
    for (name, old), (_, new) in zip(before, after, strict=True):
        print(f"| {name} | {old} | {new} |")


if __name__ == "__main__":
    main()
