GO ?= go
BIN := bin/sluice

.PHONY: build run up test bench clean golden tables mutants

build: ## build the binary
	$(GO) build -o $(BIN) ./cmd/sluice

run: build ## the comparison of ordinary P/D with append-prefill, on a cluster of this machine
	./$(BIN) bench --preset append-prefill-demo

up: build ## a cluster that stays up until Ctrl-C
	./$(BIN) up

test: ## all tests
	$(GO) test ./...

bench: ## benchmarks with allocations, for benchstat
	$(GO) test -run '^$$' -bench . -benchmem ./...

golden: ## recorded histories give the same decisions; the folder with them is $$SLUICE_REFERENCE
	@test -n "$$SLUICE_REFERENCE" || { echo "SLUICE_REFERENCE names no folder with recorded histories" >&2; exit 1; }
	$(GO) run ./cmd/sluice golden --differences docs/differences.md "$$SLUICE_REFERENCE/oracle/newer-017e9f4"

tables: ## every test that a table of the documentation names exists and passes
	$(GO) run ./internal/tables docs/coverage.md docs/differences.md docs/requirements.md

mutants: ## small faults in the code, each of which must turn a test red
	$(GO) run ./internal/mutants

clean:
	rm -rf bin build run
