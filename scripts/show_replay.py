"""Repeats an access log with later times, replays it, and prints the speed and the highest memory as markdown.

The CPU time is shown too, because it is nearly the same while other programs use the machine.

Usage: show_replay.py LOG FOLDER SPILLGATE. The long logs stay in FOLDER. The log has the format combined and is sorted by time.
"""

import datetime
import os
import re
import subprocess
import sys
import time

DAY = re.compile(rb"\[(\d\d)/(\w\w\w)/(\d\d\d\d):")
MONTHS = [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"]
RULES = """domain: web
descriptors:
  - {key: remote_address, rate_limit: {name: per_address, unit: minute, requests_per_unit: 30}}
  - {key: path, rate_limit: {name: per_path, unit: minute, requests_per_unit: 60}}
"""


def repeat(source, target, lines):
    """Writes the lines of a log again and again, each time some whole days later."""
    parts = []
    for line in open(source, "rb"):
        found = DAY.search(line)
        day, month, year = int(found[1]), MONTHS.index(found[2]) + 1, int(found[3])
        parts.append((line[: found.start() + 1], datetime.date(year, month, day), line[found.end() - 1 :]))
    days = (parts[-1][1] - parts[0][1]).days + 1
    written = 0
    with open(target, "wb", buffering=1 << 20) as out:
        while written < lines:
            shift = datetime.timedelta(days=days * (written // len(parts)))
            names = {}
            for before, day, after in parts[: lines - written]:
                if day not in names:
                    later = day + shift
                    names[day] = b"%02d/%s/%04d" % (later.day, MONTHS[later.month - 1], later.year)
                out.write(before + names[day] + after)
            written += len(parts)


def replay(spillgate, rules, log):
    """Returns the seconds of a replay, its seconds of CPU time, and its highest memory in MiB."""
    arguments = [spillgate, "replay", rules, "--log", log, "--json"]
    arguments += ["--descriptor", "remote_address={remote_addr}", "--descriptor", "path={path}"]
    begun = time.monotonic()
    child = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    if status != 0:
        sys.exit(f"the replay of {log} failed")
    return time.monotonic() - begun, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def main():
    log, folder, spillgate = sys.argv[1:]
    rules = os.path.join(folder, "rules.yaml")
    with open(rules, "w") as out:
        out.write(RULES)
    print("### Speed and memory\n")
    print("| lines | days | seconds | CPU seconds | lines in a second | lines in a CPU second | highest memory |")
    print("|---|---|---|---|---|---|---|")
    for lines in (1_000_000, 10_000_000):
        long_log = os.path.join(folder, f"{lines}.log")
        repeat(log, long_log, lines)
        first, last = (line_date(long_log, end) for end in (0, 1))
        seconds, cpu, memory = replay(spillgate, rules, long_log)
        figures = f"{seconds:.1f} | {cpu:.1f} | {lines / seconds:,.0f} | {lines / cpu:,.0f} | {memory:.1f} MiB"
        print(f"| {lines:,} | {(last - first).days + 1:,} | {figures} |", flush=True)


def line_date(log, last):
    """Returns the date of the first or the last line."""
    with open(log, "rb") as lines:
        if last:
            lines.seek(-4096, os.SEEK_END)
        line = lines.read(4096).splitlines()[-1 if last else 0]
    found = DAY.search(line)
    return datetime.date(int(found[3]), MONTHS.index(found[2]) + 1, int(found[1]))


main()
