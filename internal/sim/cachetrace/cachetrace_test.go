package cachetrace

import (
	"container/list"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/internal/sim/trace"
)

func read(t *testing.T, text string) *trace.Trace {
	tr, err := trace.Read(strings.NewReader(text), trace.Strict)
	require.NoError(t, err)
	return tr
}

const mooncake = `{"timestamp":5,"input_length":1200,"output_length":1,"hash_ids":[1,2,4]}
{"timestamp":0,"input_length":1536,"output_length":1,"hash_ids":[1,2,3]}
{"timestamp":9,"input_length":1024,"output_length":1,"hash_ids":[1,2]}
`

func TestRun(t *testing.T) {
	for _, c := range []struct {
		blocks int
		hits   int64
	}{{0, 4}, {4, 4}, {3, 4}, {2, 4}, {1, 2}} {
		got, err := Run(read(t, mooncake), c.blocks, trace.Detect)
		require.NoError(t, err)
		require.Equal(t, Result{3, 8, c.hits}, got, "%d blocks", c.blocks)
	}
	out, err := json.Marshal(Result{3, 8, 4})
	require.NoError(t, err)
	require.JSONEq(t, `{"requests":3,"blocks":8,"hit_blocks":4}`, string(out))
}

const agentic = `{"session":"a","agent":"","turn":0,"timestamp":0,"input_length":192,"output_length":1,"think_ms":0,"nblocks":3,"hash_runs":[1,3]}
{"session":"a","agent":"","turn":1,"timestamp":120000,"input_length":256,"output_length":1,"think_ms":0,"nblocks":4,"hash_runs":[1,4]}
{"session":"b","agent":"","turn":0,"timestamp":0,"input_length":192,"output_length":1,"think_ms":0,"nblocks":3,"hash_runs":[1,3]}
`

// Sessions start a minute apart: a, b, and a's second turn behind them. Their
// ids are their own.
func TestSessions(t *testing.T) {
	for _, c := range []struct {
		ids    trace.IDs
		blocks int
		hits   int64
	}{{trace.Detect, 0, 3}, {trace.SessionIDs, 0, 3}, {trace.FileIDs, 0, 6}, {trace.SessionIDs, 4, 1}, {trace.SessionIDs, 3, 0}} {
		got, err := Run(read(t, agentic), c.blocks, c.ids)
		require.NoError(t, err)
		require.Equal(t, Result{3, 10, c.hits}, got, "%+v", c)
	}
}

func TestRefuses(t *testing.T) {
	_, err := Run(read(t, mooncake), -1, trace.Detect)
	require.Error(t, err)
	_, err = Run(read(t, "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"), 10, trace.Detect)
	require.ErrorIs(t, err, ErrNoBlocks)
	_, err = Run(read(t, `{"timestamp":5,"input_length":512,"output_length":1,"hash_ids":[2147483648]}`), 10, trace.Detect)
	require.ErrorContains(t, err, "line 1")
	_, err = trace.ParseIDs("both")
	require.Error(t, err)
}

// lru is the model written down with a list and a map.
func lru(tr *trace.Trace, capacity int) (hits int64) {
	l, at := list.New(), map[int64]*list.Element{}
	for _, i := range order(tr) {
		var ids []int64
		for _, r := range tr.Requests[i].Blocks {
			for id := r.Start; id < r.Start+r.Len; id++ {
				ids = append(ids, id)
			}
		}
		for _, id := range ids {
			if at[id] == nil {
				break
			}
			hits++
		}
		for k := len(ids) - 1; k >= 0; k-- {
			if e := at[ids[k]]; e != nil {
				l.MoveToFront(e)
			} else {
				at[ids[k]] = l.PushFront(ids[k])
			}
		}
		for capacity > 0 && l.Len() > capacity {
			delete(at, l.Remove(l.Back()).(int64))
		}
	}
	return hits
}

// Random trees of prompts, with prompts longer than the cache among them.
func TestEqualsListLRU(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for round := range 60 {
		var b strings.Builder
		var prompts [][]int64
		next := int64(0)
		for i := range 200 {
			var ids []int64
			if len(prompts) > 0 && r.IntN(4) > 0 {
				p := prompts[r.IntN(len(prompts))]
				ids = append(ids, p[:r.IntN(len(p)+1)]...)
			}
			for range 1 + r.IntN(12) {
				ids = append(ids, next)
				next++
			}
			prompts = append(prompts, ids)
			row, err := json.Marshal(map[string]any{"timestamp": i / 3, "input_length": 512 * len(ids), "output_length": 1, "hash_ids": ids})
			require.NoError(t, err)
			b.Write(append(row, '\n'))
		}
		tr := read(t, b.String())
		for _, capacity := range []int{0, 1 + r.IntN(10), 10 + r.IntN(100), 100 + r.IntN(1000)} {
			got, err := Run(tr, capacity, trace.FileIDs)
			require.NoError(t, err)
			require.Equal(t, lru(tr, capacity), got.Hits, "round %d, %d blocks", round, capacity)
		}
	}
}

// The published counts, for every file and capacity, and without bound.
func TestReferenceCounts(t *testing.T) {
	dir := os.Getenv("SLUICE_REFERENCE")
	if dir == "" {
		t.Skip("SLUICE_REFERENCE names no folder with the reference counts")
	}
	b, err := os.ReadFile(filepath.Join(dir, "traces", "reference_lru.json"))
	require.NoError(t, err)
	var ref struct {
		Files []struct {
			File     string `json:"file"`
			Requests int    `json:"requests"`
			Blocks   int64  `json:"blocks"`
			Inf      int64  `json:"inf_hit_blocks"`
			LRU      []struct {
				Capacity int   `json:"capacity_blocks"`
				Hits     int64 `json:"hit_blocks"`
			} `json:"lru"`
		} `json:"files"`
	}
	require.NoError(t, json.Unmarshal(b, &ref))
	require.NotEmpty(t, ref.Files)
	for _, f := range ref.Files {
		t.Run(f.File, func(t *testing.T) {
			tr, err := trace.Open(filepath.Join(dir, "traces", f.File), trace.Strict)
			require.NoError(t, err)
			got, err := Run(tr, 0, trace.Detect)
			require.NoError(t, err)
			require.Equal(t, Result{f.Requests, f.Blocks, f.Inf}, got)
			for _, c := range f.LRU {
				if testing.Short() && f.Blocks > 1e6 {
					continue
				}
				got, err := Run(tr, c.Capacity, trace.Detect)
				require.NoError(t, err)
				require.Equal(t, Result{f.Requests, f.Blocks, c.Hits}, got, strconv.Itoa(c.Capacity)+" blocks")
			}
		})
	}
}
