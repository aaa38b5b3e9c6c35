package server

import (
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
)

// metric sums the values of a metric over the series that have the labels.
func (n *node) metric(name string, labels ...string) float64 {
	n.t.Helper()
	res, err := n.client.Get(n.url + "/metrics")
	require.NoError(n.t, err)
	defer res.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(res.Body)
	require.NoError(n.t, err)
	sum := 0.0
	if families[name] == nil {
		return 0
	}
	for _, series := range families[name].Metric {
		match := true
		for i := 0; i+1 < len(labels); i += 2 {
			has := false
			for _, l := range series.Label {
				has = has || l.GetName() == labels[i] && l.GetValue() == labels[i+1]
			}
			match = match && has
		}
		if match {
			sum += series.GetCounter().GetValue() + series.GetGauge().GetValue() + float64(series.GetHistogram().GetSampleCount())
		}
	}
	return sum
}

// nothingHeld requires that no request holds a block, runs or waits any more.
func (n *node) nothingHeld() {
	n.t.Helper()
	require.Eventually(n.t, func() bool {
		return n.metric("sluice_kv_blocks", "state", "held") == 0 && n.metric("vllm:num_requests_running") == 0 && n.metric("vllm:num_requests_waiting") == 0
	}, waitFor, tick)
	usable := float64(n.engine.Config().KVBlocks * n.engine.Ranks())
	require.Equal(n.t, usable, n.metric("sluice_kv_blocks"), "every block is free, cached or held")
}
