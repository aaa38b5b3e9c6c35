package scheduler

import (
	"fmt"

	"github.com/sluice-serving/sluice/connector"
)

// ConfigError reports a field with a value that it cannot have.
type ConfigError struct {
	Field  string
	Reason string
}

func (e *ConfigError) Error() string { return "scheduler config: " + e.Field + ": " + e.Reason }

// ConflictError reports two settings that exclude each other.
type ConflictError struct {
	A, B   string
	Reason string
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("scheduler config: %s: %s (with %s)", e.A, e.Reason, e.B)
}

// choices is a configuration with the connector that it is to work with.
type choices struct {
	Config
	made bool                // a scheduler is being made: conn is known
	conn connector.Scheduler // nil if there is none
}

// setting is a choice that others may exclude.
type setting struct {
	name string
	on   func(c *choices) bool
}

var (
	appendOn    = setting{"Append.Enable", func(c *choices) bool { return c.Append.Enable }}
	tierOn      = setting{"Append.Tier RestoreFromTier", func(c *choices) bool { return c.Append.Enable && c.Append.Tier == RestoreFromTier }}
	holdBack    = setting{"HoldBack", func(c *choices) bool { return c.HoldBack > 1 }}
	whole       = setting{"Chunking WholePrefill", func(c *choices) bool { return c.Chunking == WholePrefill }}
	noConnector = setting{"no connector", func(c *choices) bool { return c.made && c.conn == nil }}
)

// conflicts are all pairs of settings that exclude each other. What is not
// here works together.
var conflicts = []struct {
	a, b   setting
	reason string
}{
	{appendOn, whole, "needs ChunkedPrefill: a suffix may be longer than a step"},
	{tierOn, noConnector, "needs a connector that can bring KV back"},
	{holdBack, whole, "needs ChunkedPrefill: it spreads a prompt over steps"},
}

// conflicts are the pairs that the choices have.
func (c *choices) conflicts() []error {
	var errs []error
	for _, p := range conflicts {
		if p.a.on(c) && p.b.on(c) {
			errs = append(errs, &ConflictError{p.a.name, p.b.name, p.reason})
		}
	}
	return errs
}
