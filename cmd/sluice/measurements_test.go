package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every table of the measurements has a command in its section or in the
// beginning of its file, and every file is named by the page about measuring.
func TestMeasurementsNameTheirCommands(t *testing.T) {
	docs, err := filepath.Glob("../../docs/measurements/*")
	require.NoError(t, err)
	guide, err := os.ReadFile("../../docs/measure.md")
	require.NoError(t, err)
	files := 0
	for _, doc := range docs {
		name := filepath.Base(doc)
		require.Contains(t, string(guide), "measurements/"+name, "the page about measuring")
		if name == "README.md" || filepath.Ext(name) != ".md" {
			continue
		}
		text, err := os.ReadFile(doc)
		require.NoError(t, err)
		files++
		begin, sections, _ := strings.Cut(string(text), "\n## ")
		before := commandsOf(begin)
		for _, part := range strings.Split(sections, "\n# ") { // a page may hold several
			for _, section := range strings.Split(part, "\n## ") {
				title, _, _ := strings.Cut(section, "\n")
				if strings.Contains(section, "\n|---") && len(before)+len(commandsOf(section)) == 0 {
					t.Errorf("%s: %q has a table and no command", doc, title)
				}
			}
		}
	}
	require.NotZero(t, files)
}

var (
	link   = regexp.MustCompile(`\[[^]]*\]\(([^)#]+)\)`)
	number = regexp.MustCompile(`\d[\d,.]*\d|\d`)
)

// The page that puts the measurements side by side copies its figures: each
// number in a cell behind the first stands in the file that the row links, or,
// below a row that links a file per column, in that of its column.
func TestOverviewCopiesItsFigures(t *testing.T) {
	const dir = "../../docs/measurements/"
	page, err := os.ReadFile(dir + "README.md")
	require.NoError(t, err)
	checked := 0
	var columns []string // the table's files, if it has one per column
	for line := range strings.Lines(string(page)) {
		if !strings.HasPrefix(line, "|") {
			columns = nil
			continue
		}
		links := link.FindAllStringSubmatch(line, -1)
		if len(links) > 1 {
			columns = nil
			for _, l := range links {
				columns = append(columns, l[1])
			}
			continue
		}
		for i, cell := range strings.Split(strings.Trim(line, "|\n "), "|")[1:] {
			var file string
			switch {
			case len(links) == 1:
				file = links[0][1]
			case columns != nil:
				file = columns[i]
			default:
				continue
			}
			text, err := os.ReadFile(filepath.Join(dir, file))
			require.NoError(t, err)
			there := number.FindAllString(string(text), -1)
			for _, n := range number.FindAllString(link.ReplaceAllString(cell, ""), -1) {
				require.Contains(t, there, n, "%s: %s", file, line)
				checked++
			}
		}
	}
	require.Greater(t, checked, 100)
}
