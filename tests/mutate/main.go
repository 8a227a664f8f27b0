// Command mutate makes small wrong changes to a copy of the tree, one at a time, and
// counts those that the tests notice.
//
//	go run ./tests/mutate [-only TEXT] LIST
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
// With -only it makes the changes whose file or suite has TEXT in its name. It ends
// with status 1 below the goal, or where a change cannot be made or does not build.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	goal  = 95              // percent
	limit = 2 * time.Minute // of one command; a test that hangs has noticed
)

type suite struct{ build, test string }

type change struct {
	line     int // in the list
	file     string
	suite    string
	old, new string
}

func main() {
	only := flag.String("only", "", "make the changes whose file or suite has this in its name")
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	ok, err := run(flag.Arg(0), *only)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
	}
	if !ok || err != nil {
		os.Exit(1)
	}
}

func run(list, only string) (bool, error) {
	suites, changes, err := read(list)
	if err != nil {
		return false, err
	}
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(dir)
	if err := copyTree(dir); err != nil {
		return false, err
	}
	t := &tree{dir: dir, suites: suites, good: map[string]bool{}}
	if t.sim, err = t.output("make -s --no-print-directory mutate-sim"); err != nil {
		return false, err
	}
	noticed, made := 0, 0
	var failed []error
	for _, c := range changes {
		if !strings.Contains(c.file, only) && !strings.Contains(c.suite, only) {
			continue
		}
		seen, err := t.try(c)
		if err != nil {
			err = fmt.Errorf("%s:%d: %w", list, c.line, err)
			failed = append(failed, err)
			fmt.Println("error  ", err)
			continue
		}
		made++
		verdict := "MISSED "
		if seen {
			verdict = "noticed"
			noticed++
		}
		fmt.Printf("%s %s:%d %s (%s)\n", verdict, list, c.line, c.file, c.suite)
	}
	if made == 0 {
		return false, errors.Join(append(failed, errors.New("no change was made"))...)
	}
	fmt.Printf("%d of %d changes noticed, %d %%\n", noticed, made, noticed*100/made)
	return noticed*100 >= goal*made, errors.Join(failed...)
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
	dir, sim string
	suites   map[string]suite
	good     map[string]bool // suites that pass on the tree as it is
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

func (t *tree) output(line string) (string, error) {
	out, err := t.command(context.Background(), line).Output()
	return strings.TrimSpace(string(out)), err
}

func (t *tree) sh(line string) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	out, err := t.command(ctx, line).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", line, err, out[max(0, len(out)-2000):])
	}
	return err
}

// try makes a change, runs its suite and takes the change back.
func (t *tree) try(c change) (noticed bool, err error) {
	s := t.suites[c.suite]
	if !t.good[c.suite] {
		if err := errors.Join(t.sh(s.build), t.sh(s.test)); err != nil {
			return false, fmt.Errorf("the suite %s fails without a change: %w", c.suite, err)
		}
		t.good[c.suite] = true
	}
	path := filepath.Join(t.dir, c.file)
	text, err := os.ReadFile(path)
	if err != nil {
		return false, err
	}
	if n := strings.Count(string(text), c.old); n != 1 || c.old == "" {
		return false, fmt.Errorf("the old lines are %d times in %s", n, c.file)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(text), c.old, c.new, 1)), 0o666); err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, os.WriteFile(path, text, 0o666)) }()
	if err := t.sh(s.build); err != nil {
		return false, fmt.Errorf("does not build: %w", err)
	}
	return t.sh(s.test) != nil, nil
}
