package main

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
)

// style gives plots their own background, light or dark as the reader prefers, so that they are
// readable on any page.
const style = `<style>
text { font: 12px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #24292f }
.title { font-size: 15px; font-weight: 600 }
.panel, .ours { font-weight: 600 }
.soft { fill: #59636e }
.card { fill: #ffffff; stroke: #d1d9e0 }
.grid { stroke: #e4e8ec }
.c0 { fill: #0969da; stroke: #0969da }
.c1 { fill: #6e7781; stroke: #6e7781 }
.c2 { fill: #bc4c00; stroke: #bc4c00 }
.c3 { fill: #1a7f37; stroke: #1a7f37 }
.range { stroke-width: 2; opacity: .45 }
.hollow { fill: #ffffff }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
.soft { fill: #9198a1 }
.card { fill: #0d1117; stroke: #3d444d }
.grid { stroke: #2a313c }
.c0 { fill: #58a6ff; stroke: #58a6ff }
.c1 { fill: #9ea7b3; stroke: #9ea7b3 }
.c2 { fill: #f0883e; stroke: #f0883e }
.c3 { fill: #3fb950; stroke: #3fb950 }
.hollow { fill: #0d1117 }
}
</style>
`

const (
	width   = 840.0
	margin  = 20.0
	rowStep = 22.0
)

// A canvas collects the elements of an SVG file.
type canvas struct{ strings.Builder }

func (c *canvas) text(x, y float64, class, anchor, text string) {
	fmt.Fprintf(c, `<text x="%.1f" y="%.1f" class="%s" text-anchor="%s">%s</text>`+"\n", x, y, class, anchor, html.EscapeString(text))
}

func (c *canvas) line(x1, y1, x2, y2 float64, class string) {
	fmt.Fprintf(c, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="%s"/>`+"\n", x1, y1, x2, y2, class)
}

func (c *canvas) dot(x, y float64, class string) {
	fmt.Fprintf(c, `<circle cx="%.1f" cy="%.1f" r="4" stroke-width="2" class="%s"/>`+"\n", x, y, class)
}

// card returns the SVG file: a card with title, unit and the elements of c.
func (c *canvas) card(height float64, title, unit string) string {
	var head canvas
	fmt.Fprintf(&head, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" width="%.0f" height="%.0f" role="img" aria-label="%s">`+"\n",
		width, height, width, height, html.EscapeString(title))
	head.WriteString(style)
	fmt.Fprintf(&head, `<rect x="0.5" y="0.5" width="%.0f" height="%.0f" rx="8" class="card"/>`+"\n", width-1, height-1)
	head.text(margin, 28, "title", "start", title)
	head.text(width-margin, 28, "soft", "end", unit)
	return head.String() + c.String() + "</svg>\n"
}

// A scale maps values to positions, logarithmically.
type scale struct{ low, high, from, to float64 } // logarithms, positions

// newScale returns a scale from one round value to another that covers the values, which must be positive.
func newScale(values []float64, from, to float64) scale {
	s := scale{low: 0, high: 1, from: from, to: to}
	if len(values) > 0 {
		s.low = math.Log10(below(slices.Min(values)))
		s.high = -math.Log10(below(1 / slices.Max(values)))
	}
	if s.high-s.low < 0.1 {
		s.high++
	}
	return s
}

// below returns the largest of …, 1, 2, 5, 10, … that is not above x.
func below(x float64) float64 {
	decade := math.Pow(10, math.Floor(math.Log10(x)))
	switch {
	case x >= 5*decade:
		return 5 * decade
	case x >= 2*decade:
		return 2 * decade
	}
	return decade
}

func (s scale) at(value float64) float64 {
	share := (math.Log10(value) - s.low) / (s.high - s.low)
	return s.from + (s.to-s.from)*min(max(share, 0), 1) // 0 is placed at the low end
}

// ticks returns the powers of ten in the scale, and 2 and 5 times these if there is room.
func (s scale) ticks() (ticks []float64) {
	steps := []float64{1}
	if s.high-s.low < 2.5 {
		steps = []float64{1, 2, 5}
	}
	for e := math.Floor(s.low); e < s.high+1e-9; e++ {
		for _, step := range steps {
			tick := step * math.Pow(10, e)
			if l := math.Log10(tick); l > s.low-1e-9 && l < s.high+1e-9 {
				ticks = append(ticks, tick)
			}
		}
	}
	return ticks
}

func tickLabel(x float64) string {
	switch {
	case x >= 1e6:
		return fmt.Sprintf("%g M", x/1e6)
	case x >= 1e3:
		return fmt.Sprintf("%gk", x/1e3)
	}
	return fmt.Sprintf("%.4g", x)
}

// A plot compares rivals, with a row for each, in panels side by side that have the same scale.
type plot struct {
	title, unit string
	panels      []panel
}

// titled adds the server's product to the title of a plot.
func (b *bench) titled(text string) string { return text + ", on " + products[b.server] }

type panel struct {
	title  string
	series []string // names of the marks of a row, if it has several
	rows   []*row
}

type row struct {
	rival *rival
	marks []mark
}

// A mark is a value, with a line from it to another value, if that is not 0.
type mark struct{ value, to float64 }

// add adds a mark to the row of a rival.
func (p *panel) add(r *rival, m mark) {
	i := slices.IndexFunc(p.rows, func(row *row) bool { return row.rival == r })
	if i < 0 {
		i = len(p.rows)
		p.rows = append(p.rows, &row{rival: r})
	}
	p.rows[i].marks = append(p.rows[i].marks, m)
}

func (p *plot) svg() string {
	const labels, gap, top = 160.0, 26.0, 66.0
	const figureWidth = 44.0 // for the figure to the right of the last mark
	var values []float64
	marks := 1
	for _, panel := range p.panels {
		for _, row := range panel.rows {
			marks = max(marks, len(row.marks))
			for _, m := range row.marks {
				for _, v := range []float64{m.value, m.to} {
					if v > 0 {
						values = append(values, v)
					}
				}
			}
		}
	}
	step := rowStep
	if marks > 1 {
		step = 32
	}
	rows := len(p.panels[0].rows)
	bottom := top + step*float64(rows)
	wide := (width - 2*margin - labels - gap*float64(len(p.panels)-1)) / float64(len(p.panels))

	var c canvas
	for i, panel := range p.panels {
		left := margin + labels + float64(i)*(wide+gap)
		s := newScale(values, left, left+wide-figureWidth)
		c.text(left, top-14, "panel", "start", panel.title)
		nextLabel := left - 20 // the smallest position with room for a label
		for _, t := range s.ticks() {
			x := s.at(t)
			c.line(x, top-4, x, bottom, "grid")
			if x >= nextLabel {
				c.text(x, bottom+16, "soft", "middle", tickLabel(t))
				nextLabel = x + 36
			}
		}
		for j, row := range panel.rows {
			middle := top + step*(float64(j)+0.5) - 2
			class, label := "c1", ""
			if row.rival.ours {
				class = "c0"
			}
			if row.rival == ourselves {
				label = "ours"
			}
			if i == 0 {
				c.text(margin+labels-12, middle+4, label, "end", row.rival.name)
			}
			for k, m := range row.marks {
				y := middle + 13*(float64(k)-float64(len(row.marks)-1)/2)
				hollow := ""
				if k > 0 {
					hollow = " hollow"
				}
				end := s.at(m.value)
				if m.to > 0 {
					end = s.at(m.to)
					c.line(s.at(m.value), y, end, y, "range "+class)
				}
				c.dot(s.at(m.value), y, class+hollow)
				c.text(end+8, y+4, strings.TrimSpace("soft "+label), "start", figure(m.value))
			}
		}
	}
	height := bottom + 34
	if series := p.panels[0].series; marks > 1 {
		x := margin + labels
		for k, name := range series {
			c.dot(x+4, bottom+38, "c1"+map[bool]string{true: " hollow"}[k > 0])
			c.text(x+14, bottom+42, "soft", "start", name)
			x += 150
		}
		height += 22
	}
	return c.card(height, p.title, p.unit)
}

// figure formats x briefly enough for the label of a mark.
func figure(x float64) string {
	if x >= 10_000 {
		return fmt.Sprintf("%.0fk", x/1000)
	}
	return digits(x)
}

// lines is a line chart with logarithmic axes.
type lines struct {
	title, unit, xTitle string
	x                   []int
	lines               []line
}

type line struct {
	label string
	ours  bool
	y     []float64
}

func (p *lines) svg() string {
	const top, bottom, left, right = 48.0, 290.0, 70.0, 640.0
	var values, xs []float64
	for _, l := range p.lines {
		for _, y := range l.y {
			if y > 0 && !math.IsNaN(y) {
				values = append(values, y)
			}
		}
	}
	for _, x := range p.x {
		xs = append(xs, float64(x))
	}
	vertical := newScale(values, bottom, top)
	horizontal := scale{math.Log10(slices.Min(xs)), math.Log10(slices.Max(xs)), left + 20, right - 20}

	var c canvas
	for _, t := range vertical.ticks() {
		c.line(left, vertical.at(t), right, vertical.at(t), "grid")
		c.text(left-8, vertical.at(t)+4, "soft", "end", tickLabel(t))
	}
	for _, x := range xs {
		c.text(horizontal.at(x), bottom+18, "soft", "middle", thousands(int64(x)))
	}
	c.text((left+right)/2, bottom+38, "soft", "middle", p.xTitle)

	// Each label is at the end of its line, moved down where labels would overlap.
	type label struct {
		line  line
		class string
		y     float64
	}
	var labels []label
	others := 1
	for _, l := range p.lines {
		class := "c0"
		if !l.ours {
			class = fmt.Sprintf("c%d", others)
			others++
		}
		var points []string
		var last float64
		for i, y := range l.y {
			if math.IsNaN(y) {
				continue
			}
			last = vertical.at(y)
			points = append(points, fmt.Sprintf("%.1f,%.1f", horizontal.at(xs[i]), last))
			c.dot(horizontal.at(xs[i]), last, class)
		}
		if len(points) == 0 {
			continue
		}
		fmt.Fprintf(&c, `<polyline points="%s" class="%s" style="fill: none; stroke-width: 2"/>`+"\n", strings.Join(points, " "), class)
		labels = append(labels, label{l, class, last})
	}
	slices.SortFunc(labels, func(x, y label) int { return int(x.y - y.y) })
	low := top
	for i := range labels {
		low = max(low, labels[i].y)
		labels[i].y = low
		low += 16
	}
	for _, l := range labels {
		class := ""
		if l.line.ours {
			class = "ours"
		}
		c.dot(right+8, l.y, l.class)
		c.text(right+18, l.y+4, class, "start", l.line.label+"  "+figure(l.line.y[len(l.line.y)-1]))
	}
	return c.card(bottom+56, p.title, p.unit)
}
