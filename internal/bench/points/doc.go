// Package points measures the two published experiments point by point, on
// engines that serve for real: one Prefiller and Decoders of every kind that
// the points ask for are started once and kept, each behind a proxy of its own,
// and one of them is loaded at a time.
//
// A point that is done is appended to a results file at once, one JSON object a
// line with date, hardware, commit and command, and a later run with the same
// file passes over it. Everything else comes from the file alone: the table of
// medians over repeats, the page with plots, and the comparison with what the
// simulator says.
//
// The load generator shares the machine with what it measures, so it measures
// itself too: how late requests left, how late a timer fired meanwhile, and how
// much processor time it took.
package points
