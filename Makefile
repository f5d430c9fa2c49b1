# `make demo` and `make test` need Go, make and a package manager. The rest is done here.
SHELL := /bin/bash
PKG   ?= ./...

# POSTGRES=18 takes that major version, whatever else is there: a server is looked
# for on PATH first.
POSTGRES =
on_postgres = PATH="$$(scripts/postgres.sh $(POSTGRES)):$$PATH"

.PHONY: help postgres pgbouncer prometheus build demo run test test-postgres lint bench bench-against chaos soak fuzz clean

help: ## what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

postgres: ## provide PostgreSQL's server binaries where they are missing
	@scripts/postgres.sh $(POSTGRES)

pgbouncer: ## provide PgBouncer, for the tests
	@scripts/pgbouncer.sh

prometheus: ## provide Prometheus's binaries, for the tests of the alerts, where they are missing
	@scripts/prometheus.sh

build: ## build bin/weir
	go build -o bin/weir ./cmd/weir

demo: postgres build ## everything, on a simulated network, with nothing to configure
	$(on_postgres) bin/weir demo

run: postgres build ## everything, on the public Jetstream
	$(on_postgres) bin/weir dev

test: postgres pgbouncer prometheus ## the whole suite, against a real Postgres that it starts itself
	$(on_postgres) go test -timeout 20m $(PKG)

test-postgres: pgbouncer prometheus ## the suite on every major version of Postgres that serves, or on POSTGRES="17 18"
	@failed=; for version in $(or $(POSTGRES),15 16 17 18); do \
		bin=$$(scripts/postgres.sh $$version) && "$$bin/postgres" --version || exit 1; \
		skip=; [ -x "$$bin/pg_dump" ] || { skip='-skip RestoredBackup|PgDump'; echo "without backup and restore: $$bin has no pg_dump"; }; \
		PATH="$$bin:$$PATH" go test -count 1 -timeout 20m $(if $(RUN),-run '$(RUN)') $$skip $(PKG) || failed="$$failed $$version"; \
	done; [ -z "$$failed" ] || { echo "failed on Postgres$$failed"; exit 1; }

lint: ## what the compiler does not see
	@unformatted=$$(gofmt -l .); [ -z "$$unformatted" ] || { echo "run gofmt -w on: $$unformatted"; exit 1; }
	go vet ./...
	go tool staticcheck ./...

bench: postgres build ## throughput and cost, as ratios; WEIR_BENCH_SIZES=100000,1000000,10000000 adds the largest, which takes long
	$(on_postgres) go test ./e2e -run '^$$' -bench . -benchtime 1x -timeout 3h
	$(on_postgres) go test ./workers -run '^$$' -bench Expire -benchtime 1x -timeout 30m

bench-against: postgres ## what this costs, as many times what the commit BASE costs: CPU and WAL per event, ten times in turn
	@dir=$$(mktemp -d) && trap 'git worktree remove --force "$$dir/base" 2>/dev/null; rm -rf "$$dir"' EXIT && \
	git worktree add --quiet --detach "$$dir/base" $(or $(BASE),HEAD) && \
	(cd "$$dir/base" && CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o "$$dir/weir" ./cmd/weir) && \
	$(on_postgres) WEIR_BENCH_BASE="$$dir/weir" go test ./e2e -run '^$$' -bench Against -benchtime 1x -timeout 2h

chaos: postgres ## ten minutes of everything that can go wrong, a round of the whole network and one of followed accounts in turn, and a report
	$(on_postgres) WEIR_CHAOS=$${WEIR_CHAOS:-10m} go test ./e2e -run 'Chaos|Kill|Paused' -count 1 -timeout 3h -v

soak: postgres ## half an hour of a steady stream: nothing but what is stored may grow
	$(on_postgres) WEIR_SOAK=$${WEIR_SOAK:-30m} go test ./e2e -run 'Soak$$' -count 1 -timeout 5h -v

fuzz: ## a minute for every fuzz target
	@for target in $$(grep -rlE '^func Fuzz' --include '*_test.go' . | xargs -n1 dirname | sort -u); do \
		for f in $$(grep -hoE '^func Fuzz[A-Za-z]+' $$target/*_test.go | cut -c6-); do \
			echo "$$target $$f"; go test $$target -run '^$$' -fuzz "^$$f\$$" -fuzztime 60s || exit 1; done; done

clean: ## remove what was built; the databases of run and demo too
	rm -rf bin .weir
