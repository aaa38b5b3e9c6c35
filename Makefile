GO ?= go
BIN := bin/sluice

.PHONY: build test bench clean

build: ## build the binary
	$(GO) build -o $(BIN) ./cmd/sluice

test: ## all tests
	$(GO) test ./...

bench: ## benchmarks with allocations, for benchstat
	$(GO) test -run '^$$' -bench . -benchmem ./...

clean:
	rm -rf bin build run
