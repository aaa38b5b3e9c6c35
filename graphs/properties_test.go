package graphs

import (
	"testing"

	"pgregory.net/rapid"
)

// The properties of the classification and the dispatch, each a test over many
// random cases and a fuzz target.

func genLadder() *rapid.Generator[LadderConfig] {
	return rapid.Custom(func(t *rapid.T) LadderConfig {
		var l LadderConfig
		switch rapid.IntRange(0, 3).Draw(t, "ladder") {
		case 0: // derived
		case 1:
			l.MaxSize = rapid.IntRange(1, 300).Draw(t, "max")
		default:
			l.Sizes = rapid.SliceOfN(rapid.IntRange(1, 96), 1, 8).Draw(t, "sizes")
		}
		l.Rules = LadderRules(rapid.IntRange(0, 1).Draw(t, "rules"))
		l.Grid = Grid(rapid.IntRange(0, 1).Draw(t, "grid"))
		l.Runner = Runner(rapid.IntRange(0, 1).Draw(t, "runner"))
		return l
	})
}

func genConfig() *rapid.Generator[Config] {
	return rapid.Custom(func(t *rapid.T) Config {
		for {
			c := Config{
				Mode:                ModeConfig(rapid.IntRange(0, int(ModeFullDecodeOnly)).Draw(t, "mode")),
				Policy:              Policy(rapid.IntRange(0, int(ShapeOnly)).Draw(t, "policy")),
				MaxNumSeqs:          rapid.IntRange(1, 40).Draw(t, "R"),
				MaxNumBatchedTokens: rapid.IntRange(8, 2048).Draw(t, "B"),
				K:                   rapid.SampledFrom([]int{0, 0, 1, 2, 3, 6, 7}).Draw(t, "K"),
				Trim:                DraftTrim(rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(t, "trim")),
				Ladder:              genLadder().Draw(t, "ladder"),
				PCP:                 rapid.SampledFrom([]int{0, 0, 0, 2}).Draw(t, "pcp"),
				LoRA:                LoRAConfig{Max: rapid.SampledFrom([]int{0, 0, 4}).Draw(t, "lora")},
				KV:                  pdConsumer,
			}
			if c.K > 0 && rapid.IntRange(0, 4).Draw(t, "widths") == 0 {
				c.Widths = []int{1, c.K, c.K + 1}
			}
			if c.Validate() == nil {
				return c
			}
		}
	})
}

// genRow draws rows that a scheduler may produce, and sometimes any numbers.
func genRow(c Config) *rapid.Generator[Row] {
	k := int32(c.K)
	return rapid.Custom(func(t *rapid.T) Row {
		p := rapid.Int32Range(1, 200).Draw(t, "P")
		switch rapid.IntRange(0, 9).Draw(t, "kind") {
		case 0, 1, 2:
			return Row{1 + k, k, rapid.SampledFrom([]int32{0, k}).Draw(t, "ph"), p + rapid.Int32Range(0, 50).Draw(t, "out"), p}
		case 3:
			d := rapid.Int32Range(0, k).Draw(t, "d")
			return Row{1 + d, d, 0, p, p}
		case 4:
			return Row{1, 0, 0, p - 1, p}
		case 5:
			return Row{1 + k, k, k, p - 1, p}
		case 6:
			c := rapid.Int32Range(0, p-1).Draw(t, "c")
			return Row{rapid.Int32Range(1, p-c).Draw(t, "s"), 0, 0, c, p}
		case 7:
			c := rapid.Int32Range(0, p-1).Draw(t, "c")
			return Row{1 + k, k, rapid.Int32Range(0, k).Draw(t, "ph"), c, p}
		case 8:
			small := rapid.Int32Range(-2, 9)
			return Row{small.Draw(t, "s"), small.Draw(t, "d"), small.Draw(t, "ph"), small.Draw(t, "c"), small.Draw(t, "P")}
		default:
			any := rapid.Int32()
			return Row{any.Draw(t, "s"), any.Draw(t, "d"), any.Draw(t, "ph"), any.Draw(t, "c"), any.Draw(t, "P")}
		}
	})
}

// genRows mostly draws batches of one kind, since those are the ones that
// decode graphs take.
func genRows(c Config, most int) *rapid.Generator[[]Row] {
	return rapid.Custom(func(t *rapid.T) []Row {
		n := rapid.IntRange(1, most).Draw(t, "N")
		rows := make([]Row, 0, n)
		k := int32(c.K)
		kind := rapid.IntRange(0, 3).Draw(t, "batch")
		for range n {
			if kind == 3 { // decodes with drafts as they come
				d := rapid.Int32Range(0, k).Draw(t, "d")
				rows = append(rows, Row{1 + d, d, 0, 100, 60})
				continue
			}
			if kind > 0 && rapid.IntRange(0, 30).Draw(t, "odd") > 0 {
				rows = append(rows, Row{1 + k, k, 0, 100, 60})
			} else {
				rows = append(rows, genRow(c).Draw(t, "row"))
			}
		}
		return rows
	})
}

func genStep() *rapid.Generator[Step] {
	return rapid.Custom(func(t *rapid.T) Step {
		return Step{
			Flags: StepFlags(rapid.SampledFrom([]int{0, 0, 0, 0, int(EncoderInputs), int(ForcedEager), int(Cascade)}).Draw(t, "flags")),
			LoRAs: rapid.SampledFrom([]int32{0, 0, 1, 3, 9}).Draw(t, "loras"),
		}
	})
}

func mustNew(t *rapid.T, c Config) *Dispatcher {
	d, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	d.SetCaptureState(AllCaptured)
	return d
}

func drawCase(t *rapid.T) (*Dispatcher, []Row, Step) {
	c := genConfig().Draw(t, "config")
	return mustNew(t, c), genRows(c, 48).Draw(t, "rows"), genStep().Draw(t, "step")
}

// propReference: the tables agree with the rules evaluated one by one.
func propReference(t *rapid.T) {
	d, rows, step := drawCase(t)
	dec, verdicts := dispatch(d, step, rows...)
	want := refClassify(d.Config(), rows, step)
	for i, v := range verdicts {
		if v.Class() != want.classes[i] {
			t.Fatalf("row %d %+v: %v, want %v", i, rows[i], v, want.classes[i])
		}
	}
	key, ok := refKey(d, rows, step)
	if ok != (dec.KeyID != NoKey) || key != dec.Key {
		t.Fatalf("%v (%v), want %v", dec.Key, dec.Reason, key)
	}
	var tails, padded int32
	for i, c := range want.classes {
		if c == ClassTail {
			tails++
			if rows[i].Drafts > 0 {
				padded++
			}
		}
	}
	if dec.Tails != tails || dec.PaddedTails != padded {
		t.Fatalf("%d tails, %d padded; want %d, %d", dec.Tails, dec.PaddedTails, tails, padded)
	}
	if (dec.Mode == Full) != (dec.Reason == ReasonFull) {
		t.Fatalf("%v for the reason %v", dec.Mode, dec.Reason)
	}
	b := d.Classify(MakeRows(rows), step, verdicts)
	if b.Uniform != want.uniform && !want.impossible {
		t.Fatalf("uniform %d, want %d", b.Uniform, want.uniform)
	}
}

// propDecodeGraph: a decode graph replays only rows that run as decodes, all of
// one width, with whole rows of padding.
func propDecodeGraph(t *rapid.T) {
	d, rows, step := drawCase(t)
	dec, verdicts := dispatch(d, step, rows...)
	if !dec.Key.Decode() {
		return
	}
	for i, v := range verdicts {
		if !v.RunsAsDecode() {
			t.Fatalf("row %d %+v is %v in %v", i, rows[i], v, dec.Key)
		}
	}
	if dec.PaddedReqs < dec.Reqs {
		t.Fatalf("%d rows in %v", dec.Reqs, dec.Key)
	}
	if dec.Uniform > 0 && (dec.Tokens != dec.Uniform*dec.Reqs || dec.PaddedTokens != dec.PaddedReqs*dec.Uniform) {
		t.Fatalf("%d tokens of %d rows in %v", dec.Tokens, dec.Reqs, dec.Key)
	}
}

// propPadding: padding never shrinks; NONE pads nothing, PIECEWISE no rows.
func propPadding(t *rapid.T) {
	d, rows, step := drawCase(t)
	dec, _ := dispatch(d, step, rows...)
	switch {
	case dec.PaddedTokens < dec.Tokens,
		dec.Mode == None && (dec.PaddedTokens != dec.Tokens || dec.PaddedReqs != dec.Reqs || dec.KeyID != NoKey || dec.Key != Key{}),
		dec.Mode == Piecewise && (dec.PaddedReqs != dec.Reqs || dec.Key.Reqs != 0):
		t.Fatalf("%+v", dec)
	}
}

// propOrder: the order of the rows changes nothing.
func propOrder(t *rapid.T) {
	d, rows, step := drawCase(t)
	dec, verdicts := dispatch(d, step, rows...)
	perm := rapid.Permutation(indices(len(rows))).Draw(t, "perm")
	moved := make([]Row, len(rows))
	for to, from := range perm {
		moved[to] = rows[from]
	}
	dec2, verdicts2 := dispatch(d, step, moved...)
	if dec != dec2 {
		t.Fatalf("%+v, permuted %+v", dec, dec2)
	}
	for to, from := range perm {
		if verdicts2[to] != verdicts[from] {
			t.Fatalf("row %+v: %v, permuted %v", rows[from], verdicts[from], verdicts2[to])
		}
	}
}

func indices(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// propPolicies: stricter policies admit fewer batches; the default admits what
// the padding scheduler emits.
func propPolicies(t *rapid.T) {
	c := genConfig().Draw(t, "config")
	if c.Mode = ModeFullAndPiecewise; c.Validate() != nil {
		return
	}
	rows := genRows(c, 48).Draw(t, "rows")
	full := func(p Policy) bool {
		c.Policy = p
		dec, _ := dispatch(mustNew(t, c), Step{}, rows...)
		return dec.Mode == Full
	}
	implies := func(a, b Policy) {
		if full(a) && !full(b) {
			t.Fatalf("%v admits what %v does not", a, b)
		}
	}
	implies(Strict, ConsumerOneToken)
	implies(ConsumerOneToken, OneNewToken)
	implies(OneNewTokenHardened, OneNewToken)

	emitted := make([]Row, 0, len(rows))
	for range min(len(rows), c.MaxNumSeqs) {
		row := Row{int32(1 + c.K), int32(c.K), 0, 100, 60}
		if rapid.Bool().Draw(t, "tail") {
			row = Row{int32(1 + c.K), int32(c.K), int32(c.K), 59, 60}
		}
		emitted = append(emitted, row)
	}
	rows = emitted
	implies(OneNewToken, OneNewTokenHardened)
}

// propPrefillRow: a further prefilling row that is no tail never raises the
// mode.
func propPrefillRow(t *rapid.T) {
	d, rows, step := drawCase(t)
	if d.Config().Policy == ShapeOnly {
		return
	}
	before, _ := dispatch(d, step, rows...)
	p := rapid.Int32Range(2, 60).Draw(t, "P")
	chunk := Row{Scheduled: rapid.Int32Range(2, p).Draw(t, "s"), Prefill: p}
	after, _ := dispatch(d, step, append(rows, chunk)...)
	if after.Mode > before.Mode {
		t.Fatalf("%v becomes %v", before.Mode, after.Mode)
	}
}

// propReachable: every key is what its own shape is dispatched to, with pieces
// every token count up to the largest size has a graph, and in a derived ladder
// every decode step that the budget allows, up to 512 rows, has one of its own.
func propReachable(t *rapid.T) {
	d := mustNew(t, genConfig().Draw(t, "config"))
	for id, k := range d.Keys() {
		b := Batch{Reqs: max(k.Reqs, 1), Tokens: k.Tokens, MaxQuery: k.Tokens, LoRA: k.LoRA, Obstacle: ReasonPrefillRow}
		switch {
		case k.Uniform > 0:
			b = d.Dummy(k.Reqs, k.Tokens, k.Uniform, Step{LoRAs: k.LoRA})
		case k.Bound > 0:
			b = d.Dummy(k.Reqs, k.Tokens, k.Bound, Step{LoRAs: k.LoRA})
		}
		if dec := d.Select(b); dec.KeyID != KeyID(id) || dec.Key != k {
			t.Fatalf("the shape of %v gives %v (%v)", k, dec.Key, dec.Reason)
		}
	}
	c := d.Config()
	if w := c.DecodeWidth(); c.Ladder.Sizes == nil && c.Ladder.MaxSize == 0 && c.Mode.SeparateDecode() && c.Widths == nil && c.Trim == FixedDrafts {
		for n := 1; n <= min(c.MaxNumSeqs, c.MaxNumBatchedTokens/w); n++ {
			if dec := d.Select(d.Dummy(int32(n), int32(n*w), int32(w), Step{})); dec.Mode != Full {
				t.Fatalf("%d rows of %d run as %v: %v", n, w, dec.Mode, dec.Reason)
			}
		}
	}
	if d.Config().Mode.Mixed() == Piecewise {
		for n := int32(1); n <= d.Ladder().Sizes[len(d.Ladder().Sizes)-1]; n++ {
			if dec := d.Select(Batch{Reqs: 1, Tokens: n, MaxQuery: n, LoRA: d.cases[0], Obstacle: ReasonPrefillRow}); dec.Mode == None {
				t.Fatalf("%d tokens run eager: %v", n, dec.Reason)
			}
		}
	}
}

// propSmallest: of the graphs of the needed width the smallest is taken.
func propSmallest(t *rapid.T) {
	d, rows, step := drawCase(t)
	dec, _ := dispatch(d, step, rows...)
	for _, k := range d.Keys() {
		if dec.KeyID != NoKey && k.Mode == dec.Mode && k.Uniform == dec.Key.Uniform && k.Bound == dec.Key.Bound && k.LoRA == dec.Key.LoRA &&
			k.Tokens >= dec.Tokens && (k.Reqs == 0 || k.Reqs >= dec.Reqs) && k.Tokens < dec.PaddedTokens {
			t.Fatalf("%v although %v fits %d tokens", dec.Key, k, dec.Tokens)
		}
	}
}

// propRanks: data-parallel ranks end with one mode and one token count, in any
// order of the votes.
func propRanks(t *rapid.T) {
	c := genConfig().Draw(t, "config")
	d := mustNew(t, c)
	n := rapid.IntRange(1, 6).Draw(t, "ranks")
	var (
		batches []Batch
		votes   []Vote
		eager   bool
	)
	for range n {
		rows := genRows(c, 24).Draw(t, "rows")
		b := d.Classify(MakeRows(rows), genStep().Draw(t, "step"), make([]RowVerdict, len(rows)))
		if rapid.IntRange(0, 4).Draw(t, "idle") == 0 {
			b = d.Idle(Step{})
		}
		v := d.Vote(b)
		batches, votes = append(batches, b), append(votes, v)
		eager = eager || v.Mode == None
	}
	a := Agree(votes)
	if a2 := Agree(rapid.Permutation(votes).Draw(t, "perm")); a != a2 {
		t.Fatalf("%+v, permuted %+v", a, a2)
	}
	var first Decision
	for i, b := range batches {
		dec, err := d.SelectAgreed(b, a)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = dec
		}
		switch {
		case dec.Mode != first.Mode,
			dec.Mode != None && dec.PaddedTokens != first.PaddedTokens,
			eager && dec.Mode != None,
			dec.Mode == None && (dec.PaddedTokens != b.Tokens || dec.PaddedReqs != b.Reqs),
			dec.Mode == Full && (dec.PaddedReqs < b.Reqs || dec.Key.Decode() && b.Obstacle != ReasonFull),
			(dec.Mode == Full) != (dec.Reason == ReasonFull):
			t.Fatalf("rank %d of %+v: %+v, rank 0 %+v", i, votes, dec, first)
		}
	}
}

// propContextParallel: sharing prompts over ranks never turns a miss into FULL.
func propContextParallel(t *rapid.T) {
	d, rows, step := drawCase(t)
	c := d.Config()
	if c.Mode == ModeFull || c.Policy == ShapeOnly {
		return
	}
	c.PCP = 0
	alone, _ := dispatch(mustNew(t, c), step, rows...)
	c.PCP = 2
	shared, _ := dispatch(mustNew(t, c), step, rows...)
	if shared.Mode == Full && alone.Mode != Full {
		t.Fatalf("%+v alone, %+v shared", alone, shared)
	}
}

// propPadTail: padding a tail among verify rows turns PIECEWISE into FULL,
// changes no other verdict, and the row still advances by one token.
func propPadTail(t *rapid.T) {
	k := rapid.SampledFrom([]int32{1, 3, 7}).Draw(t, "K")
	n := rapid.IntRange(1, 20).Draw(t, "N")
	d := mustNew(t, Config{
		K: int(k), MaxNumSeqs: 32, MaxNumBatchedTokens: 8192,
		Policy: rapid.SampledFrom([]Policy{OneNewToken, OneNewTokenHardened}).Draw(t, "policy"),
	})
	rows := make([]Row, n+1)
	for i := range rows {
		rows[i] = Row{1 + k, k, 0, 90, 80}
	}
	at := rapid.IntRange(0, n).Draw(t, "at")
	p := rapid.Int32Range(2, 500).Draw(t, "P")
	rows[at] = Row{1, 0, 0, p - 1, p}
	before, v1 := dispatch(d, Step{}, rows...)
	rows[at] = Row{1 + k, k, k, p - 1, p}
	after, v2 := dispatch(d, Step{}, rows...)
	if before.Mode != Piecewise || after.Mode != Full {
		t.Fatalf("%v becomes %v", before.Mode, after.Mode)
	}
	for i := range v1 {
		if i != at && v1[i] != v2[i] {
			t.Fatalf("row %d: %v becomes %v", i, v1[i], v2[i])
		}
	}
	accepted := rapid.Int32Range(0, k).Draw(t, "accepted") // what a broken sampler says
	if got := v2[at].Advance(1+k, k, accepted); got != 1 {
		t.Fatalf("the tail advances by %d", got)
	}
}

// propDummy: a dummy batch is dispatched as a real decode batch of its shape.
func propDummy(t *rapid.T) {
	c := genConfig().Draw(t, "config")
	d := mustNew(t, c)
	n := rapid.IntRange(1, 48).Draw(t, "N")
	w := int32(c.DecodeWidth())
	rows := make([]Row, n)
	for i := range rows {
		rows[i] = Row{w, int32(c.K), 0, 100, 60}
	}
	step := genStep().Draw(t, "step")
	real, _ := dispatch(d, step, rows...)
	if dummy := d.Select(d.Dummy(int32(n), int32(n)*w, w, step)); dummy != real {
		t.Fatalf("%+v, a real batch %+v", dummy, real)
	}
}

var properties = []struct {
	name string
	prop func(*rapid.T)
}{
	{"Reference", propReference},
	{"DecodeGraph", propDecodeGraph},
	{"Padding", propPadding},
	{"Order", propOrder},
	{"Policies", propPolicies},
	{"PrefillRow", propPrefillRow},
	{"Reachable", propReachable},
	{"Smallest", propSmallest},
	{"Ranks", propRanks},
	{"ContextParallel", propContextParallel},
	{"PadTail", propPadTail},
	{"Dummy", propDummy},
}

func TestProperties(t *testing.T) {
	for _, p := range properties {
		t.Run(p.name, func(t *testing.T) { rapid.Check(t, p.prop) })
	}
}

func FuzzReference(f *testing.F)       { f.Fuzz(rapid.MakeFuzz(propReference)) }
func FuzzDecodeGraph(f *testing.F)     { f.Fuzz(rapid.MakeFuzz(propDecodeGraph)) }
func FuzzPadding(f *testing.F)         { f.Fuzz(rapid.MakeFuzz(propPadding)) }
func FuzzOrder(f *testing.F)           { f.Fuzz(rapid.MakeFuzz(propOrder)) }
func FuzzPolicies(f *testing.F)        { f.Fuzz(rapid.MakeFuzz(propPolicies)) }
func FuzzPrefillRow(f *testing.F)      { f.Fuzz(rapid.MakeFuzz(propPrefillRow)) }
func FuzzReachable(f *testing.F)       { f.Fuzz(rapid.MakeFuzz(propReachable)) }
func FuzzSmallest(f *testing.F)        { f.Fuzz(rapid.MakeFuzz(propSmallest)) }
func FuzzRanks(f *testing.F)           { f.Fuzz(rapid.MakeFuzz(propRanks)) }
func FuzzContextParallel(f *testing.F) { f.Fuzz(rapid.MakeFuzz(propContextParallel)) }
func FuzzPadTail(f *testing.F)         { f.Fuzz(rapid.MakeFuzz(propPadTail)) }
func FuzzDummy(f *testing.F)           { f.Fuzz(rapid.MakeFuzz(propDummy)) }

// FuzzRows takes raw numbers, without a generator that knows what is usual.
func FuzzRows(f *testing.F) {
	f.Add(int32(1), int32(0), int32(0), int32(128), int32(129), uint8(0), uint8(0))
	f.Add(int32(4), int32(3), int32(3), int32(128), int32(129), uint8(0), uint8(3))
	f.Add(int32(-1), int32(-1<<31), int32(1<<30), int32(0), int32(1), uint8(4), uint8(1))
	f.Fuzz(func(t *testing.T, s, d, ph, c, p int32, policy, k uint8) {
		cfg := Config{Policy: Policy(policy % 5), K: int(k % 8), MaxNumSeqs: 8, MaxNumBatchedTokens: 4096}
		disp := newDispatcher(t, cfg)
		for _, n := range []int{1, block, block + 1} {
			rows := make([]Row, n)
			for i := range rows {
				rows[i] = Row{s, d, ph, c, p}
			}
			dec, v := dispatch(disp, Step{}, rows...)
			want := refClassify(disp.Config(), rows, Step{})
			for i := range v {
				if v[i].Class() != want.classes[i] {
					t.Fatalf("%+v under %v: %v, want %v", rows[i], cfg.Policy, v[i], want.classes[i])
				}
			}
			if want.impossible && dec.Mode != None {
				t.Fatalf("%+v runs as %v", rows[0], dec.Mode)
			}
		}
	})
}
