# make demo   several processes share locks on a real server
# make test   the whole suite, with -race, on MySQL and MariaDB
# make lint   vet, staticcheck and gofumpt, of all modules
# What demo and tests need is found, or fetched, by scripts/.
GO ?= go
TESTFLAGS ?=
SERVER ?= mysql
BENCHFLAGS ?= -out results/$(SERVER)
FUZZTIME ?= 10000x
TORTUREFLAGS ?= -length 5m

# The nested modules.
MODULES := $(patsubst %/go.mod,%,$(wildcard */go.mod */*/go.mod))

.PHONY: demo test suite notify metrics with race lint cover failover soak fuzz leaks mutations reproductions model torture bench integration clean

# What servers.sh found is not told: the demo says what it runs on.
demo:
	@scripts/servers.sh mariadb >/dev/null || scripts/servers.sh mysql >/dev/null; case $$? in \
	0) $(GO) run ./examples/demo ;; \
	3) cd integration && $(GO) run ./withserver -image mariadb:11 -- $(GO) run -C .. ./examples/demo ;; \
	*) exit 1 ;; esac

test: race
	@scripts/servers.sh; case $$? in \
	0) $(MAKE) --no-print-directory suite ;; \
	3) $(MAKE) --no-print-directory integration ;; \
	*) exit 1 ;; esac

# The suite where the servers are: the root module, then the nested ones.
suite:
	@scripts/galera.sh || { [ $$? = 3 ] && echo "failover on Galera: NOT TESTED" >&2; }
	@scripts/spin.sh || { [ $$? = 3 ] && echo "internal/model: NOT TESTED" >&2; }
	$(GO) test -race -count=1 -p 1 -parallel 8 -timeout 20m $(TESTFLAGS) ./...
	@$(MAKE) --no-print-directory test/cmd/mysqllock notify metrics with test/bench test/torture

# One nested module. Figures are not to be had with -race, and the few functions of
# with/grpc, which have no state, are not worth a build of gRPC with it.
RACE = -race
test/bench test/torture test/with/grpc: RACE =
test/%:
	cd $* && $(GO) test $(RACE) -count=1 $(TESTFLAGS) ./...

# The notifiers, on real brokers.
notify:
	@for kind in redis nats; do scripts/brokers.sh $$kind; case $$? in \
	0) $(MAKE) --no-print-directory test/notify/$$kind || exit 1 ;; \
	3) echo "notify/$$kind: NOT TESTED" >&2 ;; \
	*) exit 1 ;; esac; done

# The modules of metrics/.
metrics: test/metrics/prometheus test/metrics/otel

# The modules of with/.
with: test/with/gocron test/with/grpc

# The race detector needs a C compiler, and so does the clock of torture.
race:
	@scripts/compiler.sh $$($(GO) env CC)

lint:
	@for module in . $(MODULES); do (set -x; cd $$module && $(GO) vet ./... && \
	$(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./...) || exit 1; done
	@unformatted=$$($(GO) run mvdan.cc/gofumpt@v0.12.0 -l .); [ -z "$$unformatted" ] || { echo "gofumpt: $$unformatted"; exit 1; }

# What of the root package its tests run.
cover:
	@mkdir -p .cache && scripts/servers.sh && $(GO) test -parallel 8 -coverprofile .cache/cover.out . && $(GO) tool cover -func .cache/cover.out | tail -n 1

# What becomes of locks when the primary is lost; the figures of docs/failover.md.
failover:
	@scripts/servers.sh && scripts/galera.sh && $(GO) test -race -count=1 -v ./failover

# Mutual exclusion for a minute, and with a process killed every few seconds.
soak:
	@scripts/servers.sh && MYSQLLOCK_SOAK=60s $(GO) test -race -count=1 -v -parallel 2 -timeout 30m -run 'TestMutualExclusion' .

# Each fuzz target for FUZZTIME inputs; a duration may fail by
# https://go.dev/issue/75804 before Go 1.27.
fuzz:
	@scripts/servers.sh && for target in $$(sed -n 's/^func \(Fuzz[A-Za-z]*\).*/\1/p' *_test.go); do \
	$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) . || exit 1; done

# A million acquires and releases and 100,000 waits leave nothing behind, on each server.
leaks:
	@scripts/servers.sh && MYSQLLOCK_LEAKS=1000000 $(GO) test -count=1 -v -timeout 3h -run '^(TestLeaks|TestLockersOnOnePool)$$' .

# Takes out, one at a time, what the library is known to need: a test must fail for each.
mutations:
	@scripts/servers.sh && $(GO) run ./internal/mutation $(MUTATIONFLAGS)

# Each bug of docs/reliability.md, on the commit before its fix.
reproductions:
	@scripts/servers.sh && scripts/galera.sh && sed -n 's/.*`\(scripts\/reproduce.sh [^`]*\)`.*/\1/p' docs/reliability.md | \
	while read -r command; do echo "$$command" && $$command </dev/null || exit 1; done

# The protocol, exhaustively: see internal/model.
model:
	@scripts/spin.sh && MYSQLLOCK_MODEL=full $(GO) test -count=1 -v -parallel 2 -timeout 60m ./internal/model

# Every fault in any mixture, and the history checked: make torture SERVER=mariadb TORTUREFLAGS='-length 30m -seed 42'
torture: race
	@scripts/servers.sh $(SERVER) && cd torture && $(GO) run . -server $(SERVER) $(TORTUREFLAGS)

# The library beside its rivals; writes bench/results. SERVER=mariadb for the other server.
bench:
	@scripts/servers.sh $(SERVER) && scripts/brokers.sh redis && cd bench && $(GO) run . -server $(SERVER) $(BENCHFLAGS)

# The suite of the root package on each image of the matrix, with Docker.
integration:
	cd integration && $(GO) test -v -count=1 -timeout 90m ./...

clean:
	rm -rf .cache
