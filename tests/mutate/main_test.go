package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Each change of the list can be made: its lines are in the file once.
func TestEachChangeCanBeMade(t *testing.T) {
	suites, changes, err := read("changes.txt")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(changes), 100)
	for _, c := range changes {
		text, err := os.ReadFile(filepath.Join("..", "..", c.file))
		require.NoError(t, err, "line %d", c.line)
		require.Equal(t, 1, strings.Count(string(text), c.old), "changes.txt:%d: %s", c.line, c.file)
		require.NotEqual(t, c.old, c.new, "line %d", c.line)
		require.NotEmpty(t, suites[c.suite].test, "line %d", c.line)
		require.NotEmpty(t, suites[c.suite].build, "line %d", c.line)
	}
}

// What becomes of changes, in a tree that is one file and whose tests are the shell's.
func TestVerdicts(t *testing.T) {
	const good = "one\ntwo\nthree\n"
	suites := map[string]suite{
		"two":     {"true", "grep -q two file"},
		"builds":  {"grep -q one file", "grep -q two file"},
		"waits":   {"true", "grep -q two file || sleep 600"},
		"fails":   {"true", "false"},
		"worsens": {"true", "grep -q two file && echo x >>runs && [ $(wc -l <runs) -le 2 ]"},
	}
	for _, tt := range []struct {
		name, suite, old, new string
		want                  verdict
		why                   string
	}{
		{"noticed", "two", "two\n", "2\n", noticed, ""},
		{"missed", "two", "one\n", "1\n", missed, ""},
		{"hung", "waits", "two\n", "2\n", hung, ""},
		{"does not build", "builds", "one\n", "1\n", untried, "it does not build"},
		{"the lines are gone", "two", "four\n", "4\n", untried, "0 times in the file"},
		{"the lines are there twice", "two", "o", "0", untried, "2 times in the file"},
		{"the suite fails unchanged", "fails", "two\n", "2\n", untried, "the suite fails without a change"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tr := &tree{ctx: t.Context(), dir: t.TempDir(), suites: suites}
			file := filepath.Join(tr.dir, "file")
			require.NoError(t, os.WriteFile(file, []byte(good), 0o666))
			c := change{file: "file", suite: tt.suite, old: tt.old, new: tt.new}
			var r result
			if tt.want == hung {
				// The limit for a test that waits for ever.
				r.verdict, r.why = tr.try(c, time.Second)
			} else {
				r = tr.trySuite("list", []change{c}, time.Time{})[0]
			}
			require.Equal(t, tt.want, r.verdict, "%v", r.why)
			if tt.why != "" {
				require.ErrorContains(t, r.why, tt.why)
			}
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, good, string(text), "the change was taken back")
		})
	}
	t.Run("the suite fails at the end", func(t *testing.T) {
		tr := &tree{ctx: t.Context(), dir: t.TempDir(), suites: suites}
		require.NoError(t, os.WriteFile(filepath.Join(tr.dir, "file"), []byte(good), 0o666))
		for _, r := range tr.trySuite("list", []change{
			{file: "file", suite: "worsens", old: "two\n", new: "2\n"},
			{file: "file", suite: "worsens", old: "one\n", new: "1\n"},
		}, time.Time{}) {
			require.Equal(t, map[string]verdict{"one\n": missed, "two\n": untried}[r.old], r.verdict)
		}
	})
	t.Run("a signal", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		tr := &tree{ctx: ctx, dir: t.TempDir(), suites: suites}
		results, err := tr.tryAll("list", []change{{file: "file", suite: "two", old: "two\n"}, {suite: "fails"}}, time.Time{})
		require.Error(t, err)
		require.Len(t, results, 1)
		require.Equal(t, untried, results[0].verdict)
	})
	t.Run("the time is over", func(t *testing.T) {
		tr := &tree{ctx: t.Context(), dir: t.TempDir(), suites: suites}
		results, err := tr.tryAll("list", []change{{file: "file", suite: "two"}}, time.Now())
		require.NoError(t, err)
		require.Empty(t, results)
	})
}

// The parts are the list, and a share begins anywhere in it.
func TestPartsAndShares(t *testing.T) {
	var all []change
	for i := range 23 {
		all = append(all, change{line: i})
	}
	for n := 1; n <= 30; n++ {
		var parts []change
		for k := 1; k <= n; k++ {
			p, err := partOf(all, fmt.Sprintf("%d/%d", k, n))
			require.NoError(t, err)
			parts = append(parts, p...)
		}
		require.Equal(t, all, parts)
	}
	for _, bad := range []string{"", "1", "0/2", "3/2", "1/0", "-1/2", "1/2/3", "a/b"} {
		_, err := partOf(all, bad)
		require.ErrorContains(t, err, "K/N", "%q", bad)
	}
	begins := map[int]bool{}
	for i := range 1000 {
		share := turned(all, fmt.Sprint("commit ", i))
		require.ElementsMatch(t, all, share)
		begins[share[0].line] = true
	}
	require.Len(t, begins, len(all))
}

// What was not noticed or not tried is a failure of make mutate.
func TestSummary(t *testing.T) {
	require.NoError(t, summary("list", []result{{verdict: noticed}, {verdict: hung}}))
	require.Error(t, summary("list", []result{{verdict: noticed}, {verdict: missed}}))
	require.Error(t, summary("list", []result{{verdict: noticed}, {verdict: untried}}))
}

// A share fails nothing, and hides nothing.
func TestTAP(t *testing.T) {
	c := change{line: 7, file: "f.c", suite: "s"}
	require.Equal(t, `ok 1 - f.c, line 7 (s)
ok 2 - f.c, line 7 (s) # SKIP NOT NOTICED: the suite passes with this change
ok 3 - f.c, line 7 (s) # SKIP not tried: no space left
1..3
1 passed, 0 failed, 2 skipped
`, tap([]result{{change: c}, {change: c, verdict: missed}, {change: c, verdict: untried, why: errors.New("no\nspace left")}}, nil))
	require.Contains(t, tap([]result{{change: c}}, errors.New("ended early")), "ok 2 - the share # SKIP ended early")
	require.Contains(t, tap(nil, nil), "# SKIP there was no time")
}
