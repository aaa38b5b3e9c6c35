package scheduler_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sluice-serving/sluice/scheduler"
)

// record runs a random history and returns its recording.
func record(t *rapid.T) []byte {
	var tape bytes.Buffer
	draw := drawConfig
	if rapid.Bool().Draw(t, "governed") {
		draw = drawGoverned
	}
	c := draw(t)
	rec := scheduler.NewRecorder(&tape)
	c.opts = append(c.opts, scheduler.WithRecorder(rec))
	r, err := newRig(c)
	require.NoError(t, err)
	r.timed = true
	if k := r.cfg.Drafts; k > 0 {
		r.propose(k, 60)
	}
	for i := range rapid.IntRange(3, 40).Draw(t, "steps") {
		r.now++
		switch rapid.SampledFrom([]string{"add", "plan", "plan", "apply", "abort", "received", "reset", "agree"}).Draw(t, "do") {
		case "add":
			req, kv := drawRequest(t, r, i)
			kv.save = rapid.Bool().Draw(t, "save")
			require.NoError(t, r.add(req, kv))
		case "plan":
			if len(r.flight) < r.cfg.InFlight {
				_, err := r.plan(false)
				require.NoError(t, err)
			}
		case "apply":
			if len(r.flight) > 0 {
				_, err := r.apply()
				require.NoError(t, err)
			}
		case "abort":
			if len(r.order) > 0 {
				_ = r.s.Abort(r.ids[r.order[len(r.order)/2]]) // unknown ones are refused
			}
		case "received":
			for _, name := range r.order {
				if _, ok := r.loads[r.ids[name]]; ok {
					require.NoError(t, r.received(name, 0))
				}
			}
		case "reset":
			_ = r.s.ResetCache(scheduler.ResetPreempt) // refused while blocks are held
		case "agree":
			r.s.SetAgreement(scheduler.Agree([]scheduler.Proposal{r.s.Propose(), {Cap: rapid.Int32Range(1, 12).Draw(t, "cap")}}))
		}
	}
	require.NoError(t, r.quiesce(4000))
	require.NoError(t, rec.Err())
	return tape.Bytes()
}

// TestReplay replays recordings of random histories: every plan is equal byte
// by byte. A recording in which one number is another does not go through.
func TestReplay(t *testing.T) {
	setChecks(t, 60)
	rapid.Check(t, func(t *rapid.T) {
		tape := record(t)
		sum, err := scheduler.Replay(bytes.NewReader(tape))
		require.NoError(t, err)
		require.Nil(t, sum.Divergence, "%v", sum.Divergence)
		require.Positive(t, sum.Plans)

		lines := strings.SplitAfter(string(tape), "\n")
		lines[0] = strings.Replace(lines[0], `"MaxNumSeqs":`, `"MaxNumSeqs":9`, 1)
		lines[0] = strings.Replace(lines[0], `"blocks":`, `"blocks":1`, 1)
		sum, err = scheduler.Replay(strings.NewReader(strings.Join(lines, "")))
		require.NoError(t, err)
		require.NotNil(t, sum.Divergence)
	})
}

func TestReplayNamesTheFirstDifference(t *testing.T) {
	var tape bytes.Buffer
	c := rigConfig{blocks: 20}
	c.opts = []scheduler.Option{scheduler.WithRecorder(scheduler.NewRecorder(&tape))}
	c.MaxModelLen = 40
	r, err := newRig(c)
	require.NoError(t, err)
	require.NoError(t, r.add(scheduler.Request{ID: "a", Prompt: parseInts(1, 9), MaxTokens: 2}, remote{}))
	require.NoError(t, r.quiesce(10))
	changed := strings.Replace(tape.String(), "[1,2,3,4,5,6,7,8,9]", "[1,2,3,4,5,6,7,8,9,10]", 1)
	sum, err := scheduler.Replay(strings.NewReader(changed))
	require.NoError(t, err)
	require.Contains(t, fmt.Sprint(sum.Divergence), "field Scheduled of plan 1")
}

func TestReplayOfBadRecordings(t *testing.T) {
	for name, tape := range map[string]string{
		"empty":         "",
		"no JSON":       "{\n",
		"no beginning":  `{"op":"plan"}` + "\n",
		"other format":  `{"op":"begin","format":99,"scheduler":{},"cache":{}}` + "\n",
		"no blocks":     `{"op":"begin","format":1,"scheduler":{"MaxModelLen":4},"cache":{}}` + "\n",
		"apply nothing": `{"op":"begin","format":1,"scheduler":{"MaxModelLen":4},"cache":{"blocks":4}}` + "\n" + `{"op":"apply","seq":1,"result":{}}` + "\n",
		"unknown":       `{"op":"begin","format":1,"scheduler":{"MaxModelLen":4},"cache":{"blocks":4}}` + "\n" + `{"op":"dance"}` + "\n",
		"lost answer":   `{"op":"begin","format":1,"scheduler":{"MaxModelLen":4},"cache":{"blocks":4}}` + "\n" + `{"op":"answer"}` + "\n",
	} {
		_, err := scheduler.Replay(strings.NewReader(tape))
		require.Error(t, err, name)
	}
}

func TestRingKeepsTheLastLines(t *testing.T) {
	ring := scheduler.NewRing(3)
	for i := range 5 {
		_, err := fmt.Fprintf(ring, "line %d\n", i)
		require.NoError(t, err)
	}
	var b bytes.Buffer
	n, err := ring.WriteTo(&b)
	require.NoError(t, err)
	require.EqualValues(t, b.Len(), n)
	require.Equal(t, "line 2\nline 3\nline 4\n", b.String())
}

// failingWriter takes a number of lines.
type failingWriter int

func (w *failingWriter) Write(p []byte) (int, error) {
	if *w--; *w < 0 {
		return 0, fmt.Errorf("disk full")
	}
	return len(p), nil
}

func TestRecorderKeepsTheError(t *testing.T) {
	w := failingWriter(2)
	rec := scheduler.NewRecorder(&w)
	c := rigConfig{}
	c.opts = []scheduler.Option{scheduler.WithRecorder(rec)}
	c.MaxModelLen = 40
	r, err := newRig(c)
	require.NoError(t, err)
	require.NoError(t, r.add(scheduler.Request{ID: "a", Prompt: parseInts(1, 9), MaxTokens: 2}, remote{}))
	require.NoError(t, rec.Err())
	require.NoError(t, r.quiesce(10))
	require.ErrorContains(t, rec.Err(), "disk full")
}
