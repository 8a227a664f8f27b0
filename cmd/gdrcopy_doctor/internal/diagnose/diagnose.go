// Package diagnose says in plain words what is wrong with a machine, and what to do.
// It knows nothing but the facts that it is given.
package diagnose

import (
	"fmt"
	"slices"
	"strings"

	"gdrapi/cmd/gdrcopy_doctor/internal/facts"
)

// Status is how bad a finding is.
type Status string

const (
	OK   Status = "ok"
	Warn Status = "warn" // the library works, but not as well as it could, or not for all
	Fail Status = "fail" // the library does not work, and this may be why
)

// Finding is one thing that was looked at.
type Finding struct {
	ID     string `json:"id"`
	Status Status `json:"status"`
	Cause  string `json:"cause"`  // what was found, in sentences
	Advice string `json:"advice"` // what to do; "" of one that is OK
}

// Backend is one way to map GPU memory.
type Backend struct {
	Name    string  `json:"name"`
	Taken   bool    `json:"taken"` // gdr_open takes it, or would
	Works   bool    `json:"works"` // a write and a read went well
	WriteNS float64 `json:"write_ns"`
	ReadNS  float64 `json:"read_ns"`
}

// Verdict is the answer in a word.
type Verdict string

const (
	Works  Verdict = "works"
	Broken Verdict = "broken"
	NoGPU  Verdict = "no-gpu"
)

// Report is the diagnosis. Its findings stand in the order in which to mend them: what one keeps
// from working comes after it.
type Report struct {
	Verdict  Verdict   `json:"verdict"`
	Summary  string    `json:"summary"`
	Backend  string    `json:"backend"` // that is taken, "" for none
	Backends []Backend `json:"backends"`
	Findings []Finding `json:"findings"`
}

// examination is a diagnosis that is being made.
type examination struct {
	facts.Facts
	taken    string // the backend that is taken, "" for none
	worked   bool   // the library copied to the GPU and back
	findings []Finding
}

// A row of a table of causes: if it holds, and none above it does, this is what is said, and what to do.
type row struct {
	holds         bool
	status        Status
	cause, advice string
}

// first is the first row that holds, or an empty one.
func first(rows []row) row {
	for _, r := range rows {
		if r.holds {
			return r
		}
	}
	return row{}
}

// finding is what the first row says that holds; if none does there is none.
func finding(id string, rows []row) []Finding {
	r := first(rows)
	if !r.holds {
		return nil
	}
	return []Finding{{id, r.status, r.cause, r.advice}}
}

// Examine makes the diagnosis.
func Examine(f facts.Facts) Report {
	e := &examination{Facts: f}
	e.worked = len(f.Trials) > 0 && f.Trials[0].Worked()
	e.taken = e.choice()
	r := Report{Verdict: Works, Backend: e.taken, Backends: []Backend{}}
	rules := []func() []Finding{e.limits}
	switch {
	case TooLittleSpace(f):
	case !e.hasGPU():
		r.Verdict, rules = NoGPU, []func() []Finding{e.noGPU, e.library}
	default:
		for _, b := range f.Backends {
			r.Backends = append(r.Backends, e.backendResult(b.Name))
		}
		none := func() []Finding { return nil }
		before, after := none, e.library
		if e.unfound() {
			before, after = e.library, none
		}
		rules = []func() []Finding{
			before, e.gpu, e.limits, e.environment, e.preload, e.container, e.driver, e.nodes, e.cuda, e.attributes,
			e.memory, e.mig, e.vgpu, e.confidential, e.bar1, e.backends, after, e.trial, e.consumers,
		}
	}
	for _, rule := range rules {
		for _, found := range rule() {
			if found.Status == OK {
				found.Advice = "" // there is nothing to do
			}
			e.findings = append(e.findings, found)
		}
	}
	r.Findings = e.findings
	r.judge(e)
	return r
}

// judge is the verdict of the findings, in a word and in a sentence.
func (r *Report) judge(e *examination) {
	first := slices.IndexFunc(r.Findings, func(f Finding) bool { return f.Status == Fail })
	switch {
	case r.Verdict == NoGPU:
		r.Summary = r.Findings[0].Cause
		return
	case first < 0:
		r.Summary = fmt.Sprintf("libgdrapi works here: gdr_open takes %s. %s %s", e.taken, e.tried(e.Trials[0]), speed(e.Trials[0]))
		if e.unfound() {
			r.Summary += " No program finds it yet: see the line library."
		}
		return
	}
	r.Verdict = Broken
	r.Summary = "libgdrapi does not work here."
	if e.worked {
		r.Summary = fmt.Sprintf("gdr_open takes %s, and it works. Something else is wrong.", e.taken)
	}
	r.Summary += fmt.Sprintf(" Begin with %s: %s", r.Findings[first].ID, r.Findings[first].Cause)
}

// see is the advice to look at the first of these findings that is not OK; "" if all are.
func (e *examination) see(ids ...string) string {
	for _, id := range ids {
		for _, f := range e.findings {
			if f.ID == id && f.Status != OK {
				return "See the line " + id + "."
			}
		}
	}
	return ""
}

// cause is the status of what may stop the library: if the library works it stops nothing.
func (e *examination) cause() Status {
	if e.worked {
		return Warn
	}
	return Fail
}

// seeFirst is the advice to look at the first cause.
func (e *examination) seeFirst() string {
	for _, f := range e.findings {
		if f.Status == Fail {
			return "See the line " + f.ID + "."
		}
	}
	return ""
}

// needed is the status of what keeps CUDA from starting: if CUDA starts, nothing does.
func (e *examination) needed() Status {
	if len(e.CUDA.Devices) > 0 && e.CUDA.Error == "" {
		return Warn
	}
	return e.cause()
}

func (e *examination) node(path string) facts.Node {
	for _, n := range e.Nodes {
		if n.Path == path {
			return n
		}
	}
	return facts.Node{Path: path}
}

func (e *examination) inContainer() bool { return e.Container != "" }

// hasGPU says whether there is a GPU of NVIDIA's, in whatever state.
func (e *examination) hasGPU() bool {
	return e.worked || len(e.GPUs) > 0 || len(e.CUDA.Devices) > 0 || e.Driver.Version != "" ||
		e.node("/dev/nvidiactl").Exists || e.WSL || e.Tegra
}

func (e *examination) noGPU() []Finding {
	return finding("gpu", []row{
		{e.inContainer(), Fail, fmt.Sprintf("This %s container sees no NVIDIA GPU.", e.Container), e.giveGPU()},
		{true, Fail, "There is no NVIDIA GPU here.", "Run this on a machine with an NVIDIA GPU."},
	})
}

// apptainer is Container of Apptainer and Singularity.
const apptainer = "Apptainer"

// giveGPU is how a container gets a GPU.
func (e *examination) giveGPU() string {
	if e.Container == apptainer {
		return "Start the container with --nv: apptainer exec --nv."
	}
	return giveGPU
}

const giveGPU = "Give the container the GPU: docker run --gpus all, podman run --device nvidia.com/gpu=all, in Kubernetes the resource nvidia.com/gpu. A sandbox or chroot: the machine's own /dev (bwrap --dev-bind /dev /dev, PrivateDevices=no of systemd)."

// tried says on which GPUs and on which memory all went well.
func (e *examination) tried(t facts.Trial) string {
	memory := "plain memory"
	if t.Pool == facts.PoolWorks {
		memory += " and memory of pools"
	}
	gpu := "GPU"
	if e.CUDA.Simulated {
		gpu = "simulated GPU"
	}
	said := fmt.Sprintf("It was tried on %s, with %s.", plural(t.GPUs, gpu), memory)
	if t.Pool != "" && t.Pool != facts.PoolWorks {
		said += " Memory of pools does not work: " + t.Pool + "."
	}
	return said
}

// speed says how long a write and a read take.
func speed(t facts.Trial) string {
	return fmt.Sprintf("A write of 4 bytes takes %s, a read %s.", duration(t.WriteNS), duration(t.ReadNS))
}

func duration(ns float64) string {
	if ns < 1000 {
		return fmt.Sprintf("%.0f ns", ns)
	}
	return fmt.Sprintf("%.2f us", ns/1000)
}

func lowerFirst(s string) string { return strings.ToLower(s[:1]) + s[1:] }

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// sentence makes a sentence of a message that may be one already. What begins with a
// name keeps it as it is.
func sentence(s string) string {
	s = strings.TrimSuffix(strings.TrimSpace(s), ".")
	if s == "" {
		return s
	}
	word, _, _ := strings.Cut(s, " ")
	if !strings.ContainsAny(word, "_./0123456789") && word == strings.ToLower(word) && word != "gdrdrv" {
		s = strings.ToUpper(s[:1]) + s[1:]
	}
	return s + "."
}
