"""Draws files for a reading test, and counts their sentences.

In a reading test, a person who does not know the project reads some files, and notes each sentence that needs a second
reading. This program chooses the files, so that no person does. It counts the sentences, so that the share of noted sentences
can be computed. The choice depends only on the seed and on the list of files, so anyone can repeat it.

    scripts/show_reading.py SEED [--files 20]
"""

import argparse
import pathlib
import random
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
ENDINGS = {".rs", ".lua", ".md", ".sh", ".py"}
# The changelog is history, and the licences are not our prose.
SKIPPED = re.compile(r"(^|/)(CHANGELOG\.md|LICENSE.*)$")
COMMENT = {
    ".rs": re.compile(r"^\s*//[/!]?\s?(.*)$"),
    ".lua": re.compile(r"^\s*--+\s?(.*)$"),
    ".sh": re.compile(r"^\s*#(?!!)\s?(.*)$"),
    ".py": re.compile(r"^\s*#\s?(.*)$"),
}


def files():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    paths = sorted(line for line in listed.splitlines() if pathlib.Path(line).suffix in ENDINGS)
    return [path for path in paths if not SKIPPED.search(path)]


def prose(path):
    """Yields the paragraphs of a page, or of the comments in a source file."""
    text = (ROOT / path).read_text()
    ending = pathlib.Path(path).suffix
    lines = text.splitlines()
    if ending == ".py":
        quoted = re.findall(r'"""(.*?)"""', text, re.DOTALL)
        lines = [line for block in quoted for line in [*block.splitlines(), ""]] + [
            match.group(1) if (match := COMMENT[ending].match(line)) else "" for line in lines
        ]
    elif ending != ".md":
        lines = [match.group(1) if (match := COMMENT[ending].match(line)) else "" for line in lines]
    fenced, paragraph = False, []
    for line in [*lines, ""]:
        line = line.strip()
        if line.startswith("```"):
            fenced, line = not fenced, ""
        begins = re.match(r"([*|#>-]|\d+\.)\s?", line)
        if paragraph and (not line or begins or fenced):
            yield " ".join(paragraph)
            paragraph = []
        if line and not fenced:
            paragraph.append(line)


def sentences(path):
    """Counts the sentences of a file. A sentence ends at a full stop, an exclamation mark, a question mark, or the end of a
    paragraph, and has at least two words."""
    found = 0
    for paragraph in prose(path):
        for cell in paragraph.strip("|").split(" | "):
            parts = re.split(r"(?<=[.!?])\s+(?=[A-Z`\"*\[(])", cell)
            found += sum(len(re.findall(r"[A-Za-z]{2,}", part)) >= 2 for part in parts)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", type=int)
    parser.add_argument("--files", type=int, default=20)
    options = parser.parse_args()
    candidates = files()
    drawn = sorted(random.Random(options.seed).sample(candidates, options.files))
    total = 0
    print(f"seed {options.seed}: {options.files} of {len(candidates)} files, and the README\n\nsentences  file")
    for path in [*drawn, "README.md"]:
        count = sentences(path)
        total += count
        print(f"{count:9}  {path}")
    print(f"{total:9}  in all")


if __name__ == "__main__":
    main()
