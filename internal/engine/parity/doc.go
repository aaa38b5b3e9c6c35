// Package parity compares the engine's executor with transformers.
//
// make.py writes checkpoints with random weights and what transformers computes
// with them: the logits behind each prompt and the greedy continuation. The test
// of this package loads these checkpoints and compares, on the devices that the
// machine has. It runs where SLUICE_PARITY names the folder that make.py wrote:
//
//	python3 internal/engine/parity/make.py --out build/parity
//	SLUICE_PARITY=build/parity go test ./internal/engine/parity
//
// graph.py times the same decoder as plain torch operators; internal/engine/steptime
// times the executor.
package parity
