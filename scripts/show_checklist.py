"""Compares a change with a checklist of CONTRIBUTING.md: prints the files of the change, and the row that names each file.

A checklist is complete if it names every file that a typical change touches. To test a checklist, a person who does not know
the project makes a change on a branch, and uses only CONTRIBUTING.md and ARCHITECTURE.md. Then this program reads the branch.

    scripts/show_checklist.py "A new setting" [BRANCH]

BRANCH is HEAD if it is left out. BRANCH is compared with the commit at which it left main.
"""

import argparse
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Every change may touch these files: the list of changes, and the lock file that Cargo writes.
ALWAYS = {"CHANGELOG.md", "Cargo.lock"}


def git(*arguments):
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def rows(text, title):
    """Yields the paths of a checklist, each with the number of its row.

    `NAME` in a path means any name. A path without `/` means every path that ends with it.
    """
    sections = re.split(r"^### ", text, flags=re.MULTILINE)[1:]
    found = {section.splitlines()[0].strip(): section for section in sections}
    if title not in found:
        sys.exit(f"CONTRIBUTING.md has no checklist {title!r}; it has: {', '.join(found)}")
    for number, files, rest in re.findall(r"^\| (\d+) \| ([^|]*) \| (.*)$", found[title], re.MULTILINE):
        named = re.findall(r"`([^`\s]+)`", files) + re.findall(r"`([^`\s]+(?:\.rs|\.json|\.md|\.toml|/))`", rest)
        for path in named:
            yield int(number), path


def row_of(path, checklist):
    """Returns the number of the row that names the file most exactly, or None if no row names it.

    A name without `NAME` is more exact than a name with `NAME`. The name of a file is more exact than the name of its folder. A
    longer name is more exact than a shorter one.
    """
    found = []
    for number, named in checklist:
        pattern = re.escape(named).replace("NAME", "[^/]+")
        if re.search(f"(^|/){pattern}" + ("" if named.endswith("/") else "$"), path):
            found.append(("NAME" in named, named.endswith("/"), -len(named), number))
    return min(found)[-1] if found else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("title", help="the heading of the checklist")
    parser.add_argument("branch", nargs="?", default="HEAD")
    options = parser.parse_args()
    checklist = list(rows((ROOT / "CONTRIBUTING.md").read_text(), options.title))
    base = git("merge-base", "main", options.branch)
    changes = [line.split("\t") for line in git("diff", "--numstat", "--no-renames", base, options.branch).splitlines()]
    if not changes:
        sys.exit(f"{options.branch} changes no file after it left main; name the branch of a change")
    print("| file | lines added, removed | row of the checklist |\n|---|---|---|")
    unnamed, used = 0, set()
    for added, removed, path in changes:
        row = row_of(path, checklist)
        used.add(row)
        unnamed += row is None and path not in ALWAYS
        print(f"| {path} | +{added} −{removed} | {row or ('any change' if path in ALWAYS else '**none**')} |")
    left = [str(number) for number in sorted({number for number, _ in checklist} - used)]
    print(f"\n{len(changes)} files; {unnamed} files have no row; rows that name no file of the change: {', '.join(left) or 'none'}")


if __name__ == "__main__":
    main()
