"""Compares what users and contributors know by name, before and after a change of the structure.

    scripts/show_inventory.py collect TREE FOLDER   writes the lists of a checkout into FOLDER
    scripts/show_inventory.py compare BEFORE AFTER  prints each name that one of two such folders lacks
    scripts/show_inventory.py BASE                  does both, for the commit BASE and for this checkout

The lists: names of all tests and examples, `--help` of all commands, openapi.json, names, types and labels of metrics, the
JSON Schema of rules, and the public items of the libraries. A test counts by its own name, and an item by its path in
the crate that users name, so that code may move.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIBRARIES = ("spillgate", "spillgate_core", "spillgate_redis")
READY_SECONDS_MAX = 60


def run(*command, cwd, **options):
    return subprocess.run(command, cwd=cwd, check=True, text=True, stdout=subprocess.PIPE, **options).stdout


def tests(tree):
    """Returns the name of each test without its modules, and of each example in the documentation without its line."""
    listed = run("cargo", "test", "--workspace", "--locked", "--quiet", "--", "--list", cwd=tree)
    names = [line.removesuffix(": test") for line in listed.splitlines() if line.endswith(": test")]
    found = []
    for name in names:
        example = re.fullmatch(r"\S+ - (.*?) ?\(line \d+\)(.*)", name)
        found.append(f"example of {example[1].split('::')[-1]}{example[2]}" if example else name.split("::")[-1])
    return sorted(found)


def helps(program, words=()):
    """Returns the help of a command and of its own commands."""
    text = run(program, *words, "--help", cwd=ROOT, env={**os.environ, "COLUMNS": "120"})
    found = {" ".join(("spillgate", *words)): text}
    listed = re.search(r"^Commands:\n((?:  .*\n|\n(?=  ))+)", text, re.MULTILINE)
    for line in (listed[1] if listed else "").splitlines():
        name = re.match(r"  ([a-z-]+)  ", line)
        if name and name[1] != "help":
            found.update(helps(program, (*words, name[1])))
    return found


def pages(program, tree):
    """Returns /openapi.json and /metrics of a server that has decided a request."""
    with tempfile.TemporaryDirectory() as folder:
        ready = pathlib.Path(folder, "ready")
        options = ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--json"]
        with ready.open("w") as output:
            server = subprocess.Popen([program, "serve", tree / "examples/quickstart.yaml", *options], stdout=output)
        try:
            deadline = time.monotonic() + READY_SECONDS_MAX
            while not ready.read_text().endswith("\n"):
                if time.monotonic() > deadline or server.poll() is not None:
                    sys.exit("the server does not start")
                time.sleep(0.05)
            addresses = json.loads(ready.read_text().splitlines()[0])
            body = b'{"domain": "api", "descriptors": [{"user_id": "7"}]}'
            urllib.request.urlopen(f"http://{addresses['http']}/v1/check", body, timeout=30).read()
            get = lambda path: urllib.request.urlopen(f"http://{addresses['admin']}{path}", timeout=30).read().decode()
            return get("/openapi.json"), get("/metrics")
        finally:
            server.terminate()
            server.wait(30)


def metrics(page):
    """Returns the lines `# TYPE` and each name with the names of its labels."""
    found = {line for line in page.splitlines() if line.startswith("# TYPE ")}
    for line in page.splitlines():
        series = re.match(r"([a-z_0-9]+)(?:\{(.*)\})? ", line)
        if series:
            labels = re.findall(r'([a-z_]+)="', series[2] or "")
            found.add(f"{series[1]} {' '.join(sorted(labels))}".strip())
    return sorted(found)


def interface(tree):
    """Returns the public items of the libraries with their kinds, as rustdoc lists them."""
    run("cargo", "doc", "--no-deps", "--locked", "--quiet", "--all-features", *[f"--package={name.replace('_', '-')}" for name in LIBRARIES],
        cwd=tree)
    found = []
    for library in LIBRARIES:
        # Pages exist for all public items and for the modules that lead to them.
        folder = tree / "target/doc" / library
        for page in folder.rglob("*.html"):
            text = page.read_text()
            if 'http-equiv="refresh"' in text:
                continue  # A re-exported item also has a page at its private path, which leads to the public one.
            parts = page.relative_to(folder).parts
            kind = parts[-1].split(".")
            if len(kind) == 3:
                found.append("::".join((library, *parts[:-1], kind[1])) + f" ({kind[0]})")
            elif parts[-1] == "index.html":
                found.append("::".join((library, *parts[:-1])) + " (module)")
            owner = "::".join((library, *parts[:-1], kind[1])) if len(kind) == 3 else ""
            members = set(re.findall(r'id="((?:method|tymethod|variant|structfield|associatedconstant)\.[A-Za-z_0-9]+)"', text))
            found.extend(f"{owner} {member}" for member in members if owner)
    return sorted(found)


def collect(tree, folder):
    tree, folder = pathlib.Path(tree).resolve(), pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write = lambda name, lines: (folder / name).write_text("\n".join(lines) + "\n")
    write("tests", tests(tree))
    run("cargo", "build", "--package", "spillgate-server", "--locked", "--quiet", cwd=tree)
    program = tree / "target/debug/spillgate"
    write("help", (f"{command}: {line}" for command, text in helps(program).items() for line in text.splitlines()))
    openapi, page = pages(program, tree)
    write("openapi", json.dumps(json.loads(openapi), indent=1).splitlines())
    write("metrics", metrics(page))
    write("schema", run(program, "schema", cwd=tree).splitlines())
    write("interface", interface(tree))


def compare(before, after):
    """Prints what one folder lacks, with the number of times for names that occur more than once. Returns whether a name is lost."""
    lost = False
    for name in ("tests", "help", "openapi", "metrics", "schema", "interface"):
        old, new = ((pathlib.Path(folder) / name).read_text().splitlines() for folder in (before, after))
        gone, come = Counter(old) - Counter(new), Counter(new) - Counter(old)
        print(f"\n### {name}: {len(old)} before, {len(new)} after, {sum(gone.values())} gone, {sum(come.values())} new\n")
        for mark, lines in (("-", gone), ("+", come)):
            for line, n in sorted(lines.items()):
                print(f"    {mark} {line}{f' ({n} times)' if n > 1 else ''}")
        lost |= bool(gone)
    return lost


def main():
    match sys.argv[1:]:
        case ["collect", tree, folder]:
            collect(tree, folder)
        case ["compare", before, after]:
            sys.exit(compare(before, after))
        case [base]:
            work = ROOT / "target/inventory"
            tree = work / "base-tree"
            if not tree.exists():
                run("git", "worktree", "prune", cwd=ROOT)
                run("git", "worktree", "add", "--quiet", "--detach", str(tree), base, cwd=ROOT)
            run("git", "checkout", "--quiet", "--detach", base, cwd=tree)
            collect(tree, work / "before")
            collect(ROOT, work / "after")
            compare(work / "before", work / "after")
        case _:
            sys.exit(__doc__)


main()
