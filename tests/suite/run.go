// SPDX-License-Identifier: MIT

package suite

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// suite is a run: what it was asked for, and what has come of it.
type suite struct {
	table   []Group
	level   When
	top     string          // of the tree
	build   string          // the build folder, absolute
	results string          // build/results
	given   []string        // the packages that a fresh system has after setup.sh
	limit   time.Duration   // for every program: GDR_LIMIT; negative: the table's
	ctx     context.Context // ends when the user interrupts
	say     io.Writer

	making sync.Mutex
	wanted []string // targets of rows that wait
	broken bool     // not all that was wanted could be made: each row asks for its own targets

	mu    sync.Mutex
	lines []string // of the summary
	sum   counts
	left  int // rows that had not begun when the run was interrupted
}

var (
	current *suite // the run of Main
	all     = flag.Bool("all", false, "run what make check-all runs")
	list    = flag.Bool("l", false, "list the programs, with the promise that each holds")
	run     string // -run
)

// Main is TestMain: it runs what the flags pick, and ends with the counts.
func Main(m *testing.M, table []Group) {
	flag.Parse()
	if *list {
		for _, g := range table {
			fmt.Printf("%s: %s\n", g.Name, g.Holds)
			for _, p := range g.Rows {
				fmt.Println(strings.TrimRight(fmt.Sprintf("  %s/%-16s %s", g.Name, p.Name, p.Holds), " "))
			}
		}
		os.Exit(0)
	}
	s, err := newSuite(table)
	if err != nil {
		fmt.Fprintln(os.Stderr, "suite:", err)
		os.Exit(1)
	}
	// -run is for the groups: Run gives it back. go test caches no verdict of a test that logs no inputs.
	run = flag.Lookup("test.run").Value.String()
	if err := errors.Join(flag.Set("test.run", "^Test$"), flag.Set("test.testlogfile", "")); err != nil {
		panic(err)
	}
	ctx, stop := signal.NotifyContext(s.ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	s.ctx, stop = beforeTimeout(ctx, flag.Lookup("test.timeout").Value.(flag.Getter).Get().(time.Duration))
	defer stop()
	current = s
	if status := m.Run(); !s.end() || status != 0 {
		os.Exit(1)
	}
	os.Exit(0)
}

// Run runs each group of the table as a test of its own. -run, -skip and -v are those of go test.
func Run(t *testing.T) {
	if err := flag.Set("test.run", run); err != nil {
		t.Fatal(err)
	}
	var groups []testing.InternalTest
	for _, g := range current.table {
		if g.When == current.level || named(g.Name) {
			groups = append(groups, testing.InternalTest{Name: g.Name, F: func(t *testing.T) { current.group(t, g) }})
		}
	}
	if !testing.RunTests(regexp.MatchString, groups) {
		t.Fail()
	}
}

// named says whether a word of -run is the group: fuzz is not fuzz_long.
func named(group string) bool { return regexp.MustCompile(`\b` + group + `\b`).MatchString(run) }

// beforeTimeout ends while there is time left to end what runs and to print the counts: go test
// kills the process at its -timeout, 10 minutes unless it is given, but nothing that it started.
func beforeTimeout(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if limit <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, limit-min(limit/10, 10*time.Second),
		fmt.Errorf("go test ends after %v: -timeout 0 lets it run on", limit))
}

// newSuite reads the environment that the makefile sets: B, CC, CXX, GO, MAKE. The working
// directory becomes the top of the tree.
func newSuite(table []Group) (*suite, error) {
	top, err := os.Getwd()
	if _, err := os.Stat("go.mod"); err != nil { // go test is in ./tests
		top = filepath.Dir(top)
	}
	if err := errors.Join(err, os.Chdir(top)); err != nil {
		return nil, err
	}
	for name, value := range map[string]string{"B": "build", "CC": "cc", "CXX": "c++", "GO": "go", "MAKE": "make"} {
		if os.Getenv(name) == "" {
			os.Setenv(name, value)
		}
	}
	// The flags and the jobs of the make above are not for those below.
	for _, name := range []string{"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "CHECK"} {
		os.Unsetenv(name)
	}
	build, err := filepath.Abs(os.Getenv("B"))
	if err != nil {
		return nil, err
	}
	results := filepath.Join(build, "results")
	if err := os.MkdirAll(results, 0o777); err != nil {
		return nil, err
	}
	setup, err := os.ReadFile("setup.sh")
	if err != nil {
		return nil, err
	}
	level := Check
	if *all {
		level = All
	}
	s := &suite{table: table, level: level, top: top, build: build, results: results, given: given(string(setup)), limit: -1,
		ctx: context.Background(), say: os.Stdout}
	if set := os.Getenv("GDR_LIMIT"); set != "" {
		if s.limit, err = time.ParseDuration(set + "s"); err != nil {
			return nil, fmt.Errorf("GDR_LIMIT is %q, which is no number of seconds", set)
		}
	}
	return s, nil
}

// group runs the programs of a group that -run picks, as subtests.
func (s *suite) group(t *testing.T, g Group) {
	parallel := func(t *testing.T) {
		if !g.Chain {
			t.Parallel()
		}
	}
	t.Parallel()
	for _, p := range g.Rows {
		all := rows(g, p, runtime.GOARCH)
		if len(all) == 0 {
			continue
		}
		t.Run(p.Name, func(t *testing.T) {
			s.want(targets(all[0]))
			parallel(t)
			for _, r := range all {
				if r.backend == "" {
					s.test(t, r)
					continue
				}
				t.Run(r.backend, func(t *testing.T) {
					parallel(t)
					s.test(t, r)
				})
			}
		})
	}
}

// test runs a row as a subtest, with the cases that -run picks as subtests of it.
func (s *suite) test(t *testing.T, r *row) {
	names, err := s.cases(r)
	var args []string
	var output string
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			args = append(args, name)
			t.Parallel() // The program runs before it goes on.
			verdict := regexp.MustCompile(`(?m)^(not )?ok \d+ - ` + regexp.QuoteMeta(name) + `( # SKIP.*)?$`).FindStringSubmatch(output)
			switch {
			case output == "":
				t.Skip("its program did not run")
			case verdict == nil || verdict[1] != "":
				t.Fail()
			case verdict[2] != "":
				t.Skip(verdict[2])
			}
		})
	}
	if err == nil && len(names) != 0 && len(args) == 0 {
		t.Skip("it has no case that -run picks")
	}
	if s.ctx.Err() != nil {
		s.mu.Lock()
		s.left++
		s.lines = append(s.lines, fmt.Sprintf("%-34s not run\n", r.path()))
		s.mu.Unlock()
		t.Skip("not run: the run was interrupted before")
	}
	if len(args) == len(names) {
		args = nil
	}
	began := time.Now()
	got, said := counts{failed: 1}, fmt.Sprintf("   %v\n", err)
	if err == nil {
		got, output, said = s.one(r, args)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	took := time.Since(began).Seconds()
	s.sum.add(got)
	s.lines = append(s.lines, fmt.Sprintf("%-34s %7d passed %4d failed %4d skipped %6.0f s\n", r.path(), got.passed, got.failed, got.skipped, took))
	fmt.Fprintf(s.say, "%-34s %v, %.0f s\n%s", r.path(), got, took, said)
	if got.failed > 0 {
		t.Errorf("%v; see %s", got, s.log(r))
	}
}

// end prints the lines of all rows and the sum, and writes them to build/results/summary. It
// says whether all is well, which takes that a row was picked, and that all ran.
func (s *suite) end() bool {
	text := strings.Join(s.lines, "") + s.sum.String()
	switch {
	case len(s.lines) == 0:
		text = fmt.Sprintf("-run %s picks no program", run)
	case s.left > 0:
		text += fmt.Sprintf("; %d programs were not run: %v", s.left, context.Cause(s.ctx))
	}
	text += "\n"
	if err := os.WriteFile(filepath.Join(s.results, "summary"), []byte(text), 0o666); err != nil {
		fmt.Fprintln(os.Stderr, "suite:", err)
		return false
	}
	_, err := io.WriteString(s.say, text)
	return err == nil && s.sum.passed+s.sum.skipped > 0 && s.left == 0
}

func (s *suite) log(r *row) string {
	return filepath.Join(s.results, strings.ReplaceAll(r.path(), "/", "-")+".log")
}

// one runs a row's command, with the cases that are named or with all. said is what a user wants to know of it.
func (s *suite) one(r *row, cases []string) (got counts, output, said string) {
	if err := s.ready(r); err != nil {
		return counts{failed: 1}, "", fmt.Sprintf("   %v\n", err)
	}
	argv := s.command(r)
	for _, name := range cases {
		if r.Cases == Option {
			argv = append(argv, "-t")
		}
		argv = append(argv, name)
	}
	ended := s.start(r, argv)
	text, err := os.ReadFile(s.log(r))
	ended = errors.Join(ended, err)
	output = string(text)
	var wrong string
	if r.Count != Status || ended == nil {
		got, wrong = count(r.Count, output)
	}
	if ended != nil && (wrong != "" || got.failed == 0) {
		wrong = strings.TrimSuffix(fmt.Sprintf("%v; %s", ended, wrong), "; ")
	}
	if wrong != "" {
		got.failed = max(got.failed, 1)
		said = "   " + wrong + "\n"
	}
	if got.failed > 0 {
		return got, output, said + failures(output, 60) + "   the last lines:\n" + tail(output, 25)
	}
	return got, output, strings.Join(skipLine.FindAllString(output, 20), "")
}

// What of an output a user wants to see.
var (
	skipLine = regexp.MustCompile(`(?m)^.*(# SKIP|--- SKIP).*\n`)
	badLine  = regexp.MustCompile(`^not ok|^ *--- FAIL|panic|Error|error|ERROR|WARNING: `)
	goodLine = regexp.MustCompile(`^ok|^ *--- (PASS|SKIP)`)
	logLine  = regexp.MustCompile(`^(DBG|INFO|WARN|ERR): `)
)

// failures are the lines that say what failed, n at most. With each go the last 20 lines of the library's log, and the notes:
// those since a test before it passed, and those up to the next test that passes.
func failures(text string, n int) string {
	var bad, notes, log []string
	failed := false
	for line := range strings.Lines(text) {
		note := strings.HasPrefix(line, "# ")
		switch {
		case goodLine.MatchString(line):
			notes, log, failed = nil, nil, false
		case logLine.MatchString(line):
			log = append(log, line)
		case note && failed:
			bad = append(bad, line)
		case note:
			notes = append(notes, line)
		case badLine.MatchString(line):
			bad = append(slices.Concat(bad, notes, log[max(0, len(log)-20):]), line)
			notes, log, failed = nil, nil, true
		}
	}
	return strings.Join(bad[:min(n, len(bad))], "")
}

// tail are the last n lines.
func tail(text string, n int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n") + "\n"
}

// command is the row's command on its backend.
func (s *suite) command(r *row) (argv []string) {
	if r.backend == "rm" || r.Sim == RMDriver {
		argv = append(argv, filepath.Join(s.build, "doubles", "rm_sim"))
	}
	for _, word := range words(r) {
		switch word {
		case "$GO", "$MAKE":
			argv = append(argv, strings.Fields(os.Getenv(word[1:]))...)
		default:
			argv = append(argv, s.expand(r, word))
		}
	}
	return argv
}

// words are the command as the table has it.
func words(r *row) []string {
	if len(r.Cmd) == 0 {
		return []string{"$B/bin/" + r.group + "_" + r.Name}
	}
	return r.Cmd
}

// expand puts in what a word of the table stands for.
func (s *suite) expand(r *row, word string) string {
	return strings.NewReplacer("$BACKEND", r.backend, "$B", s.build, "$TOP", s.top).Replace(word)
}

func simulated(r *row) bool { return r.Sim != NoSim || r.backend != "" }

// environment is the row's: the doubles that it sees, then its own variables.
func (s *suite) environment(r *row) []string {
	env := os.Environ()
	doubles := filepath.Join(s.build, "doubles")
	if simulated(r) {
		env = append(env, "LD_LIBRARY_PATH="+doubles+":"+filepath.Join(s.build, r.Tree),
			"RM_SIM="+filepath.Join(doubles, "rm_sim"), "GDR_TEST_DOUBLES=1")
	}
	if r.backend != "" {
		env = append(env, "GDRCOPY_BACKEND="+r.backend)
	}
	// The library says why it refuses. A program whose test reads standard error sets this itself.
	if r.Count == TAP {
		env = append(env, "GDRCOPY_ENABLE_LOGGING=1", "GDRCOPY_LOG_LEVEL=3")
	}
	for _, variable := range r.Env {
		env = append(env, s.expand(r, variable))
	}
	return env
}

// start runs a command in a session of its own until it ends or is killed at its limit. Its
// output goes to the row's log. It returns nil for status 0.
func (s *suite) start(r *row, argv []string) error {
	log, err := os.Create(s.log(r))
	if err != nil {
		return err
	}
	defer log.Close()
	limit := cmp.Or(r.Limit, defaultLimit)
	if s.limit >= 0 {
		limit = s.limit
	}
	ctx := s.ctx
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(s.ctx, limit)
		defer cancel()
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = s.environment(r)
	cmd.Stdout, cmd.Stderr = log, log
	inSession(cmd)
	if err := cmd.Start(); err != nil {
		return err
	}
	err = cmd.Wait()
	// What it left behind ends with it.
	left := endSession(cmd.Process.Pid)
	switch {
	case s.ctx.Err() != nil:
		return fmt.Errorf("it was interrupted: %w", context.Cause(s.ctx))
	case ctx.Err() != nil:
		return fmt.Errorf("it took longer than %v", limit)
	}
	return errors.Join(err, left)
}

// inSession has a command run in a session of its own, which ends as a whole.
func inSession(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return endSession(cmd.Process.Pid) }
}

// endSession kills the processes of a session. Their groups do not tell: timeout and the
// guest programs make groups of their own. A process may fork meanwhile, so it looks again.
func endSession(session int) error {
	for range 1000 {
		stats, err := filepath.Glob("/proc/[0-9]*/stat")
		if err != nil {
			return err
		}
		found := false
		for _, path := range stats {
			text, err := os.ReadFile(path)
			if err != nil {
				continue // it has ended
			}
			// PID (NAME) STATE PPID PGRP SESSION
			fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
			if len(fields) < 4 || fields[3] != strconv.Itoa(session) || fields[0] == "Z" || fields[0] == "X" {
				continue
			}
			pid, err := strconv.Atoi(strings.Split(path, "/")[2])
			found = err == nil && syscall.Kill(pid, syscall.SIGKILL) == nil || found
		}
		if !found {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	return fmt.Errorf("processes of session %d do not end", session)
}

// cases are the names of the row's cases, which the program lists.
func (s *suite) cases(r *row) ([]string, error) {
	if r.Cases == Whole {
		return nil, nil
	}
	if err := s.ready(r); err != nil {
		return nil, err
	}
	argv := append(s.command(r), "-l")
	ctx, cancel := context.WithTimeout(s.ctx, time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = s.environment(r)
	listed, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s -l: %w", argv[0], err)
	}
	return strings.Split(strings.TrimSpace(string(listed)), "\n"), nil
}

// ready says why a row cannot be run: a program that is missing, or what does not build.
func (s *suite) ready(r *row) error {
	for _, program := range r.Needs {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%s is missing. Debian: apt-get install %s", program, packages(program))
		}
		// It is there, and may not be on a fresh system, where setup.sh is all that has run before make check.
		if owner, _, _ := strings.Cut(packages(program), " "); r.when == Check && !slices.Contains(s.given, owner) {
			return fmt.Errorf("%s runs in make check and needs %s, which setup.sh does not install (%s)", r.path(), program, packages(program))
		}
	}
	return s.made(targets(r))
}

// given are the packages that setup.sh names, and those of needs.txt that each Debian and Ubuntu has (dpkg's field Essential).
func given(setup string) []string {
	_, line, _ := strings.Cut(setup, "\npackages='")
	line, _, _ = strings.Cut(line, "'")
	return append(strings.Fields(line), "bsdutils", "dpkg")
}

//go:embed needs.txt
var needs string

// packages are those of Debian that a test wants with a program.
func packages(program string) string {
	for line := range strings.Lines(needs) {
		if name, names, ok := strings.Cut(strings.TrimSpace(line), " "); ok && name == program {
			return names
		}
	}
	return "the package that has it"
}

// targets are those of make that the row needs.
func targets(r *row) (all []string) {
	if first := words(r)[0]; strings.HasPrefix(first, "$B/") && !r.Built {
		all = append(all, first)
	}
	if simulated(r) && !r.Built {
		all = append(all, "doubles")
	}
	all = append(all, r.Make...)
	for i := range all {
		all[i] = strings.ReplaceAll(all[i], "$B", os.Getenv("B"))
	}
	return all
}

// want has these made with the next targets that are made.
func (s *suite) want(targets []string) {
	s.making.Lock()
	defer s.making.Unlock()
	s.wanted = append(s.wanted, targets...)
}

// made makes what all rows want that wait, in one call, so that make's jobs are used. What
// fails there is asked for again by the rows that need it.
func (s *suite) made(targets []string) error {
	s.making.Lock()
	defer s.making.Unlock()
	if len(s.wanted) > 0 {
		began := time.Now()
		err := s.make(append([]string{"-k", "-O", fmt.Sprintf("-j%d", runtime.NumCPU())}, s.wanted...))
		s.broken = s.broken || err != nil
		s.wanted = nil
		fmt.Fprintf(s.say, "built in %.0f s\n", time.Since(began).Seconds())
	}
	if !s.broken || len(targets) == 0 {
		return nil
	}
	return s.make(targets)
}

func (s *suite) make(args []string) error {
	argv := append(strings.Fields(os.Getenv("MAKE")), "-s", "--no-print-directory")
	for _, name := range []string{"B", "CC", "CXX", "GO"} {
		argv = append(argv, name+"="+os.Getenv(name))
	}
	cmd := exec.CommandContext(s.ctx, argv[0], append(argv[1:], args...)...)
	inSession(cmd)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("it cannot be built: make: %w\n%s", cmp.Or(context.Cause(s.ctx), err), tail(string(out), 25))
	}
	return nil
}
