// SPDX-License-Identifier: MIT

// Command mutate makes small wrong changes to a copy of the tree, one at a time, and
// counts those that the tests notice.
//
//	go run ./tests/mutate [-only TEXT] [-part K/N] LIST
//	go run ./tests/mutate -share TEXT -for TIME LIST
//
// LIST has two kinds of blocks. A suite says how some tests are built and run, by
// the shell, in the copy; $SIM stands for the simulated drivers' environment:
//
//	suite NAME
//	build COMMAND
//	test COMMAND
//
// A change names a file and the suite that must fail. Its lines with a minus are in
// the file once, and those with a plus replace them:
//
//	change FILE NAME
//	-	old
//	+	new
//
// With -only it makes the changes whose file or suite has TEXT in its name, with -part the
// K-th of N parts of the list. A part is of neighbours in the list: they have few suites.
// A suite must pass before its first change and after its last one. A test that does not
// end within ten times what the suite takes unchanged, or [leastLimit], has noticed.
// The status is 1 if a change was not noticed, cannot be made, or was not tried.
//
// With -share it begins at a change that TEXT picks and begins no other after TIME. A change
// that is not noticed was there before the commit that runs this. So nothing fails: the
// output is TAP, and what was not noticed is skipped and says so.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	buildLimit = 10 * time.Minute
	leastLimit = 30 * time.Second // of a test; no suite takes longer unchanged, with room to spare
)

type suite struct{ build, test string }

type change struct {
	line     int // in the list
	file     string
	suite    string
	old, new string
}

// verdict is what became of a change.
type verdict int

const (
	noticed verdict = iota
	hung            // noticed at the limit of time
	missed
	untried
)

func (v verdict) String() string { return [...]string{"noticed", "hung", "MISSED", "ERROR"}[v] }

// result is a change and its verdict; why says why it was not tried.
type result struct {
	change
	verdict verdict
	why     error
}

func main() {
	only := flag.String("only", "", "make the changes whose file or suite has `TEXT` in its name")
	part := flag.String("part", "1/1", "make the changes of part `K/N` of the list")
	share := flag.String("share", "", "begin at a change that `TEXT` picks; nothing fails")
	long := flag.Duration("for", 150*time.Second, "with -share: begin no change after this `TIME`")
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	if *share != "" {
		fmt.Print(tap(runShare(flag.Arg(0), *share, *long)))
		return
	}
	if err := run(flag.Arg(0), *only, *part); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

func run(list, only, part string) error {
	suites, changes, err := read(list)
	if err != nil {
		return err
	}
	changes = slices.DeleteFunc(changes, func(c change) bool {
		return !strings.Contains(c.file, only) && !strings.Contains(c.suite, only)
	})
	if changes, err = partOf(changes, part); err != nil {
		return err
	}
	if len(changes) == 0 {
		return errors.New("no change was picked")
	}
	t, err := newTree(context.Background(), suites)
	if err != nil {
		return err
	}
	defer t.remove()
	results, err := t.tryAll(list, changes, time.Time{})
	if err != nil {
		return err
	}
	return summary(list, results)
}

// summary prints what failed again, and the counts. Its error says that something did.
func summary(list string, results []result) error {
	var n [untried + 1]int
	for _, r := range results {
		n[r.verdict]++
		if r.verdict >= missed {
			fmt.Println(line(list, r))
		}
	}
	fmt.Printf("%d changes: %d noticed, %d of them hung, %d MISSED, %d not tried\n",
		len(results), n[noticed]+n[hung], n[hung], n[missed], n[untried])
	if bad := n[missed] + n[untried]; bad > 0 {
		return fmt.Errorf("%d changes were not noticed or not tried", bad)
	}
	return nil
}

func line(list string, r result) string {
	s := fmt.Sprintf("%-7v %s:%d %s (%s)", r.verdict, list, r.line, r.file, r.suite)
	if r.why != nil {
		s += ": " + r.why.Error()
	}
	return s
}

// partOf is part K of N of the changes: "K/N".
func partOf(changes []change, part string) ([]change, error) {
	var k, n int
	var rest string
	if got, _ := fmt.Sscanf(part+" .", "%d/%d %s", &k, &n, &rest); got != 3 || rest != "." || k < 1 || k > n {
		return nil, fmt.Errorf("-part %s: it takes K/N, from 1/N to N/N", part)
	}
	return changes[len(changes)*(k-1)/n : len(changes)*k/n], nil
}

// runShare makes the changes from one that text picks, around the list, as long as said. At
// twice that time what still runs is ended.
func runShare(list, text string, long time.Duration) ([]result, error) {
	end := time.Now().Add(long)
	ctx, cancel := context.WithDeadline(context.Background(), end.Add(long))
	defer cancel()
	suites, changes, err := read(list)
	if err != nil || len(changes) == 0 {
		return nil, err
	}
	t, err := newTree(ctx, suites)
	if err != nil {
		return nil, err
	}
	defer t.remove()
	return t.tryAll(list, turned(changes, text), end)
}

// turned is the list from the change that text picks, and then from its begin.
func turned(changes []change, text string) []change {
	h := fnv.New32a()
	h.Write([]byte(text))
	at := int(h.Sum32() % uint32(len(changes)))
	return slices.Concat(changes[at:], changes[:at])
}

// tap says as TAP what a share found. No line is a failure.
func tap(results []result, err error) string {
	var b strings.Builder
	passed, skipped := 0, 0
	one := func(name, skip string) {
		if skip == "" {
			passed++
		} else {
			skipped++
			skip = " # SKIP " + strings.ReplaceAll(skip, "\n", " ")
		}
		fmt.Fprintf(&b, "ok %d - %s%s\n", passed+skipped, name, skip)
	}
	for _, r := range results {
		name := fmt.Sprintf("%s, line %d (%s)", r.file, r.line, r.suite)
		switch r.verdict {
		case missed:
			one(name, "NOT NOTICED: the suite passes with this change")
		case untried:
			one(name, "not tried: "+r.why.Error())
		default:
			one(name, "")
		}
	}
	if err != nil {
		one("the share", err.Error())
	} else if len(results) == 0 {
		one("the share", "there was no time for a change")
	}
	fmt.Fprintf(&b, "1..%d\n%d passed, 0 failed, %d skipped\n", passed+skipped, passed, skipped)
	return b.String()
}

// read parses a list.
func read(path string) (map[string]suite, []change, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	suites := map[string]suite{}
	var changes []change
	var name string
	for i, line := range strings.Split(string(text), "\n") {
		wrong := fmt.Errorf("%s:%d: not understood: %s", path, i+1, line)
		word, rest, _ := strings.Cut(line, " ")
		s := suites[name]
		switch {
		case line == "" || line[0] == '#':
		case line[0] == '-' || line[0] == '+':
			if len(changes) == 0 {
				return nil, nil, wrong
			}
			c := &changes[len(changes)-1]
			if line[0] == '-' {
				c.old += line[1:] + "\n"
			} else {
				c.new += line[1:] + "\n"
			}
		case word == "suite":
			name = rest
			suites[name] = suite{}
		case word == "build":
			s.build = rest
			suites[name] = s
		case word == "test":
			s.test = rest
			suites[name] = s
		case word == "change":
			file, suite, ok := strings.Cut(rest, " ")
			if _, known := suites[suite]; !ok || !known {
				return nil, nil, wrong
			}
			changes = append(changes, change{line: i + 1, file: file, suite: suite})
		default:
			return nil, nil, wrong
		}
	}
	return suites, changes, nil
}

// copyTree copies what git tracks, and what is new and not ignored.
func copyTree(dir string) error {
	out, err := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		return fmt.Errorf("git ls-files: %w", err)
	}
	cp := exec.Command("xargs", "-0", "cp", "-a", "--parents", "-t", dir)
	cp.Stdin = bytes.NewReader(out)
	cp.Stderr = os.Stderr
	return cp.Run()
}

// tree is the copy.
type tree struct {
	ctx    context.Context // ends with a signal, and a share's at its limit
	stop   context.CancelFunc
	dir    string
	sim    string
	suites map[string]suite
}

func newTree(ctx context.Context, suites map[string]suite) (*tree, error) {
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // some tests run as another user
		return nil, errors.Join(err, os.Remove(dir))
	}
	t := &tree{dir: dir, suites: suites}
	t.ctx, t.stop = signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	if err = copyTree(dir); err == nil {
		var out []byte
		out, err = t.command(t.ctx, "make -s --no-print-directory mutate-sim").Output()
		t.sim = strings.TrimSpace(string(out))
	}
	if err != nil {
		t.remove()
		return nil, fmt.Errorf("copy of the tree: %w", err)
	}
	return t, nil
}

func (t *tree) remove() {
	t.stop()
	os.RemoveAll(t.dir)
}

func (t *tree) command(ctx context.Context, line string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "sh", "-c", line)
	cmd.Dir = t.dir
	cmd.Env = append(os.Environ(), "SIM="+t.sim)
	// What a test has started ends with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	return cmd
}

// sh runs a line. Its error has the end of the output.
func (t *tree) sh(line string, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(t.ctx, limit)
	defer cancel()
	out, err := t.command(ctx, line).CombinedOutput()
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", line, err, out[max(0, len(out)-2000):])
	}
	return err
}

// tryAll makes the changes one by one, those of a suite together, and begins none after
// end, unless that is 0. Its error says that it was ended early.
func (t *tree) tryAll(list string, changes []change, end time.Time) ([]result, error) {
	var all []result
	for len(changes) > 0 && (end.IsZero() || time.Now().Before(end)) {
		n := 1
		for n < len(changes) && changes[n].suite == changes[0].suite {
			n++
		}
		all = append(all, t.trySuite(list, changes[:n], end)...)
		if err := t.ctx.Err(); err != nil {
			return all, fmt.Errorf("ended early: %w", err)
		}
		changes = changes[n:]
	}
	return all, nil
}

// trySuite makes changes of one suite. A suite that fails unchanged has noticed nothing.
func (t *tree) trySuite(list string, changes []change, end time.Time) []result {
	s := t.suites[changes[0].suite]
	var results []result
	took, err := t.unchanged(s)
	for _, c := range changes {
		if len(results) > 0 && !end.IsZero() && time.Now().After(end) {
			break
		}
		r := result{change: c, verdict: untried, why: err}
		if err == nil {
			r.verdict, r.why = t.try(c, max(leastLimit, 10*took))
		}
		results = append(results, r)
		if end.IsZero() {
			fmt.Println(line(list, r))
		}
	}
	if err == nil {
		_, err = t.unchanged(s)
		for i := range results {
			if err != nil && results[i].verdict <= hung {
				results[i].verdict, results[i].why = untried, err
			}
		}
	}
	return results
}

// unchanged builds and runs a suite on the tree as it is, and says how long it ran.
func (t *tree) unchanged(s suite) (time.Duration, error) {
	if err := t.sh(s.build, buildLimit); err != nil {
		return 0, fmt.Errorf("unchanged it does not build: %w", err)
	}
	began := time.Now()
	if err := t.sh(s.test, buildLimit); err != nil {
		return 0, fmt.Errorf("the suite fails without a change: %w", err)
	}
	return time.Since(began), nil
}

// try makes a change, runs its suite and takes the change back.
func (t *tree) try(c change, limit time.Duration) (v verdict, err error) {
	path := filepath.Join(t.dir, c.file)
	text, err := os.ReadFile(path)
	if err != nil {
		return untried, err
	}
	if n := strings.Count(string(text), c.old); n != 1 || c.old == "" {
		return untried, fmt.Errorf("the old lines are %d times in the file", n)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(text), c.old, c.new, 1)), 0o666); err != nil {
		return untried, err
	}
	defer func() {
		if e := os.WriteFile(path, text, 0o666); e != nil {
			v, err = untried, e
		}
	}()
	if err := t.sh(t.suites[c.suite].build, buildLimit); err != nil {
		return untried, fmt.Errorf("it does not build: %w", err)
	}
	err = t.sh(t.suites[c.suite].test, limit)
	switch {
	case err == nil:
		return missed, nil
	case t.ctx.Err() != nil:
		return untried, fmt.Errorf("ended early: %w", t.ctx.Err())
	case errors.Is(err, context.DeadlineExceeded):
		return hung, nil
	}
	return noticed, nil
}
