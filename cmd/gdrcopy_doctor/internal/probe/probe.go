// Package probe asks drivers and libraries. It asks each in a child of this program,
// for what is broken may crash or hang.
//
// A child is this program with the arguments "--probe NAME ARGUMENT". It writes its
// answer, as JSON, to descriptor 3: drivers may write to the others.
package probe

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"gdrapi/cmd/gdrcopy_doctor/internal/facts"
	"gdrapi/core"
)

// Flag is the first argument of a child.
const Flag = "--probe"

const answerFD = 3

// Runner runs children.
type Runner struct {
	Program string        // this program's file
	Limit   time.Duration // that a child may take
}

// All asks everything, and adds the answers to f.
func (r Runner) All(f *facts.Facts) {
	f.CUDA.Died = r.run(&f.CUDA, "cuda", "")
	f.NVML.Died = r.run(&f.NVML, "nvml", "")
	for _, known := range core.Backends(core.Options{}) {
		b := facts.Backend{Name: known.Name()}
		b.Died = r.run(&b, "backend", b.Name)
		f.Backends = append(f.Backends, b)
	}
	names := slices.Clone(facts.LibraryNames)
	for _, c := range f.Consumers {
		if c.Finds != "" && !slices.Contains(names, c.Finds) {
			names = append(names, c.Finds)
		}
	}
	for _, name := range names {
		l := facts.Library{Name: name}
		l.Died = r.run(&l, "library", name)
		f.Libraries = append(f.Libraries, l)
	}
	if strings.Contains(f.Libraries[0].Error, "No such file") {
		f.Beside, f.Built = r.beside()
	}
	f.Trials = r.trials(f)
}

// beside is the library in the folder above this program's, as in the tree that it was built in, or in
// lib there, as where it was installed. built says which.
func (r Runner) beside() (l facts.Library, built bool) {
	above := filepath.Dir(filepath.Dir(r.Program))
	for _, dir := range []string{above, filepath.Join(above, "lib")} {
		l := facts.Library{Name: filepath.Join(dir, facts.LibraryNames[0])}
		if l.Died = r.run(&l, "library", l.Name); l.Died == "" && l.Error == "" {
			return l, dir == above
		}
	}
	return facts.Library{}, false
}

// trials tries the library as it is, and then each other backend that opens.
func (r Runner) trials(f *facts.Facts) []facts.Trial {
	library := f.Libraries[0]
	if f.Beside.Path != "" {
		library = f.Beside
	}
	if library.Error != "" || library.Died != "" {
		return nil
	}
	all := []facts.Trial{r.trial(library, "")}
	if !library.Ours {
		return all
	}
	for _, b := range f.Backends {
		if b.Error == "" && b.Died == "" && b.Name != all[0].Backend {
			all = append(all, r.trial(library, b.Name))
		}
	}
	return all
}

// trial has a child use a library, with the backend that is asked for; "" for none.
func (r Runner) trial(library facts.Library, backend string) facts.Trial {
	var t facts.Trial
	env := []string{"GDRCOPY_ENABLE_LOGGING=1", "GDRCOPY_LOG_LEVEL=2"}
	if backend != "" {
		env = append(env, "GDRCOPY_BACKEND="+backend, "GDRCOPY_USE_DMABUF_MMAP=")
	}
	said := new(head)
	t.Died = r.child(&t, said, env, "trial", library.Name)
	t.Of, t.Asked = library, backend
	for _, line := range strings.Split(said.String(), "\n") {
		if logLine.MatchString(line) {
			t.Log = append(t.Log, line)
		}
	}
	return t
}

// logLine is a line of a libgdrapi's log.
var logLine = regexp.MustCompile(`^(DBG|INFO|WARN|ERR): `)

// run runs a child whose answer goes to into. It says how the child ended: "" for well.
func (r Runner) run(into any, probe, argument string) string {
	return r.child(into, new(head), nil, probe, argument)
}

func (r Runner) child(into any, said *head, env []string, probe, argument string) string {
	ctx, cancel := context.WithTimeout(context.Background(), r.Limit)
	defer cancel()
	answers, end, err := os.Pipe()
	if err != nil {
		return err.Error()
	}
	defer answers.Close()
	cmd := exec.CommandContext(ctx, r.Program, Flag, probe, argument)
	cmd.Env = append(append(os.Environ(), "GOTRACEBACK=none"), env...)
	cmd.Stdin = new(bytes.Reader) // /dev/null may be what is missing
	cmd.Stdout, cmd.Stderr = said, said
	cmd.ExtraFiles = []*os.File{end}
	cmd.WaitDelay = time.Second // what a driver started may keep the pipes open
	err = cmd.Start()
	end.Close()
	if err != nil {
		return err.Error()
	}
	err = cmd.Wait()
	if ctx.Err() != nil {
		return fmt.Sprintf("it gave no answer in %v", r.Limit)
	}
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return ending(err, said.String())
	}
	// It fits into the pipe. Whatever else has the pipe's end may keep it from its end.
	_ = answers.SetReadDeadline(time.Now().Add(time.Second))
	answer, err := io.ReadAll(answers)
	if err != nil || json.Unmarshal(answer, into) != nil {
		return "it ended without an answer"
	}
	return ""
}

// goSignal is how the Go runtime of a child names the signal of a crash.
var goSignal = regexp.MustCompile(`(?m)^(?:\[signal )?(SIG[A-Z]+):`)

// ending says how a child ended.
func ending(err error, said string) string {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if st, ok := exit.Sys().(syscall.WaitStatus); ok && st.Signaled() {
			return fmt.Sprintf("it crashed (%v)", st.Signal())
		}
		if m := goSignal.FindStringSubmatch(said); m != nil {
			return fmt.Sprintf("it crashed (%s)", m[1])
		}
	}
	line, _, _ := strings.Cut(strings.TrimSpace(said), "\n")
	if line == "" {
		return fmt.Sprintf("it failed (%v)", err)
	}
	return fmt.Sprintf("it failed (%v): %s", err, line)
}

// head keeps the first bytes that are written to it.
type head struct{ buf bytes.Buffer }

func (h *head) Write(p []byte) (int, error) {
	const limit = 64 << 10
	h.buf.Write(p[:min(len(p), limit-min(h.buf.Len(), limit))])
	return len(p), nil
}

func (h *head) String() string { return h.buf.String() }
