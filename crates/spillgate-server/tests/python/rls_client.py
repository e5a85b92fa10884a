"""Checks spillgate's answers over gRPC with an independent client. Each function marked with `@case` is a test case.

    python rls_client.py HOST:PORT [enforcing|guarded]

Both suites need a server that has loaded rules/ and examples/reference.yaml.
For the suite `enforcing`, this server must allow refunds and overrides.
For the suite `guarded`, this server must have the flag `--shadow`, and must allow neither refunds nor overrides.
The program prints a line for each case, and then how many cases passed. If a case failed, the program's exit code is 1.
"""

import sys
import time

import grpc
from client import (
    DAY,
    HOUR,
    OK,
    OVER,
    SECOND,
    Client,
    Descriptor,
    OverrideUnit,
    Unit,
    expect,
    expect_error,
    run,
    same,
    seconds,
)

U32_MAX = 2**32 - 1
SUITES = {"enforcing": [], "guarded": []}


def case(suite="enforcing", window_s=HOUR, needs_s=20.0):
    def register(function):
        function.window_s, function.needs_s = window_s, needs_s
        SUITES[suite].append(function)
        return function

    return register


@case(window_s=SECOND, needs_s=0.5)
def fifty_a_second(attempt):
    for remaining in range(49, -1, -1):
        expect(attempt.ask(attempt.one("per_second")), OK, (OK, remaining, 50))
    refused = attempt.ask(attempt.one("per_second"))
    expect(refused, OVER, (OVER, 0, 50))
    same(refused.statuses[0].current_limit.unit, Unit.SECOND, "unit")
    same(0 < seconds(refused.statuses[0]) <= 1, True, "duration_until_reset within the second")


@case()
def twenty_an_hour_25_calls(attempt):
    for remaining in range(19, -1, -1):
        response = attempt.ask(attempt.one("per_hour"))
        expect(response, OK, (OK, remaining, 20))
        same(response.statuses[0].current_limit.name, "twenty_an_hour", "name")
        same(response.statuses[0].current_limit.unit, Unit.HOUR, "unit")
    for _ in range(5):
        refused = attempt.ask(attempt.one("per_hour"))
        expect(refused, OVER, (OVER, 0, 20))
        same(0 < seconds(refused.statuses[0]) <= HOUR, True, "duration_until_reset within the hour")


@case()
def two_descriptors_all_or_nothing(attempt):
    ask = lambda: attempt.ask(attempt.one("per_hour"), attempt.one("ten_per_hour"))
    for n in range(1, 11):
        expect(ask(), OK, (OK, 20 - n, 20), (OK, 10 - n, 10))
    for _ in range(5):
        expect(ask(), OVER, (OK, 10, 20), (OVER, 0, 10))
    expect(attempt.ask(attempt.one("per_hour", hits=0)), OK, (OK, 10, 20))


@case()
def two_descriptors_compat_envoy(attempt):
    attempt.domain = "acceptance_compat"
    ask = lambda: attempt.ask(attempt.one("per_hour"), attempt.one("ten_per_hour"))
    for n in range(1, 11):
        expect(ask(), OK, (OK, 20 - n, 20), (OK, 10 - n, 10))
    for n in range(11, 16):
        expect(ask(), OVER, (OK, 20 - n, 20), (OVER, 0, 10))
    expect(attempt.ask(attempt.one("per_hour", hits=0)), OK, (OK, 5, 20))


@case()
def duration_until_reset_falls(attempt):
    most_s = HOUR - time.time() % HOUR
    first = seconds(attempt.ask(attempt.one("per_hour")).statuses[0])
    least_s = HOUR - time.time() % HOUR
    same(least_s - 2 < first < most_s + 2, True, f"duration_until_reset ({first} s) is the rest of the hour ({most_s} s to {least_s} s)")
    fallen, give_up_s = first, time.monotonic() + 60
    while fallen > first - 1:
        same(time.monotonic() < give_up_s, True, f"within 60 s, duration_until_reset falls by 1 s from {first} s")
        time.sleep(0.1)
        fallen = seconds(attempt.ask(attempt.one("per_hour", hits=0)).statuses[0])


@case()
def unknown_domain_and_descriptor(attempt):
    nowhere = attempt.ask(attempt.one("per_hour"), attempt.one("ten_per_hour"), domain="no_such_rule")
    expect(nowhere, OK, (OK, 0, None), (OK, 0, None))
    unmatched = attempt.ask(attempt.one("no_such_rule"), attempt.one("per_hour", ("too", "deep")))
    expect(unmatched, OK, (OK, 0, None), (OK, 0, None))
    beside_a_known_one = attempt.ask(attempt.one("no_such_rule"), attempt.one("per_hour"))
    expect(beside_a_known_one, OK, (OK, 0, None), (OK, 19, 20))


@case()
def override(attempt):
    for key in ("per_hour", "no_such_rule"):
        ask = lambda: attempt.ask(attempt.one(key, override=(3, OverrideUnit.DAY)))
        for remaining in (2, 1, 0):
            response = ask()
            expect(response, OK, (OK, remaining, 3))
            same(response.statuses[0].current_limit.unit, Unit.DAY, "unit")
        expect(ask(), OVER, (OVER, 0, 3))
    expect(attempt.ask(attempt.one("per_hour", hits=0)), OK, (OK, 20, 20))
    elsewhere = attempt.ask(attempt.one("per_hour", override=(3, OverrideUnit.DAY)), domain="no_such_rule")
    expect(elsewhere, OK, (OK, 0, None))


@case()
def override_without_unit(attempt):
    ask = lambda: attempt.ask(attempt.one("per_hour", override=(3, OverrideUnit.UNKNOWN)))
    expect_error(grpc.StatusCode.INVALID_ARGUMENT, ask)
    expect(attempt.ask(attempt.one("per_hour")), OK, (OK, 19, 20))


@case(window_s=SECOND, needs_s=0.1)
def reference_worked_case_connections(attempt):
    attempt.domain = "mongo_cps"
    for database in ("users", "default"):
        response = attempt.ask(Descriptor((("database", database),)))
        expect(response, OK, (OK, response.statuses[0].limit_remaining, 500))
        same(response.statuses[0].current_limit.unit, Unit.SECOND, "unit")
    expect(attempt.ask(Descriptor((("database", "another"),))), OK, (OK, 0, None))


@case(window_s=DAY)
def reference_worked_case_messages(attempt):
    attempt.domain = "messaging"
    number = ("to_number", attempt.id)
    both = Descriptor((("message_type", "marketing"), number)), Descriptor((number,))
    for n in range(1, 6):
        expect(attempt.ask(*both), OK, (OK, 5 - n, 5), (OK, 100 - n, 100))
    expect(attempt.ask(*both), OVER, (OVER, 0, 5), (OK, 95, 100))
    expect(attempt.ask(both[1]), OK, (OK, 94, 100))
    expect(attempt.ask(Descriptor((("message_type", "marketing"),))), OK, (OK, 0, None))


@case()
def unlimited(attempt):
    for _ in range(50):
        expect(attempt.ask(attempt.one("free"), hits=U32_MAX), OK, (OK, U32_MAX))


@case()
def wildcards_most_specific_first(attempt):
    at = lambda path: attempt.one("wild", ("path", path))
    for path, limit in (("/api/exact", 4), ("/api/other", 3), ("/about", 2), ("/zoo", 1)):
        for remaining in range(limit - 1, -1, -1):
            expect(attempt.ask(at(path)), OK, (OK, remaining, limit))
        expect(attempt.ask(at(path)), OVER, (OVER, 0, limit))
    expect(attempt.ask(at("/api/third")), OK, (OK, 2, 3))


@case()
def wildcards_compat_envoy_first_declared(attempt):
    attempt.domain = "acceptance_compat"
    expect(attempt.ask(attempt.one("wild", ("path", "/api/other"))), OK, (OK, 1, 2))


@case()
def share_threshold(attempt):
    at = lambda path: attempt.one("shared", ("path", path))
    for remaining, path in ((2, "/files/a"), (1, "/files/b"), (0, "/files/c")):
        expect(attempt.ask(at(path)), OK, (OK, remaining, 3))
    expect(attempt.ask(at("/files/d")), OVER, (OVER, 0, 3))


@case()
def nested_descriptors(attempt):
    special, plain = (attempt.one("outer", ("inner", value)) for value in ("special", "plain"))
    expect(attempt.ask(special), OK, (OK, 1, 2))
    expect(attempt.ask(plain), OK, (OK, 3, 4))
    expect(attempt.ask(attempt.one("outer")), OK, (OK, 0, None))


@case()
def several_limits_on_one_descriptor(attempt):
    for _ in range(3):
        same(attempt.ask(attempt.one("several")).overall_code, OK, "overall code")
    refused = attempt.ask(attempt.one("several"))
    expect(refused, OVER, (OVER, 0, 3))
    same(refused.statuses[0].current_limit.name, "hourly", "name of the limit in the refusal")


@case()
def replaces(attempt):
    base, premium = attempt.one("base"), attempt.one("premium")
    for remaining in range(4, -1, -1):
        expect(attempt.ask(base, premium), OK, (OK, 0, None), (OK, remaining, 5))
    expect(attempt.ask(base, premium), OVER, (OK, 0, None), (OVER, 0, 5))
    expect(attempt.ask(base), OK, (OK, 1, 2))


@case()
def quota_mode(attempt):
    ask = lambda: attempt.ask(attempt.one("quota_two"), attempt.one("quota_four"))
    expect(ask(), OK, (OK, 1, 2), (OK, 3, 4))
    expect(ask(), OK, (OK, 0, 2), (OK, 2, 4))
    expect(ask(), OK, (OVER, 0, 2), (OK, 1, 4))
    expect(ask(), OK, (OVER, 0, 2), (OK, 0, 4))
    expect(ask(), OVER, (OVER, 0, 2), (OVER, 0, 4))


@case()
def quota_mode_beside_an_enforced_limit(attempt):
    ask = lambda: attempt.ask(attempt.one("quota_four"), attempt.one("base"))
    expect(ask(), OK, (OK, 3, 4), (OK, 1, 2))
    expect(ask(), OK, (OK, 2, 4), (OK, 0, 2))
    expect(ask(), OVER, (OK, 2, 4), (OVER, 0, 2))


@case()
def shadow_mode(attempt):
    for remaining in (1, 0, 0, 0, 0):
        expect(attempt.ask(attempt.one("shadow")), OK, (OK, remaining, 2))


@case()
def negative_hits(attempt):
    expect(attempt.ask(attempt.one("per_hour", hits=15)), OK, (OK, 5, 20))
    expect(attempt.ask(attempt.one("per_hour", hits=4, refund=True)), OK, (OK, 9, 20))
    expect(attempt.ask(attempt.one("per_hour", hits=0)), OK, (OK, 9, 20))
    expect(attempt.ask(attempt.one("per_hour", hits=1000, refund=True)), OK, (OK, 20, 20))
    expect(attempt.ask(attempt.one("per_hour", hits=20)), OK, (OK, 0, 20))
    expect(attempt.ask(attempt.one("per_hour")), OVER, (OVER, 0, 20))


@case()
def zero_hits_are_a_peek(attempt):
    peek = lambda: attempt.ask(attempt.one("per_hour", hits=0), hits=7)
    for _ in range(3):
        expect(peek(), OK, (OK, 20, 20))
    expect(attempt.ask(attempt.one("per_hour", hits=20)), OK, (OK, 0, 20))
    expect(peek(), OK, (OK, 0, 20))


@case()
def hits_of_request_and_descriptor(attempt):
    expect(attempt.ask(attempt.one("per_hour"), hits=5), OK, (OK, 15, 20))
    expect(attempt.ask(attempt.one("per_hour", hits=2), hits=5), OK, (OK, 13, 20))
    too_many = attempt.ask(attempt.one("per_hour", hits=14))
    expect(too_many, OVER, (OVER, 0, 20))
    never = attempt.ask(attempt.one("per_hour", hits=21))
    expect(never, OVER, (OVER, 0, 20))
    same(0 < seconds(never.statuses[0]) <= HOUR, True, "21 units never fit into a limit of 20, so the duration is the time to the end of the window")


@case()
def limit_of_zero_bans(attempt):
    refused = attempt.ask(attempt.one("banned"))
    expect(refused, OVER, (OVER, 0))
    same(0 < seconds(refused.statuses[0]) <= HOUR, True, "a ban does not end, so the duration is the time to the end of the window")


@case()
def post_paid(attempt):
    expect(attempt.ask(attempt.one("afterwards", hits=0)), OK, (OK, 10, 10))
    expect(attempt.ask(attempt.one("afterwards", hits=7)), OK, (OK, 3, 10))
    expect(attempt.ask(attempt.one("afterwards", hits=7)), OK, (OK, 0, 10))
    expect(attempt.ask(attempt.one("afterwards", hits=0)), OVER, (OVER, 0, 10))
    expect(attempt.ask(attempt.one("afterwards", hits=1)), OK, (OK, 0, 10))


@case()
def duplicate_descriptors(attempt):
    twice = lambda: attempt.ask(attempt.one("ten_per_hour", hits=3), attempt.one("ten_per_hour", hits=3))
    expect(twice(), OK, (OK, 4, 10), (OK, 4, 10))
    expect(twice(), OVER, (OVER, 0, 10), (OVER, 0, 10))
    expect(attempt.ask(attempt.one("ten_per_hour", hits=4)), OK, (OK, 0, 10))


@case()
def duplicate_descriptors_compat_envoy(attempt):
    attempt.domain = "acceptance_compat"
    twice = lambda: attempt.ask(attempt.one("ten_per_hour", hits=3), attempt.one("ten_per_hour", hits=3))
    expect(twice(), OK, (OK, 7, 10), (OK, 4, 10))
    expect(twice(), OVER, (OK, 1, 10), (OVER, 0, 10))


@case()
def requests_without_domain_or_descriptors(attempt):
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    expect_error(invalid, lambda: attempt.client.ask("", [attempt.one("per_hour")]))
    expect_error(invalid, lambda: attempt.client.ask(attempt.domain, []))
    expect(attempt.ask(attempt.one("per_hour")), OK, (OK, 19, 20))


@case()
def healthy(attempt):
    serving = b"\x08\x01"
    same(attempt.client.health(), serving, "the server's health")
    same(attempt.client.health("envoy.service.ratelimit.v3.RateLimitService"), serving, "the service's health")


@case("guarded")
def global_shadow_keeps_statuses(attempt):
    for n in range(1, 11):
        expect(attempt.ask(attempt.one("ten_per_hour")), OK, (OK, 10 - n, 10))
    for _ in range(3):
        expect(attempt.ask(attempt.one("ten_per_hour")), OK, (OVER, 0, 10))


@case("guarded")
def refund_and_override_need_a_grant(attempt):
    denied = grpc.StatusCode.PERMISSION_DENIED
    expect(attempt.ask(attempt.one("per_hour", hits=5)), OK, (OK, 15, 20))
    expect_error(denied, lambda: attempt.ask(attempt.one("per_hour", hits=4, refund=True)))
    expect_error(denied, lambda: attempt.ask(attempt.one("per_hour", override=(100, OverrideUnit.HOUR))))
    expect(attempt.ask(attempt.one("per_hour", hits=0)), OK, (OK, 15, 20))


def main(address, suite="enforcing"):
    client = Client(address)
    grpc.channel_ready_future(client.channel).result(timeout=10)
    passed = failed = 0
    for function in SUITES[suite]:
        try:
            attempts = run(client, function)
            passed += 1
            print(f"ok {function.__name__}" + (f" (attempt {attempts})" if attempts > 1 else ""), flush=True)
        except (AssertionError, grpc.RpcError) as error:
            failed += 1
            print(f"FAILED {function.__name__}: {error}", flush=True)
    print(f"{suite}: {passed} passed, {failed} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
