"""Calls Envoy's rate limit service over TLS, once for each line of standard input, and prints OK or the status of the error.

    python tls_client.py HOST:PORT CA.pem [CLIENT.pem CLIENT.key]
"""

import sys

import grpc
from client import DEADLINE_S, common
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc


def main():
    address, ca, *client = sys.argv[1:]
    read = lambda path: open(path, "rb").read()
    chain, key = (read(client[0]), read(client[1])) if client else (None, None)
    credentials = grpc.ssl_channel_credentials(read(ca), key, chain)
    stub = rls_pb2_grpc.RateLimitServiceStub(grpc.secure_channel(address, credentials))
    for line in sys.stdin:
        descriptor = common.RateLimitDescriptor()
        descriptor.entries.add(key="user", value=line.strip())
        request = rls_pb2.RateLimitRequest(domain="api", descriptors=[descriptor])
        try:
            stub.ShouldRateLimit(request, timeout=DEADLINE_S)
            print("OK", flush=True)
        except grpc.RpcError as error:
            print(error.code().name, flush=True)


main()
