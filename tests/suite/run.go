// SPDX-License-Identifier: MIT

package suite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// test runs a row as a subtest.
func (s *Suite) test(t *testing.T, r *row) {
	release := s.slots.take(r)
	defer release()
	args, picked, err := s.cases(r)
	if err == nil && !picked {
		s.keep(r, result{}, "")
		t.Skip("it has no case that -run picks")
	}
	var got result
	var said string
	if err != nil {
		got.failed, said = 1, fmt.Sprintf("   %v\n", err)
	} else {
		got, said = s.one(r, args)
	}
	s.keep(r, got, said)
	if got.failed > 0 {
		t.Errorf("%v; see %s", got.counts, s.log(r))
	}
}

// keep keeps a row's result and prints it.
func (s *Suite) keep(r *row, got result, said string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done[r.path] = got
	fmt.Fprintf(s.say, "%-34s %v, %.0f s\n%s", r.path, got.counts, got.took.Seconds(), said)
}

func (s *Suite) log(r *row) string {
	return filepath.Join(s.results, strings.ReplaceAll(r.path, "/", "-")+".log")
}

// one runs a row's command. said is what a user wants to know of it.
func (s *Suite) one(r *row, args []string) (got result, said string) {
	fail := func(why string) (result, string) {
		got.failed++
		return got, said + why
	}
	if lacking := lacks(r.Needs); lacking != "" {
		return fail(lacking)
	}
	if err := s.made.one(s.targets(r)); err != nil {
		return fail(fmt.Sprintf("   it cannot be built: %v\n", err))
	}
	began := time.Now()
	ended, err := s.start(r, append(s.command(r), args...))
	got.took = time.Since(began)
	text, readErr := os.ReadFile(s.log(r))
	if err := errors.Join(err, readErr); err != nil {
		return fail(fmt.Sprintf("   %v\n", err))
	}
	output := string(text)
	var wrong string
	if r.Count != Status || ended == "" {
		got.counts, wrong = count(r.Count, output)
	}
	switch {
	case wrong != "" && ended != "":
		wrong = ended + "; " + wrong
		fallthrough
	case wrong != "":
		got.failed = max(got.failed, 1)
	case ended != "" && got.failed == 0:
		got.failed, wrong = 1, ended
	}
	if wrong != "" {
		said = "   " + wrong + "\n"
		if program := missing(output); program != "" {
			said += lacks([]string{program})
		}
	}
	if got.failed > 0 {
		return got, said + excerpt(output)
	}
	return got, said + some(skipLine, output, 20)
}

// command is the row's command on its backend.
func (s *Suite) command(r *row) []string {
	var argv []string
	if r.backend == "rm" || r.Sim == RMDriver {
		argv = append(argv, filepath.Join(s.build, "doubles", "rm_sim"))
	}
	for _, word := range r.argv() {
		switch word {
		case "$GO", "$MAKE":
			argv = append(argv, strings.Fields(os.Getenv(word[1:]))...)
		default:
			argv = append(argv, s.expand(r, word))
		}
	}
	return argv
}

// argv is the command as the table has it.
func (r *row) argv() []string {
	if len(r.Cmd) == 0 {
		return []string{"$B/bin/" + r.group.Name + "_" + r.Name}
	}
	return r.Cmd
}

// expand puts in what a word of the table stands for.
func (s *Suite) expand(r *row, word string) string {
	return strings.NewReplacer("$BACKEND", r.backend, "$B", s.build, "$TOP", s.top).Replace(word)
}

// environment is the row's: the doubles that it sees, then its own variables.
func (s *Suite) environment(r *row) []string {
	env := os.Environ()
	doubles := filepath.Join(s.build, "doubles")
	if r.Sim != NoSim || r.backend != "" {
		env = append(env,
			"LD_LIBRARY_PATH="+doubles+":"+filepath.Join(s.build, r.Tree),
			"RM_SIM="+filepath.Join(doubles, "rm_sim"),
			"GDR_TEST_DOUBLES=1")
	}
	if r.backend != "" {
		env = append(env, "GDRCOPY_BACKEND="+r.backend)
	}
	for _, variable := range r.Env {
		env = append(env, s.expand(r, variable))
	}
	return env
}

// targets are those of make that the row needs.
func (s *Suite) targets(r *row) []string {
	var targets []string
	if argv := r.argv(); strings.HasPrefix(argv[0], "$B/") && !r.Built {
		targets = append(targets, argv[0])
	}
	if (r.Sim != NoSim || r.backend != "") && !r.Built {
		targets = append(targets, "doubles")
	}
	targets = append(targets, r.Make...)
	for i := range targets {
		targets[i] = strings.ReplaceAll(targets[i], "$B", os.Getenv("B"))
	}
	return targets
}

// start runs a command in a session of its own until it ends or is killed at its limit. Its output goes to the row's log. ended is empty for status 0.
func (s *Suite) start(r *row, argv []string) (ended string, err error) {
	log, err := os.Create(s.log(r))
	if err != nil {
		return "", err
	}
	defer log.Close()
	ctx, cancel := context.WithCancel(context.Background())
	limit := s.limit(r)
	if limit > 0 {
		ctx, cancel = context.WithTimeout(ctx, limit)
	}
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = s.environment(r)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return endSession(cmd.Process.Pid) }
	if err := cmd.Start(); err != nil {
		// The log says it as a shell would, for missing.
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
			fmt.Fprintf(log, "suite: %s: not found\n", argv[0])
			return "a program is missing", nil
		}
		return "", err
	}
	s.session(cmd.Process.Pid, true)
	defer s.session(cmd.Process.Pid, false)
	err = cmd.Wait()
	// What it left behind ends with it.
	if err := endSession(cmd.Process.Pid); err != nil {
		return "", err
	}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return fmt.Sprintf("it took longer than %v", limit), nil
	case errors.As(err, &exit):
		return ending(exit.Sys().(syscall.WaitStatus)), nil
	}
	return "", err
}

// ending says what a status other than 0 means.
func ending(status syscall.WaitStatus) string {
	switch {
	case status.Signaled():
		return fmt.Sprintf("signal %d (%v)", status.Signal(), status.Signal())
	case status.ExitStatus() == 126 || status.ExitStatus() == 127:
		return fmt.Sprintf("status %d: a program is missing or cannot be run", status.ExitStatus())
	case status.ExitStatus() > 128:
		signal := syscall.Signal(status.ExitStatus() - 128)
		return fmt.Sprintf("signal %d (%v)", signal, signal)
	}
	return fmt.Sprintf("status %d", status.ExitStatus())
}

func (s *Suite) session(pid int, runs bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if runs {
		s.sessions[pid] = true
	} else {
		delete(s.sessions, pid)
	}
}

func (s *Suite) killAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for pid := range s.sessions {
		endSession(pid)
	}
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
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
				found = syscall.Kill(pid, syscall.SIGKILL) == nil || found
			}
		}
		if !found {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	return fmt.Errorf("processes of session %d do not end", session)
}

// cases are the arguments by which a row runs only the cases that -run picks.
func (s *Suite) cases(r *row) (args []string, picked bool, err error) {
	_, more := picks(s.run, "Test_"+r.path, false)
	if len(more) == 0 {
		return nil, true, nil
	}
	if r.Cases == Whole {
		return nil, false, fmt.Errorf("%s runs as a whole: no case of it can be picked", r.path)
	}
	if lacking := lacks(r.Needs); lacking != "" {
		return nil, false, errors.New(lacking)
	}
	if err := s.made.one(s.targets(r)); err != nil {
		return nil, false, fmt.Errorf("it cannot be built: %w", err)
	}
	listed, err := s.list(r)
	if err != nil {
		return nil, false, err
	}
	for _, name := range strings.Split(strings.TrimSpace(string(listed)), "\n") {
		for _, pattern := range more {
			if ok, err := regexp.MatchString(blank(pattern), blank(name)); err != nil || !ok {
				continue
			}
			if r.Cases == Option {
				args = append(args, "-t")
			}
			args = append(args, name)
			break
		}
	}
	return args, len(args) > 0, nil
}

// list has the program print its cases.
func (s *Suite) list(r *row) ([]byte, error) {
	argv := append(s.command(r), "-l")
	ctx, cancel := context.WithTimeout(context.Background(), listLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = s.environment(r)
	cmd.WaitDelay = time.Second // for children that keep its output open
	listed, err := cmd.Output()
	if ctx.Err() != nil {
		err = fmt.Errorf("it took longer than %v", listLimit)
	}
	if err != nil {
		return nil, fmt.Errorf("%s -l: %w", argv[0], err)
	}
	return listed, nil
}

var listLimit = time.Minute // Tests replace it.

// What of an output a user wants to see.
var (
	skipLine = regexp.MustCompile(`# SKIP|--- SKIP`)
	badLine  = regexp.MustCompile(`^not ok|^ *--- FAIL|panic|Error|error|ERROR|WARNING: `)
)

// some are the first lines, n at most, that match.
func some(what *regexp.Regexp, text string, n int) string {
	var b strings.Builder
	for _, line := range strings.Split(text, "\n") {
		if n > 0 && what.MatchString(line) {
			b.WriteString(line + "\n")
			n--
		}
	}
	return b.String()
}

// tail are the last n lines.
func tail(text string, n int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n") + "\n"
}

func excerpt(text string) string {
	return some(badLine, text, 40) + "   the last lines:\n" + tail(text, 25)
}

// makes calls make.
type makes struct {
	log  string
	jobs int

	mu     sync.Mutex
	failed bool             // the call for all targets
	each   map[string]error // calls for one row after that, by its targets
}

// all makes what the rows need in one call, so that nothing is made twice and make's jobs
// are used. What fails there is asked for again by the rows that need it.
func (m *makes) all(targets []string, say io.Writer) {
	seen := map[string]bool{}
	var distinct []string
	for _, t := range targets {
		if !seen[t] {
			distinct = append(distinct, t)
		}
		seen[t] = true
	}
	if len(distinct) == 0 {
		return
	}
	began := time.Now()
	err := m.call(append([]string{"-k", "-O", fmt.Sprintf("-j%d", m.jobs)}, distinct...))
	if err != nil {
		m.failed = true
		fmt.Fprintf(say, "some of it does not build; see %s\n", m.log)
	}
	fmt.Fprintf(say, "built in %.0f s\n", time.Since(began).Seconds())
}

func (m *makes) one(targets []string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.failed || len(targets) == 0 {
		return nil
	}
	key := strings.Join(targets, " ")
	err, known := m.each[key]
	if !known {
		err = m.call(targets)
		if m.each == nil {
			m.each = map[string]error{}
		}
		m.each[key] = err
		return err
	}
	if err != nil {
		err = errors.New("make says why above")
	}
	return err
}

func (m *makes) call(args []string) error {
	argv := append(strings.Fields(os.Getenv("MAKE")), "-s", "--no-print-directory")
	cmd := exec.Command(argv[0], append(argv[1:], args...)...)
	out, err := cmd.CombinedOutput()
	if logErr := m.note(out); logErr != nil {
		return logErr
	}
	if err != nil {
		return fmt.Errorf("make: %w\n%s", err, tail(string(out), 25))
	}
	return nil
}

// note adds what a call said to the log.
func (m *makes) note(said []byte) error {
	log, err := os.OpenFile(m.log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o666)
	if err != nil {
		return err
	}
	_, err = log.Write(said)
	return errors.Join(err, log.Close())
}
