package probe

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gdrapi/cmd/gdrcopy_doctor/internal/facts"
	"gdrapi/core/backend"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// opens is a backend whose sessions a test makes, and the session of one that is decided.
type opens struct {
	backend.Backend
	opened, closed int
	session        func(*opens) (backend.Session, error)
}

func (o *opens) Open() (backend.Session, error) { o.opened++; return o.session(o) }

type decided struct {
	backend.Session
	of *opens
}

func (d decided) Close() error { d.of.closed++; return nil }

type maybe struct {
	decided
	tentative bool
}

func (m maybe) Tentative() bool  { return m.tentative }
func (m maybe) ServesAny() error { return nil }

// Only a session that cannot say yet is opened anew.
func TestOpenDecided(t *testing.T) {
	for _, c := range []struct {
		name    string
		session func(o *opens) (backend.Session, error)
		closed  int
	}{
		{"no session", func(*opens) (backend.Session, error) { return nil, unix.ENODEV }, 0},
		{"one that has decided", func(o *opens) (backend.Session, error) { return decided{of: o}, nil }, 0},
		{"one that could say", func(o *opens) (backend.Session, error) { return maybe{decided{of: o}, false}, nil }, 0},
		{"one that cannot say yet", func(o *opens) (backend.Session, error) { return maybe{decided{of: o}, true}, nil }, 1},
	} {
		o := &opens{session: c.session}
		session, err := openDecided(o)
		require.Equal(t, c.closed, o.closed, c.name)
		if c.closed > 0 {
			continue // what comes then is CUDA's answer, if there is a CUDA here
		}
		require.Equal(t, 1, o.opened, c.name)
		want, wantErr := c.session(o)
		require.Equal(t, want, session, c.name)
		require.Equal(t, wantErr, err, c.name)
	}
}

// A child ends with 2 where it is not asked as a probe is, and with 1 where nobody gets its answer.
func TestChildsStatus(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	require.NoError(t, err)
	defer full.Close()
	for _, c := range []struct {
		args   []string
		status int
		said   string
	}{
		{nil, 2, "gdrcopy_doctor: a probe takes a name and an argument\n"},
		{[]string{"cuda"}, 2, "gdrcopy_doctor: a probe takes a name and an argument\n"},
		{[]string{"library", "libc.so.6", "more"}, 2, "gdrcopy_doctor: a probe takes a name and an argument\n"},
		{[]string{"weather", ""}, 2, "gdrcopy_doctor: there is no probe \"weather\"\n"},
		{[]string{"library", "libc.so.6"}, 1, "gdrcopy_doctor: write answer: no space left on device\n"},
	} {
		var errs strings.Builder
		cmd := exec.Command(self, append([]string{Flag}, c.args...)...)
		cmd.Stderr, cmd.ExtraFiles = &errs, []*os.File{full}
		_ = cmd.Run()
		require.Equal(t, c.status, cmd.ProcessState.ExitCode(), c.args)
		require.Equal(t, c.said, errs.String())
	}
}

// All that is asked, in order, and where the answers go.
func TestAllThatIsAsked(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	t.Setenv("ASKED", log)
	for _, c := range []struct {
		missing string // what the loader does not find
		libs    []string
		trials  []string
	}{
		{"-", []string{"library libgdrapi.so.2", "library libgdrapi.so", "library /u/libgdrapi.so.2"}, []string{"trial libgdrapi.so.2 as asked", "trial libgdrapi.so.2 gdrdrv"}},
		{"libgdrapi.so.2", []string{"library libgdrapi.so.2", "library libgdrapi.so", "library /u/libgdrapi.so.2", "library TOP/libgdrapi.so.2"}, []string{"trial TOP/libgdrapi.so.2 as asked", "trial TOP/libgdrapi.so.2 gdrdrv"}},
		{"libgdrapi.so", []string{"library libgdrapi.so.2", "library libgdrapi.so", "library /u/libgdrapi.so.2"}, []string{"trial libgdrapi.so.2 as asked", "trial libgdrapi.so.2 gdrdrv"}},
	} {
		t.Setenv("MISSING", c.missing)
		require.NoError(t, os.WriteFile(log, nil, 0o600))
		r := script(t, `case $2 in trial) echo "$2 $3 ${GDRCOPY_BACKEND:-as asked}" ;; *) echo "$2 $3" ;; esac >>"$ASKED"
			case $2$3 in
			cuda) echo '{"version": 1}' ;;
			nvml) echo '{"confidential": true}' ;;
			backenddmabuf) kill -BUS $$ ;;
			backendrm) echo '{"name": "rm", "error": "no"}' ;;
			backend*) echo "{\"name\": \"$3\"}" ;;
			library$MISSING) echo "{\"name\": \"$3\", \"error\": \"No such file\"}" ;;
			library*) echo "{\"name\": \"$3\", \"path\": \"$3\", \"ours\": true}" ;;
			trial*) echo '{"backend": "rm"}' ;;
			esac >&3`)
		t.Setenv("GDRCOPY_BACKEND", "")
		f := facts.Facts{Consumers: []facts.Consumer{{Name: "a"}, {Finds: "/u/libgdrapi.so.2"}, {Finds: "/u/libgdrapi.so.2"}}}
		r.All(&f)
		text, err := os.ReadFile(log)
		require.NoError(t, err)
		top := filepath.Dir(filepath.Dir(r.Program))
		asked := strings.Split(strings.TrimSpace(strings.ReplaceAll(string(text), top, "TOP")), "\n")
		require.Equal(t, slices.Concat([]string{"cuda ", "nvml ", "backend gdrdrv", "backend dmabuf", "backend rm"}, c.libs, c.trials), asked)
		require.Equal(t, facts.CUDA{Version: 1}, f.CUDA)
		require.Equal(t, facts.NVML{Confidential: true}, f.NVML)
		require.Equal(t, []facts.Backend{{Name: "gdrdrv"}, {Name: "dmabuf", Died: "it crashed (bus error)"}, {Name: "rm", Error: "no"}}, f.Backends)
		require.Len(t, f.Libraries, 3)
		require.Equal(t, c.missing == "libgdrapi.so.2", f.Beside.Path != "")
		require.Equal(t, []facts.Trial{{Backend: "rm"}, {Asked: "gdrdrv", Backend: "rm"}}, f.Trials)
	}
	// How each child died is noted where its answer would be.
	r := script(t, `kill -SEGV $$`)
	var f facts.Facts
	r.All(&f)
	const died = "it crashed (segmentation fault)"
	require.Equal(t, []string{died, died}, []string{f.CUDA.Died, f.NVML.Died})
	require.Equal(t, []facts.Backend{{Name: "gdrdrv", Died: died}, {Name: "dmabuf", Died: died}, {Name: "rm", Died: died}}, f.Backends)
	require.Equal(t, []facts.Library{{Name: "libgdrapi.so.2", Died: died}, {Name: "libgdrapi.so", Died: died}}, f.Libraries)
	require.Equal(t, facts.Library{}, f.Beside)
	require.Empty(t, f.Trials)
}
