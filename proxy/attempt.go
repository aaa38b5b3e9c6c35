package proxy

import (
	"strconv"
	"time"

	"github.com/sluice-serving/sluice/proxy/route"
	"github.com/sluice-serving/sluice/proxy/splice"
)

// local makes the append-prefill attempt on the session's owner.
func (x *exchange) local(d route.Decision) result {
	b := x.p.backend(d.Target.Decoder)
	c := call{leg: route.LegLocal, id: x.id + "-local", target: d.Target, headers: b.Headers, limit: x.p.cfg.FirstTimeout}
	if b.Params != nil {
		c.edits = append(c.edits, splice.Set("kv_transfer_params", attemptParams(b, d.RemoteETA)))
	} else {
		c.edits = append(c.edits, splice.Delete("kv_transfer_params"))
	}
	for _, key := range sortedKeys(b.Members) {
		c.edits = append(c.edits, splice.Set(key, b.Members[key]))
	}
	mode := relayMode{local: b}
	if asked := x.askUsage(); asked != nil {
		// A hit is judged by its usage; the client does not see what it has not
		// asked for.
		c.edits = append(c.edits, splice.Set("stream_options", asked))
		mode.dropUsage = true
	}
	x.askTokens(b, &c)
	res := x.answerFrom(c, mode)
	label := "hit"
	switch res.verdict {
	case refused, failed:
		label = res.reason
	case passedOn:
		label = "client_error"
	case cut:
		label = "cut"
	case gone:
		label = "gone"
	}
	x.p.metrics.attempts.WithLabelValues(label).Inc()
	return res
}

// attemptParams are the transfer parameters of an attempt, with what a
// Prefiller would take where that is known.
func attemptParams(b *Backend, eta time.Duration) []byte {
	if !b.RemoteETA || eta <= 0 {
		return b.Params
	}
	o, err := splice.Parse(b.Params)
	if err != nil { // Validate has parsed it
		panic(err)
	}
	return o.Apply(nil, splice.Set("remote_eta_ms", strconv.AppendFloat(nil, millis(eta), 'f', -1, 64)))
}

// askTokens asks a Decoder for token ids where the pool continues answers.
func (x *exchange) askTokens(b *Backend, c *call) {
	if !b.Continue || x.at.prefix == "" || (x.cont != nil && x.cont.rounds > 0) {
		return
	}
	if x.cont == nil {
		if x.cont = x.continuable(); x.cont == nil {
			return
		}
	}
	c.edits = append(c.edits, splice.Set("return_token_ids", []byte("true")))
}

// askUsage gives the stream options with which an attempt's stream also tells
// its usage; nil when it does anyway or is no stream.
func (x *exchange) askUsage() []byte {
	if string(x.body.Raw("stream")) != "true" || x.at.prefix == "" { // the other APIs tell it always
		return nil
	}
	raw := x.body.Raw("stream_options")
	if len(raw) == 0 || raw[0] != '{' {
		return []byte(`{"include_usage":true}`)
	}
	o, err := splice.Parse(raw)
	if err != nil || string(o.Raw("include_usage")) == "true" || string(o.Raw("continuous_usage_stats")) == "true" {
		return nil
	}
	return o.Apply(nil, splice.Set("include_usage", []byte("true")))
}
