// SPDX-License-Identifier: MIT

package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// The drawing, in units of the viewBox. Half a page wide, so that a phone, which shows
// it in all its width, shows text that can be read.
const (
	plotWidth  = 520.0
	plotLeft   = 62.0
	plotRight  = 492.0
	plotTop    = 40.0
	plotBottom = 300.0
	legendTop  = 352.0
	legendRow  = 21.0
	legendCols = 3
)

// A unit says how an axis is divided, and how its numbers are written.
type unit int

const (
	bytesLog  unit = iota // powers of 2
	countLog              // powers of 2
	timeLog               // ns; powers of 10
	bandwidth             // GB/s; linear from 0
)

// A point of a line. Both are greater than 0.
type point struct{ x, y float64 }

type line struct {
	name   string
	class  string // of the style sheet: its color
	points []point
}

type plot struct {
	title          string
	file           string // what it is called by itself
	xLabel, yLabel string
	xUnit, yUnit   unit
	lines          []line // those with no point are not drawn
}

// An axis maps the values from lo to hi to the places from..to.
type axis struct {
	unit     unit
	lo, hi   float64 // for a logarithmic axis, logarithms to base, and whole numbers
	base     float64 // 0: linear
	step     float64 // of the ticks of a linear axis
	from, to float64
}

func newAxis(u unit, values []float64, from, to float64) axis {
	a := axis{unit: u, from: from, to: to, lo: math.Inf(1), hi: math.Inf(-1)}
	switch u {
	case bytesLog, countLog:
		a.base = 2
	case timeLog:
		a.base = 10
	}
	for _, v := range values {
		if a.base > 0 {
			v = math.Log(v) / math.Log(a.base)
		}
		a.lo, a.hi = math.Min(a.lo, v), math.Max(a.hi, v)
	}
	if a.lo > a.hi {
		a.lo, a.hi = 0, 1
	}
	if a.base == 0 {
		a.lo, a.step = 0, niceStep(a.hi)
		a.hi = a.step * math.Ceil(a.hi/a.step-1e-9)
		return a
	}
	// The logarithm of a power of the base may come out a little beside it.
	a.lo, a.hi = math.Floor(a.lo+1e-9), math.Ceil(a.hi-1e-9)
	if a.hi <= a.lo {
		a.hi = a.lo + 1
	}
	return a
}

// niceStep is 1, 2 or 5 times a power of 10, of which at most six make top.
func niceStep(top float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(top/6)))
	for _, n := range []float64{1, 2, 5} {
		if n*power*6 >= top*(1-1e-9) {
			return n * power
		}
	}
	return 10 * power
}

func (a axis) place(v float64) float64 {
	if a.base > 0 {
		v = math.Log(v) / math.Log(a.base)
	}
	return a.from + (v-a.lo)/(a.hi-a.lo)*(a.to-a.from)
}

// A tick is a line across the plot. One without text is fainter.
type tick struct {
	At   float64
	Text string
}

func (a axis) ticks() []tick {
	var ticks []tick
	if a.base == 0 {
		for v := 0.0; v <= a.hi*(1+1e-9); v += a.step {
			ticks = append(ticks, tick{a.place(v), strconv.FormatFloat(v, 'g', 4, 64)})
		}
		return ticks
	}
	// Not more than eight texts fit beside each other.
	every := math.Max(1, math.Ceil((a.hi-a.lo)/8))
	for i := a.lo; i <= a.hi; i++ {
		v := math.Pow(a.base, i)
		t := tick{At: a.place(v)}
		if math.Mod(i-a.lo, every) == 0 {
			t.Text = a.unit.text(v)
		}
		ticks = append(ticks, t)
		for k := 2.0; a.base == 10 && k < 10 && i < a.hi; k++ {
			fine := tick{At: a.place(v * k)}
			// Few decades leave room for more texts.
			if a.hi-a.lo <= 2 && (k == 2 || k == 5) {
				fine.Text = a.unit.text(v * k)
			}
			ticks = append(ticks, fine)
		}
	}
	return ticks
}

// text writes a value, in the unit that leaves it the fewest digits.
func (u unit) text(v float64) string {
	switch u {
	case bytesLog:
		return sizeText(v)
	case timeLog:
		return timeText(v)
	case bandwidth:
		return strconv.FormatFloat(v, 'g', 3, 64) + " GB/s"
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}

// scale gives v in the first unit in which it is below most. A unit is base of the one before.
func scale(v, base, most float64, units ...string) (float64, string) {
	for v >= most && len(units) > 1 {
		v /= base
		units = units[1:]
	}
	return v, units[0]
}

func sizeText(v float64) string {
	v, u := scale(v, 1024, 1024*(1-1e-9), "B", "KiB", "MiB", "GiB")
	return strconv.FormatFloat(v, 'g', 4, 64) + " " + u
}

// timeText writes 1234.5 ns as 1.23 us: three digits.
func timeText(ns float64) string {
	v, u := scale(ns, 1000, 999.5, "ns", "us", "ms", "s")
	return strconv.FormatFloat(v, 'g', 3, 64) + " " + u
}

// A drawing is a plot with all places known: what the template plot.svg shows.
type drawing struct {
	Title, Summary           string
	XLabel, YLabel           string
	Height, Width            float64
	Left, Right, Top, Bottom float64
	Middle                   float64 // between left and right
	XTicks, YTicks           []tick
	Curves                   []curve
	Legend                   []entry
	Alone                    bool // a file of its own, with the style sheet in it
}

// A curve is drawn over those before it, and hides none of them: the first is broad, the second narrow,
// and of the others each has dashes where the rest have gaps.
type curve struct {
	Class        string
	Path         string
	Dots         []dot
	Width        float64
	Dash, Offset float64 // a dash begins every Dash, at Offset; 0: it has none
}

const (
	broad  = 5.0
	narrow = 2.0
	dash   = 5.0 // of plot.svg, too
)

// Gap is what lies between two dashes.
func (c curve) Gap() float64 { return c.Dash - dash }

type dot struct {
	X, Y float64
	Text string
}

type entry struct {
	Class, Name string
	X, Y        float64
	Width       float64
	Dashed      bool
}

// draw places all that the plot shows. It is nil if there is nothing to show.
func (p *plot) draw() *drawing {
	var xs, ys []float64
	d := &drawing{
		Title: p.title, XLabel: p.xLabel, YLabel: p.yLabel,
		Width: plotWidth, Left: plotLeft, Right: plotRight, Top: plotTop, Bottom: plotBottom,
		Middle: (plotLeft + plotRight) / 2,
	}
	for _, l := range p.lines {
		for _, pt := range l.points {
			xs, ys = append(xs, pt.x), append(ys, pt.y)
		}
	}
	if len(xs) == 0 {
		return nil
	}
	x := newAxis(p.xUnit, xs, plotLeft, plotRight)
	y := newAxis(p.yUnit, ys, plotBottom, plotTop)
	d.XTicks, d.YTicks = x.ticks(), y.ticks()
	var names []string
	for _, l := range p.lines {
		if len(l.points) == 0 {
			continue
		}
		c := curve{Class: l.class, Width: narrow}
		if len(d.Curves) == 0 {
			c.Width = broad
		}
		for i, pt := range l.points {
			at := dot{x.place(pt.x), y.place(pt.y),
				fmt.Sprintf("%s, %s: %s", l.name, p.xUnit.text(pt.x), p.yUnit.text(pt.y))}
			c.Path += fmt.Sprintf("%c%.1f %.1f", "ML"[min(i, 1)], at.X, at.Y)
			c.Dots = append(c.Dots, at)
		}
		d.Curves = append(d.Curves, c)
		n := len(d.Legend)
		d.Legend = append(d.Legend, entry{l.class, l.name,
			plotLeft + float64(n%legendCols)*(plotRight-plotLeft)/legendCols,
			legendTop + float64(n/legendCols)*legendRow, c.Width, n > 1})
		names = append(names, l.name)
	}
	for i := 2; i < len(d.Curves); i++ {
		d.Curves[i].Dash, d.Curves[i].Offset = dash*float64(max(2, len(d.Curves)-2)), dash*float64(i-2)
	}
	d.Summary = fmt.Sprintf("%s over %s, of %s", p.yLabel, p.xLabel, strings.Join(names, ", "))
	d.Height = d.Legend[len(d.Legend)-1].Y + 14
	return d
}
