package sim

// NewSingles is a workload of requests that have nothing to do with each
// other, all of one size, arriving evenly over window seconds.
func NewSingles(count int, window float64, in, out int) *Conversations {
	return &Conversations{
		Count: count, Rounds: 1, Window: window, PromptMin: in, PromptMax: in, AddMin: 1, AddMax: 1, OutMin: out, OutMax: out, Seed: 1,
	}
}

// ScaleStudy is a fleet of so many instances, half of them Prefillers, that
// serve single requests.
func ScaleStudy(instances int) StudyConfig {
	s := DefaultStudy()
	s.Prefillers, s.Decoders, s.Ranks = instances/2, instances-instances/2, 1
	s.PrefillBlocks, s.DecodeBlocks = 512, 512
	s.MaxModelLen = 16384
	return s
}
