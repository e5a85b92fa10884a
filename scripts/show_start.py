"""Measures how soon the server answers after it is started, and how large its program is.

The time begins before the process exists, and ends with the answer to GET /readyz. The server reads the rules of the quick
start and counts in memory.

    scripts/show_start.py PROGRAM [--starts 31]
"""

import argparse
import http.client
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def start(program):
    """Starts the server once, and returns the milliseconds until it has answered."""
    command = [program, "serve", "examples/quickstart.yaml", "--http", "127.0.0.1:0", "--grpc", "off", "--admin", "off"]
    began = time.perf_counter()
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            address = None
            for line in server.stdout:
                address = line.split()[1] if line.split()[:1] == ["http"] else address
                if line.startswith("  store"):
                    break
            if address is None:
                sys.exit("the server did not say its address")
            connection = http.client.HTTPConnection(address, timeout=60)
            connection.request("GET", "/readyz")
            if connection.getresponse().status != 200:
                sys.exit("the server is not ready")
            return (time.perf_counter() - began) * 1000
        finally:
            server.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--starts", type=int, default=31)
    options = parser.parse_args()
    program = options.program.resolve()
    times = [start(program) for _ in range(options.starts)]
    print("| what | figure |\n|---|---|")
    print(f"| from the start of the process to its first answer, median of {len(times)} (min to max) |"
          f" {statistics.median(times):.1f} ms ({min(times):.1f} to {max(times):.1f}) |")
    print(f"| size of the program, with its symbol table | {program.stat().st_size / 1e6:.1f} MB |")


if __name__ == "__main__":
    main()
