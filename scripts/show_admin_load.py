"""Measures how long decisions take at a steady rate, in three cases.

In the first case, nothing else runs. In the second case, a client scrapes metrics in a loop. In the third case, nothing scrapes,
but other processes use as much CPU time as scraping uses. So if decisions take longer in the second case than in the third case,
the reason is another one than the used CPU time.
"""

import json
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time

RULES, SERIES, RATE, LIMIT_MS = 25_000, 100_000, 5000, 10
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def rules():
    each = "".join(f"  - {{key: k{i}, rate_limit: {{unit: day, requests_per_unit: 9}}}}\n" for i in range(RULES))
    wide = "  - {key: user_id, rate_limit: {unit: hour, requests_per_unit: 4000000000}}\n"
    return "domain: bench\ndescriptors:\n" + wide + each


def page(admin):
    """Reads one page of metrics, and returns the number of samples on it."""
    host, port = admin.rsplit(":", 1)
    samples, line_begins, in_head = 0, True, b""
    with socket.create_connection((host, int(port))) as client:
        client.sendall(b"GET /metrics HTTP/1.0\r\nhost: a\r\n\r\n")
        while data := client.recv(1 << 18):
            if in_head is not None:
                in_head += data
                if b"\r\n\r\n" not in in_head:
                    continue
                assert in_head.startswith(b"HTTP/1.") and b" 200 " in in_head[:16], in_head[:100]
                data, in_head = in_head.split(b"\r\n\r\n", 1)[1], None
            samples += data.count(b"\n") - data.count(b"\n#") - (line_begins and data.startswith(b"#"))
            line_begins = data.endswith(b"\n")
    return samples


def scrape(admin, pages):
    while True:
        samples = page(admin)
        assert samples >= SERIES, f"{samples} samples are fewer than {SERIES}"
        with pages.get_lock():
            pages.value += 1


def burn(share):
    begin, used = time.monotonic(), time.process_time()
    while True:
        if time.process_time() - used < share * (time.monotonic() - begin):
            sum(range(2000))
        else:
            time.sleep(0.001)


def ticks(stat):
    with open(stat, encoding="ascii") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def thread(pid, name):
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/comm", encoding="ascii") as comm:
            if comm.read().strip() == name:
                return f"/proc/{pid}/task/{task}/stat"
    raise LookupError(f"the server has no thread {name}")


def memory(pid, field):
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith(field + ":"))


def forget_peak(pid):
    """Resets the peak of the server's memory, so that memory that was needed only to read the rules is not included."""
    with open(f"/proc/{pid}/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


class Beside:
    """Processes that run while decisions are measured."""

    def __init__(self, *calls):
        self.processes = [multiprocessing.Process(target=call, args=args, daemon=True) for call, *args in calls]

    def __enter__(self):
        for process in self.processes:
            process.start()
        return self

    def __exit__(self, *_):
        for process in self.processes:
            assert process.is_alive(), "a process that must run during the measurement has ended"
            process.terminate()
            process.join()


def main():
    spillgate, loadgen = sys.argv[1:3]
    rounds, seconds = (int(word) for word in (sys.argv[3:] + ["15", "6"])[:2])
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(rules())
        file.flush()
        command = [spillgate, "serve", file.name, "--json", "--http", "off"]
        command += ["--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE)
        try:
            is_met = measure(server, loadgen, rounds, str(seconds))
        finally:
            server.terminate()
            server.wait()
    sys.exit(not is_met)


def measure(server, loadgen, rounds, seconds):
    ready = json.loads(server.stdout.readline())
    grpc, admin, admin_stat = ready["grpc"], ready["admin"], thread(server.pid, "admin")

    def load():
        command = [loadgen, "rls", "--target", grpc, "--connections", "4", "--concurrency", "64"]
        out = subprocess.run(command + ["--rate", str(RATE), "--seconds", seconds], check=True, stdout=subprocess.PIPE)
        report = json.loads(out.stdout)
        assert report["errors"] == 0 and report["ops_per_s"] > 0.99 * RATE, report
        return {"p99": report["p99_us"] / 1000, "longest": report["max_us"] / 1000}

    load()
    forget_peak(server.pid)
    before, pages = memory(server.pid, "VmRSS"), multiprocessing.Value("L", 0)
    samples = page(admin)
    once, kinds = memory(server.pid, "VmRSS"), {"alone": [], "scraped": [], "burnt": []}
    shares = []
    for turn in range(rounds):
        kinds["alone"].append(load())
        with Beside((scrape, admin, pages)) as beside:
            reader = f"/proc/{beside.processes[0].pid}/stat"
            begin, used = time.monotonic(), (ticks(admin_stat), ticks(reader))
            kinds["scraped"].append(load())
            passed = time.monotonic() - begin
            share = [(stat - first) / passed for stat, first in zip((ticks(admin_stat), ticks(reader)), used)]
        shares.append(sum(share))
        with Beside(*((burn, part) for part in share)):
            kinds["burnt"].append(load())
        print(f"round {turn + 1} of {rounds}, longest decision: " + ", ".join(f"{name} {runs[-1]['longest']:.1f} ms" for name, runs in
              kinds.items()), file=sys.stderr)
    return report(kinds, shares, samples, pages.value, (before, once, memory(server.pid, "VmHWM")))


def spread(figures):
    return f"{statistics.median(figures):.2f} ({min(figures):.2f} to {max(figures):.2f})"


def report(kinds, shares, samples, pages, megabytes):
    print(f"### How much longer decisions take while metrics are scraped\n\nA client asks for {RATE} decisions a second over "
          f"gRPC, on a server with {samples} series. There were {len(shares)} rounds, and {pages} pages were read. Scraping "
          f"took {spread(shares)} of a core, for the server and the reader together.\n")
    print("| what runs beside the decisions | p99 in ms, median (min to max) | longest in ms, median (min to max) |\n|---|---|---|")
    names = {"alone": "nothing", "scraped": "a client that scrapes", "burnt": "processes that use the same CPU time"}
    for name, runs in kinds.items():
        print(f"| {names[name]} | {spread([run['p99'] for run in runs])} | {spread([run['longest'] for run in runs])} |")
    more = [scraped["longest"] - burnt["longest"] for scraped, burnt in zip(kinds["scraped"], kinds["burnt"])]
    is_met = statistics.median(more) <= LIMIT_MS
    print(f"| **longest while scraped, minus longest with the same CPU time used**, at most {LIMIT_MS} | | {spread(more)}: {'met' if is_met else 'missed'} |")
    print("\nMemory of the server: {:.1f} MiB before the first page, {:.1f} MiB after the first page, "
          "{:.1f} MiB at most.".format(*megabytes))
    return is_met


if __name__ == "__main__":
    main()
