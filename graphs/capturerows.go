package graphs

// CaptureRows gives the query lengths of the dummy batch that a graph is
// captured with: as many rows as the graph has, or as many as fit for a graph
// that pads no rows, the tokens spread evenly with the remainder on the last
// rows. Rows are never empty, and none is longer than QueryBound allows.
func CaptureRows(k Key, maxSeqs int) []int32 {
	r := k.Reqs
	if r == 0 {
		r = min(k.Tokens, int32(maxSeqs))
	}
	out := make([]int32, r)
	for i := range out {
		out[i] = k.Tokens / r
		if int32(i) >= r-k.Tokens%r {
			out[i]++
		}
	}
	return out
}

// QueryBound is the longest row that a captured graph must hold: the width of a
// decode graph, all tokens for a FULL graph of any batch, and 0, no bound, for
// PIECEWISE, which leaves attention outside.
func QueryBound(k Key) int32 {
	switch {
	case k.Mode != Full:
		return 0
	case k.Uniform > 0:
		return k.Uniform
	case k.Bound > 0:
		return k.Bound
	}
	return k.Tokens
}
