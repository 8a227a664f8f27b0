// SPDX-License-Identifier: MIT

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
)

// The sizes for which gdrcopy_copybw runs with several numbers of threads.
var threadSizes = []int64{16 << 10, 256 << 10, 1 << 20, 16 << 20}

const threadBudget = 300 // ms for each figure of gdrcopy_copybw

// found is all that was measured. What this machine cannot measure is nil.
type found struct {
	lat, api, pp *result
	bw           []*result // one for each size and number of threads
	planned      bool      // false: read from an earlier run
}

// A step is one run of a benchmark, and the file of its output.
type step struct {
	tool, file string
	args       []string
	keep       func(*found, *result)
}

func steps(opts *options) []step {
	all := []step{
		{"gdrcopy_copylat", "copylat.json",
			[]string{"--size", fmt.Sprint(opts.size), "--budget", strconv.Itoa(opts.budget)},
			func(f *found, r *result) { f.lat = r }},
		{"gdrcopy_apiperf", "apiperf.json", nil, func(f *found, r *result) { f.api = r }},
		{"gdrcopy_pplat", "pplat.json", nil, func(f *found, r *result) { f.pp = r }},
	}
	for _, size := range threadSizes {
		for threads := 1; size <= opts.size && threads <= opts.threads; threads *= 2 {
			all = append(all, step{"gdrcopy_copybw", fmt.Sprintf("copybw-%d-%d.json", size, threads),
				[]string{"--size", fmt.Sprint(size), "--threads", strconv.Itoa(threads),
					"--budget", strconv.Itoa(threadBudget)},
				func(f *found, r *result) { f.bw = append(f.bw, r) }})
		}
	}
	return all
}

// gather runs the benchmarks, or reads what an earlier run wrote.
func gather(opts *options) (*found, error) {
	f := &found{planned: opts.in == ""}
	all := steps(opts)
	for i, s := range all {
		dir := opts.in
		if f.planned {
			progress("%s: benchmark %d of %d\n", s.tool, i+1, len(all))
			dir = opts.out
			if err := s.run(opts, filepath.Join(dir, s.file)); err != nil {
				return nil, err
			}
		}
		r, err := load(filepath.Join(dir, s.file))
		if err != nil {
			return nil, err
		}
		if r != nil {
			s.keep(f, r)
		}
		if f.lat != nil {
			continue
		}
		if f.planned {
			return nil, &exitError{exitSkipped, errors.New("gdrcopy_copylat cannot run on this machine")}
		}
		return nil, fmt.Errorf("there is no copylat.json in %s: name the directory of an earlier run's -o", opts.in)
	}
	return f, nil
}

// run writes the benchmark's output to path. There is no file after one that this
// machine cannot run.
func (s *step) run(opts *options, path string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	args := append([]string{"--json", "--device", opts.gpu, "--mapping", opts.mapping, "--alloc", opts.alloc}, s.args...)
	if opts.cpu != "" {
		args = append(args, "--cpu", opts.cpu)
	}
	if opts.backend != "" {
		args = append(args, "--backend", opts.backend)
	}
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	cmd := exec.Command(filepath.Join(filepath.Dir(self), s.tool), args...)
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	err = cmd.Run()
	if closeErr := out.Close(); err == nil && closeErr != nil {
		return closeErr
	}
	if err == nil {
		return nil
	}
	if err := os.Remove(path); err != nil {
		return err
	}
	exit := (*exec.ExitError)(nil)
	switch {
	case !errors.As(err, &exit):
		return err
	case exit.ExitCode() == exitSkipped:
		return nil
	case exit.ExitCode() == exitUsage:
		return &exitError{exitUsage, fmt.Errorf("%s does not take these options", s.tool)}
	}
	return fmt.Errorf("%s failed: %w", s.tool, err)
}

// progress prints to a terminal, and to nothing else.
func progress(format string, args ...any) {
	if info, err := os.Stderr.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
		fmt.Fprintf(os.Stderr, format, args...)
	}
}
