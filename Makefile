# make demo   several processes share locks on a real server
# make server a private server for programs of your own; prints its DSN, ^C ends it
# make check  a minute's answer after an edit; make check SERVER=mariadb for the other server
# make test   the whole suite, with -race, on MySQL and MariaDB
# make lint   vet, staticcheck and gofumpt, of all modules; actionlint
# What demo and tests need is found, or fetched, by scripts/.
GO ?= go
TESTFLAGS ?=
SERVER ?= mysql
BENCHSERVERS ?= $(if $(filter file,$(origin SERVER)),mysql mariadb,$(SERVER))
FUZZTIME ?= 10000x
TORTUREFLAGS ?= -length 5m

# The nested modules.
MODULES := $(patsubst %/go.mod,%,$(wildcard */go.mod */*/go.mod))

.PHONY: demo server check test suite parts notify notify/redis notify/nats metrics with race lint portable platforms cover failover matrix soak fuzz leaks mutations reproductions model torture bench integration release clean

# What servers.sh found is not told: the demo says what it runs on. SERVER=mariadb or
# SERVER=mysql chooses it.
demo:
	@$(call withserver,./examples/demo)

server:
	@MYSQLLOCK_DSN=; $(call withserver,./examples/server)

CHOSEN := $(if $(filter file,$(origin SERVER)),,$(SERVER))
withserver = scripts/servers.sh $(or $(CHOSEN),mariadb) >/dev/null || scripts/servers.sh $(or $(CHOSEN),mysql) >/dev/null; case $$? in \
	0) $(GO) run $(1) $(CHOSEN:%=-server %) ;; \
	3) cd integration && $(GO) run ./withserver -image $(if $(filter mysql,$(CHOSEN)),mysql:9,mariadb:11) -- $(GO) run -C .. $(1) ;; \
	*) exit 1 ;; esac

# What can be known within a minute: vet, the tests that need no server (those on the
# store in memory among them), and the contract of the store on one server.
check:
	$(GO) vet ./...
	$(GO) test -short -run '^(Test|Fuzz)' . ./docs ./leader ./mysqllocktest ./with/http \
		$$($(GO) list ./internal/... | grep -vE "/(model|mysqltest)$$")
	@scripts/servers.sh $(SERVER) && set -x && $(GO) test -run '^TestContract$$/^$(SERVER)$$' ./internal/store

test: race
	@scripts/servers.sh; case $$? in \
	0) $(MAKE) --no-print-directory suite ;; \
	3) $(MAKE) --no-print-directory integration ;; \
	*) exit 1 ;; esac

# The parts of the suite: the root module, then the nested ones.
SUITE := test/root test/cmd/mysqllock notify/redis notify/nats test/metrics/prometheus test/metrics/otel \
	test/with/gocron test/with/grpc test/bench test/torture test/scripts/release

# The suite where the servers are. A part that fails skips none of the others.
suite:
	@scripts/galera.sh || { [ $$? = 3 ] && echo "failover on Galera: NOT TESTED" >&2; }
	@scripts/mariadb-11.8.sh || { [ $$? = 3 ] && echo "MariaDB 11.8: NOT TESTED" >&2; }
	@scripts/proxies.sh || { [ $$? = 3 ] && echo "failover behind proxies: NOT TESTED" >&2; }
	@scripts/spin.sh || { [ $$? = 3 ] && echo "internal/model: NOT TESTED" >&2; }
	@$(MAKE) --no-print-directory parts

parts:
	@failed=; for part in $(SUITE); do $(MAKE) --no-print-directory $$part || failed="$$failed $$part"; done; \
	[ -z "$$failed" ] || { echo "FAILED:$$failed" >&2; exit 1; }

test/root:
	$(GO) test -race -count=1 -p 1 -parallel 4 -timeout 20m $(TESTFLAGS) ./...

# One nested module. Figures are not to be had with -race, and the few functions of
# with/grpc, which have no state, are not worth a build of gRPC with it.
RACE = -race
test/bench test/torture test/with/grpc: RACE =
test/%:
	cd $* && $(GO) test $(RACE) -count=1 $(TESTFLAGS) ./...

# The notifiers, on real brokers.
notify: notify/redis notify/nats
notify/redis notify/nats: notify/%:
	@scripts/brokers.sh $*; case $$? in \
	0) $(MAKE) --no-print-directory test/notify/$* ;; \
	3) echo "notify/$*: NOT TESTED" >&2 ;; \
	*) exit 1 ;; esac

# The modules of metrics/.
metrics: test/metrics/prometheus test/metrics/otel

# The modules of with/.
with: test/with/gocron test/with/grpc

# The race detector needs a C compiler, and so does the clock of torture.
race:
	@scripts/compiler.sh $$($(GO) env CC)

lint: portable
	@for module in . $(MODULES); do (set -x; cd $$module && $(GO) vet ./... && \
	$(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./...) || exit 1; done
	$(GO) run github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
	@unformatted=$$($(GO) run mvdan.cc/gofumpt@v0.12.0 -l .); [ -z "$$unformatted" ] || { echo "gofumpt: $$unformatted"; exit 1; }

# The library, its tests and the command also build where no test runs. The default
# covers each system and both sizes of int.
PLATFORMS ?= windows/amd64 darwin/arm64 freebsd/386 openbsd/amd64
portable:
	@for platform in $(PLATFORMS); do for module in . cmd/mysqllock; do (cd $$module && \
	GOOS=$${platform%/*} GOARCH=$${platform#*/} $(GO) vet ./...) || { echo "$$module does not build on $$platform"; exit 1; }; done; done
	@cd cmd/mysqllock && GOOS=solaris GOARCH=amd64 $(GO) vet ./...

# Each module that a program may require, on each platform that it may run on.
platforms:
	@for platform in $(foreach os,linux windows freebsd,$(os)/amd64 $(os)/arm64 $(os)/386) darwin/amd64 darwin/arm64; do \
	for module in . cmd/mysqllock notify/redis notify/nats metrics/prometheus metrics/otel with/gocron with/grpc; do (cd $$module && \
	GOOS=$${platform%/*} GOARCH=$${platform#*/} $(GO) vet ./...) || { echo "$$module does not build on $$platform"; exit 1; }; done; done

# What of the library the tests of the root package run.
cover:
	@mkdir -p .cache && scripts/servers.sh && $(GO) test -parallel 4 -coverpkg "$$($(GO) list -deps . | grep ^github.com/mysqllock/ | paste -sd , -)" -coverprofile .cache/cover.out . && $(GO) tool cover -func .cache/cover.out | tail -n 1

# What becomes of locks when the primary is lost; the figures of docs/failover.md.
failover:
	@scripts/servers.sh && scripts/galera.sh && { scripts/proxies.sh || [ $$? = 3 ]; } && \
	MYSQLLOCK_FAILOVER=1 $(GO) test -race -count=1 -v ./failover

# The root package and the store on MariaDB 11.8; failover; the tests of what matters most, or MATRIXTESTS=.
# for all of the root package, on servers with each of SETTINGS. make test has these in
# TestServerSettings, a few tests for all. make matrix/ansi is one of them.
SETTINGS ?= $(shell sed -n 's/^\([a-z][^ ]*\) .*/\1/p' scripts/settings.txt)
MATRIXTESTS ?= ^Test(AcquireAndRelease|Attach|Close|Contention|Detach|DirectHandoff|Do|Extend|FixedLease|ForceUnlock|Guard|LossIsLearnt|MutualExclusion|Names|Purge|Reentry|RowLocks|Semaphore|Shared|Signal|TimeLimit|Tokens|TryLockAll|UnlockAfter|Wait)
matrix:
	@failed=; for part in mariadb-11.8 failover $(SETTINGS); do $(MAKE) --no-print-directory matrix/$$part || failed="$$failed $$part"; done; \
	[ -z "$$failed" ] || { echo "FAILED:$$failed" >&2; exit 1; }

matrix/mariadb-11.8:
	@scripts/mariadb-11.8.sh
	MYSQLLOCK_TEST_MARIADB=11.8 $(GO) test -count=1 -p 1 -parallel 4 -timeout 20m $(TESTFLAGS) -skip /mysql . ./internal/store

matrix/failover: failover ;

matrix/%:
	@grep -q '^$* ' scripts/settings.txt || { echo "no setting $* in scripts/settings.txt" >&2; exit 1; }
	@scripts/servers.sh
	MYSQLLOCK_SERVER_OPTIONS="$$(sed -n 's/^$*  *//p' scripts/settings.txt)" \
	$(GO) test -count=1 -parallel 4 -timeout 20m $(TESTFLAGS) -run '$(MATRIXTESTS)' .

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

# The library beside its rivals, on both servers, one after the other, or on SERVER; writes
# bench/results. BENCHFLAGS are instead of -out: BENCHFLAGS='-run handoff' prints a part.
bench:
	@scripts/servers.sh $(BENCHSERVERS) && { scripts/brokers.sh redis || [ $$? = 3 ]; } && cd bench && \
	for server in $(BENCHSERVERS); do $(GO) run . -server $$server $(or $(BENCHFLAGS),-out results/$$server) || exit 1; done

# The suite of the root package on each image of the matrix, with Docker.
integration:
	cd integration && $(GO) test -v -count=1 -timeout 90m ./...

# Proves that a version can be released: make release VERSION=v0.1.0. See docs/releasing.md.
release:
	cd scripts/release && $(GO) run . $(RELEASEFLAGS) $(VERSION)

clean:
	rm -rf .cache
