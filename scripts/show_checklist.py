"""Compares a change with a checklist of docs/contributing: prints the files of the change, and the row that names each file.

A checklist is complete if it names every file that a typical change touches. To test a checklist, a person who does not know
the project makes a change on a branch, and uses only the checklist, CONTRIBUTING.md and ARCHITECTURE.md. Then this program reads the branch.

    scripts/show_checklist.py "A new setting" [BRANCH]

BRANCH is HEAD if it is left out. BRANCH is compared with the commit at which it left main.
"""

import argparse
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Every change may touch these files: the list of changes, and the lock files that Cargo writes.
ALWAYS = {"CHANGELOG.md", "Cargo.lock", "bench/Cargo.lock", "fuzz/Cargo.lock"}


def git(*arguments):
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def checklist_of(title):
    """Returns the text of the checklist whose page has this title."""
    pages = [page.read_text() for page in sorted((ROOT / "docs/contributing").glob("*.md"))]
    found = {page.splitlines()[0].removeprefix("# "): page for page in pages if re.search(r"^\| 1 \| ", page, re.MULTILINE)}
    if title not in found:
        sys.exit(f"docs/contributing has no checklist {title!r}; it has: {', '.join(found)}")
    return found[title]


def rows(text):
    """Yields the paths of a checklist, each with the number of its row.

    `NAME` in a path means any name; such a path is only that of a new file. A path without `/` means every path that ends with it.
    """
    for number, files, rest in re.findall(r"^\| (\d+) \| ([^|]*) \| (.*)$", text, re.MULTILINE):
        named = re.findall(r"`([^`\s]+)`", files) + re.findall(r"`([^`\s]+(?:\.rs|\.json|\.md|\.toml|/))`", rest)
        for path in named:
            yield int(number), path


def row_of(path, is_new, checklist):
    """Returns the number of the row that names the file most exactly, or None if no row names it.

    A name without `NAME` is more exact than a name with `NAME`. The name of a file is more exact than the name of its folder. A
    longer name is more exact than a shorter one.
    """
    found = []
    for number, named in checklist:
        if "NAME" in named and not is_new:
            continue
        pattern = re.escape(named).replace("NAME", "[^/]+")
        if re.search(f"(^|/){pattern}" + ("" if named.endswith("/") else "$"), path):
            found.append(("NAME" in named, named.endswith("/"), -len(named), number))
    return min(found)[-1] if found else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("title", help="the heading of the checklist")
    parser.add_argument("branch", nargs="?", default="HEAD")
    options = parser.parse_args()
    checklist = list(rows(checklist_of(options.title)))
    base = git("merge-base", "main", options.branch)
    changes = [line.split("\t") for line in git("diff", "--numstat", "--no-renames", base, options.branch).splitlines()]
    if not changes:
        sys.exit(f"{options.branch} changes no file after it left main; name the branch of a change")
    print("| file | lines added, removed | row of the checklist |\n|---|---|---|")
    new = set(git("diff", "--name-only", "--diff-filter=A", "--no-renames", base, options.branch).splitlines())
    unnamed, used = 0, set()
    for added, removed, path in changes:
        row = row_of(path, path in new, checklist)
        used.add(row)
        unnamed += row is None and path not in ALWAYS
        print(f"| {path} | +{added} −{removed} | {row or ('any change' if path in ALWAYS else '**none**')} |")
    left = [str(number) for number in sorted({number for number, _ in checklist} - used)]
    print(f"\n{len(changes)} files; {unnamed} files have no row; rows that name no file of the change: {', '.join(left) or 'none'}")


if __name__ == "__main__":
    main()
