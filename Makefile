GO ?= go
BIN := bin/sluice

.PHONY: build test bench clean golden

build: ## build the binary
	$(GO) build -o $(BIN) ./cmd/sluice

test: ## all tests
	$(GO) test ./...

bench: ## benchmarks with allocations, for benchstat
	$(GO) test -run '^$$' -bench . -benchmem ./...

golden: ## recorded histories give the same decisions; the folder with them is $$SLUICE_REFERENCE
	@test -n "$$SLUICE_REFERENCE" || { echo "SLUICE_REFERENCE names no folder with recorded histories" >&2; exit 1; }
	$(GO) run ./cmd/sluice golden --differences docs/differences.md "$$SLUICE_REFERENCE/oracle/newer-017e9f4"

clean:
	rm -rf bin build run
