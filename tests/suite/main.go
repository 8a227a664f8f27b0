// SPDX-License-Identifier: MIT

package suite

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A Suite is a table and what a run of it needs. It is made by New and run by Main.
type Suite struct {
	table    []Group
	rows     []*row
	selected map[string]*row
	run      string // -run
	skip     string // -skip
	top      string // the top of the tree
	build    string // the build folder, absolute
	results  string // build/results
	slots    *slots
	say      io.Writer
	limit    func(*row) time.Duration
	made     *makes

	mu       sync.Mutex
	sessions map[int]bool // of the programs that run
	done     map[string]result
}

type result struct {
	counts
	took time.Duration
}

// New reads the environment that the makefile sets: B, CC, CXX, GO, MAKE. The working
// directory becomes the top of the tree.
func New(table []Group) (*Suite, error) {
	top, err := os.Getwd()
	for ; err == nil; top = filepath.Dir(top) {
		if _, err := os.Stat(filepath.Join(top, "go.mod")); err == nil {
			break
		}
		if top == filepath.Dir(top) {
			return nil, errors.New("no folder above this one has a go.mod")
		}
	}
	if err == nil {
		err = os.Chdir(top)
	}
	if err != nil {
		return nil, err
	}
	for name, value := range map[string]string{"B": "build", "CC": "cc", "CXX": "c++", "GO": "go", "MAKE": "make"} {
		if os.Getenv(name) == "" {
			os.Setenv(name, value)
		}
	}
	if flags := makeflags(os.Getenv("MAKEFLAGS")); flags != "" {
		os.Setenv("MAKEFLAGS", flags)
	} else {
		os.Unsetenv("MAKEFLAGS")
	}
	for _, name := range []string{"MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "CHECK"} {
		os.Unsetenv(name)
	}
	build, err := filepath.Abs(os.Getenv("B"))
	if err != nil {
		return nil, err
	}
	s := newSuite(table, top, build, runtime.NumCPU())
	s.limit, err = limits(os.Getenv("GDR_LIMIT"))
	return s, err
}

func newSuite(table []Group, top, build string, n int) *Suite {
	s := &Suite{
		table: table, rows: rows(table, runtime.GOARCH), selected: map[string]*row{},
		top: top, build: build, results: filepath.Join(build, "results"), slots: newSlots(n), say: os.Stdout,
		sessions: map[int]bool{}, done: map[string]result{},
	}
	s.limit, _ = limits("")
	s.made = &makes{log: filepath.Join(s.results, "make.log"), jobs: n}
	return s
}

// makeflags are the flags of the make above for those below: its variables. Its jobs are
// not theirs to share, and CHECK is the kernel's make's, too.
func makeflags(flags string) string {
	_, variables, ok := strings.Cut(flags, "-- ")
	variables = strings.TrimSpace(checkVariable.ReplaceAllString(variables, ""))
	if !ok || variables == "" {
		return ""
	}
	return "-- " + variables
}

var checkVariable = regexp.MustCompile(`(^| )CHECK=(\\.|[^\\ ])*`)

// limits reads GDR_LIMIT: seconds for every program; 0 is no limit.
func limits(set string) (func(*row) time.Duration, error) {
	if set == "" {
		return func(r *row) time.Duration {
			if r.Limit == 0 {
				return defaultLimit
			}
			return max(r.Limit, 0)
		}, nil
	}
	seconds, err := strconv.ParseFloat(set, 64)
	if err != nil || seconds < 0 || seconds > 1e6 {
		return nil, fmt.Errorf("GDR_LIMIT is %q, which is no number of seconds", set)
	}
	return func(*row) time.Duration { return time.Duration(seconds * float64(time.Second)) }, nil
}

// pick says which rows the flags -run and -skip pick.
func (s *Suite) pick(run, skip string, level When) {
	s.run, s.skip = run, skip
	for _, r := range s.rows {
		path := "Test_" + r.path
		picked, more := picks(run, path, false)
		if len(more) > 0 && r.Cases == Whole && r.backend == "" {
			continue // the pattern's next element is a backend, and this one has none
		}
		if skip != "" {
			skipped := false
			for p := path; p != "." && !skipped; p = filepath.Dir(p) {
				skipped, _ = picks(skip, p, true)
			}
			picked = picked && !skipped
		}
		if picked && (r.group.When <= level || names(run, r.group.Name)) {
			s.selected[r.path] = r
		}
	}
}

// misses says that -run names a group and picks no row.
func (s *Suite) misses() bool {
	if len(s.selected) > 0 {
		return false
	}
	for _, g := range s.table {
		if names(s.run, g.Name) {
			return true
		}
	}
	return false
}

// Main is TestMain: it builds what the flags pick, runs it, and ends with the counts.
func Main(m *testing.M, table []Group) {
	all := flag.Bool("all", false, "run what make check-all runs, too")
	some := flag.Bool("some", false, "fail if -run picks no program")
	flag.Parse()
	s, err := New(table)
	if err != nil {
		fmt.Fprintln(os.Stderr, "suite:", err)
		os.Exit(1)
	}
	value := func(name string) string { return flag.Lookup("test." + name).Value.String() }
	level := Check
	if *all {
		level = All
	}
	if value("list") == "" {
		s.pick(value("run"), value("skip"), level)
	}
	if len(s.selected) == 0 {
		status := m.Run()
		if (*some || s.misses()) && status == 0 {
			fmt.Printf("-run %s picks no program\n", value("run"))
			status = 1
		}
		os.Exit(status)
	}
	if err := s.begin(); err != nil {
		fmt.Fprintln(os.Stderr, "suite:", err)
		os.Exit(1)
	}
	// -parallel says how many programs run at a time; the slots see to it.
	if n := flag.Lookup("test.parallel").Value.(flag.Getter).Get().(int); n > 0 {
		s.slots = newSlots(n)
		s.made.jobs = n
	}
	flag.Set("test.parallel", "1000000")
	current = s
	status := m.Run()
	if !s.end() && status == 0 {
		status = 1
	}
	os.Exit(status)
}

// current is the suite that Main runs.
var current *Suite

// Run runs the group's rows that the flags pick as subtests.
func Run(t *testing.T) {
	t.Helper()
	name := strings.TrimPrefix(t.Name(), "Test_")
	if current == nil {
		t.Skip("-run picks no program")
	}
	current.runGroup(t, name)
}

func (s *Suite) runGroup(t *testing.T, name string) {
	var group *Group
	for i := range s.table {
		if s.table[i].Name == name {
			group = &s.table[i]
		}
	}
	if group == nil {
		t.Fatalf("the table has no group %s", name)
	}
	t.Parallel()
	subtests := map[string][]*row{}
	var order []string
	for _, r := range s.rows {
		if r.group != group || s.selected[r.path] == nil {
			continue
		}
		if subtests[r.Name] == nil {
			order = append(order, r.Name)
		}
		subtests[r.Name] = append(subtests[r.Name], r)
	}
	for _, program := range order {
		t.Run(program, func(t *testing.T) {
			if !group.Chain {
				t.Parallel()
			}
			for _, r := range subtests[program] {
				if r.backend == "" {
					s.test(t, r)
					continue
				}
				t.Run(r.backend, func(t *testing.T) {
					if !group.Chain {
						t.Parallel()
					}
					s.test(t, r)
				})
			}
		})
	}
}

// begin forgets the results of the run before, and builds.
func (s *Suite) begin() error {
	if err := os.RemoveAll(s.results); err != nil {
		return err
	}
	if err := os.MkdirAll(s.results, 0o777); err != nil {
		return err
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		got := <-interrupted
		s.killAll()
		fmt.Fprintln(s.say, "ended by", got)
		os.Exit(1)
	}()
	var targets []string
	for _, r := range s.rows {
		if s.selected[r.path] != nil {
			targets = append(targets, s.targets(r)...)
		}
	}
	s.made.all(targets, s.say)
	return nil
}

// end prints the table and the sum, and writes them to build/results/summary. It says
// whether all is well. The summary is younger than go test's cache of results accepts
// for an input, so go test runs the programs anew each time.
func (s *Suite) end() bool {
	var sum counts
	file, err := os.Create(filepath.Join(s.results, "summary"))
	if err != nil {
		fmt.Fprintln(os.Stderr, "suite:", err)
		return false
	}
	out := bufio.NewWriter(io.MultiWriter(s.say, file))
	for _, r := range s.rows {
		if s.selected[r.path] == nil {
			continue
		}
		got, ran := s.done[r.path]
		if !ran {
			got.failed = 1
			fmt.Fprintf(out, "%s was picked and did not run\n", r.path)
		}
		fmt.Fprintf(out, "%-34s %7d passed %4d failed %4d skipped %6.0f s\n", r.path,
			got.passed, got.failed, got.skipped, got.took.Seconds())
		sum.add(got.counts)
	}
	fmt.Fprintln(out, sum)
	if err := errors.Join(out.Flush(), file.Close()); err != nil {
		fmt.Fprintln(os.Stderr, "suite:", err)
		return false
	}
	return sum.failed == 0 && sum.passed > 0
}
