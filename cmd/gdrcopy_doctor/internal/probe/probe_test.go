package probe

import (
	"cmp"
	"os"
	"path/filepath"
	"testing"
	"time"

	"gdrapi/cmd/gdrcopy_doctor/internal/facts"

	"github.com/stretchr/testify/require"
)

// script is a child that is a shell script.
func script(t *testing.T, text string) Runner {
	t.Helper()
	file := filepath.Join(t.TempDir(), "child")
	require.NoError(t, os.WriteFile(file, []byte("#!/bin/sh\n"+text+"\n"), 0o700))
	return Runner{Program: file, Limit: time.Minute}
}

func TestHowAChildEnds(t *testing.T) {
	for _, c := range []struct{ script, want string }{
		{`echo '{"path": "/x"}' >&3`, ""},
		{`echo noise; echo noise >&2; echo '{"path": "/x"}' >&3`, ""},
		{`kill -SEGV $$`, "it crashed (segmentation fault)"},
		{`echo 'SIGSEGV: segmentation violation' >&2; exit 2`, "it crashed (SIGSEGV)"},
		{`printf 'fatal error: unexpected signal\n[signal SIGBUS: bus error code=0x1]\n' >&2; exit 2`, "it crashed (SIGBUS)"},
		{`echo 'a driver says: no'; exit 3`, "it failed (exit status 3): a driver says: no"},
		{`exit 4`, "it failed (exit status 4)"},
		{`echo garbage >&3`, "it ended without an answer"},
		{`exit 0`, "it ended without an answer"},
	} {
		var l facts.Library
		require.Equal(t, c.want, script(t, c.script).run(&l, "any", ""), c.script)
		if c.want == "" {
			require.Equal(t, "/x", l.Path)
		}
	}
}

func TestChildThatHangs(t *testing.T) {
	r := script(t, "exec sleep 100")
	r.Limit = 100 * time.Millisecond
	require.Equal(t, "it gave no answer in 100ms", r.run(new(facts.Library), "any", ""))
}

// A driver's own process that outlives the child holds its pipes: the answer counts. One that
// holds the descriptor of the answer keeps it from its end.
func TestChildThatLeavesOneBehind(t *testing.T) {
	for _, c := range []struct{ script, want string }{
		{`sleep 15 3>&- & echo '{"path": "/x"}' >&3`, ""},
		{`sleep 15 3>&- & echo no >&2; exit 5`, "it failed (exit status 5): no"},
		{`sleep 15 >/dev/null 2>&1 & echo '{"path": "/x"}' >&3`, "it ended without an answer"},
	} {
		r := script(t, c.script)
		r.Limit = 10 * time.Second
		require.Equal(t, c.want, r.run(new(facts.Library), "any", ""), c.script)
	}
}

// What a child is given: its name, its argument, and this environment without Go's traces.
func TestWhatAChildIsGiven(t *testing.T) {
	t.Setenv("GDR_GIVEN", "yes")
	var l facts.Library
	r := script(t, `echo "{\"path\": \"$* $GDR_GIVEN $GOTRACEBACK\"}" >&3`)
	require.Equal(t, "", r.run(&l, "library", "lib a.so"))
	require.Equal(t, "--probe library lib a.so yes none", l.Path)
}

// What a child writes is kept to a limit, and never makes it wait.
func TestChildThatSaysMuch(t *testing.T) {
	said := new(head)
	died := script(t, `yes | head -c 1000000; echo '{}' >&3`).child(new(facts.Library), said, nil, "any", "")
	require.Equal(t, "", died)
	require.Equal(t, 64<<10, len(said.String()))
}

func TestTrialKeepsTheLog(t *testing.T) {
	library := facts.Library{Name: "libgdrapi.so.2", Edited: true}
	trial := script(t, `[ "$GDRCOPY_ENABLE_LOGGING$GDRCOPY_LOG_LEVEL$GDRCOPY_BACKEND" = 12rm ] || exit 9
		printf 'ERR:  gdr_open: no\na driver says more\nDBG:  a\n ERR: no\nERR:none\nINFO: b\n' >&2
		echo WARN: c; echo '{"step": "gdr_open"}' >&3`).trial(library, "rm")
	require.Equal(t, facts.Trial{Of: library, Asked: "rm", Step: "gdr_open", Log: []string{"ERR:  gdr_open: no", "DBG:  a", "INFO: b", "WARN: c"}}, trial)
	require.False(t, trial.Worked())
	// One that ends badly is no answer, and its log is kept.
	trial = script(t, `echo 'ERR:  gdr_map: no' >&2; exit 7`).trial(library, "")
	require.Equal(t, facts.Trial{Of: library, Died: "it failed (exit status 7): ERR:  gdr_map: no", Log: []string{"ERR:  gdr_map: no"}}, trial)
	require.False(t, trial.Worked())
}

// The library is tried as it is, then with each other backend that opens.
func TestTrials(t *testing.T) {
	r := script(t, `echo "{\"backend\": \"${GDRCOPY_BACKEND:-dmabuf}\", \"error\": \"$3\"}" >&3`)
	backends := []facts.Backend{{Name: "gdrdrv", Error: "no"}, {Name: "dmabuf"}, {Name: "rm"}}
	for _, tc := range []struct {
		name    string
		library facts.Library
		beside  facts.Library
		want    []facts.Trial
	}{
		{"ours", facts.Library{Name: "a", Ours: true}, facts.Library{}, []facts.Trial{{Backend: "dmabuf", Error: "a"}, {Asked: "rm", Backend: "rm", Error: "a"}}},
		{"another's", facts.Library{Name: "a"}, facts.Library{}, []facts.Trial{{Backend: "dmabuf", Error: "a"}}},
		{"none", facts.Library{Name: "a", Error: "No such file"}, facts.Library{}, nil},
		{"one that crashes", facts.Library{Name: "a", Died: "it crashed"}, facts.Library{}, nil},
		{"one beside", facts.Library{Name: "a", Error: "No such file"}, facts.Library{Name: "b", Path: "/b", Ours: true},
			[]facts.Trial{{Backend: "dmabuf", Error: "b"}, {Asked: "rm", Backend: "rm", Error: "b"}}},
	} {
		f := &facts.Facts{Backends: backends, Libraries: []facts.Library{tc.library}, Beside: tc.beside}
		for i := range tc.want {
			tc.want[i].Of = cmp.Or(tc.beside, tc.library)
		}
		require.Equal(t, tc.want, r.trials(f), tc.name)
	}
}
