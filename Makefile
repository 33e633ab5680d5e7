# make demo   several processes share locks on a real server
# make test   the whole suite, with -race, on MySQL and MariaDB
# Both find or fetch the servers first: see scripts/servers.sh.
GO ?= go
TESTFLAGS ?=
SERVER ?= mysql
BENCHFLAGS ?= -out results/$(SERVER)
FUZZTIME ?= 10000x
TORTUREFLAGS ?= -length 5m
# The nested modules that lint looks at; integration is only vetted.
MODULES = notify/redis notify/nats cmd/mysqllock metrics/prometheus metrics/otel with/gocron with/grpc bench torture

.PHONY: demo test suite notify metrics with race cover soak torture failover fuzz leaks mutations reproductions bench lint model integration clean

# What servers.sh found is not told: the demo says what it runs on.
demo:
	@scripts/servers.sh mariadb >/dev/null || scripts/servers.sh mysql >/dev/null; case $$? in \
	0) $(GO) run ./examples/demo ;; \
	3) cd integration && $(GO) run ./withserver -image mariadb:11 -- $(GO) run -C .. ./examples/demo ;; \
	*) exit 1 ;; esac

test: race
	@scripts/spin.sh || [ $$? = 3 ]
	@scripts/servers.sh; case $$? in \
	0) $(MAKE) --no-print-directory suite ;; \
	3) $(MAKE) --no-print-directory integration ;; \
	*) exit 1 ;; esac

suite:
	@scripts/galera.sh; case $$? in 0) ;; 3) echo "failover on Galera: NOT TESTED" >&2 ;; *) exit 1 ;; esac
	$(GO) vet ./...
	$(GO) test -race -count=1 -p 1 -parallel 8 -timeout 20m $(TESTFLAGS) ./...
	cd cmd/mysqllock && $(GO) vet ./... && $(GO) test -race -count=1 $(TESTFLAGS) ./...
	@$(MAKE) --no-print-directory notify metrics with
	cd bench && $(GO) test -count=1 $(TESTFLAGS) ./...
	cd torture && $(GO) test -count=1 $(TESTFLAGS) ./...

# The notifiers, on real brokers: see scripts/brokers.sh.
notify:
	@for kind in redis nats; do scripts/brokers.sh $$kind; case $$? in \
	0) (cd notify/$$kind && set -x && $(GO) vet ./... && $(GO) test -race -count=1 $(TESTFLAGS) ./...) || exit 1 ;; \
	3) echo "notify/$$kind: NOT TESTED" >&2 ;; \
	*) exit 1 ;; esac; done

# Prometheus and OpenTelemetry.
metrics:
	@for kind in prometheus otel; do (cd metrics/$$kind && set -x && $(GO) vet ./... && $(GO) test -race -count=1 $(TESTFLAGS) ./...) || exit 1; done

# The modules of with/. Two functions without state are not worth a build of gRPC
# with -race.
with:
	cd with/gocron && $(GO) vet ./... && $(GO) test -race -count=1 $(TESTFLAGS) ./...
	cd with/grpc && $(GO) vet ./... && $(GO) test -count=1 $(TESTFLAGS) ./...

# The race detector needs a C compiler, and so does the clock of torture.
race:
	@command -v $$($(GO) env CC) >/dev/null || scripts/compiler.sh

# What of the root package the suite runs.
cover:
	@mkdir -p .cache && scripts/servers.sh && $(GO) test -parallel 8 -coverprofile .cache/cover.out . && $(GO) tool cover -func .cache/cover.out | tail -n 1

# Mutual exclusion for a minute, and with a process killed every few seconds.
soak:
	@scripts/servers.sh && MYSQLLOCK_SOAK=60s $(GO) test -race -count=1 -v -parallel 2 -timeout 30m -run 'TestMutualExclusion' .

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

# Each fuzz target for FUZZTIME inputs; a duration may fail by
# https://go.dev/issue/75804 before Go 1.27.
fuzz:
	@scripts/servers.sh && for target in $$(sed -n 's/^func \(Fuzz[A-Za-z]*\).*/\1/p' *_test.go); do \
	$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) . || exit 1; done

# A million acquires and releases and 100,000 waits leave nothing behind, on each server.
leaks:
	@scripts/servers.sh && MYSQLLOCK_LEAKS=1000000 $(GO) test -count=1 -v -timeout 3h -run '^(TestLeaks|TestLockersOnOnePool)$$' .

# What becomes of locks when the primary is lost; the figures of docs/failover.md.
failover:
	@scripts/servers.sh && scripts/galera.sh && $(GO) test -race -count=1 -v ./failover

# Every fault in any mixture, and the history checked: make torture SERVER=mysql TORTUREFLAGS='-length 30m -seed 42'
torture: race
	@scripts/servers.sh $(SERVER) && cd torture && $(GO) run . -server $(SERVER) $(TORTUREFLAGS)

# The library beside its rivals; writes bench/results. SERVER=mariadb for the other one.
bench:
	@scripts/servers.sh $(SERVER) && scripts/brokers.sh redis && cd bench && $(GO) run . -server $(SERVER) $(BENCHFLAGS)

lint:
	$(GO) vet ./...
	$(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./...
	for module in $(MODULES); do (cd $$module && $(GO) vet ./... && $(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./...) || exit 1; done
	@unformatted=$$($(GO) run mvdan.cc/gofumpt@v0.12.0 -l .); [ -z "$$unformatted" ] || { echo "gofumpt: $$unformatted"; exit 1; }
	cd integration && $(GO) vet ./...

# The suite on each image of the matrix, with Docker.
integration:
	cd integration && $(GO) test -v -count=1 -timeout 90m ./...

clean:
	rm -rf .cache
