// Package report draws what a simulation gave as one HTML file without
// anything outside it: the table first, then plots as inline SVG, readable in
// print and in a dark browser.
package report

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"image/color"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

//go:embed report.html
var files embed.FS

var page = template.Must(template.ParseFS(files, "report.html"))

// Table is a table of figures. The first column names the row.
type Table struct {
	Columns []string
	Rows    [][]string
}

// Series is a named list of values.
type Series struct {
	Name   string
	Values []float64
}

// Plot is one picture.
type Plot struct {
	Title  string
	Note   string // what to see in it
	X, Y   string // axes, with units
	Kind   Kind
	Series []Series
	Labels []string // of Bars: one per value
	Step   float64  // of Lines: distance of two values on the X axis
}

// Kind of a plot.
type Kind uint8

const (
	Distribution Kind = iota // share of values not above X
	Lines                    // values over time
	Bars                     // values by label
)

// Page is a whole report.
type Page struct {
	Title   string
	Summary string
	Table   Table
	Plots   []Plot
}

// palette has colours that differ in lightness too (Okabe and Ito), so that
// they can be told apart in grey print and by the colour-blind.
var palette = []color.Color{
	color.RGBA{0, 114, 178, 255}, color.RGBA{213, 94, 0, 255}, color.RGBA{0, 158, 115, 255}, color.RGBA{204, 121, 167, 255},
	color.RGBA{86, 180, 233, 255}, color.RGBA{230, 159, 0, 255}, color.RGBA{0, 0, 0, 255}, color.RGBA{140, 140, 140, 255},
}

var dashes = [][]vg.Length{nil, {vg.Points(6), vg.Points(3)}, {vg.Points(2), vg.Points(2)}, {vg.Points(8), vg.Points(2), vg.Points(2), vg.Points(2)}}

func line(i int) draw.LineStyle {
	return draw.LineStyle{Color: palette[i%len(palette)], Width: vg.Points(1.5), Dashes: dashes[i/2%len(dashes)]}
}

// Sizes of a picture without its legend, and what parts the two.
const (
	plotWidth  vg.Length = 620
	plotHeight vg.Length = 320
	plotGap    vg.Length = 12
)

// svg draws one plot for a page, which has its title and background.
func (p *Plot) svg() (template.HTML, error) {
	g := plot.New()
	g.BackgroundColor = color.Transparent
	text, err := p.draw(g)
	if err != nil {
		return "", fmt.Errorf("plot %q: %w", p.Title, err)
	}
	// Behind the XML declaration and comments the element itself is what HTML takes.
	if at := bytes.Index(text, []byte("<svg")); at >= 0 {
		text = text[at:]
	}
	return template.HTML(text), nil //nolint:gosec // drawn by us from numbers and escaped labels
}

// WritePlots writes each plot to a file of its own in a folder that exists,
// named after its title.
func WritePlots(dir string, p Page) error {
	for i := range p.Plots {
		q := &p.Plots[i]
		g := plot.New()
		g.Title.Text = q.Title
		text, err := q.draw(g)
		if err != nil {
			return fmt.Errorf("plot %q: %w", q.Title, err)
		}
		name := strings.ReplaceAll(strings.ToLower(q.Title), " ", "-") + ".svg"
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// draw adds axes and series, and gives the picture as an SVG document.
func (p *Plot) draw(g *plot.Plot) ([]byte, error) {
	g.X.Label.Text, g.Y.Label.Text = p.X, p.Y
	switch p.Kind {
	case Distribution:
		g.Y.Min, g.Y.Max = 0, 1
		for i, s := range p.Series {
			if err := addLine(g, i, s.Name, distribution(s.Values)); err != nil {
				return nil, err
			}
		}
	case Lines:
		for i, s := range p.Series {
			pts := make(plotter.XYs, len(s.Values))
			for k, v := range s.Values {
				pts[k] = plotter.XY{X: float64(k) * p.Step, Y: v}
			}
			if err := addLine(g, i, s.Name, pts); err != nil {
				return nil, err
			}
		}
	case Bars:
		width := min(14, 480/float64(max(len(p.Labels), 1)*(len(p.Series)+1)))
		for i, s := range p.Series {
			if len(s.Values) == 0 {
				continue
			}
			b, err := plotter.NewBarChart(plotter.Values(s.Values), vg.Points(width))
			if err != nil {
				return nil, err
			}
			b.Color = palette[i%len(palette)]
			b.LineStyle.Width = 0
			b.Offset = vg.Points(width * (float64(i) - float64(len(p.Series)-1)/2))
			g.Add(b)
			g.Legend.Add(s.Name, b)
		}
		g.Y.Min, g.Y.Max = 0, max(g.Y.Max, 1e-9) // without a bar there is no largest value
		labels := slices.Clone(p.Labels)
		if len(labels) == 0 {
			labels = []string{""}
		}
		upright := len(labels) > 8
		for i := range labels {
			if upright {
				labels[i] += "    " // keeps wider letters off the axis
			}
		}
		g.NominalX(labels...)
		g.X.Min, g.X.Max = -0.5, float64(len(labels))-0.5
		if upright {
			g.X.Tick.Label.Rotation = math.Pi / 2
			g.X.Tick.Label.XAlign, g.X.Tick.Label.YAlign = draw.XRight, draw.YCenter
		}
	}
	// The legend stands beside the plot, where it hides nothing. What shows the
	// picture may have wider letters than those that are measured here.
	legend := g.Legend
	g.Legend = plot.NewLegend()
	legend.Top, legend.Left = true, true
	area := legend.Rectangle(draw.New(vgsvg.New(plotWidth, plotHeight)))
	canvas := vgsvg.New(plotWidth+1.3*area.Size().X+plotGap, plotHeight)
	all := draw.New(canvas)
	g.Draw(draw.Crop(all, 0, plotWidth-all.Max.X, 0, 0))
	legend.Draw(draw.Crop(all, plotWidth+plotGap, 0, 0, -plotGap))
	var buf bytes.Buffer
	_, err := canvas.WriteTo(&buf)
	return buf.Bytes(), err
}

func addLine(g *plot.Plot, i int, name string, pts plotter.XYs) error {
	if len(pts) == 0 {
		return nil
	}
	l, err := plotter.NewLine(pts)
	if err != nil {
		return err
	}
	l.LineStyle = line(i)
	g.Add(l)
	g.Legend.Add(name, l)
	return nil
}

// distribution is the empirical distribution of ascending values, thinned to
// what a picture can show.
func distribution(sorted []float64) plotter.XYs {
	const most = 400
	step := max(1, len(sorted)/most)
	var pts plotter.XYs
	for i := 0; i < len(sorted); i += step {
		if !math.IsNaN(sorted[i]) && !math.IsInf(sorted[i], 0) {
			pts = append(pts, plotter.XY{X: sorted[i], Y: float64(i+1) / float64(len(sorted))})
		}
	}
	return pts
}

// Write writes the page.
func Write(out io.Writer, p Page) error {
	type drawn struct {
		Plot
		SVG template.HTML
	}
	view := struct {
		Page
		Drawn []drawn
	}{Page: p}
	for i := range p.Plots {
		svg, err := p.Plots[i].svg()
		if err != nil {
			return err
		}
		view.Drawn = append(view.Drawn, drawn{p.Plots[i], svg})
	}
	return page.Execute(out, view)
}
