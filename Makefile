# Each target is one line; `make` alone lists them.
RULES ?= examples/quickstart.yaml
MINUTES ?= 10
BASE ?= e7b6eea
SEED ?= 1
CHECKLIST ?= A new setting
BRANCH ?= HEAD
TARGETS := $(shell sed -n 's/^\([a-z-]*\):.*/\1/p' $(MAKEFILE_LIST))

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-26s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
run: ## Serve RULES (default: the quick start)
	cargo run --release -- serve $(RULES)
test: ## Set up what is missing, then check formatting, lints and all tests
	scripts/test.sh
docs: ## Build the book of docs/ into target/book
	scripts/docs.sh
docs-tables: ## Write the generated tables and pictures of docs/ again
	WRITE_DOCS=1 cargo test -p spillgate-server --test docs --locked generated
soak: ## Random input to every parser and store for MINUTES (default 10)
	scripts/soak.sh $(MINUTES)
show-first-run: ## A fresh clone: seconds until it serves, and whether all tests pass
	scripts/show-first-run.sh
show-envoy: ## A real Envoy asks spillgate, and survives when spillgate is killed
	scripts/show-envoy.sh
show-python-client: ## Answers to an independent gRPC client in Python
	scripts/show-python-client.sh
show-reference-examples: ## The examples of Envoy's reference server, and the errors of broken rules files
	scripts/show-reference-examples.sh
show-hostile-input: ## Hostile input: no panic, no hang, honest clients still served
	scripts/show-hostile-input.sh
show-server-speed: ## Decisions per second of the server, against tonic, axum and throttlecrab
	scripts/show-server-speed.sh
show-library-speed: ## Nanoseconds per decision of the library, against governor
	scripts/show-library-speed.sh
show-redis-speed: ## Decisions per second on Redis, against redis-benchmark and one call per request
	scripts/show-redis-speed.sh
show-allocations: ## Allocations per request, against tonic and axum
	scripts/show-allocations.sh
show-bytes-per-key: ## Bytes per key in memory, against governor
	scripts/show-bytes-per-key.sh
show-redis-bytes-per-key: ## Bytes per key in Redis, for each algorithm
	scripts/show-redis-bytes-per-key.sh
show-slowest-batch: ## The longest pause while 20 million keys come and expire
	scripts/show-slowest-batch.sh
show-restart: ## Requests that a restart with a snapshot forgets
	scripts/show-restart.sh
show-same-decisions: ## A million decisions per algorithm: kernel, memory and Redis agree
	scripts/show-same-decisions.sh
show-exact-limit: ## Exactly the limit: four processes, two servers, a cluster
	scripts/show-exact-limit.sh
show-redis-faults: ## Redis killed, frozen or failed over: what callers see, and how long it lasts
	scripts/show-redis-faults.sh
show-redis-recipes: ## Limiters that people build on Redis by hand, without their known faults
	scripts/show-redis-recipes.sh
show-quota-changes: ## Several quotas on one key: never more than the largest one admits
	scripts/show-quota-changes.sh
show-deny-cache: ## Refusals without a call to Redis: are they right, and how fast
	scripts/show-deny-cache.sh
show-admin-load: ## How much longer decisions take while 100,000 series are scraped
	scripts/show-admin-load.sh
show-unread-answers: ## Memory held for clients that never read their answers
	scripts/show-unread-answers.sh
show-house: ## The source tree against commit BASE: lines, documentation, cycles, dependencies
	python3 scripts/show_house.py $(BASE)
show-reading: ## Twenty files drawn by SEED for a reading test, with their sentences
	python3 scripts/show_reading.py $(SEED)
show-checklist: ## The files that BRANCH changes, against CHECKLIST of CONTRIBUTING.md
	python3 scripts/show_checklist.py "$(CHECKLIST)" $(BRANCH)
show-no-regression: ## Instructions, CPU time and allocations, against commit BASE
	scripts/show-no-regression.sh $(BASE)

.PHONY: $(TARGETS)
