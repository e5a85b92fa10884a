"""Measures what handshakes of TLS cost a server, and what honest clients get in floods of them.

The server has one worker, and runs on one core. All clients run on another core, and there the clients of a flood have the lowest
priority, so they do not take the time of the other clients.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import contextmanager

RULES = "domain: bench\ndescriptors:\n  - {key: user_id, rate_limit: {unit: hour, requests_per_unit: 4000000000}}\n"
KEYS = {"ECDSA P-256": ["ec", "-pkeyopt", "ec_paramgen_curve:P-256"], "RSA 2048": ["rsa:2048"]}
SERVER_CORE, CLIENT_CORE = "0", "1"
# An open connection keeps at least this part of its rate.
LEAST = 0.5
HELLO = ["flood", "--connections", "8000", "--hello"]
FLOODS = {
    "none": None,
    "8,000 clients that say nothing": ["flood", "--connections", "8000"],
    "8,000 clients that repeat one ClientHello, 200 a second": [*HELLO, "--rate", "200"],
    "8,000 clients that repeat one ClientHello, as fast as they can": HELLO,
    "64 clients that end each handshake and connect again": ["handshakes", "--tls", "--concurrency", "64", "--warmup", "0"],
    "1,000 clients that end each handshake and connect again": ["handshakes", "--tls", "--concurrency", "1000", "--warmup", "0"],
}


def spread(figures, digits=0):
    if not figures:
        return "-"
    return f"{statistics.median(figures):,.{digits}f} ({min(figures):,.{digits}f} to {max(figures):,.{digits}f})"


def met(is_met):
    return "met" if is_met else "**missed**"


def on(core, *words):
    return ["taskset", "-c", core, *words]


class Bench:
    def __init__(self, spillgate, loadgen, folder):
        self.spillgate, self.loadgen, self.folder = spillgate, loadgen, folder

    def certificate(self, key):
        name = os.path.join(self.folder, key.replace(" ", "-"))
        command = ["openssl", "req", "-x509", "-nodes", "-days", "30", "-subj", "/CN=spillgate", "-addext", "subjectAltName=IP:127.0.0.1"]
        command += ["-newkey", *KEYS[key], "-keyout", name + ".key", "-out", name + ".pem"]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        return ["--tls-cert", name + ".pem", "--tls-key", name + ".key", "--tls-listeners", "grpc"]

    @contextmanager
    def server(self, key):
        """Starts a server with a certificate of this key, or without TLS."""
        rules = os.path.join(self.folder, "rules.yaml")
        with open(rules, "w", encoding="utf-8") as file:
            file.write(RULES)
        command = on(SERVER_CORE, self.spillgate, "serve", rules, "--json", "--workers", "1", "--http", "off")
        command += ["--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0", *(self.certificate(key) if key else [])]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            ready = json.loads(server.stdout.readline())
            yield server.pid, ready["grpc"], ready["admin"]
        finally:
            server.terminate()
            server.wait()

    def client(self, *words, nice=False):
        command = on(CLIENT_CORE, *(["nice", "-n", "19"] if nice else []), self.loadgen, *words)
        return subprocess.Popen(command, stdout=subprocess.PIPE)

    def run(self, *words):
        return result(self.client(*words))


def result(client):
    output, _ = client.communicate()
    if client.returncode:
        sys.exit("a client failed")
    return json.loads(output)


def failures(admin):
    """Returns how many handshakes have failed, by reason."""
    name, page = "spillgate_tls_handshakes_failed_total{", urllib.request.urlopen(f"http://{admin}/metrics").read().decode()
    counts = (line.removeprefix(name).split("} ") for line in page.splitlines() if line.startswith(name))
    return {reason.split('"')[1]: int(count) for reason, count in counts if int(count)}


def handshakes(bench, rounds, seconds):
    cases = [(key, version, resumes) for key in KEYS for version in ("1.3", "1.2") for resumes in (False, True)]
    runs = {case: [] for case in [None, *cases]}
    for turn in range(rounds):
        for case in runs:
            key, version, resumes = case or (None, None, False)
            with bench.server(key) as (pid, grpc, _):
                words = ["--tls", "--tls-version", version] if key else []
                words += ["--tls-resume"] if resumes else []
                run = bench.run("handshakes", "--target", grpc, "--concurrency", "16", "--seconds", str(seconds), "--server-pid",
                                str(pid), *words)
            assert run["refused"] == 0, run
            assert (run["resumed"] > 0.99 * run["handshakes"]) if resumes else run["resumed"] == 0, run
            runs[case].append(run)
        print(f"handshakes, round {turn + 1} of {rounds}", file=sys.stderr)
    print(f"\n### Handshakes, server on one core\n\n16 clients at once connect, do the handshake, wait for the first bytes of HTTP/2, "
          f"and go. {rounds} runs of {seconds} s.\n")
    print("| key | TLS | session | clients a second | CPU time of the server for each, us | of these, for TLS | core of the server in "
          "use | core of the clients in use |\n|---|---|---|---|---|---|---|---|")
    plain = statistics.median(run["server_cpu_us"] for run in runs[None])
    for case, results in runs.items():
        key, version, resumes = case or ("none", "none", False)
        of = lambda figure: [run[figure] for run in results]
        kind = "" if not case else "resumed" if resumes else "new"
        share = lambda figure: f"{statistics.median(of(figure)) * 100:.0f} %"
        cpu = of("server_cpu_us")
        print(f"| {key} | {version} | {kind} | {spread(of('per_s'))} | {spread(cpu)} | {statistics.median(cpu) - plain:.0f} | "
              f"{share('server_share')} | {share('client_share')} |")


def flood(bench, key, words, seconds):
    """Returns the runs of an open connection before and in a flood, what newcomers got, and what the flood did."""
    with bench.server(key) as (pid, grpc, admin):
        load = ["rls", "--target", grpc, "--tls", "--concurrency", "64", "--server-pid", str(pid)]
        before = bench.run(*load, "--seconds", str(seconds / 2))
        # The open connection is older than the flood, and the flood ends after the last newcomer.
        during = bench.client(*load, "--seconds", str(seconds), "--warmup", "3")
        time.sleep(1)
        if words:
            attack = bench.client(words[0], "--target", grpc, *words[1:], "--seconds", str(seconds + 10), nice=True)
        time.sleep(2)
        newcomers = bench.run("newcomers", "--target", grpc, "--tls", "--clients", str(seconds * 10))
        during = result(during)
        attack = result(attack) if words else {"per_s": 0}
        assert before["errors"] + during["errors"] == 0
        run = {"before": before["ops_per_s"], "during": during["ops_per_s"], "attack": attack["per_s"], **newcomers}
        run["ratio"] = run["during"] / run["before"]
        # The server is busy all the time, so it has spent the rest of its CPU time on the flood.
        run["cpu"] = before["server_cpu_us_per_op"] / during["server_cpu_us_per_op"]
        print(f"{key}, {words}: {run}, {failures(admin)}", file=sys.stderr)
        return run


def floods(bench, rounds, seconds):
    runs = {(key, name): [] for key in KEYS for name in FLOODS}
    for _ in range(rounds):
        for (key, name), results in runs.items():
            results.append(flood(bench, key, FLOODS[name], seconds))
    print(f"\n### Floods, server on one core\n\nOne open connection has 64 requests in flight all the time. {seconds * 10} new clients, "
          f"ten a second, ask for one decision; a client whose connection is closed tries again after 100 ms, for up to 30 s. {rounds} "
          f"runs of {seconds} s.\n")
    print(f"| key | flood | its connections a second | decisions a second of the open connection, before | in the flood | ratio, at "
          f"least {LEAST} | the same ratio of decisions per CPU time of the server | new clients with an answer | at the first try | "
          f"median, ms | worst, ms |\n" + "|---" * 11 + "|")
    all_met = True
    for (key, name), results in runs.items():
        of = lambda figure: [run[figure] for run in results if run[figure] is not None]
        total = lambda figure: sum(of(figure))
        is_kept, is_served = statistics.median(of("ratio")) >= LEAST, total("answered") == total("clients")
        all_met &= is_kept and is_served
        print(f"| {key} | {name} | {spread(of('attack'))} | {spread(of('before'))} | {spread(of('during'))} | {spread(of('ratio'), 2)}: "
              f"{met(is_kept)} | {spread(of('cpu'), 2)} | {total('answered')} of {total('clients')}: {met(is_served)} | "
              f"{total('at_first_try')} | {spread(of('median_ms'))} | {max(of('worst_ms'), default=0):,.0f} |")
    return all_met


def main():
    if len(sys.argv) < 3 or {"-h", "--help"} & set(sys.argv):
        sys.exit("usage: scripts/show_tls.py SPILLGATE LOADGEN [handshakes|floods] [RUNS] [SECONDS]")
    spillgate, loadgen, *words = sys.argv[1:]
    names = [word for word in words if not word.isdigit()] or ["handshakes", "floods"]
    rounds, seconds = ([int(word) for word in words if word.isdigit()] + [5, 10])[:2]
    # A flood has many sockets.
    maximum = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (maximum, maximum))
    all_met = True
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(spillgate, loadgen, folder)
        if "handshakes" in names:
            handshakes(bench, rounds, seconds)
        if "floods" in names:
            all_met = floods(bench, rounds, seconds)
    sys.exit(not all_met)


if __name__ == "__main__":
    main()
