package scheduler

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/kvcache"
)

// Every pair of the table of conflicts: the error names both and says why, and
// without one of them there is none.
func TestEveryConflictNamesBoth(t *testing.T) {
	rows := []struct {
		a, b string
		cfg  Config
		mend func(*Config)
	}{
		{"Append.Enable", "Chunking WholePrefill", Config{Chunking: WholePrefill, Append: AppendConfig{Enable: true}}, func(c *Config) { c.Append.Enable = false }},
		{"Append.Tier RestoreFromTier", "no connector", Config{Append: AppendConfig{Enable: true, Tier: RestoreFromTier}}, func(c *Config) { c.Append.Tier = DeviceOnly }},
		{"HoldBack", "Chunking WholePrefill", Config{Chunking: WholePrefill, HoldBack: 4}, func(c *Config) { c.HoldBack = 1 }},
	}
	for i, r := range rows {
		t.Run(r.a+" with "+r.b, func(t *testing.T) {
			cache, err := kvcache.New(kvcache.Config{Blocks: 33, BlockSize: 4})
			require.NoError(t, err)
			r.cfg.MaxModelLen = 256
			_, err = New(r.cfg, cache)
			var c *ConflictError
			require.ErrorAs(t, err, &c)
			require.Equal(t, [2]string{r.a, r.b}, [2]string{c.A, c.B})
			for _, part := range []string{r.a, r.b, c.Reason} {
				require.ErrorContains(t, err, part)
			}
			require.NotEmpty(t, c.Reason)
			r.mend(&r.cfg)
			_, err = New(r.cfg, cache)
			require.NoError(t, err)
		})
		require.Equal(t, [2]string{conflicts[i].a.name, conflicts[i].b.name}, [2]string{r.a, r.b})
	}
	require.Len(t, rows, len(conflicts), "every row of the table has one here")
}

// A fault of one field is typed, and names it.
func TestFaultsOfAppendFieldsAreTyped(t *testing.T) {
	for field, a := range map[string]AppendConfig{
		"Append.MinPrefixTokens": {MinPrefixTokens: -1}, "Append.MinPrefixRatio": {MinPrefixRatio: 1.5}, "Append.MaxSuffixTokens": {MaxSuffixTokens: -1},
		"Append.MaxWait": {MaxWait: -time.Second}, "Append.Overload": {Overload: 9}, "Append.Tier": {Tier: 9}, "Append.RemoteShare": {RemoteShare: 1},
		"Governor.TargetTPOT": {Governor: &GovernorConfig{TargetTPOT: -1}}, "Governor.TargetRatio": {Governor: &GovernorConfig{TargetRatio: 1}},
		"Lease.Spread": {Lease: &LeaseConfig{Spread: -1}},
	} {
		err := Config{MaxModelLen: 8, Append: a}.Validate()
		var c *ConfigError
		require.True(t, errors.As(err, &c), field)
		require.Equal(t, field, c.Field)
		require.NotEmpty(t, c.Reason)
	}
}
