GO ?= go
BIN := bin/sluice

.PHONY: measure-proxy emu sanitize arm64 build run up overlap chaos test bench clean golden tables mutants check check-long release

build: ## build the binary
	$(GO) build -o $(BIN) ./cmd/sluice

run: build ## the comparison of ordinary P/D with append-prefill, on a cluster of this machine
	./$(BIN) bench --preset append-prefill-demo

up: build ## a cluster that stays up until Ctrl-C
	./$(BIN) up

test: ## all tests
	$(GO) test ./...

overlap: build ## 72 requests in which append-prefill meets preemption with offload
	./$(BIN) bench --preset overlap

chaos: build ## 500 requests, 12 engines killed; CHAOS adds flags: --seed, --num-prompts, --kills
	./$(BIN) bench --preset chaos $(CHAOS)

bench: ## benchmarks with allocations, for benchstat
	$(GO) test -run '^$$' -bench . -benchmem ./...

measure-proxy: build ## what the proxy adds to calls of its instances; MEASURE adds flags: -only, -streams
	$(GO) run ./proxy/measure -sluice $(BIN) $(MEASURE)

golden: ## recorded histories give the same decisions; the folder with them is $$SLUICE_REFERENCE
	@test -n "$$SLUICE_REFERENCE" || { echo "SLUICE_REFERENCE names no folder with recorded histories" >&2; exit 1; }
	$(GO) run ./cmd/sluice golden --differences docs/differences.md "$$SLUICE_REFERENCE/oracle/newer-017e9f4"

tables: ## every test that a table of the documentation names exists and passes
	$(GO) run ./internal/tables docs/coverage.md docs/differences.md docs/requirements.md

mutants: ## small faults in the code, each of which must turn a test red
	$(GO) run ./internal/mutants

lib: ## libsluice.so, libsluice.a, sluice.h and sluice.pc below build/libsluice
	GO="$(GO)" ./cmd/libsluice/build.sh build/libsluice

PREFIX ?= /usr/local
install-lib: ## the same below $$DESTDIR$$PREFIX
	GO="$(GO)" PREFIX="$(PREFIX)" ./cmd/libsluice/build.sh "$(DESTDIR)$(PREFIX)"

emu: ## emulated Ascend libraries below build/emu, for SLUICE_ACL_LIB; needs c++ alone
	sh ascendrt/acl/emu/build.sh "$(CURDIR)/build/emu"

sanitize: ## the C code under the thread, address and undefined-behaviour sanitizers of gcc
	SLUICE_SANITIZE=1 $(GO) test -count=1 -run Sanitizers ./ascendrt/acl ./ascendrt/cuda

arm64: ## the C code for aarch64, and the tests of the pure rooms there; needs gcc/g++-aarch64-linux-gnu and qemu-user
	SLUICE_ARM64=1 $(GO) test -count=1 -run 'Alone|CSideOnARM' ./ascendrt/acl ./ascendrt/cuda
	GOARCH=arm64 CGO_ENABLED=0 SLUICE_TEST_RUNNER=qemu-aarch64 $(GO) test -count=1 -exec qemu-aarch64 ./scheduler ./kvcache ./graphs ./proxy/route ./connector

clean:
	rm -rf bin build run

check: ## what CI runs
	.ci/run

RELEASE := build/release

release: ## static binaries without cgo (every command but devices other than host), with checksums
	@mkdir -p $(RELEASE)
	@for arch in amd64 arm64; do \
	  echo "linux/$$arch"; \
	  CGO_ENABLED=0 GOOS=linux GOARCH=$$arch $(GO) build -trimpath -o $(RELEASE)/sluice-linux-$$arch ./cmd/sluice || exit 1; \
	done
	@cd $(RELEASE) && sha256sum sluice-linux-* > SHA256SUMS && cat SHA256SUMS

check-long: ## the long forms of the checks; more than an hour
	.ci/long
