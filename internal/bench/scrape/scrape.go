// Package scrape reads Prometheus metrics of the servers under load: sums of a
// metric over its series, and the peak of a gauge while a run goes on.
package scrape

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// maxBody bounds an answer of /metrics, in bytes.
const maxBody = 16 << 20

// Sample is one series of a metric at one moment.
type Sample struct {
	Labels map[string]string
	Value  float64
}

// Page is one answer of /metrics: its samples by name. A histogram or summary
// named x gives x_sum and x_count.
type Page map[string][]Sample

// Fetch reads url, the whole address of a metrics page.
func Fetch(ctx context.Context, client *http.Client, url string) (Page, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("scrape: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("scrape %s: status %d", url, resp.StatusCode)
	}
	return Parse(io.LimitReader(resp.Body, maxBody))
}

// Parse reads the text format.
func Parse(r io.Reader) (Page, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(r)
	if err != nil {
		return nil, fmt.Errorf("metrics page: %w", err)
	}
	page := make(Page, len(families))
	for name, family := range families {
		for _, m := range family.GetMetric() {
			labels := make(map[string]string, len(m.GetLabel()))
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			for suffix, v := range values(m) {
				page[name+suffix] = append(page[name+suffix], Sample{Labels: labels, Value: v})
			}
		}
	}
	return page, nil
}

// values are the samples of one series by the suffix of their name.
func values(m *dto.Metric) map[string]float64 {
	switch {
	case m.GetCounter() != nil:
		return map[string]float64{"": m.GetCounter().GetValue()}
	case m.GetGauge() != nil:
		return map[string]float64{"": m.GetGauge().GetValue()}
	case m.GetUntyped() != nil:
		return map[string]float64{"": m.GetUntyped().GetValue()}
	case m.GetHistogram() != nil:
		return map[string]float64{"_sum": m.GetHistogram().GetSampleSum(), "_count": float64(m.GetHistogram().GetSampleCount())}
	case m.GetSummary() != nil:
		return map[string]float64{"_sum": m.GetSummary().GetSampleSum(), "_count": float64(m.GetSummary().GetSampleCount())}
	}
	return nil
}

// Sum adds the samples of a metric whose labels include those of want; a
// metric that the page lacks sums to 0.
func (p Page) Sum(name string, want map[string]string) float64 {
	sum := 0.0
	for _, s := range p[name] {
		if includes(s.Labels, want) {
			sum += s.Value
		}
	}
	return sum
}

// Max is the largest sample of a metric; 0 when the page lacks it.
func (p Page) Max(name string) float64 {
	largest := 0.0
	for i, s := range p[name] {
		if i == 0 || s.Value > largest {
			largest = s.Value
		}
	}
	return largest
}

// By adds the samples of a metric for each value of one label.
func (p Page) By(name, label string, want map[string]string) map[string]float64 {
	out := make(map[string]float64)
	for _, s := range p[name] {
		if includes(s.Labels, want) {
			out[s.Labels[label]] += s.Value
		}
	}
	return out
}

func includes(labels, want map[string]string) bool {
	for k, v := range want {
		if labels[k] != v {
			return false
		}
	}
	return true
}

// Minus is the growth of a by-label sum since an earlier one; what did not grow is left out.
func Minus(after, before map[string]float64) map[string]float64 {
	out := maps.Clone(after)
	for k, v := range before {
		out[k] -= v
	}
	maps.DeleteFunc(out, func(_ string, v float64) bool { return v == 0 })
	return out
}

// Keys are the keys of m in order.
func Keys(m map[string]float64) []string { return slices.Sorted(maps.Keys(m)) }

// Peak is the highest value of a gauge between two moments.
type Peak struct {
	Value   float64
	Samples int // pages that were read
	Failed  int // pages that could not be read
}

// Watch follows a gauge in the background; Stop ends it.
type Watch struct {
	cancel context.CancelFunc
	peak   chan Peak
}

// WatchPeak reads the sum of a gauge once before it returns, so that no load is
// too short to be watched, and then every interval until ctx ends, the window
// has passed (0: no window), or Stop is called. A page that cannot be read at
// first is an error, however long it takes; later ones are counted.
func WatchPeak(ctx context.Context, client *http.Client, url, name string, every, window time.Duration) (*Watch, error) {
	page, err := Fetch(ctx, client, url)
	if err != nil {
		return nil, err
	}
	var cancel context.CancelFunc
	if window > 0 {
		ctx, cancel = context.WithTimeout(ctx, window)
	} else {
		ctx, cancel = context.WithCancel(ctx)
	}
	w := &Watch{cancel: cancel, peak: make(chan Peak, 1)}
	go func() { w.peak <- follow(ctx, client, url, name, every, page.Sum(name, nil)) }()
	return w, nil
}

// Stop ends the watch and gives what it saw. It is called once.
func (w *Watch) Stop() Peak {
	w.cancel()
	return <-w.peak
}

func follow(ctx context.Context, client *http.Client, url, name string, every time.Duration, first float64) Peak {
	peak := Peak{Value: first, Samples: 1}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return peak
		case <-tick.C:
		}
		page, err := Fetch(ctx, client, url)
		switch {
		case err == nil:
			peak.Samples++
			peak.Value = max(peak.Value, page.Sum(name, nil))
		case ctx.Err() == nil:
			peak.Failed++
		}
	}
}
