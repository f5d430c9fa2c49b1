# `make demo` and `make test` need Go, make and a package manager, and install the rest.
SHELL := /bin/bash
# The packages whose tests take longest start first.
PKG   ?= ./e2e ./workers ./...

# POSTGRES=18 uses that major version. Without it, the server on PATH comes first.
POSTGRES =
report = $(if $(REPORT),-report $(abspath $(REPORT)))
on_postgres = PATH="$$(scripts/postgres.sh $(POSTGRES)):$$PATH"

# One set of compiled packages serves lint, the tests, and the binaries that the tests build.
export CGO_ENABLED = 0
export GOFLAGS += -trimpath

.PHONY: help postgres pgbouncer prometheus clickhouse chromium languages screenshots build demo run test check test-race flaky test-long test-postgres test-clickhouse lint without bench bench-once bench-against loss-table numbers breaks chaos soak fuzz release fixture release-check clean

help: ## list these targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

postgres: ## install PostgreSQL's server if it is missing
	@scripts/postgres.sh $(POSTGRES)

pgbouncer: ## install PgBouncer, for the tests, if it is missing
	@scripts/pgbouncer.sh

prometheus: ## install Prometheus, for the tests of the alerts, if it is missing
	@scripts/prometheus.sh

clickhouse: ## fetch ClickHouse's server, for the tests of the archive's index, if it is missing
	@scripts/clickhouse.sh

chromium: ## install Chromium and axe-core, for the tests of the page, if they are missing
	@scripts/chromium.sh

languages: ## install Python and Node, for the tests of examples/client, if they are missing
	@scripts/languages.sh

build: ## build bin/weir, whose version is that of the checkout
	go build -buildvcs=auto -o bin/weir ./cmd/weir

demo: ## run everything on a simulated network; needs no configuration
	@echo "This installs PostgreSQL if it is missing, builds Weir, which takes minutes the first time and seconds after that,"
	@echo "and runs it on a small simulated Bluesky. It prints the page's address seconds after the build."
	@scripts/postgres.sh $(POSTGRES) >/dev/null
	@echo "Building Weir:"
	@set -o pipefail; go build -v -buildvcs=auto -o bin/weir ./cmd/weir 2>&1 | awk ' \
		/^[^ :#]+$$/ { if (++n % 25 == 0) { printf "  %d packages\n", n; fflush() } next } { print }' >&2
	$(on_postgres) bin/weir demo

run: postgres build ## run everything on the public Jetstream
	$(on_postgres) bin/weir dev

test: postgres pgbouncer prometheus chromium languages ## run the quick suite, which shows every promise, and print its cost
	$(on_postgres) go run ./scripts/suite -short -run '$(RUN)' $(PKG)

check: postgres pgbouncer prometheus chromium languages ## run the quick tests of the packages that the changes since the commit BASE affect
	$(on_postgres) go run ./scripts/suite -short -affected -base '$(BASE)' -run '$(RUN)'

flaky: postgres pgbouncer prometheus chromium languages ## run the quick suite N times (10) beside two busy processes, and count failures
	$(on_postgres) go run ./scripts/suite -short -times $(or $(N),10) -busy 2 -outputs .weir/flaky -run '$(RUN)' $(PKG)

test-race: export CGO_ENABLED = 1
test-race: postgres chromium ## run the packages with goroutines, and a killed process, with the race detector; SHORT=1: the quick tests
	@echo '#include <stdlib.h>' | $$(go env CC) -x c -fsyntax-only - 2>/dev/null || \
		{ echo "The race detector needs cgo: install a C compiler and libc's headers (Debian: gcc libc6-dev), and retry."; exit 1; }
	$(on_postgres) go run ./scripts/suite -race $(if $(SHORT),-short) ./consumer/... ./workers ./schema/... ./internal/ranking/... ./internal/web/... ./app ./internal/archive/...
	$(if $(SHORT),,$(on_postgres) go run ./scripts/suite -race -run '^TestKillWhileFollowing$$' ./e2e)

test-long: postgres pgbouncer prometheus chromium languages ## run everything: all tests, other servers, benchmarks, 20 minutes of chaos
	$(on_postgres) go run ./scripts/suite -skip '^TestChaos$$' $(PKG)
	$(MAKE) test-race
	$(MAKE) test-clickhouse
	$(MAKE) without TESTS=1
	$(MAKE) test-postgres POSTGRES="16 17 18"
	$(MAKE) bench-once
	$(MAKE) chaos CHAOS=$(or $(CHAOS),20m)

test-postgres: pgbouncer ## run what depends most on Postgres on each supported version, or on POSTGRES="17 18"
	@failed=; for version in $(or $(POSTGRES),15 16 17 18); do \
		bin=$$(scripts/postgres.sh $$version) && "$$bin/postgres" --version || exit 1; \
		skip=; [ -x "$$bin/pg_dump" ] || { skip=PgDump; echo "without backups: $$bin has no pg_dump"; }; \
		PATH="$$bin:$$PATH" go run ./scripts/suite -short -skip "$$skip" ./internal/testing/devpg ./schema ./internal/ranking ./consumer ./workers ./internal/archive/catalog ./internal/history ./internal/nostr/directory ./internal/ops/... && \
		PATH="$$bin:$$PATH" go run ./scripts/suite -run 'WhileFollowing|PgBouncer|LeastPrivilege|Rolling' ./e2e || failed="$$failed $$version"; \
	done; [ -z "$$failed" ] || { echo "failed on Postgres$$failed"; exit 1; }

test-clickhouse: postgres clickhouse ## run the tests of the index on a real ClickHouse, which it downloads (98 MB)
	$(on_postgres) go test -vet=off -tags clickhouse -count 1 -timeout 20m ./internal/clickhouse
	$(on_postgres) go test -vet=off -tags clickhouse -count 1 -timeout 20m ./e2e -run TestIndex

screenshots: postgres chromium ## write the picture in the README
	$(on_postgres) go test ./e2e -run DemoShows -count 1 -update

lint: ## run gofmt, go vet and staticcheck
	@unformatted=$$(gofmt -l .); [ -z "$$unformatted" ] || { echo "run gofmt -w on: $$unformatted"; exit 1; }
	go vet -tags clickhouse,losstable ./...
	cd e2e/losstable && go vet ./...
	go tool staticcheck -tags clickhouse,losstable ./...

without: postgres ## prove that each feature can be removed: without it the rest builds and names nothing of it; TESTS=1 tests the rest, too
	@for name in archive cards clickhouse feeds lexicons links nostr riverui; do $(on_postgres) scripts/without.sh $$name $(if $(TESTS),,--build) || exit 1; done

bench: postgres build ## measure throughput and cost, as ratios; SIZES=100000,1000000,10000000 adds a large size
	$(on_postgres) go test ./e2e -run '^$$' -bench . -benchtime 1x -timeout 3h $(if $(SIZES),-sizes $(SIZES))
	$(on_postgres) go test ./workers -run '^$$' -bench 'Expire|Release' -benchtime 1x -timeout 30m
	$(on_postgres) go test ./internal/ranking -run '^$$' -bench . -benchtime 1x -timeout 1h
	$(on_postgres) go test ./consumer/nostr -run '^$$' -bench Verification -benchtime 20x
	go test ./internal/lexicon -run '^$$' -bench BesideIndigo
	go test ./internal/archive -run '^$$' -bench Segment -benchtime 10x
	$(on_postgres) go test ./internal/lexicon/records -run '^$$' -bench . -benchtime 1x -timeout 30m

bench-once: postgres ## run every benchmark once, those with a size small
	$(on_postgres) go run ./scripts/suite -short -p 1 -run '^$$' -bench . -timeout 2h ./...

bench-against: postgres ## measure CPU and WAL per event against the commit BASE, ten times in turn
	@dir=$$(mktemp -d) && trap 'git worktree remove --force "$$dir/base" 2>/dev/null; rm -rf "$$dir"' EXIT && \
	git worktree add --quiet --detach "$$dir/base" $(or $(BASE),HEAD) && \
	(cd "$$dir/base" && CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o "$$dir/weir" ./cmd/weir) && \
	$(on_postgres) go test ./e2e -run '^$$' -bench Against -benchtime 1x -timeout 2h -base "$$dir/weir"

loss-table: postgres ## count what Weir, tap and a naive consumer lose under the same faults, into docs/reliability.md; SEED=1
	$(on_postgres) go test -vet=off -tags losstable ./e2e -run '^TestLossTable$$' -count 1 -timeout 2h -v -seed $(or $(SEED),1) -report $(abspath docs/reliability.md)

numbers: postgres ## measure what events, a process, the whole network and a first start cost, into docs/numbers.md; SIZES=...
	$(on_postgres) go test -vet=off ./e2e -run '^$$' -bench Numbers -benchtime 1x -timeout 3h $(if $(SIZES),-sizes $(SIZES)) -report $(abspath docs/numbers.md)

breaks: postgres chromium ## break each promise by hand and require that its test turns red; BREAKS="fence archive" selects breaks
	$(on_postgres) scripts/breaks.sh $(BREAKS)

chaos: postgres ## inject every fault for ten minutes (CHAOS=1h SEED=1 REPORT=chaos.md), in rounds of all kinds
	$(on_postgres) go test ./e2e -run 'Chaos|Kill|Paused' -count 1 -timeout 3h -v -chaos $(or $(CHAOS),10m) $(if $(SEED),-seed $(SEED)) $(report)

soak: postgres ## read a steady stream for half an hour (SOAK=4h REPORT=soak.md); only the stored data may grow
	$(on_postgres) go test ./e2e -run 'Soak$$' -count 1 -timeout 5h -v -soak $(or $(SOAK),30m) $(report)

release: ## build what is released of the last commit, as VERSION=v0.1.0, into dist/
	scripts/release.sh $(VERSION)

fixture: ## dump a database of all features as that of the release VERSION=v0.1.0, which every later version must upgrade
	@[ -n "$(VERSION)" ] && ! git rev-parse --quiet --verify "refs/tags/$(VERSION)" >/dev/null || \
		{ echo "usage: make fixture VERSION=v0.1.0, the next version; what is tagged never changes"; exit 1; }
	PATH="$$(scripts/postgres.sh 15):$$PATH" go test -vet=off ./e2e -run '^TestRelease$$' -count 1 -timeout 20m -release $(VERSION)

release-check: ## as root on a Debian: build dist/ again elsewhere and compare, install it, and run it on a bare Debian
	scripts/release_check.sh

fuzz: ## run every fuzz target for a minute
	@for target in $$(grep -rlE '^func Fuzz' --include '*_test.go' . | xargs -n1 dirname | sort -u); do \
		for f in $$(grep -hoE '^func Fuzz[A-Za-z]+' $$target/*_test.go | cut -c6-); do \
			echo "$$target $$f"; go test $$target -run '^$$' -fuzz "^$$f\$$" -fuzztime 60s -fuzzminimizetime 2s || exit 1; done; done

clean: ## remove the builds and the databases of run and demo
	rm -rf bin dist .weir
