package scheduler

// outOfVocabulary is the index of the first token that is negative or not
// below size (0: no bound), or -1. Two tokens are checked at a time: with the
// top bit of each half set, bound−token keeps it exactly if token ≤ bound.
func outOfVocabulary(tokens []Token, size int) int {
	const top = 1<<31 | 1<<63
	bound := uint64(1)<<31 - 1
	if size > 0 && size <= 1<<31 {
		bound = uint64(size) - 1
	}
	limit := (bound | bound<<32) | top
	rest := tokens
	for len(rest) >= 8 {
		x := pair(rest[0], rest[1])
		y := pair(rest[2], rest[3])
		z := pair(rest[4], rest[5])
		w := pair(rest[6], rest[7])
		if (x|y|z|w)&top != 0 || (limit-x)&(limit-y)&(limit-z)&(limit-w)&top != top {
			break
		}
		rest = rest[8:]
	}
	for i, t := range rest {
		if t < 0 || uint64(t) > bound {
			return len(tokens) - len(rest) + i
		}
	}
	return -1
}

func pair(a, b Token) uint64 { return uint64(uint32(a)) | uint64(uint32(b))<<32 }
