package sim

import (
	"os"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/internal/sim/report"
)

var columnGap = regexp.MustCompile(`\s{2,}`)

// documented checks that the page of measurements has every row of a table as
// it is now.
func documented(t *testing.T, table report.Table) {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		return // elsewhere a multiplication and an addition may be rounded once
	}
	const file = "../../docs/measurements/append-prefill.md"
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	rows := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		rows[strings.Join(columnGap.Split(strings.TrimSpace(line), -1), "|")] = true
	}
	for _, row := range table.Rows {
		if r := strings.Join(row, "|"); !rows[r] {
			t.Errorf("%s does not have the row %s", file, r)
		}
	}
}
