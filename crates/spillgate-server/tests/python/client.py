"""A gRPC client of Envoy's rate limit service that uses published stubs, and the code that runs test cases with it.

A fixed window ends at a known time. If a window ends during a case, the case counts in two windows, and its numbers are wrong.
So an `Attempt` (one run of a case) starts only if enough time of the window is left. An attempt can notice the end of a
window from the clock, or from the `duration_until_reset` of an answer. If a window has ended, `run` runs the case again.
"""

import time
import uuid
from dataclasses import dataclass

import envoy_data_plane.envoy.extensions.common.ratelimit.v3 as other_common
import envoy_data_plane.envoy.service.ratelimit.v3 as other_rls
import grpc
from envoy.extensions.common.ratelimit.v3 import ratelimit_pb2 as common
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc
from envoy.type.v3 import ratelimit_unit_pb2
from google.protobuf.wrappers_pb2 import UInt64Value

OK = rls_pb2.RateLimitResponse.OK
OVER = rls_pb2.RateLimitResponse.OVER_LIMIT
Unit = rls_pb2.RateLimitResponse.RateLimit.Unit
OverrideUnit = ratelimit_unit_pb2.RateLimitUnit

SECOND, HOUR, DAY = 1, 3600, 86400
DEADLINE_S = 10
ATTEMPTS = 100
# The largest expected difference between the server's clock and the client's clock. Near the end of a window, the two
# clocks can be in different windows. So an attempt begins and ends at least this long before or after the end of a
# window.
CLOCKS_APART_S = 0.1


class Straddled(Exception):
    """A window ended during the attempt, so the counts of the attempt are wrong."""


@dataclass(frozen=True)
class Descriptor:
    """A descriptor of a request. `entries` are pairs of a key and a value. `override` is (requests_per_unit, unit)."""

    entries: tuple
    hits: int | None = None
    override: tuple | None = None
    refund: bool = False

    def message(self):
        message = common.RateLimitDescriptor()
        for key, value in self.entries:
            message.entries.add(key=key, value=value)
        if self.hits is not None:
            message.hits_addend.CopyFrom(UInt64Value(value=self.hits))
        if self.override is not None:
            message.limit.requests_per_unit, message.limit.unit = self.override
        return message

    def other_message(self):
        """Returns the message for the stubs of envoy_data_plane. Only these stubs can mark a refund (`is_negative_hits`)."""
        entries = [other_common.RateLimitDescriptorEntry(key=key, value=value) for key, value in self.entries]
        return other_common.RateLimitDescriptor(
            entries=entries, hits_addend=self.hits, is_negative_hits=self.refund
        )


class Client:
    def __init__(self, address):
        self.channel = grpc.insecure_channel(address)
        self.stub = rls_pb2_grpc.RateLimitServiceStub(self.channel)
        self.other_stub = self.channel.unary_unary(
            "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
            request_serializer=bytes,
            response_deserializer=rls_pb2.RateLimitResponse.FromString,
        )

    def ask(self, domain, descriptors, hits=0):
        if any(descriptor.refund for descriptor in descriptors):
            messages = [descriptor.other_message() for descriptor in descriptors]
            request = other_rls.RateLimitRequest(domain=domain, descriptors=messages, hits_addend=hits)
            return self.other_stub(request, timeout=DEADLINE_S)
        messages = [descriptor.message() for descriptor in descriptors]
        request = rls_pb2.RateLimitRequest(domain=domain, descriptors=messages, hits_addend=hits)
        return self.stub.ShouldRateLimit(request, timeout=DEADLINE_S)

    def health(self, service=""):
        """Calls the health service (grpc.health.v1) and returns the bytes of its answer. The request has one field, the name of
        a service. The answer has one field, the status."""
        name = service.encode()
        check = self.channel.unary_unary("/grpc.health.v1.Health/Check")
        return check(b"\x0a" + bytes([len(name)]) + name if name else b"", timeout=DEADLINE_S)


class Attempt:
    """One run of a case, with its own descriptor values. The attempt checks that no window ends during the run."""

    def __init__(self, client, window_s, needs_s):
        self.client = client
        self.domain = "acceptance"
        self.id = uuid.uuid4().hex
        self.resets = {}
        self.window_s = window_s
        left_s = window_s - time.time() % window_s
        if left_s < needs_s + CLOCKS_APART_S:
            time.sleep(left_s)
        began_s = time.time()
        if began_s % window_s < CLOCKS_APART_S:
            time.sleep(CLOCKS_APART_S)
        self.window = time.time() // window_s

    def one(self, key, *nested, **options):
        """Returns a descriptor that no other attempt uses, because the value of its first entry is the id of this attempt."""
        return Descriptor(((key, self.id), *nested), **options)

    def ask(self, *descriptors, hits=0, domain=None):
        response = self.client.ask(domain or self.domain, descriptors, hits)
        same(len(response.statuses), len(descriptors), "number of statuses (one for each descriptor)")
        for descriptor, status in zip(descriptors, response.statuses):
            self.watch(descriptor, status)
        return response

    def watch(self, descriptor, status):
        reset_s = seconds(status)
        if reset_s <= 0:
            return
        counted = (descriptor.entries, status.current_limit.unit)
        before_s = self.resets.get(counted, reset_s)
        # During a window, `reset_s` only falls. If `reset_s` is higher than before, a new window has begun.
        if reset_s > before_s:
            raise Straddled
        self.resets[counted] = reset_s

    def finish(self):
        if (time.time() + CLOCKS_APART_S) // self.window_s != self.window:
            raise Straddled


def seconds(status):
    return status.duration_until_reset.seconds + status.duration_until_reset.nanos / 1e9


def same(found, wanted, what):
    if found != wanted:
        raise AssertionError(f"{what}: found {found!r}, expected {wanted!r}")


def expect(response, overall, *statuses):
    """Compares a response with the expected overall code and statuses.

    An expected status is (code, limit_remaining) or (code, limit_remaining, requests_per_unit). `None` as requests_per_unit
    means that the status must have no limit.
    """
    name = rls_pb2.RateLimitResponse.Code.Name
    found = []
    for status, wanted in zip(response.statuses, statuses):
        limit = status.current_limit.requests_per_unit if status.HasField("current_limit") else None
        found.append((name(status.code), status.limit_remaining, limit)[: len(wanted)])
    wanted = [(name(code), *rest) for code, *rest in statuses]
    same((name(response.overall_code), found), (name(overall), wanted), "overall code and statuses")


def expect_error(code, ask):
    try:
        response = ask()
    except grpc.RpcError as error:
        same(error.code(), code, "status of the call")
        if not error.details():
            raise AssertionError("the error has no reason") from error
        return
    raise AssertionError(f"{code} expected, but the answer is: {response}")


def run(client, case):
    """Runs attempts of `case`, until no window ends during an attempt. Returns the number of attempts."""
    for number in range(1, ATTEMPTS + 1):
        attempt = Attempt(client, case.window_s, case.needs_s)
        try:
            case(attempt)
            attempt.finish()
            return number
        except Straddled:
            continue
        except AssertionError:
            # If a window ended during the attempt, wrong counts are not an error.
            try:
                attempt.finish()
            except Straddled:
                continue
            raise
    raise AssertionError(f"a window ended in each of {ATTEMPTS} attempts")
