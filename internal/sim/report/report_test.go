package report

import (
	"bytes"
	"encoding/base64"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

func example() Page {
	return Page{
		Title: "Two <arms>", Summary: "What & why.",
		Table: Table{Columns: []string{"arm", "hits"}, Rows: [][]string{{"pd", "0"}, {"guarded", "160"}}},
		Plots: []Plot{
			{Title: "Time to first token", X: "s", Y: "share", Kind: Distribution, Series: []Series{{"pd", []float64{1, 2, 3}}, {"guarded", []float64{0.5, 0.6}}}},
			{Title: "Queue", X: "s", Y: "prompts", Kind: Lines, Step: 1, Series: []Series{{"pd", []float64{0, 5, 9, 2}}}},
			{Title: "Hits by turn", X: "turn", Y: "hits", Kind: Bars, Labels: []string{"2", "3"}, Series: []Series{{"plain", []float64{60, 50}}, {"guarded", []float64{80, 79}}}},
		},
	}
}

func TestPageStandsAlone(t *testing.T) {
	var buf bytes.Buffer
	require.NoError(t, Write(&buf, example()))
	text := buf.String()
	require.Equal(t, 3, bytes.Count(buf.Bytes(), []byte("<svg")))
	require.NotContains(t, text, "<arms>", "text is escaped")
	require.NotRegexp(t, regexp.MustCompile(`(src|href)="(https?:)?//`), text)
	require.NotContains(t, text, "<script")
	var again bytes.Buffer
	require.NoError(t, Write(&again, example()))
	require.Equal(t, text, again.String())
}

func TestPlotsAsFiles(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, WritePlots(dir, example()))
	for _, name := range []string{"time-to-first-token.svg", "queue.svg", "hits-by-turn.svg"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		require.True(t, bytes.HasPrefix(text, []byte("<?xml")) && bytes.Contains(text, []byte("<svg")), name)
	}
	text, err := os.ReadFile(filepath.Join(dir, "queue.svg"))
	require.NoError(t, err)
	require.Contains(t, string(text), ">Queue</text>")
	require.Error(t, WritePlots(filepath.Join(dir, "missing"), example()))
}

func TestEmptySeriesAreLeftOut(t *testing.T) {
	p := example()
	p.Plots[0].Series = append(p.Plots[0].Series, Series{Name: "none"})
	require.NoError(t, Write(&bytes.Buffer{}, p))
	p.Plots[2].Labels, p.Plots[2].Series = nil, []Series{{Name: "pd"}} // no turn is a follow-up
	require.NoError(t, Write(&bytes.Buffer{}, p))
	require.NoError(t, WritePlots(t.TempDir(), p))
}

// A browser shows the table and the plots, light and dark.
func TestBrowserShowsThePage(t *testing.T) {
	browser, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium is not installed: the page is not opened in a browser")
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "report.html")
	var buf bytes.Buffer
	require.NoError(t, Write(&buf, example()))
	require.NoError(t, os.WriteFile(file, buf.Bytes(), 0o600))
	for _, scheme := range []string{"light", "dark"} {
		shot := filepath.Join(dir, scheme+".png")
		args := []string{"--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
			"--user-data-dir=" + filepath.Join(dir, scheme), "--window-size=1100,1600", "--screenshot=" + shot}
		if scheme == "dark" {
			args = append(args, "--blink-settings=preferredColorScheme=0")
		}
		out, err := exec.Command(browser, append(args, "file://"+file)...).CombinedOutput()
		require.NoError(t, err, string(out))
		png, err := os.ReadFile(shot)
		require.NoError(t, err)
		require.Greater(t, len(png), 20_000, "the page is not blank")
	}
	dom, err := exec.Command(browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--user-data-dir="+filepath.Join(dir, "dom"),
		"--dump-dom", "data:text/html;base64,"+base64.StdEncoding.EncodeToString(buf.Bytes())).Output()
	require.NoError(t, err)
	require.Contains(t, string(dom), "<td>guarded</td>")
	require.Contains(t, string(dom), "</svg>")
}
