"""Measures which share of a core the server needs for a folder in which files change all the time.

The server has no load. Its CPU time is measured while nothing changes, and then while another process writes to two files
in the folder of the rules. The difference is what the events cost. This program watches the folder too, and counts them.

    scripts/show_watch.py PROGRAM [--seconds 30] [--events 10000] [--files 20]
"""

import argparse
import ctypes
import json
import multiprocessing
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import time

RULES = "domain: d{}\ndescriptors: [{{key: user, rate_limit: {{unit: hour, requests_per_unit: 100}}}}]\n"
SHARE_MAX = 0.02
IN_MODIFY, IN_Q_OVERFLOW = 0x2, 0x4000
STEP_S = 0.01


def write(folder, events):
    """Writes to two files in turn, because the system would merge events that are equal and follow one another."""
    files = [os.open(folder / name, os.O_WRONLY | os.O_CREAT, 0o644) for name in ("notes", "more-notes")]
    began, written = time.monotonic(), 0
    while True:
        due = int((time.monotonic() - began) * events)
        for number in range(written, due):
            os.pwrite(files[number % 2], b"again", 0)
        written = due
        time.sleep(STEP_S)


class Events:
    """Counts the events of a folder."""

    def __init__(self, folder):
        libc = ctypes.CDLL(None, use_errno=True)
        self.file = libc.inotify_init1(os.O_NONBLOCK)
        if self.file < 0 or libc.inotify_add_watch(self.file, os.fsencode(folder), IN_MODIFY) < 0:
            sys.exit(f"the folder cannot be watched: {os.strerror(ctypes.get_errno())}")

    def read(self):
        """Returns how many events have come since the last call."""
        count = 0
        while True:
            try:
                data = os.read(self.file, 1 << 20)
            except BlockingIOError:
                return count
            at = 0
            while at < len(data):
                _, mask, _, length = struct.unpack_from("iIII", data, at)
                if mask & IN_Q_OVERFLOW:
                    sys.exit("this program has lost events")
                at += 16 + length
                count += 1


def cpu_s(pid):
    """Returns the seconds that all threads of a process have run, for themselves and in the system."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(pid, events, seconds):
    """Returns the share of a core, and the events a second."""
    events.read()
    began, before, count = time.monotonic(), cpu_s(pid), 0
    while time.monotonic() < began + seconds:
        time.sleep(STEP_S)
        count += events.read()
    took = time.monotonic() - began
    return (cpu_s(pid) - before) / took, count / took


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--events", type=int, default=10_000)
    parser.add_argument("--files", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for number in range(options.files):
            (folder / f"{number}.yaml").write_text(RULES.format(number), encoding="ascii")
        command = [options.program.resolve(), "serve", folder, "--json", "--watch", "on"]
        command += [word for port in ("http", "grpc", "admin") for word in (f"--{port}", "127.0.0.1:0")]
        writer = multiprocessing.Process(target=write, args=(folder, options.events), daemon=True)
        with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
            try:
                json.loads(server.stdout.readline())
                events = Events(folder)
                calm, none = measure(server.pid, events, options.seconds)
                writer.start()
                measure(server.pid, events, 2)
                busy, came = measure(server.pid, events, options.seconds)
            finally:
                if writer.is_alive():
                    writer.terminate()
                server.terminate()
    assert none == 0, "something else changes the folder"
    print(f"\n### A busy folder\n\nThe folder has {options.files} rules files. Each figure is of {options.seconds:.0f} s.\n")
    print("| what | figure |\n|---|---|")
    print(f"| events in the folder | {came:,.0f} a second |")
    print(f"| share of a core that the server needs without events | {calm:.2%} |")
    print(f"| with events | {busy:.2%} |")
    print(f"| the difference, wanted: at most {SHARE_MAX:.0%} | {busy - calm:.2%} |")
    if busy - calm > SHARE_MAX or came < 0.99 * options.events:
        sys.exit("the server needs more than that, or too few events came")


if __name__ == "__main__":
    main()
