package diagnose

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"gdrapi/cmd/gdrcopy_doctor/internal/facts"
)

// choice is the backend that gdr_open takes. Where no libgdrapi could be tried, it is
// the one that the library of this version would take.
func (e *examination) choice() string {
	if len(e.Trials) > 0 {
		return e.Trials[0].Backend
	}
	return e.opens(e.forced())
}

// opens is the backend that gdr_open would take, where one is asked for or none (""); "" for none.
func (e *examination) opens(forced string) string {
	for _, b := range e.Backends {
		if b.Error == "" && b.Died == "" && (b.Name == forced || forced == "") {
			return b.Name
		}
	}
	return ""
}

// forced is the backend that the environment asks for, "" for none.
func (e *examination) forced() string {
	switch {
	case e.Env["GDRCOPY_BACKEND"] != "":
		return e.Env["GDRCOPY_BACKEND"]
	case e.Env["GDRCOPY_USE_DMABUF_MMAP"] == "1":
		return "dmabuf"
	}
	return ""
}

// trialOf is the trial of a backend, nil for none.
func (e *examination) trialOf(name string) *facts.Trial {
	for i := range e.Trials {
		t := &e.Trials[i]
		if t.Asked == name || i == 0 && t.Backend == name {
			return t
		}
	}
	return nil
}

// isTaken says whether gdr_open takes a backend, or leaves it to the first pin between
// that and another one.
func (e *examination) isTaken(name string) bool {
	return slices.Contains(strings.Split(e.taken, "|"), name)
}

func (e *examination) backendResult(name string) Backend {
	b := Backend{Name: name, Taken: e.isTaken(name)}
	if t := e.trialOf(name); t != nil {
		b.Works, b.WriteNS, b.ReadNS = t.Worked(), t.WriteNS, t.ReadNS
	}
	return b
}

// outcome is how the use of a backend went.
type outcome int

const (
	untried outcome = iota
	working
	failing  // it opens, and then fails
	refusing // it does not open
	crashing // or hanging
)

func (e *examination) outcome(b facts.Backend) outcome {
	t := e.trialOf(b.Name)
	switch {
	case t != nil && t.Worked():
		return working
	case b.Died != "":
		return crashing
	case b.Error != "":
		return refusing
	case t != nil:
		return failing
	}
	return untried
}

// backends has a finding for each. Each row says all of its condition: their order says nothing.
func (e *examination) backends() []Finding {
	var findings []Finding
	for _, b := range e.Backends {
		var took, failed string
		if t := e.trialOf(b.Name); t != nil {
			took, failed = speed(*t), failure(*t)
		}
		taken, tried, is := e.isTaken(b.Name), len(e.Trials) > 0, e.outcome(b)
		old := b.Name == "gdrdrv" && e.moduleIsOld()
		no := e.refusal(b)
		findings = append(findings, finding("backend-"+b.Name, []row{
			{taken && is == working && !old, OK, "Taken, and it works. " + e.module(b.Name) + took, ""},
			{taken && is == working && old, Warn, "Taken, and it works. " + e.module(b.Name) + "Before 2.5 it knows no pin flags, so aws-ofi-nccl does not use GIN. " + took, e.newerModule()},
			{taken && is == refusing, Fail, "Taken, but it does not work: " + no.cause, no.advice}, // gdr_open comes before cuInit, and knows less
			{taken && tried && (is == failing || is == crashing || is == untried), Warn, "Taken, but it does not work.", "See the line trial."},
			{taken && !tried, OK, "gdr_open of this version takes it. It was not tried, for no libgdrapi was loaded.", ""},
			{!taken && is == working, OK, fmt.Sprintf("Not taken, for %s. It works, and GDRCOPY_BACKEND=%s takes it. %s", e.whyNot(b.Name), b.Name, took), ""},
			{!taken && is == refusing, no.status, "Not taken: " + no.cause, no.advice},
			{!taken && is == crashing, e.cause(), "Not taken. Its driver was asked in a process of its own: " + b.Died + ".", "Look into dmesg, and install the driver anew."},
			{!taken && is == failing, OK, "Not taken. It opens, but does not work. " + failed, ""},
			{!taken && is == untried, OK, "Not taken, for " + e.whyNot(b.Name) + ". It opens, but was not tried.", ""},
		})...)
	}
	return findings
}

// module says of gdrdrv which version it is.
func (e *examination) module(backend string) string {
	if backend != "gdrdrv" || e.Gdrdrv.Version == "" {
		return ""
	}
	return "The module is of version " + e.Gdrdrv.Version + ". "
}

// moduleIsOld says whether the module's version is below 2.5.
func (e *examination) moduleIsOld() bool {
	var major, minor int
	_, err := fmt.Sscanf(e.Gdrdrv.Version, "%d.%d", &major, &minor)
	return err == nil && (major < 2 || major == 2 && minor < 5)
}

func (e *examination) newerModule() string {
	const load = "Load gdrdrv 2.5 or later."
	if t := e.trialOf("rm"); t != nil && t.Worked() {
		return load + " Or set GDRCOPY_BACKEND=rm: rm works here, and needs no module."
	}
	return load
}

// whyNot is why a backend that opens is not taken.
func (e *examination) whyNot(name string) string {
	switch {
	case len(e.Libraries) > 0 && e.Libraries[0].Error == "" && !e.Libraries[0].Ours:
		return "the libgdrapi here is not this project's"
	case e.taken == "":
		return "gdr_open did not come to it"
	case e.forced() != "":
		return "the environment asks for another one"
	}
	return "another one comes first"
}

// failure is what a trial failed with.
func failure(t facts.Trial) string {
	switch {
	case t.Died != "":
		return sentence(t.Died)
	case t.Step == "comparison":
		return sentence(t.Error)
	}
	return sentence("It failed at " + t.Step + ": " + t.Error)
}

// refusal says why a backend does not open, and what to do.
func (e *examination) refusal(b facts.Backend) row {
	s := OK
	switch {
	case b.Name == e.forced():
		s = Fail
	case e.taken == "" && b.Name == "rm" && e.opens("") == "":
		s = e.cause() // the one that needs nothing installed
	}
	var rows []row
	switch b.Name {
	case "gdrdrv":
		rows = e.refusalGdrdrv(b, s)
	case "dmabuf":
		rows = e.refusalDMABuf(s)
	case "rm":
		rows = e.refusalRM(b, s)
	}
	r := first(rows)
	r.cause = cmp.Or(r.cause, strings.TrimSuffix(b.Error, ".")+".")
	return r
}

func (e *examination) refusalGdrdrv(b facts.Backend, s Status) []row {
	const makeNode = "Load the module anew (rmmod gdrdrv; modprobe gdrdrv), or as root: mknod -m 666 /dev/gdrdrv c N 0, where N is gdrdrv's number in /proc/devices."
	const install = "Install the module (the package gdrdrv-dkms) and load it: modprobe gdrdrv."
	n, loaded, said, version := e.node("/dev/gdrdrv"), e.Gdrdrv.Loaded, sentence(b.Error), ""
	if e.Gdrdrv.Version != "" {
		version = " (" + e.Gdrdrv.Version + ")"
	}
	return []row{
		{!n.Exists && loaded && e.inContainer(), s, "the module gdrdrv is loaded, but this container has no /dev/gdrdrv.", "Start the container with --device /dev/gdrdrv."},
		{!n.Exists && loaded, s, "the module gdrdrv is loaded, but there is no /dev/gdrdrv.", makeNode},
		{!n.Exists, s, "the module gdrdrv is not loaded.", install},
		{n.Kind == "file" && loaded, s, "the module gdrdrv is loaded, but /dev/gdrdrv is a file, not a device.", "As root: rm /dev/gdrdrv. " + makeNode},
		{n.Kind == "file", s, "/dev/gdrdrv is a file, not a device: no module is loaded.",
			"Leave it there if no module is wanted: mscclpp takes GDRCopy only where this name is. Otherwise remove it first. " + install},
		{n.Kind != "device", s, fmt.Sprintf("/dev/gdrdrv is a %s, not a device.", n.Kind), "Remove it, and load the module before the container starts."},
		e.closed(n, s, "Let the user into the node's group, or give it another mode by a rule of udev."),
		{isOne(b.Errno, "ENXIO", "ENODEV"), s, "/dev/gdrdrv is there, but the module is not loaded.", "As root: modprobe gdrdrv."},
		{isOne(b.Errno, "EPERM", "EACCES"), s, "this process may not open /dev/gdrdrv: a sandbox or a security module refuses. " + said, "Let it pass that node. " + unconfine},
		{b.Errno == "ENOTSUP", s, "the module gdrdrv" + version + " and this library do not fit. " + said, "Install module and library of one version."},
		{isOne(b.Errno, "ENOTTY", "EINVAL"), s, "/dev/gdrdrv does not answer as gdrdrv does. " + said, "Remove what else made this node, and load the module gdrdrv."},
		{true, s, "", install},
	}
}

func (e *examination) refusalDMABuf(s Status) []row {
	const update = "Update both parts of the driver to CUDA 13.3 or later."
	const none = "the GPUs export no dma-bufs (attribute 124 is 0)."
	c, see := e.CUDA, e.see("cuda", "gpu")
	exports := slices.ContainsFunc(c.Devices, func(d facts.Device) bool { return d.DMABuf > 0 })
	return []row{
		{c.Load != "", s, "libcuda.so.1 does not load.", see},
		{c.Version != 0 && c.Version < 13030, s, fmt.Sprintf("CUDA is %d.%d, and 13.3 is the first whose dma-bufs can be mapped.", c.Version/1000, c.Version%1000/10), update},
		{c.Error != "" || c.Died != "", s, "CUDA does not start.", see},
		{len(c.Devices) > 0 && !exports && e.Driver.Version != "" && !e.Driver.Open, s, none, "The closed kernel modules cannot. Install the open ones, on Linux 5.12 or later."},
		{len(c.Devices) > 0 && !exports, s, none, "It takes the open kernel modules on Linux 5.12 or later, and GPUs from Turing on."},
		{len(c.Devices) > 0, s, "dma-bufs of these GPUs cannot be mapped (attribute 152 is 0, or not known), for the driver's kernel part is older than CUDA 13.3's.", update},
		{true, s, "", update},
	}
}

func (e *examination) refusalRM(b facts.Backend, s Status) []row {
	n, said := e.node("/dev/nvidiactl"), sentence(b.Error)
	has := func(text string) bool { return strings.Contains(b.Error, text) }
	return []row{
		{e.CUDA.Load != "", s, "libcuda.so.1 does not load.", e.see("cuda", "gpu")},
		{!n.Exists, s, "there is no /dev/nvidiactl.", cmp.Or(e.see("device-nodes", "gpu", "container"), "Load NVIDIA's driver; as root, nvidia-smi makes the nodes.")},
		{n.Kind != "device" || n.Access != "", s, "/dev/nvidiactl cannot be used.", e.see("device-nodes")},
		{isOne(b.Errno, "EPERM", "EACCES"), s, said, "Give the container the devices: --gpus all, or --device /dev/nvidiactl and --device /dev/nvidia0. A sandbox that filters the driver's requests (gVisor) has to let them pass. " + unconfine},
		{has("(MIG)"), s, said, withoutMIG},
		{has("confidential computing"), s, said, copyByCUDA},
		{has("this Tegra"), s, said, sharedMemory},
		{has("coherent with the CPU"), s, said, "Load gdrdrv. Or set GDRCOPY_BACKEND=rm for programs that need no mapping through PCIe."},
		{has("the kernel's pages"), s, said, "Take a kernel with pages of 64 KiB or less, or load gdrdrv."},
		{b.Errno == "ENOTSUP", s, said, "Leave the sandbox, if this is one. Else use a libgdrapi that knows this driver, or load gdrdrv."},
		{isOne(b.Errno, "EMFILE", "ENFILE"), s, said, "Raise the limit of descriptors: ulimit -n."},
		{true, s, "", "Run nvidia-smi, and look into dmesg for lines of NVRM."},
	}
}

func isOne(errno string, of ...string) bool { return slices.Contains(of, errno) }

// library says which libgdrapi a consumer gets, after those that the loader passes over.
func (e *examination) library() []Finding {
	var findings []Finding
	for _, s := range e.Skipped {
		findings = append(findings, Finding{"library", Fail, fmt.Sprintf("The loader passes over %s: %s.", s.Path, s.Why),
			"Put this machine's library in its place, for all to read, or take its folder out of LD_LIBRARY_PATH and the loader's configuration."})
	}
	so2, so := e.libraryOf("libgdrapi.so.2"), e.libraryOf("libgdrapi.so")
	it := fmt.Sprintf("libgdrapi.so.2 is %s, version %s, ", so2.Path, so2.Version)
	asked := len(e.Libraries) > 0
	loads := asked && so2.Died == "" && so2.Error == "" && e.Beside.Path == ""
	findings = append(findings, finding("library", []row{
		{asked && so2.Died != "", Fail, "libgdrapi.so.2 was loaded in a process of its own: " + so2.Died + ".", "Install the library anew."},
		{asked && e.Beside.Path != "", e.unfoundStatus(), fmt.Sprintf("The loader finds no libgdrapi.so.2. The one beside this program is examined: %s, version %s.", e.Beside.Path, e.Beside.Version), e.toFind()},
		{e.unfound(), Fail, "The loader finds no libgdrapi.so.2.",
			"Install the package libgdrapi2, or after make install run ldconfig as root. If the library lies elsewhere, put its folder into LD_LIBRARY_PATH."},
		{asked && so2.Error != "", Fail, "libgdrapi.so.2 does not load. " + sentence(so2.Error), "Install the library of this machine's architecture and C library anew."},
		{asked && so2.Ours, OK, it + "this project's.", ""},
		{asked, e.cause(), it + "which is not this project's: it has no gdr_get_backend. It needs the module gdrdrv.",
			"Remove that one's package, or put this project's library first: LD_LIBRARY_PATH, or LD_PRELOAD for one program."},
	})...)
	return append(findings, finding("library-name", []row{
		{loads && (so.Error != "" || so.Died != ""), Warn, "The loader finds no libgdrapi.so, the name that NCCL, DPDK and aws-ofi-nccl load.",
			"The package libgdrapi2 has that name, too. Else: ln -s libgdrapi.so.2 libgdrapi.so in the library's folder."},
		{loads && so.Path != so2.Path, Warn, fmt.Sprintf("libgdrapi.so is another file than libgdrapi.so.2: %s.", so.Path),
			"Remove one of the two. Consumers load one name or the other."},
	})...)
}

// unfound says that the loader finds no libgdrapi, so no program does that loads it by name.
func (e *examination) unfound() bool {
	return len(e.Libraries) > 0 && strings.Contains(e.libraryOf("libgdrapi.so.2").Error, "No such file")
}

// unfoundStatus is how bad that is. From the tree that built the library nobody takes it yet.
func (e *examination) unfoundStatus() Status {
	wants := func(c facts.Consumer) bool { return len(c.Wants) > 0 && c.Finds == "" }
	if e.Built && !slices.ContainsFunc(e.Consumers, wants) {
		return Warn
	}
	return Fail
}

// toFind is how programs find the library beside this program.
func (e *examination) toFind() string {
	dir := filepath.Dir(e.Beside.Path)
	advice := "One program finds it with LD_LIBRARY_PATH=" + dir + ". "
	if e.Built {
		return advice + "All do once it is installed, as root: make install."
	}
	return advice + "All do after this, as root: echo " + dir + " >/etc/ld.so.conf.d/gdrapi.conf; ldconfig."
}

func (e *examination) libraryOf(name string) facts.Library {
	for _, l := range e.Libraries {
		if l.Name == name {
			return l
		}
	}
	return facts.Library{Name: name, Error: "it was not asked for"}
}

// trial says how the use of the library went. If there was none, library says why.
func (e *examination) trial() []Finding {
	if len(e.Trials) == 0 {
		return nil
	}
	t := e.Trials[0]
	return finding("trial", []row{
		{t.Worked(), OK, fmt.Sprintf("open, pin, map, write, read, compare: all well on %s. %s", t.Backend, speed(t)), ""},
		{true, Fail, t.Of.Path + " was tried. " + failure(t) + said(t), e.trialAdvice(t)},
	})
}

// said is the library's own lines about a failure.
func said(t facts.Trial) string {
	var lines []string
	for _, l := range t.Log {
		if rest, ok := strings.CutPrefix(l, "ERR: "); ok {
			lines = append(lines, strings.TrimSpace(rest))
		}
	}
	if lines == nil {
		return ""
	}
	return " The library says: " + sentence(strings.Join(lines, " / "))
}

func (e *examination) trialAdvice(t facts.Trial) string {
	const report = "Please report it, with the output of gdrcopy_doctor --json."
	if t.Died != "" && t.Of.Edited {
		return "Put the file in its place as it was built: an editor of programs, such as patchelf, has changed this one. If that crashes, too: " + lowerFirst(report)
	}
	if t.Died != "" {
		return cmp.Or(e.withoutLayers(report), report)
	}
	doIt := strings.TrimSpace("Do what the library says. " + e.see("preload", "confidential-computing", "mig", "vgpu", "bar1"))
	return cmp.Or(map[string]string{
		"dlopen":         e.see("library"),
		"gdr_open":       cmp.Or(e.seeFirst(), "Do what the library says."),
		"cuInit":         e.see("cuda"),
		"cuMemAlloc":     "The GPU's memory is full, or another process has the GPU for itself: look at nvidia-smi.",
		"gdr_pin_buffer": doIt,
		"gdr_map":        doIt,
	}[t.Step], report)
}
