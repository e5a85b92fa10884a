"""Compares the source trees of two commits: crates, lines, tests, cycles, dependencies, documents.

The effort of a reader cannot be measured. But some things make this effort larger, and these things can be measured: large
crates, folders that import each other, a library with many dependencies, long documents.

    scripts/show_house.py BEFORE [AFTER]

AFTER is HEAD if it is left out.
"""

import argparse
import pathlib
import re
import subprocess
import tempfile
import tomllib
from xml.etree import ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
# The unit tests of a file are at its end, because clippy accepts no item after them.
TEST_MODULE = re.compile(r"^#\[cfg\(test\)\]\n(?:#\[.*\]\n)*mod \w+ \{", re.MULTILINE)
TEST = re.compile(r"^\s*#\[(?:tokio::)?test\b", re.MULTILINE)
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "DESIGN.md", "bench/RESULTS.md")


def run(*command, **options):
    return subprocess.run(command, check=True, capture_output=True, text=True, **options).stdout


def is_test(path):
    return path.name == "tests.rs" or "tests" in path.parts or "spillgate-testkit" in path.parts


def shipped(folder):
    """Returns the text of each shipped file below a folder, without its unit tests and examples."""
    files = [path for path in folder.rglob("*.rs") if not is_test(path.relative_to(folder)) and "src" in path.parts]
    return {path: TEST_MODULE.split(path.read_text())[0] for path in files}


def groups_in_cycles(edges):
    """Returns the groups of folders that import each other, directly or through others. `edges` has the direct imports."""
    reached = {}
    for start in edges:
        seen, open_ = set(), [start]
        while open_:
            new = edges.get(open_.pop(), set()) - seen
            seen |= new
            open_ += new
        reached[start] = seen
    return {frozenset(b for b in reached[a] if a in reached.get(b, ())) for a in edges if a in reached[a]}


def folders_in_cycles(crate):
    """Counts the folders of a crate that import each other. Files directly in `src` are in no folder."""
    src = crate / "src"
    files = shipped(src)
    folders = {path.relative_to(src).parts[:-1] for path in files}
    edges = {}
    for path, text in files.items():
        parts = path.relative_to(src).parts
        here = parts[:-1]
        module = parts[:-1] if path.stem in ("mod", "lib") else (*parts[:-1], path.stem)
        for line in re.findall(r"^\s*(?:use|[^/\n]*?)\b((?:crate|super)(?:::\w+)+)", text, re.MULTILINE):
            names = line.split("::")
            at = list(module)
            if names[0] == "crate":
                at = []
            while names and names[0] in ("crate", "super"):
                at = at[:-1] if names.pop(0) == "super" and at else at
            there = next((t for n in range(len(names), 0, -1) if (t := (*at, *names[:n])) in folders), None)
            if here and there and there != here and here[: len(there)] != there and there[: len(here)] != here:
                edges.setdefault(here, set()).add(there)
    return sum(len(group) for group in groups_in_cycles(edges))


def bare_dependency(tree, folder):
    """Counts the crates that `spillgate` adds to a program without other dependencies, `spillgate` included."""
    project = folder / "bare"
    (project / "src").mkdir(parents=True)
    (project / "src" / "main.rs").write_text("fn main() {}\n")
    manifest = '[package]\nname = "bare"\nversion = "0.0.0"\nedition = "2024"\n\n[workspace]\n\n[dependencies]\n'
    (project / "Cargo.toml").write_text(manifest + f'spillgate = {{ path = "{tree / "crates" / "spillgate"}" }}\n')
    (project / "Cargo.lock").write_text((tree / "Cargo.lock").read_text())
    target = ["--target", "x86_64-unknown-linux-gnu"]
    listed = run("cargo", "tree", "--edges", "normal", "--prefix", "none", *target, cwd=project)
    return len({" ".join(line.split()[:2]) for line in listed.splitlines() if line.strip()}) - 1


def test_programs(crate):
    """Counts the integration test programs of a crate."""
    manifest = tomllib.loads((crate / "Cargo.toml").read_text())
    if not manifest["package"].get("autotests", True):
        return len(manifest.get("test", []))
    tests = crate / "tests"
    return len([*tests.glob("*.rs"), *tests.glob("*/main.rs")])


def words(path):
    return len(path.read_text().split())


def measure(revision):
    """Measures a commit, and returns a list of (name, figure)."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder).resolve()
        tree = folder / "tree"
        tree.mkdir()
        archive = subprocess.run(["git", "archive", revision], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", tree], input=archive, check=True)
        crates = sorted(path.parent for path in (tree / "crates").glob("*/Cargo.toml"))
        lines = {crate.name: sum(text.count("\n") for text in shipped(crate).values()) for crate in crates}
        files = {path: text.count("\n") for crate in crates for path, text in shipped(crate).items()}
        largest, biggest = max(files, key=files.get), max(lines, key=lines.get)
        rust = [path.read_text() for path in tree.rglob("*.rs")]
        design = sorted((tree / "docs/design").glob("*.md"))
        return [
            ("crates", str(len(crates))),
            ("lines of Rust, tests and measurements included", f"{sum(text.count(chr(10)) for text in rust):,}"),
            ("lines of Rust that are shipped", f"{sum(lines.values()):,}"),
            ("the biggest crate, lines", f"{lines[biggest]:,} ({biggest})"),
            ("the largest file, lines", f"{files[largest]} ({largest.relative_to(tree / 'crates')})"),
            ("integration test programs", str(sum(map(test_programs, crates)))),
            ("tests, without examples of the documentation", f"{sum(len(TEST.findall(text)) for text in rust):,}"),
            ("folders in a cycle", str(sum(map(folders_in_cycles, crates)))),
            ("crates that a program gets from spillgate without features", str(bare_dependency(tree, folder))),
            *((f"words of {name}", f"{words(tree / name):,}" if (tree / name).exists() else "-") for name in DOCUMENTS),
            ("design questions in files of their own, and words of the longest", f"{len(design)}, {max(map(words, design), default=0):,}"),
            ("words of the book", f"{sum(map(words, (tree / 'docs/src').rglob('*.md'))):,}"),
        ]


def print_of_last_run():
    """Prints what the last `make test` left in the target folder: the seconds of each test program, and how many variants of
    a dependency were compiled."""
    report = ROOT / "target/nextest/default/junit.xml"
    if not report.exists():
        print("\nAfter `make test`, this table is followed by the seconds of each test program.")
        return
    print("\n| test program | tests | seconds of its tests, one after the other | the longest test | its seconds |\n|---|---|---|---|---|")
    programs = []
    for suite in ElementTree.parse(report).getroot().iter("testsuite"):
        tests = [(float(case.get("time")), case.get("name")) for case in suite.iter("testcase")]
        programs.append((sum(seconds for seconds, _ in tests), suite.get("name"), len(tests), *max(tests)))
    for total, name, tests, longest, test in sorted(programs, reverse=True):
        print(f"| {name} | {tests} | {total:.0f} | `{test}` | {longest:.1f} |")
    print("\n| dependency | variants in target/debug, of checks and builds; right only if the folder was empty before `make test` |\n|---|---|")
    for name in ("tokio", "hyper", "redis", "rustls", "serde_json"):
        variants = [path for path in (ROOT / "target/debug/.fingerprint").glob(f"{name}-*") if re.fullmatch(f"{name}-[0-9a-f]{{16}}", path.name)]
        print(f"| {name} | {len(variants)} |")


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
    print("\nCycles between crates cannot be: Cargo refuses them.")
    print_of_last_run()


if __name__ == "__main__":
    main()
