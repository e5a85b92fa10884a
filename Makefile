# `make` alone lists the targets, each with the text after ##.
RULES ?= examples/quickstart.yaml
MINUTES ?= 10
BASE ?= 8498c92
SEED ?= 1
CHECKLIST ?= A new setting
BRANCH ?= HEAD
RUNS ?=
TARGETS := $(shell sed -n 's/^\([a-z-]*\):.*/\1/p' $(MAKEFILE_LIST))

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-26s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
run: ## Serve RULES (default: the quick start)
	cargo run --release -- serve $(RULES)
test: ## Install what is missing, check formatting and lints, and run all tests
	scripts/test.sh
docs: ## Build the book of docs/ into target/book
	scripts/docs.sh
docs-tables: ## Write the generated tables and pictures of docs/ again
	WRITE_DOCS=1 cargo test -p spillgate-server --test main --locked generated_
soak: ## Test every parser and store with random input for MINUTES (default 10)
	scripts/soak.sh $(MINUTES)
show-first-run: ## A fresh clone: seconds until the server answers, and whether all tests pass
	scripts/show-first-run.sh
show-test-time: ## Minutes of `make test` by step: with an empty and a full target folder, and with all cores busy
	scripts/show-test-time.sh $(RUNS)
show-month-end: ## The tests that need no Redis, browser or proxy, with a clock ten seconds before the end of a month
	scripts/show-month-end.sh
show-envoy: ## Tests with a real Envoy, also after spillgate is killed
	scripts/show.sh envoy
show-replaced: ## Rolling restarts behind an Envoy that learns of them 3 s late; 1,000 connections that move to a new server
	scripts/show.sh replaced
show-certificates: ## 102 rotations of the certificate under load by curl, openssl, grpcio and Envoy; who may connect, and for how long
	scripts/show.sh certificates
show-python-client: ## Tests with an independent gRPC client in Python
	scripts/show.sh python-client
show-reference-examples: ## Tests with the examples of Envoy's reference server, and with broken rules files
	scripts/show.sh reference-examples
show-hostile-input: ## Tests with hostile input: no panic, no hang, honest clients are still served
	scripts/show.sh hostile-input
show-hostile-logs: ## Small compressed logs with up to 10 GiB of text: memory stays flat; other hostile logs
	scripts/show.sh hostile-logs
show-server-speed: ## Decisions per second of the server, against tonic, axum and throttlecrab
	scripts/show-server-speed.sh
show-start: ## Milliseconds from the start of the server to its first answer, and the size of the program
	scripts/show.sh start
show-library-speed: ## Nanoseconds per decision of the library, against governor
	scripts/show.sh library-speed
show-layer-speed: ## CPU time that the tower layer adds to a request, against tower_governor
	scripts/show.sh layer-speed
show-layer-limit: ## All clones of a tower layer share one limit, over many connections
	scripts/show.sh layer-limit
show-examples: ## Run the examples of the library and the code of the pages; count crates
	scripts/show.sh examples
show-regions-model: ## Limits that regions share: 100,000 random traces with faults against the model; each mutation is caught
	scripts/show.sh regions-model
show-regions-script: ## Charges of other regions on a real Redis against the kernel's own force: 20,000 at random
	scripts/show.sh regions-script
show-regions-bound: ## Three regions with real Redis servers and slow lines: what all admit in every interval, with and without messages
	scripts/show.sh regions-bound
show-regions-fair: ## What each region gets of a bucket that all use up, with and without the guaranteed share
	scripts/show.sh regions-fair
show-regions-faults: ## Cuts, kills, lost data, clocks, reloads, rights, clusters: the bound of each, and no late answer
	scripts/show.sh regions-faults
show-regions-deploy: ## Servers of three regions that end under load: every unit is charged; what kill -9 loses
	scripts/show.sh regions-deploy
show-regions-attack: ## Twenty times as many new keys as fit: bounded memory, exact counts, old keys are told all the time
	scripts/show.sh regions-attack
show-regions-slow-peer: ## A region whose Redis is busy, and a cluster with a dead node: who pays for it
	scripts/show.sh regions-slow-peer
show-regions-cost: ## What an entry costs a Redis, what a shared limit costs a server, and what a flood on a used-up key costs
	scripts/show.sh regions-cost
show-late-answers: ## Redis slower than the deadline: every permit and estimate has an owner afterwards, or is counted
	scripts/show.sh late-answers
show-eviction: ## A client that fills Redis with keys, for each policy of eviction, with store.new_keys on and off; its cost
	scripts/show.sh eviction
show-log-faults: ## Standard error that is full, closed, stuck or slow: no request waits, lost lines are counted
	scripts/show.sh log-faults
show-watch: ## 250 changes of rules under load, seen and polled: no failed request, seconds until in force; the cost of a busy folder
	scripts/show.sh watch
show-redis-speed: ## Decisions per second on Redis, against redis-benchmark and one call per request
	scripts/show.sh redis-speed
show-allocations: ## Allocations per request, against tonic and axum
	scripts/show.sh allocations
show-bytes-per-key: ## Bytes per key in memory, against governor
	scripts/show.sh bytes-per-key
show-redis-bytes-per-key: ## Bytes per key in Redis, for each algorithm
	scripts/show.sh redis-bytes-per-key
show-slowest-batch: ## The slowest batch of decisions while 20 million keys come and expire
	scripts/show.sh slowest-batch
show-restart: ## Requests that a restart with a snapshot forgets
	scripts/show.sh restart
show-same-decisions: ## A million decisions per algorithm: kernel, memory store and Redis agree
	scripts/show.sh same-decisions
show-exact-limit: ## Exactly the limit is admitted: four processes, two servers, a cluster
	scripts/show.sh exact-limit
show-redis-faults: ## What callers get while Redis is killed, frozen or failed over, and for how long
	scripts/show.sh redis-faults
show-outbound: ## Two processes keep the limit of another service, a known one and one that they learn
	scripts/show.sh outbound
show-waiters: ## 10,000 callers wait in one queue: order, cancellation, deadlines, bytes a waiter
	scripts/show.sh waiters
show-pacing-bound: ## Random calls of 1 to 500 units that wait and go away: no interval has more units than the quotas allow
	scripts/show.sh pacing-bound
show-reservations: ## A million random reservations, in memory and on Redis: the bound holds, nothing is settled twice
	scripts/show.sh reservations
show-sketch-bounds: ## No key exceeds its bound in a sketch: adversarial streams, eight threads, loom
	scripts/show.sh sketch-bounds
show-sketch-refusals: ## Wrong refusals of sketches that are too small, against the formula
	scripts/show.sh sketch-refusals
show-sketch-memory: ## A billion different keys through a sketch of 64 MB: memory, and the bounds of other keys
	scripts/show.sh sketch-memory
show-sketch-speed: ## Speed of sketches, against pingora-limits and against exact states
	scripts/show.sh sketch-speed
show-sketch-edge: ## What a sketch admits at the edge of two windows
	scripts/show.sh sketch-edge
show-full-store: ## A full store with a sketch while limits change: no key exceeds the bound of its larger limit
	scripts/show.sh full-store
show-insight: ## What insight says about traffic whose truth is known: verdicts, bursts, callers
	scripts/show.sh insight
show-insight-cost: ## CPU time per decision of a server with insight, against the same server without it
	scripts/show.sh insight-cost
show-admin-cost: ## CPU time per decision of a server with ten clients of its admin listener, against none
	scripts/show.sh admin-cost
show-tls: ## CPU time per decision with and without TLS; handshakes a second; floods of handshakes beside honest clients
	scripts/show.sh tls
show-replay: ## A real access log, repeated to 10 million lines: speed, memory, and the same answers as a server
	scripts/show-replay.sh
show-log-formats: ## Samples of the logs of many servers: read, counted as a server counts them, memory, lines in a second
	scripts/show.sh log-formats
show-replay-report: ## Reports of a replay in Chromium: screenshots, and what axe-core finds
	scripts/show.sh replay-report
show-page: ## The page of the admin listener in Chromium: tasks, forms, figures, attacks, memory; screenshots
	scripts/show.sh page
show-redis-recipes: ## Tests of limiters that people often build on Redis by hand
	scripts/show.sh redis-recipes
show-quota-changes: ## Several limits on one key never admit more than the largest limit
	scripts/show.sh quota-changes
show-deny-cache: ## Refusals without a call of Redis: whether they are right, and how fast they are
	scripts/show.sh deny-cache
show-admin-load: ## How much longer decisions take while 100,000 series are scraped
	scripts/show.sh admin-load
show-admin-security: ## Rights on the admin listener: every route and token, web pages of other sites, rate limits
	scripts/show.sh admin-security
show-memory-of-clients: ## What clients can hold, each row of sizing.md driven to its bound: memory beside the worst case
	scripts/show.sh memory-of-clients
show-unread-answers: ## Memory held for clients that never read their answers
	scripts/show.sh unread-answers
show-house: ## Compare the source tree with commit BASE: lines, documentation, cycles, dependencies
	python3 scripts/show_house.py $(BASE)
show-inventory: ## Names of tests, commands, routes, metrics and public items: what BASE had, and what is lost or new
	python3 scripts/show_inventory.py $(BASE)
show-reading: ## Draw twenty files by SEED for a reading test, and count their sentences
	python3 scripts/show_reading.py $(SEED)
show-checklist: ## Compare the files that BRANCH changes with CHECKLIST, a title in docs/contributing
	python3 scripts/show_checklist.py "$(CHECKLIST)" $(BRANCH)
show-no-regression: ## Compare instructions, CPU time and allocations with commit BASE
	scripts/show-no-regression.sh $(BASE)

.PHONY: $(TARGETS)
