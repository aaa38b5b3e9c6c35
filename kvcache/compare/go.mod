module github.com/sluice-serving/sluice/kvcache/compare

go 1.26.0

require (
	github.com/hashicorp/go-immutable-radix/v2 v2.1.0
	github.com/sluice-serving/sluice v0.0.0
	github.com/zeebo/xxh3 v1.1.0
)

require (
	github.com/google/btree v1.1.3 // indirect
	github.com/hashicorp/golang-lru/v2 v2.0.0 // indirect
	github.com/klauspost/cpuid/v2 v2.2.10 // indirect
	golang.org/x/sys v0.50.0 // indirect
)

replace github.com/sluice-serving/sluice => ../..
