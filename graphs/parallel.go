package graphs

// ChunkSplit is how context-parallel ranks share the tokens of a prefill row.
type ChunkSplit uint8

const (
	SplitEven   ChunkSplit = iota // default: two chunks per rank, the remainder one token each
	SplitPadded                   // chunks of equal length, the row padded up to fill them
)

// RankTokens is the largest number of tokens that one of pcp context-parallel
// ranks computes, the count that the choice of a graph uses. Rows that run as
// decodes are replicated; a prefill row is cut into two chunks per rank, rank i
// computing the chunks i and 2*pcp-1-i; a row with fewer tokens than chunks is
// replicated as well.
func RankTokens(rows Rows, verdicts []RowVerdict, pcp int32, split ChunkSplit) int32 {
	if pcp <= 1 {
		var all int32
		for _, s := range rows.Scheduled {
			all += s
		}
		return all
	}
	chunks := 2 * pcp
	var most int32
	for rank := range pcp {
		var local int32
		for i, s := range rows.Scheduled {
			switch {
			case verdicts[i].Class() == ClassDecode || s < chunks:
				local += s
			case split == SplitPadded:
				local += 2 * ((s + chunks - 1) / chunks)
			default:
				local += chunkLen(s, chunks, rank) + chunkLen(s, chunks, chunks-1-rank)
			}
		}
		most = max(most, local)
	}
	return most
}

// chunkLen is the length of chunk i when s tokens are cut evenly, the first
// chunks taking the remainder.
func chunkLen(s, chunks, i int32) int32 {
	n := s / chunks
	if i < s%chunks {
		n++
	}
	return n
}
