package command

import (
	"errors"
	"fmt"
	"strconv"
	"time"
)

// above0 are the flags that take a number above 0: zero, which in the file is an
// absent value, would silently mean the default.
var above0 = []string{
	"session-ttl", "max-sessions", "max-retries", "retry-delay", "max-waiting-retries", "waiting-retry-interval", "max-body-bytes",
	"prefill-timeout", "first-timeout", "idle-timeout", "drain-timeout",
}

// boundOrPreset are the flags whose -1 means what the preset has.
var boundOrPreset = []string{"max-suffix-tokens", "max-append-tokens-in-flight", "max-local-attempts"}

// mostSeconds keeps times within what a time.Duration holds.
const mostSeconds = 1e9

// checkNumbers reports numbers that a flag was given and does not take. What a
// file may say too is checked with the whole configuration.
func (f *proxyFlags) checkNumbers() error {
	var errs []error
	given := func(name string) (v float64, text string, ok bool) {
		flag := f.set.Lookup(name)
		text = flag.Value.String()
		if d, err := time.ParseDuration(text); err == nil {
			return d.Seconds(), text, flag.Changed
		}
		v, _ = strconv.ParseFloat(text, 64)
		return v, text, flag.Changed
	}
	for _, name := range above0 {
		v, text, ok := given(name)
		if kind := f.set.Lookup(name).Value.Type(); ok && (!(v > 0) || kind != "int" && kind != "int64" && v > mostSeconds) {
			errs = append(errs, fmt.Errorf("--%s is %s, must be above 0 and no more than can be counted", name, text))
		}
	}
	for _, name := range boundOrPreset {
		if v, text, ok := given(name); ok && v < -1 {
			errs = append(errs, fmt.Errorf("--%s is %s, must be -1 for the preset's, 0 for none, or a bound", name, text))
		}
	}
	if v, text, ok := given("scrape-interval"); ok && v == 0 {
		errs = append(errs, fmt.Errorf("--scrape-interval is %s, must be a time, or negative for never", text))
	}
	return errors.Join(errs...)
}
