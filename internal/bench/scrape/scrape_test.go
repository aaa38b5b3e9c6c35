package scrape

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const page = `# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 3
vllm:num_requests_waiting{engine="1",model_name="m"} 4
# TYPE sluice_graph_steps_total counter
sluice_graph_steps_total{engine="0",mode="FULL",reason="decode"} 90
sluice_graph_steps_total{engine="0",mode="NONE",reason="prefill"} 7
sluice_graph_steps_total{engine="1",mode="NONE",reason="prefill"} 3
# TYPE h histogram
h_bucket{le="1"} 1
h_bucket{le="+Inf"} 1
h_sum 1.5
h_count 1
`

func TestSumsOverSeriesAndLabels(t *testing.T) {
	p, err := Parse(strings.NewReader(page))
	require.NoError(t, err)
	require.InDelta(t, 7, p.Sum("vllm:num_requests_waiting", nil), 0)
	require.InDelta(t, 4, p.Sum("vllm:num_requests_waiting", map[string]string{"engine": "1"}), 0)
	require.InDelta(t, 0, p.Sum("absent", nil), 0)
	require.InDelta(t, 1.5, p.Sum("h_sum", nil), 0)
	require.InDelta(t, 1, p.Sum("h_count", nil), 0)
	require.InDelta(t, 4, p.Max("vllm:num_requests_waiting"), 0)
	require.InDelta(t, 0, p.Max("absent"), 0)
	require.Equal(t, map[string]float64{"FULL": 90, "NONE": 10}, p.By("sluice_graph_steps_total", "mode", nil))
	require.Equal(t, map[string]float64{"prefill": 10}, p.By("sluice_graph_steps_total", "reason", map[string]string{"mode": "NONE"}))
	require.Equal(t, map[string]float64{"a": 2}, Minus(map[string]float64{"a": 3, "b": 1}, map[string]float64{"a": 1, "b": 1}))
	require.Equal(t, []string{"a", "b"}, Keys(map[string]float64{"b": 1, "a": 1}))
}

func TestBrokenPagesAreErrors(t *testing.T) {
	_, err := Parse(strings.NewReader("x{ 1"))
	require.Error(t, err)
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	client := server.Client()
	_, err = Fetch(t.Context(), client, server.URL+"/metrics")
	require.ErrorContains(t, err, "404")
}

func TestPeakIsTheHighestSeen(t *testing.T) {
	var n atomic.Int64
	values := []int{1, 5, 2, 0}
	done := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		i := n.Add(1) - 1
		if i == int64(len(values)) {
			close(done)
		}
		fmt.Fprintf(w, "# TYPE g gauge\ng %d\n", values[min(int(i), len(values)-1)])
	}))
	defer server.Close()
	watch, err := WatchPeak(t.Context(), server.Client(), server.URL, "g", time.Millisecond, 0)
	require.NoError(t, err)
	<-done
	peak := watch.Stop()
	require.InDelta(t, 5, peak.Value, 0)
	require.GreaterOrEqual(t, peak.Samples, len(values))
	require.Zero(t, peak.Failed)
}

func TestPeakOfAMomentAndOfNothing(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, "# TYPE g gauge\ng 7\n")
	}))
	defer server.Close()
	watch, err := WatchPeak(t.Context(), server.Client(), server.URL+"/metrics", "g", time.Hour, 0)
	require.NoError(t, err)
	peak := watch.Stop() // nothing lies between
	require.InDelta(t, 7, peak.Value, 0)
	require.Equal(t, 1, peak.Samples)
	watch, err = WatchPeak(t.Context(), server.Client(), server.URL+"/metrics", "g", time.Hour, 1)
	require.NoError(t, err, "the first page may take longer than the window")
	require.InDelta(t, 7, watch.Stop().Value, 0)
	_, err = WatchPeak(t.Context(), server.Client(), server.URL+"/nothing", "g", time.Hour, 0)
	require.ErrorContains(t, err, "404")
}
