// SPDX-License-Identifier: MIT

package main

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

//go:embed templates
var templateFiles embed.FS

var templates = template.Must(template.New("").Funcs(template.FuncMap{
	"at": func(v float64) string { return strconv.FormatFloat(v, 'f', 1, 64) },
}).ParseFS(templateFiles, "templates/*"))

// The facts that the page shows, in this order; others come after them.
var factNames = []struct{ key, name string }{
	{"gpu", "GPU"}, {"driver", "NVIDIA driver"}, {"cuda_driver", "driver's CUDA"}, {"backend", "backend"},
	{"mapping", "mapping"}, {"memory", "memory"}, {"cpu", "CPU"}, {"kernel", "kernel"}, {"date", "date"},
}

type fact struct{ Name, Text string }

func (r *result) factList() (list []fact) {
	others := maps.Clone(r.facts)
	delete(others, "tool")
	for _, n := range factNames {
		if text := r.facts[n.key]; text != "" {
			list = append(list, fact{n.name, text})
		}
		delete(others, n.key)
	}
	for _, key := range slices.Sorted(maps.Keys(others)) {
		list = append(list, fact{key, others[key]})
	}
	return list
}

// A look is how one maker of copies is named and drawn. The class is the style sheet's.
type look struct{ who, name, class string }

// thisLibrary is what a reader sees for the name in the JSON, by which he may take NVIDIA's for meant.
const thisLibrary = "this library"

// The ways to repeat a copy. A plot has figures of one of them.
const (
	backToBack = "back-to-back"
	alone      = "alone"
)

var (
	writeLooks = []look{
		{"gdrcopy", thisLibrary, "ours"},
		{"cuMemcpy", "cuMemcpyHtoD", "driver"},
		{"memcpy", "libc memcpy", "libc"},
		{"plain", "plain stores", "plain"},
		{"sse2", "SSE2 loop", "sse"},
		{"avx2", "AVX2 loop", "avx2"},
		{"avx512", "AVX-512 loop", "avx512"},
		{"movdir64b", "MOVDIR64B loop", "movdir"},
	}
	readLooks = []look{
		{"gdrcopy", thisLibrary, "ours"},
		{"cuMemcpy", "cuMemcpyDtoH", "driver"},
		{"memcpy", "libc memcpy", "libc"},
		{"plain", "plain loads", "plain"},
		{"sse4.1", "SSE4.1 loop", "sse"},
		{"avx2", "AVX2 loop", "avx2"},
		{"avx512", "AVX-512 loop", "avx512"},
	}
)

func (r *result) bySize(op, mode string, looks []look, value func(figure) float64, most float64) []line {
	var lines []line
	for _, k := range looks {
		l := line{name: k.name, class: k.class}
		for _, f := range r.figures {
			v := value(f)
			if f.Op == op && f.Who == k.who && f.Mode == mode && f.Size <= most && f.Size > 0 && v > 0 {
				l.points = append(l.points, point{f.Size, v})
			}
		}
		lines = append(lines, l)
	}
	return lines
}

func (f *found) byThreads(op string) []line {
	classes := []string{"plain", "sse", "avx2", "ours"}
	var lines []line
	for i, size := range threadSizes {
		l := line{name: sizeText(float64(size)), class: classes[i]}
		for _, r := range f.bw {
			if v := r.find(op, "gdrcopy", "", float64(size)); v.GBps > 0 {
				l.points = append(l.points, point{v.Threads, v.GBps})
			}
		}
		lines = append(lines, l)
	}
	return lines
}

func (f *found) plots() []plot {
	const all, small = 1 << 50, 4096
	took := func(f figure) float64 { return f.P50 }
	rate := func(f figure) float64 { return f.GBps }
	bySize := func(title, file, op, mode string, looks []look, most float64) plot {
		return plot{title, file, "bytes of a copy", "time, P50", bytesLog, timeLog,
			f.lat.bySize(op, mode, looks, took, most)}
	}
	// What copies alone take is no bandwidth: the link may still be at work when the next one starts.
	byRate := func(title, file, op string, looks []look) plot {
		return plot{title, file, "bytes of a copy", "GB/s", bytesLog, bandwidth,
			f.lat.bySize(op, backToBack, looks, rate, all)}
	}
	byThreads := func(title, file, op string) plot {
		return plot{title, file, "threads that share a copy", "GB/s", countLog, bandwidth, f.byThreads(op)}
	}
	return []plot{
		bySize("Write latency, back to back", "write-latency.svg", "write", backToBack, writeLooks, all),
		bySize("Read latency, back to back", "read-latency.svg", "read", backToBack, readLooks, all),
		byRate("Write bandwidth", "write-bandwidth.svg", "write", writeLooks),
		byRate("Read bandwidth", "read-bandwidth.svg", "read", readLooks),
		bySize("Small writes, alone", "small-writes.svg", "write", alone, writeLooks, small),
		byThreads("Write bandwidth by threads", "write-threads.svg", "write"),
		byThreads("Read bandwidth by threads", "read-threads.svg", "read"),
	}
}

// A table's first column is a heading of its row.
type table struct {
	Title   string
	Heads   []string
	Rows    [][]string
	Missing string // why there is no row
}

func timeCell(ns float64) string {
	if ns <= 0 {
		return ""
	}
	return timeText(ns)
}

func rateCell(v float64) string {
	if v <= 0 {
		return ""
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

func (r *result) copyTable() table {
	t := table{
		Title: "Copies by one thread, P50",
		Heads: []string{"size", "write, alone", "write", "cuMemcpyHtoD", "read", "cuMemcpyDtoH",
			"write GB/s", "read GB/s"},
	}
	for _, n := range r.sizes() {
		w, rd := r.find("write", "gdrcopy", backToBack, n), r.find("read", "gdrcopy", "", n)
		t.Rows = append(t.Rows, []string{
			sizeText(n), timeCell(r.find("write", "gdrcopy", alone, n).P50), timeCell(w.P50),
			timeCell(r.find("write", "cuMemcpy", "", n).P50), timeCell(rd.P50),
			timeCell(r.find("read", "cuMemcpy", "", n).P50), rateCell(w.GBps), rateCell(rd.GBps)})
	}
	return t
}

// rowTable shows the figures as they are.
func (f *found) rowTable(title string, r *result) table {
	t := table{Title: title, Heads: []string{"call", "of", "how", "size", "P0", "P50", "samples"}}
	switch {
	case r == nil && f.planned:
		t.Missing = "Not run: this machine cannot run it. The benchmark said why on standard error."
	case r == nil:
		t.Missing = "No figures: the directory that was read has none of this benchmark."
	default:
		for _, v := range r.figures {
			size := ""
			if v.Size > 0 {
				size = sizeText(v.Size)
			}
			t.Rows = append(t.Rows, []string{v.Op, strings.Replace(v.Who, "gdrcopy", thisLibrary, 1), v.Mode, size, timeCell(v.P0), timeCell(v.P50),
				strconv.FormatFloat(v.Samples, 'f', -1, 64)})
		}
	}
	return t
}

// headlines are the few figures that the page begins with.
func (r *result) headlines() []fact {
	sizes := r.sizes()
	if len(sizes) == 0 {
		return nil
	}
	var list []fact
	add := func(name, text string) {
		if text != "" {
			list = append(list, fact{name, text})
		}
	}
	// Beside the library stands the driver, whoever is faster.
	versus := func(op, way string, size float64, text func(figure) string) string {
		ours, driver := text(r.find(op, "gdrcopy", backToBack, size)), text(r.find(op, "cuMemcpy", "", size))
		if ours == "" || driver == "" {
			return ours
		}
		return fmt.Sprintf("%s, %s %s", ours, way, driver)
	}
	took := func(f figure) string { return timeCell(f.P50) }
	rate := func(f figure) string {
		if f.GBps <= 0 {
			return ""
		}
		return bandwidth.text(f.GBps)
	}
	small, large := sizes[0], sizes[len(sizes)-1]
	if slices.Contains(sizes, 8) {
		small = 8
	}
	add("write of "+sizeText(small)+", back to back", versus("write", "cuMemcpyHtoD", small, took))
	if v := r.find("write", "gdrcopy", alone, small).P50; v > 0 {
		add("write of "+sizeText(small)+", alone", timeText(v)+"; the bytes are still on their way")
	}
	add("read of "+sizeText(small), versus("read", "cuMemcpyDtoH", small, took))
	add("write of "+sizeText(large), versus("write", "cuMemcpyHtoD", large, rate))
	add("read of "+sizeText(large), versus("read", "cuMemcpyDtoH", large, rate))
	return list
}

type page struct {
	GPU, Driver, Machine, Date string
	Setting                    string // backend, memory, mapping and the build of the library
	Simulated                  bool   // there was no GPU
	Headlines                  []fact
	Drawings                   []*drawing
	Tables                     []table
	Facts                      []fact
}

func (f *found) page() *page {
	facts := f.lat.facts
	p := &page{
		GPU: facts["gpu"], Machine: facts["cpu"], Date: facts["date"],
		Driver:    "driver for CUDA " + facts["cuda_driver"],
		Setting:   setting(facts),
		Simulated: strings.HasPrefix(facts["gpu"], "Simulated "), // the doubles' name
		Headlines: f.lat.headlines(),
		Tables: []table{
			f.lat.copyTable(),
			f.rowTable("Ping-pong with a GPU kernel", f.pp),
			f.rowTable("Control calls", f.api),
		},
		Facts: f.lat.factList(),
	}
	if v := facts["driver"]; v != "" {
		p.Driver = "NVIDIA driver " + v + ", CUDA " + facts["cuda_driver"]
	}
	return p
}

// setting is what a reader must know to compare the figures with others.
func setting(facts map[string]string) string {
	var list []string
	for _, n := range []struct{ before, key, after string }{
		{"backend ", "backend", ""}, {"", "memory", " memory"}, {"", "mapping", " mapping"}, {"", "build", ""},
	} {
		if text := facts[n.key]; text != "" {
			list = append(list, n.before+text+n.after)
		}
	}
	if facts["build"] == "" && facts["libgdrapi"] != "" {
		list = append(list, "libgdrapi "+facts["libgdrapi"]+", of an unknown commit")
	}
	return strings.Join(list, "; ")
}

// write makes the page and, in dir, its plots.
func write(f *found, dir, path string) error {
	p := f.page()
	for _, pl := range f.plots() {
		d := pl.draw()
		if d == nil {
			continue
		}
		p.Drawings = append(p.Drawings, d)
		single := *d
		single.Alone = true
		if err := execute("plot.svg", filepath.Join(dir, pl.file), &single); err != nil {
			return err
		}
	}
	return execute("page.html", path, p)
}

func execute(template, path string, data any) error {
	var b bytes.Buffer
	if err := templates.ExecuteTemplate(&b, template, data); err != nil {
		return err
	}
	return os.WriteFile(path, b.Bytes(), 0o666)
}
