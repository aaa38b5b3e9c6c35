package graphs

import (
	"cmp"
	"slices"
)

// Order writes into perm the order of rows that attention kernels rely on:
// rows with drafts first, then rows of the decode width, then by ascending
// length; among equals a row with context comes before one without, and
// otherwise the given order stays. perm must have one entry per row.
//
// With it every row of full width leads the batch. A short prompt tail in front
// would make each decode behind it count as a prefill.
func Order(rows Rows, width int32, perm []int32) {
	for i := range perm {
		perm[i] = int32(i)
	}
	rank := func(i int32) int32 {
		switch {
		case rows.Drafts[i] > 0:
			return 0
		case rows.Scheduled[i] == width:
			return 1
		}
		return 2
	}
	slices.SortStableFunc(perm, func(a, b int32) int {
		return cmp.Or(
			cmp.Compare(rank(a), rank(b)),
			cmp.Compare(rows.Scheduled[a], rows.Scheduled[b]),
			cmp.Compare(min(rows.Computed[b], 1), min(rows.Computed[a], 1)),
		)
	})
}

// Split counts the leading rows of decode width, the rows with context behind
// them, and the rest, for rows in the order of perm.
func Split(rows Rows, width int32, perm []int32) (decodes, extends, prefills int) {
	for _, i := range perm {
		switch {
		case extends+prefills == 0 && rows.Scheduled[i] == width && rows.Computed[i] > 0:
			decodes++
		case prefills == 0 && rows.Computed[i] > 0:
			extends++
		default:
			prefills++
		}
	}
	return decodes, extends, prefills
}
