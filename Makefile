# Each target is one line; `make` alone lists them.
RULES ?= examples/quickstart.yaml
MINUTES ?= 10
BASE ?= e7b6eea

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9.-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
run: ## Serve RULES (default: the quick start)
	cargo run --release -- serve $(RULES)
test: ## Set up what is missing, then format, lint and all tests
	scripts/test.sh
docs: ## Build the book of docs/ into target/book
	scripts/docs.sh
docs-tables: ## Write the tables and pictures of docs/ again from the code
	WRITE_DOCS=1 cargo test -p spillgate-server --test docs --locked generated
soak: ## Random input at every parser and store for MINUTES (default 10)
	scripts/soak.sh $(MINUTES)
bench: ## The same as show-1.6: prints the tables of bench/RESULTS.md
	scripts/show-1.6.sh
show-1.1: ## A fresh clone serves, and passes `make test`
	scripts/show-1.1.sh
show-1.2: ## A real Envoy refuses by spillgate's word, and outlives it
	scripts/show-1.2.sh
show-1.3: ## An independent Python gRPC client gets every answer right
	scripts/show-1.3.sh
show-1.4: ## The reference server's examples answer as there; 60 broken files
	scripts/show-1.4.sh
show-1.5: ## Hostile input: no panic, no hang, honest clients served
	scripts/show-1.5.sh
show-1.6: ## Decisions a second against servers that do nothing
	scripts/show-1.6.sh
show-2.1: ## Nanoseconds a decision in process, beside governor; the batch call
	scripts/show-2.1.sh
show-2.2: ## Bytes a key, all in, from 1 to 20 million keys
	scripts/show-2.2.sh
show-2.3: ## The slowest batch while 20 million keys come and go
	scripts/show-2.3.sh
show-2.4: ## The server beside tonic, axum and throttlecrab; one and two workers
	scripts/show-2.4.sh
show-2.5: ## Allocations of a request on each path, counted
	scripts/show-2.5.sh
show-2.6: ## A restart with a snapshot, killed and terminated
	scripts/show-2.6.sh
show-3.1: ## A million decisions an algorithm by kernel, memory and Redis
	scripts/show-3.1.sh
show-3.2: ## Exactly the limit: four processes, two servers, a cluster
	scripts/show-3.2.sh
show-3.3: ## Faults of the store: what is admitted, answered, and how soon it is over
	scripts/show-3.3.sh
show-3.4: ## What people build on Redis by hand, without its known faults
	scripts/show-3.4.sh
show-3.5: ## Decisions a second on Redis: library, gRPC and deny cache
	scripts/show-3.5.sh
show-3.6: ## Bytes a key in Redis, all in
	scripts/show-3.6.sh
show-quota-changes: ## Several quotas on one key: admitted never above the largest
	scripts/show-quota-changes.sh
show-deny-cache: ## Refusals repeated by the deny cache: the kernel's, and how fast
	scripts/show-deny-cache.sh
show-admin-load: ## Decisions while 100,000 series are scraped, beside the same CPU time burnt
	scripts/show-admin-load.sh
show-no-regression: ## Instructions, CPU time and allocations beside those of commit BASE
	scripts/show-no-regression.sh $(BASE)
show-unread-answers: ## Answers over HTTP/2 that nobody reads: memory, and how long
	scripts/show-unread-answers.sh

.PHONY: help run test docs docs-tables soak bench show-1.1 show-1.2 show-1.3 show-1.4 show-1.5 show-1.6
.PHONY: show-2.1 show-2.2 show-2.3 show-2.4 show-2.5 show-2.6
.PHONY: show-3.1 show-3.2 show-3.3 show-3.4 show-3.5 show-3.6 show-quota-changes show-deny-cache
.PHONY: show-no-regression show-admin-load
.PHONY: show-unread-answers
