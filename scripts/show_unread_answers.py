"""Measures how much memory the server uses for HTTP/2 clients that never read an answer.

The clients send requests, and answer every PING. The program also measures when the server closes their connections.
"""

import json
import selectors
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request

CONNECTIONS, REQUESTS, IDLE_S = 100, 1000, 10
RULES = "domain: api\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 4000000000}}]\n"
CHECK = b'{"domain":"api","descriptors":[{"user":"7"}]}'
CALL = b"\0\0\0\0\x12\x0a\x03api\x12\x0b\x0a\x09\x0a\x04user\x12\x017"
RLS = b"/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"


def frame(kind, flags, stream, payload):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def requests(path, body, numbers):
    def field(name, value):
        return name + bytes([len(value)]) + value

    head = b"\x83\x86" + field(b"\x04", path) + field(b"\x01", b"a") + field(b"\x0f\x10", b"application/grpc")
    calls = (frame(1, 4, 2 * n + 1, head) + frame(0, 1, 2 * n + 1, body) for n in numbers)
    return b"".join(calls)


class Deaf:
    """A client whose HTTP/2 window for DATA frames is 0, so that the server cannot send it the body of an answer."""

    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, struct.pack(">HI", 4, 0)))
        self.said, self.asked_at, self.closed_at = b"", None, None

    def ask(self, data):
        self.socket.sendall(data)
        self.asked_at = time.monotonic()

    def hear(self):
        """Reads the frames that have arrived, and answers SETTINGS and PING."""
        try:
            said = self.socket.recv(1 << 18)
        except ConnectionError:
            said = b""
        if not said:
            self.closed_at = time.monotonic()
            return
        self.said += said
        while len(self.said) >= 9:
            length = int.from_bytes(self.said[:3], "big")
            if len(self.said) < 9 + length:
                break
            kind, flags, payload = self.said[3], self.said[4], self.said[9 : 9 + length]
            self.said = self.said[9 + length :]
            assert kind != 0 or length == 0, "the server sent DATA, but the window of the client is 0"
            if kind in (4, 6) and not flags & 1:
                try:
                    self.socket.sendall(frame(kind, 1, 0, payload if kind == 6 else b""))
                except ConnectionError:
                    pass


def resident(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS:"))


def decided(admin):
    with urllib.request.urlopen(f"http://{admin}/metrics") as page:
        lines = page.read().decode().splitlines()
    requests = [line for line in lines if line.startswith("spillgate_requests_total{")]
    return sum(int(line.split()[-1]) for line in requests if 'outcome="allowed"' in line)


def hear_all(clients, until):
    with selectors.DefaultSelector() as selector:
        for client in clients:
            if client.closed_at is None:
                selector.register(client.socket, selectors.EVENT_READ, client)
        while not until() and selector.get_map():
            for key, _ in selector.select(0.05):
                key.data.hear()
                if key.data.closed_at is not None:
                    selector.unregister(key.fileobj)


def measure(spillgate, rules, name, path, body):
    # Only the bound of one connection is measured. limits.unread bounds all connections together. It is so large here that it has
    # no effect.
    command = [spillgate, "serve", rules, "--json", "--limits-idle", f"{IDLE_S}s", "--limits-unread", "1GiB"]
    command += [word for port in ("http", "grpc", "admin") for word in (f"--{port}", "127.0.0.1:0")]
    server = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        ready = json.loads(server.stdout.readline())
        # In the first turn, each client sends one request. Some memory of the server is allocated only once, and this happens
        # in the first turn. So the second turn measures only the memory for the connections.
        for numbers in (range(1), range(REQUESTS)):
            before, known = resident(server.pid), decided(ready["admin"])
            clients = [Deaf(ready[name]) for _ in range(CONNECTIONS)]
            data = requests(path, body, numbers)
            for client in clients:
                client.ask(data)
            wanted = known + CONNECTIONS * len(numbers)
            hear_all(clients, lambda: decided(ready["admin"]) >= wanted)
            decided_at, missing = time.monotonic(), wanted - decided(ready["admin"])
            assert missing <= 0, f"{missing} requests were not decided"
            held = (resident(server.pid) - before) / CONNECTIONS
            if len(numbers) == 1:
                for client in clients:
                    client.socket.close()
        end = time.monotonic() + IDLE_S + 20
        hear_all(clients, lambda: time.monotonic() > end)
    finally:
        server.terminate()
        server.wait()
    closed_at = [client.closed_at or float("inf") for client in clients]
    # The time of a connection's last decision is known only roughly: after `asked_at` of the connection, and before `decided_at`. So
    # the time from the last decision to the close is at most `closed_at - asked_at`, and at least `closed_at - decided_at`.
    least = min(closed - client.asked_at for client, closed in zip(clients, closed_at))
    most = max(closed_at) - decided_at
    meets = held <= 4 << 20 and least >= IDLE_S and most <= IDLE_S + 2
    print(f"| {name} | {held / 2**20:.2f} MiB | {held / REQUESTS / 1024:.2f} KiB | "
          f"{least:.2f} s | {most:.2f} s | {'yes' if meets else 'NO'} |", flush=True)
    return meets


def main():
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as rules:
        rules.write(RULES)
        rules.flush()
        print(f"### Answers that clients never read\n\nThere are {CONNECTIONS} connections with {REQUESTS} unread answers each. "
              f"limits.idle is {IDLE_S} s. The server may use 4 MiB of resident memory for a "
              f"connection, and must close the connection within {IDLE_S + 2} s.\n")
        print("| port | memory per connection | memory per answer | time from the requests to the first closed connection | "
              "time from the last decision to the last closed connection | within the bound |\n|---|---|---|---|---|---|")
        http = measure(sys.argv[1], rules.name, "http", b"/v1/check", CHECK)
        grpc = measure(sys.argv[1], rules.name, "grpc", RLS, CALL)
    sys.exit(not (http and grpc))


main()
