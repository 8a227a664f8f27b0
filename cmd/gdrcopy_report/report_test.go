// SPDX-License-Identifier: MIT

package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// report makes the report of testdata/run and returns the folder that it is in.
func report(t *testing.T, args ...string) string {
	t.Helper()
	dir := t.TempDir()
	var out bytes.Buffer
	require.NoError(t, run(append([]string{"-i", "testdata/run", "-o", dir}, args...), &out))
	require.Equal(t, filepath.Join(dir, "gdrcopy_report.html")+"\n", out.String())
	return dir
}

func read(t *testing.T, path ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(path...))
	require.NoError(t, err)
	return string(data)
}

// texts are all texts of the elements of that name.
func texts(t *testing.T, document, name string) []string {
	t.Helper()
	var found []string
	d := xml.NewDecoder(strings.NewReader(document))
	d.Strict, d.AutoClose, d.Entity = false, xml.HTMLAutoClose, xml.HTMLEntity
	for inside := ""; ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return found
		}
		require.NoError(t, err)
		switch token := token.(type) {
		case xml.StartElement:
			inside = token.Name.Local
			if inside == name {
				found = append(found, "")
			}
		case xml.EndElement:
			inside = ""
		case xml.CharData:
			if inside == name {
				found[len(found)-1] += string(token)
			}
		}
	}
}

func TestPage(t *testing.T) {
	page := read(t, report(t), "gdrcopy_report.html")

	require.Equal(t, []string{"gdrcopy on Test GPU <1>"}, texts(t, page, "h1"))
	require.Contains(t, texts(t, page, "p")[0], "NVIDIA driver 580.1, CUDA 13.0; Test CPU & Sons, 8 online; 2026-01-02 03:04 UTC")
	require.Equal(t, []string{"write of 8 B, back to back", "write of 8 B, alone", "read of 8 B", "write of 1 MiB", "read of 1 MiB"}, texts(t, page, "dt"))
	require.Equal(t, []string{"100 ns, cuMemcpyHtoD 3 us", "50.4 ns; the bytes are still on their way", "1 us, cuMemcpyDtoH 7 us", "24.9 GB/s, cuMemcpyHtoD 18.9 GB/s", "9.91 GB/s, cuMemcpyDtoH 17.6 GB/s"}, texts(t, page, "dd"))
	require.Equal(t, "backend rm; ext memory; Write Combining mapping; libgdrapi 2.6, of an unknown commit", texts(t, page, "p")[1])
	require.NotContains(t, page, `class="banner"`)
	require.Contains(t, page, "prefers-color-scheme: dark")
	require.Contains(t, page, `name="viewport"`)
	require.NotRegexp(t, `(?i)(src|href)=`, page, "the page needs no other file")
	require.Contains(t, texts(t, page, "td"), "12.3 us", "of the control calls")
	require.Contains(t, page, "the directory that was read has none of this benchmark", "of the ping-pong")
	for _, f := range []string{"GPU", "NVIDIA driver", "backend", "libgdrapi"} {
		require.Contains(t, texts(t, page, "th"), f)
	}
}

func TestPageWithoutDriver(t *testing.T) {
	f := &found{lat: &result{facts: map[string]string{"gpu": "G", "cuda_driver": "12.4"}}}
	require.Equal(t, "driver for CUDA 12.4", f.page().Driver)
	require.Empty(t, f.page().Headlines)
}

// What ran without a GPU says so, and each page says what built the library.
func TestPageOfDoubles(t *testing.T) {
	in, out := t.TempDir(), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(in, "copylat.json"),
		[]byte(`{"gpu": "Simulated GPU 0", "backend": "dmabuf", "build": "libgdrapi 2.6.0 (commit 0123456789ab, go1.27.4)", "results": []}`), 0o666))
	require.NoError(t, run([]string{"-i", in, "-o", out}, io.Discard))
	page := read(t, out, "gdrcopy_report.html")
	require.Contains(t, page, `class="banner"`)
	require.Contains(t, texts(t, page, "p")[2], "There was no GPU.")
	require.Equal(t, "backend dmabuf; libgdrapi 2.6.0 (commit 0123456789ab, go1.27.4)", texts(t, page, "p")[1])
}

// Each plot has figures of one mode.
func TestPlotsHaveOneMode(t *testing.T) {
	r := &result{figures: []figure{
		{Op: "write", Who: "gdrcopy", Mode: alone, Size: 8, P50: 5},
		{Op: "write", Who: "gdrcopy", Mode: backToBack, Size: 8, P50: 100, GBps: 1},
		{Op: "write", Who: "avx2", Mode: alone, Size: 8, P50: 6},
		{Op: "write", Who: "avx2", Mode: backToBack, Size: 8, P50: 101, GBps: 1},
	}}
	want := map[string][]float64{"write-latency.svg": {100, 101}, "small-writes.svg": {5, 6}}
	for _, p := range (&found{lat: r}).plots() {
		var shown []float64
		for _, l := range p.lines {
			for _, at := range l.points {
				shown = append(shown, at.y)
			}
		}
		if values, ok := want[p.file]; ok {
			require.Equal(t, values, shown, p.file)
		}
	}
}

// Lines that lie on one another can all be seen: the first is broader than the others, the second is on
// it, and the others' dashes lie beside each other.
func TestNoLineHidesAnother(t *testing.T) {
	for n := 1; n <= 8; n++ {
		var p plot
		for range n {
			p.lines = append(p.lines, line{"a", "ours", []point{{1, 1}, {8, 8}}})
		}
		d := p.draw()
		require.Len(t, d.Curves, n)
		covered := map[float64]bool{}
		for i, c := range d.Curves {
			require.Equal(t, i == 0, c.Width > narrow)
			if i < 2 {
				require.Zero(t, c.Dash)
				continue
			}
			require.Less(t, c.Offset, c.Dash)
			require.GreaterOrEqual(t, c.Gap(), dash, "the line below shows, too")
			require.False(t, covered[c.Offset])
			require.Zero(t, math.Mod(c.Offset, dash))
			covered[c.Offset] = true
			require.Equal(t, d.Curves[2].Dash, c.Dash)
		}
	}
}

func TestPlots(t *testing.T) {
	dir := report(t)
	tests := []struct {
		file    string
		ticks   []string // of the upright axis
		legend  []string
		summary string
	}{
		{"write-latency.svg", []string{"100 ns", "1 us", "10 us", "100 us"},
			[]string{"gdrcopy", "cuMemcpyHtoD"}, "time, P50 over bytes of a copy"},
		{"write-bandwidth.svg", []string{"0", "5", "10", "15", "20", "25"},
			[]string{"gdrcopy", "cuMemcpyHtoD"}, "GB/s over bytes of a copy"},
		{"small-writes.svg", []string{"10 ns", "20 ns", "50 ns", "100 ns", "200 ns", "500 ns", "1 us"},
			[]string{"gdrcopy", "plain stores"}, "time, P50 over bytes of a copy"},
		{"read-latency.svg", []string{"1 us", "10 us", "100 us", "1 ms"},
			[]string{"gdrcopy", "cuMemcpyDtoH"}, "time, P50"},
		{"read-bandwidth.svg", []string{"0", "5", "10", "15", "20"},
			[]string{"gdrcopy", "cuMemcpyDtoH"}, "GB/s"},
		{"write-threads.svg", []string{"0", "10", "20", "30", "40"}, []string{"16 KiB"}, "GB/s over threads"},
		{"read-threads.svg", []string{"0", "2", "4", "6", "8", "10", "12"}, []string{"16 KiB"}, "GB/s over threads"},
	}
	for _, tt := range tests {
		t.Run(tt.file, func(t *testing.T) {
			svg := read(t, dir, tt.file)
			require.NoError(t, xml.Unmarshal([]byte(svg), new(struct{ XMLName xml.Name })), "it is XML")
			all := texts(t, svg, "text")
			for _, tick := range tt.ticks {
				require.Contains(t, all, tick)
			}
			require.Equal(t, tt.legend, all[len(all)-len(tt.legend):], "the legend has the lines that there are")
			require.Contains(t, texts(t, svg, "desc")[0], tt.summary)
			require.Contains(t, svg, "prefers-color-scheme: dark")
			require.NotContains(t, svg, "NaN")
			require.NotContains(t, svg, "ZgotmplZ", "what html/template puts for what it distrusts")
		})
	}
	require.NotContains(t, read(t, dir, "gdrcopy_report.html"), "ZgotmplZ")
	require.Equal(t, 2, strings.Count(read(t, dir, "write-threads.svg"), "<circle"), "1 and 2 threads")
	dir = report(t, "--threads", "1")
	require.Equal(t, 1, strings.Count(read(t, dir, "write-threads.svg"), "<circle"))
}

// A plot shows its points in its frame, and the greater value higher.
func TestPlaces(t *testing.T) {
	for _, u := range []unit{bytesLog, countLog, timeLog, bandwidth} {
		values := []float64{1, 3, 20, 1000, 123456}
		a := newAxis(u, values, plotBottom, plotTop)
		last := plotBottom + 1
		for _, v := range values {
			at := a.place(v)
			require.Less(t, at, last)
			require.GreaterOrEqual(t, at, plotTop)
			require.LessOrEqual(t, at, plotBottom)
			last = at
		}
		labelled := 0
		for _, tick := range a.ticks() {
			require.GreaterOrEqual(t, tick.At, plotTop-1e-6)
			require.LessOrEqual(t, tick.At, plotBottom+1e-6)
			if tick.Text != "" {
				labelled++
			}
		}
		require.GreaterOrEqual(t, labelled, 2)
		require.LessOrEqual(t, labelled, 9)
	}
}

func TestOnePoint(t *testing.T) {
	p := plot{title: "one", yUnit: bandwidth, lines: []line{{"a", "ours", []point{{8, 0.02}}}, {"b", "libc", nil}}}
	d := p.draw()
	require.Len(t, d.Curves, 1)
	require.Len(t, d.Legend, 1)
	require.Nil(t, (&plot{lines: []line{{"b", "libc", nil}}}).draw())
}

func TestTexts(t *testing.T) {
	for ns, want := range map[float64]string{
		0.87: "0.87 ns", 12.34: "12.3 ns", 999.4: "999 ns", 999.6: "1 us", 1234.5: "1.23 us", 45678901: "45.7 ms", 2e10: "20 s",
	} {
		require.Equal(t, want, timeText(ns))
	}
	for n, want := range map[float64]string{1: "1 B", 1000: "1000 B", 4096: "4 KiB", 16 << 20: "16 MiB", 3 << 30: "3 GiB"} {
		require.Equal(t, want, sizeText(n))
	}
}

func TestArguments(t *testing.T) {
	for _, bad := range [][]string{
		{"-x"}, {"more"}, {"-s", "16Q"}, {"-s", "K16"}, {"-s", "0"}, {"-s", "M"}, {"-s", "2000G"}, {"--threads", "0"},
		{"--threads", "many"}, {"--budget", "-1"}, {"-o"},
		{"-i", "x", "--budget", "5"}, {"-i", "x", "-d", "1"},
	} {
		err := run(bad, io.Discard)
		var exit *exitError
		require.ErrorAs(t, err, &exit, "%q", bad)
		require.Equal(t, exitUsage, exit.status)
		require.Contains(t, err.Error(), "--help")
	}
	opts, err := parse([]string{"-s", "64KiB", "-d", "3", "-A", "cumemalloc", "--out", "x"})
	require.NoError(t, err)
	require.Equal(t, int64(64<<10), opts.size)
	require.Equal(t, "3", opts.gpu)
	require.Equal(t, "cumemalloc", opts.alloc)
	require.Equal(t, "x", opts.out)
	var out bytes.Buffer
	require.NoError(t, run([]string{"-h"}, &out))
	require.Equal(t, help, out.String())
}

func TestBadInput(t *testing.T) {
	for name, content := range map[string]string{
		"no JSON": "Copies of", "an array": "[]", "no results": `{"gpu": "x"}`,
		"results of another kind": `{"results": 3}`, "a fact that is a number": `{"results": [], "gpu": 1}`,
	} {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "copylat.json"), []byte(content), 0o666))
		err := run([]string{"-i", dir, "-o", t.TempDir()}, io.Discard)
		require.ErrorContains(t, err, "copylat.json is not what a benchmark wrote", name)
	}
	err := run([]string{"-i", t.TempDir(), "-o", t.TempDir()}, io.Discard)
	require.ErrorContains(t, err, "there is no copylat.json")
}

// The benchmarks stand beside the program: here, shell scripts beside the test's own.
func TestGather(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	script := func(tool, body string) {
		path := filepath.Join(filepath.Dir(self), tool)
		require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+body+"\n"), 0o777))
		t.Cleanup(func() { os.Remove(path) })
	}
	good := `echo "$0 $*" >>` + filepath.Join(t.TempDir(), "calls")
	log := strings.Fields(strings.TrimPrefix(good, `echo "$0 $*" >>`))[0]
	script("gdrcopy_copylat", good+`; echo '{"gpu": "G", "results": []}'`)
	script("gdrcopy_copybw", good+`; echo '{"results": []}'`)
	script("gdrcopy_apiperf", good+`; echo '{"results": []}'`)
	script("gdrcopy_pplat", good+"; exit 77")

	dir := filepath.Join(t.TempDir(), "new")
	args := []string{"-o", dir, "-s", "64K", "--threads", "4", "--backend", "rm", "--cpu", "1"}
	require.NoError(t, run(args, io.Discard))
	calls := strings.Split(strings.TrimSpace(read(t, log)), "\n")
	require.Len(t, calls, 3+3)
	require.Contains(t, calls[0], "gdrcopy_copylat --json --device 0 --mapping default --alloc ext --size 65536 --budget 100 --cpu 1 --backend rm")
	require.Contains(t, calls[5], "gdrcopy_copybw --json --device 0 --mapping default --alloc ext --size 16384 --threads 4")
	require.NoFileExists(t, filepath.Join(dir, "pplat.json"))
	require.Contains(t, read(t, dir, "gdrcopy_report.html"), "this machine cannot run it")

	status := func() int {
		var exit *exitError
		require.ErrorAs(t, run(args, io.Discard), &exit)
		return exit.status
	}
	script("gdrcopy_copylat", "exit 2")
	require.Equal(t, exitUsage, status())
	script("gdrcopy_copylat", "exit 77")
	require.Equal(t, exitSkipped, status())
	script("gdrcopy_copylat", "exit 1")
	require.ErrorContains(t, run(args, io.Discard), "gdrcopy_copylat failed")
}
