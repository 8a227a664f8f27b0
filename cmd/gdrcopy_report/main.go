// SPDX-License-Identifier: MIT

// Command gdrcopy_report runs the other benchmarks and makes one HTML page of what they
// found, with plots in it, and the plots as SVG files. See gdrcopy_report(1).
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"gdrapi/cmd/internal/version"
	"gdrapi/core"
)

// How the program ends; the benchmarks end in the same way.
const (
	exitFailed  = 1
	exitUsage   = 2
	exitSkipped = 77 // this machine cannot run it
)

const name = "gdrcopy_report"

const (
	mostThreads = 256
	mostBytes   = 1 << 40
)

const help = `Usage: gdrcopy_report [options]

Runs gdrcopy_copylat, gdrcopy_copybw, gdrcopy_apiperf and gdrcopy_pplat, which must be
beside it. Writes their JSON, one page gdrcopy_report.html that needs no other file,
and the page's plots as .svg.

Options:
  -d, --device GPU       CUDA's number of the GPU (0)
  -s, --size SIZE        the largest copy; K, M and G are powers of 1024 (16M)
  -M, --mapping TYPE     default, wc, cached or device (default)
  -a, -A, --alloc KIND   ext, cumemalloc or cumemcreate (ext)
      --threads N        gdrcopy_copybw runs with 1, 2, 4 and so on threads up to N (8,
                         or the CPUs if they are fewer)
      --budget MS        what gdrcopy_copylat may spend on one figure (100)
      --cpu N            run the measuring thread on CPU N
      --backend NAME     gdrdrv, dmabuf or rm: sets GDRCOPY_BACKEND
  -o, --out DIR          the directory to write to (.)
  -i, --in DIR           measure nothing: plot DIR/*.json of an earlier run
  -V, --version          print the release, the commit, the version of Go and the backends
  -h, --help             print this text

The --help of each benchmark says how it measures. One that this machine cannot run is
left out, and the page says so.

Exit status: 0 when the page is written, 1 on a failure, 2 for a bad argument, 77 when
this machine cannot run it.
`

// options are the command line's. Most go to the benchmarks as they are.
type options struct {
	gpu, mapping, alloc, cpu, backend string
	size                              int64 // bytes
	threads, budget                   int
	out, in                           string
	version                           bool
}

// exitError is an error with the status that the program ends with.
type exitError struct {
	status int
	err    error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

func main() {
	err := run(os.Args[1:], os.Stdout)
	if err == nil {
		return
	}
	fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
	status := exitFailed
	if exit := (*exitError)(nil); errors.As(err, &exit) {
		status = exit.status
	}
	os.Exit(status)
}

// run does what args ask for. The path of the page is written to stdout.
func run(args []string, stdout io.Writer) error {
	opts, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		_, err = io.WriteString(stdout, help)
		return err
	}
	if err == nil && opts.version {
		_, err = io.WriteString(stdout, version.Line(name, core.Backends(core.Options{})...))
		return err
	}
	if err != nil {
		return &exitError{exitUsage, fmt.Errorf("%w; see '%s --help'", err, name)}
	}
	if err := os.Mkdir(opts.out, 0o777); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	found, err := gather(opts)
	if err != nil {
		return err
	}
	path := filepath.Join(opts.out, "gdrcopy_report.html")
	if err := write(found, opts.out, path); err != nil {
		return err
	}
	_, err = fmt.Fprintln(stdout, path)
	return err
}

func parse(args []string) (*options, error) {
	opts := &options{
		gpu: "0", mapping: "default", alloc: "ext", size: 16 << 20,
		threads: min(8, runtime.NumCPU()), budget: 100, out: ".",
	}
	set := flag.NewFlagSet(name, flag.ContinueOnError)
	set.SetOutput(io.Discard)
	text := func(value *string, names ...string) {
		for _, n := range names {
			set.StringVar(value, n, *value, "")
		}
	}
	text(&opts.gpu, "d", "device")
	text(&opts.mapping, "M", "mapping")
	text(&opts.alloc, "a", "A", "alloc")
	text(&opts.cpu, "cpu")
	text(&opts.backend, "backend")
	text(&opts.out, "o", "out")
	text(&opts.in, "i", "in")
	set.IntVar(&opts.threads, "threads", opts.threads, "")
	set.IntVar(&opts.budget, "budget", opts.budget, "")
	for _, n := range []string{"V", "version"} {
		set.BoolVar(&opts.version, n, false, "")
	}
	for _, n := range []string{"s", "size"} {
		set.Func(n, "", func(s string) (err error) {
			opts.size, err = parseSize(s)
			return err
		})
	}
	if err := set.Parse(args); err != nil {
		return nil, err
	}
	if err := opts.forEarlierRun(set); err != nil {
		return nil, err
	}
	switch {
	case set.NArg() > 0:
		return nil, fmt.Errorf("'%s' is no option", set.Arg(0))
	case opts.threads < 1 || opts.threads > mostThreads:
		return nil, fmt.Errorf("--threads takes a number from 1 to %d", mostThreads)
	case opts.budget < 1 || opts.budget > 600000:
		return nil, errors.New("--budget takes a number from 1 to 600000")
	}
	return opts, nil
}

// forEarlierRun refuses what -i has no use for. Without a choice of figures -i plots all that
// the earlier run measured, on whatever machine that was.
func (opts *options) forEarlierRun(set *flag.FlagSet) error {
	if opts.in == "" {
		return nil
	}
	given := make(map[string]bool)
	set.Visit(func(f *flag.Flag) { given[f.Name] = true })
	for _, n := range []string{"d", "device", "M", "mapping", "a", "A", "alloc", "budget", "cpu", "backend"} {
		if given[n] {
			return fmt.Errorf("-%s has no effect with -i: leave one of them out", n)
		}
	}
	if !given["threads"] {
		opts.threads = mostThreads
	}
	if !given["s"] && !given["size"] {
		opts.size = mostBytes
	}
	return nil
}

// parseSize reads 4096, 64K, 64KiB, 1M or 2G.
func parseSize(text string) (int64, error) {
	number := strings.TrimRight(text, "KkMmGgIiBb")
	unit := strings.TrimSuffix(strings.TrimSuffix(strings.ToUpper(text[len(number):]), "B"), "I")
	shift, known := map[string]int{"": 0, "K": 10, "M": 20, "G": 30}[unit]
	if !known || unit == "" && number != text {
		return 0, errors.New("a size is a number of bytes, as 4096, or ends in K, M or G, as 64K or 64KiB")
	}
	n, err := strconv.ParseInt(number, 0, 64)
	if err != nil || n < 1 || n > mostBytes>>shift {
		return 0, errors.New("a size is 1 byte to 1024G, as 4096 or 64K")
	}
	return n << shift, nil
}
