// Package sample chooses tokens from logits on the host.
//
// The order is vLLM's: log probabilities of the logits as they come; then bias
// and the mask of end tokens below the least length; penalties; the most likely
// token where the temperature is 0; else temperature, min-p, top-k, top-p and a
// draw among what is left.
//
// A draw depends on the seed and on the place of the token in its sequence
// alone, not on what else is in the batch, on what was drawn before, or on how
// often the place is computed. A request that is preempted, computed again or
// continued on another engine draws the same numbers. A place with its draft
// right is sampled like any other, so drafts do not change answers either.
package sample
