package route

import "time"

// BreakerConfig sets when an instance is left alone after failures.
type BreakerConfig struct {
	Failures int           // consecutive failures that open the breaker; 0 means 3, negative never opens it
	Cooldown time.Duration // time without requests after it opened; 0 means 2 s; doubles up to MaxCooldown
	// MaxCooldown bounds the doubling; 0 means 30 s.
	MaxCooldown time.Duration
}

// WithDefaults fills in what is zero.
func (c BreakerConfig) WithDefaults() BreakerConfig {
	if c.Failures == 0 {
		c.Failures = 3
	}
	if c.Cooldown <= 0 {
		c.Cooldown = 2 * time.Second
	}
	if c.MaxCooldown <= 0 {
		c.MaxCooldown = 30 * time.Second
	}
	return c
}

// BreakerState says whether an instance that failed is given requests.
type BreakerState uint8

// The states: requests flow; none do; one may, to find out.
const (
	BreakerClosed BreakerState = iota
	BreakerOpen
	BreakerHalfOpen
)

func (s BreakerState) String() string {
	return [...]string{"closed", "open", "half-open"}[s]
}

// breaker watches the outcomes of one kind of leg on one instance. It learns
// only from requests, never by probing; 4xx answers are no failures.
type breaker struct {
	failures int // consecutive
	opened   int // times opened in a row
	until    time.Time
	open     bool
	trial    bool // half-open and its one request is under way
}

func (b *breaker) state(now time.Time) BreakerState {
	switch {
	case !b.open:
		return BreakerClosed
	case now.Before(b.until):
		return BreakerOpen
	}
	return BreakerHalfOpen
}

// allows reports whether a request may go out.
func (b *breaker) allows(now time.Time) bool {
	s := b.state(now)
	return s == BreakerClosed || (s == BreakerHalfOpen && !b.trial)
}

// sent notes that a request went out.
func (b *breaker) sent(now time.Time) {
	if b.state(now) == BreakerHalfOpen {
		b.trial = true
	}
}

func (b *breaker) success() { *b = breaker{} }

// abandoned notes that a request ended without telling anything.
func (b *breaker) abandoned() { b.trial = false }

func (b *breaker) failure(now time.Time, cfg BreakerConfig) {
	b.failures++
	if cfg.Failures < 0 || (!b.open && b.failures < cfg.Failures) {
		return
	}
	wait := cfg.Cooldown << min(b.opened, 20)
	if wait > cfg.MaxCooldown || wait <= 0 {
		wait = cfg.MaxCooldown
	}
	b.open, b.trial, b.until = true, false, now.Add(wait)
	b.opened++
}
