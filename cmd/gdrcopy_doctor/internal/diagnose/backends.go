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

// backends has a finding for each.
func (e *examination) backends() []Finding {
	var findings []Finding
	for _, b := range e.Backends {
		f := e.backend(b)
		f.ID = "backend-" + b.Name
		findings = append(findings, f)
	}
	return findings
}

func (e *examination) backend(b facts.Backend) Finding {
	t := e.trialOf(b.Name)
	taken := e.isTaken(b.Name)
	switch {
	case taken && len(e.Trials) == 0:
		return Finding{Status: OK, Cause: "gdr_open of this version takes it. It was not tried, for no libgdrapi was loaded."}
	case taken && t != nil && t.Worked() && b.Name == "gdrdrv" && e.moduleIsOld():
		return Finding{Status: Warn, Cause: "Taken, and it works. " + e.module(b.Name) + "Before 2.5 it knows no pin flags, so aws-ofi-nccl does not use GIN. " + speed(*t), Advice: e.newerModule()}
	case taken && t != nil && t.Worked():
		return Finding{Status: OK, Cause: "Taken, and it works. " + e.module(b.Name) + speed(*t)}
	case taken && b.Error != "":
		// gdr_open comes before CUDA is initialised, and knows less.
		cause, advice := e.refusal(b)
		return Finding{Status: Fail, Cause: "Taken, but it does not work: " + cause, Advice: advice}
	case taken:
		return Finding{Status: Warn, Cause: "Taken, but it does not work.", Advice: "See the line trial."}
	case b.Died != "":
		return Finding{Status: e.cause(), Cause: "Not taken. Its driver was asked in a process of its own: " + b.Died + ".", Advice: "Look into dmesg, and install the driver anew."}
	case t != nil && t.Worked():
		return Finding{Status: OK, Cause: fmt.Sprintf("Not taken, for %s. It works, and GDRCOPY_BACKEND=%s takes it. %s", e.whyNot(b.Name), b.Name, speed(*t))}
	case t != nil:
		return Finding{Status: OK, Cause: "Not taken. It opens, but does not work. " + failure(*t)}
	case b.Error == "":
		return Finding{Status: OK, Cause: "Not taken, for " + e.whyNot(b.Name) + ". It opens, but was not tried."}
	}
	cause, advice := e.refusal(b)
	f := Finding{Status: OK, Cause: "Not taken: " + cause, Advice: advice}
	switch {
	case b.Name == e.forced():
		f.Status = Fail
	case e.taken == "" && b.Name == "rm" && e.opens("") == "":
		f.Status = e.cause() // the one that needs nothing installed
	}
	return f
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
func (e *examination) refusal(b facts.Backend) (cause, advice string) {
	switch b.Name {
	case "gdrdrv":
		cause, advice = e.refusalGdrdrv(b)
	case "dmabuf":
		cause, advice = e.refusalDMABuf()
	case "rm":
		cause, advice = e.refusalRM(b)
	}
	if cause == "" {
		cause = strings.TrimSuffix(b.Error, ".") + "."
	}
	return cause, advice
}

func (e *examination) refusalGdrdrv(b facts.Backend) (cause, advice string) {
	n := e.node("/dev/gdrdrv")
	const makeNode = "Load the module anew (rmmod gdrdrv; modprobe gdrdrv), or as root: mknod -m 666 /dev/gdrdrv c N 0, where N is gdrdrv's number in /proc/devices."
	const install = "Install the module (the package gdrdrv-dkms) and load it: modprobe gdrdrv."
	switch {
	case !n.Exists && e.Gdrdrv.Loaded && e.inContainer():
		return "the module gdrdrv is loaded, but this container has no /dev/gdrdrv.", "Start the container with --device /dev/gdrdrv."
	case !n.Exists && e.Gdrdrv.Loaded:
		return "the module gdrdrv is loaded, but there is no /dev/gdrdrv.", makeNode
	case !n.Exists:
		return "the module gdrdrv is not loaded.", install
	case n.Kind == "file" && e.Gdrdrv.Loaded:
		return "the module gdrdrv is loaded, but /dev/gdrdrv is a file, not a device.", "As root: rm /dev/gdrdrv. " + makeNode
	case n.Kind == "file":
		return "/dev/gdrdrv is a file, not a device: no module is loaded.",
			"Leave it there if no module is wanted: mscclpp takes GDRCopy only where this name is. Otherwise remove it first. " + install
	case n.Kind != "device":
		return fmt.Sprintf("/dev/gdrdrv is a %s, not a device.", n.Kind), "Remove it, and load the module before the container starts."
	case n.Access != "":
		return e.closed(n, "Let the user into the node's group, or give it another mode by a rule of udev.")
	case b.Errno == "ENXIO" || b.Errno == "ENODEV":
		return "/dev/gdrdrv is there, but the module is not loaded.", "As root: modprobe gdrdrv."
	case b.Errno == "EPERM" || b.Errno == "EACCES":
		return "this process may not open /dev/gdrdrv: a sandbox or a security module refuses. " + sentence(b.Error), "Let it pass that node. " + unconfine
	case b.Errno == "ENOTSUP":
		version := e.Gdrdrv.Version
		if version != "" {
			version = " (" + version + ")"
		}
		return "the module gdrdrv" + version + " and this library do not fit. " + sentence(b.Error), "Install module and library of one version."
	case b.Errno == "ENOTTY" || b.Errno == "EINVAL":
		return "/dev/gdrdrv does not answer as gdrdrv does. " + sentence(b.Error), "Remove what else made this node, and load the module gdrdrv."
	}
	return "", install
}

func (e *examination) refusalDMABuf() (cause, advice string) {
	const update = "Update both parts of the driver to CUDA 13.3 or later."
	exports := func(d facts.Device) bool { return d.DMABuf > 0 }
	switch {
	case e.CUDA.Load != "":
		return "libcuda.so.1 does not load.", e.see("cuda", "gpu")
	case e.CUDA.Version != 0 && e.CUDA.Version < 13030:
		return fmt.Sprintf("CUDA is %d.%d, and 13.3 is the first whose dma-bufs can be mapped.", e.CUDA.Version/1000, e.CUDA.Version%1000/10), update
	case e.CUDA.Error != "" || e.CUDA.Died != "":
		return "CUDA does not start.", e.see("cuda", "gpu")
	case len(e.CUDA.Devices) > 0 && !slices.ContainsFunc(e.CUDA.Devices, exports):
		if e.Driver.Version != "" && !e.Driver.Open {
			return "the GPUs export no dma-bufs (attribute 124 is 0).", "The closed kernel modules cannot. Install the open ones, on Linux 5.12 or later."
		}
		return "the GPUs export no dma-bufs (attribute 124 is 0).", "It takes the open kernel modules on Linux 5.12 or later, and GPUs from Turing on."
	case len(e.CUDA.Devices) > 0:
		return "dma-bufs of these GPUs cannot be mapped (attribute 152 is 0, or not known), for the driver's kernel part is older than CUDA 13.3's.", update
	}
	return "", update
}

func (e *examination) refusalRM(b facts.Backend) (cause, advice string) {
	n := e.node("/dev/nvidiactl")
	switch {
	case e.CUDA.Load != "":
		return "libcuda.so.1 does not load.", e.see("cuda", "gpu")
	case !n.Exists:
		return "there is no /dev/nvidiactl.", cmp.Or(e.see("device-nodes", "gpu", "container"), "Load NVIDIA's driver; as root, nvidia-smi makes the nodes.")
	case n.Kind != "device" || n.Access != "":
		return "/dev/nvidiactl cannot be used.", e.see("device-nodes")
	case b.Errno == "EPERM" || b.Errno == "EACCES":
		return sentence(b.Error), "Give the container the devices: --gpus all, or --device /dev/nvidiactl and --device /dev/nvidia0. A sandbox that filters the driver's requests (gVisor) has to let them pass. " + unconfine
	case strings.Contains(b.Error, "(MIG)"):
		return sentence(b.Error), "Load gdrdrv, use a GPU that is not parted, or turn MIG off: nvidia-smi -mig 0."
	case strings.Contains(b.Error, "confidential computing"):
		return sentence(b.Error), "Let programs use cuMemcpy. To map memory, turn the mode off on the host."
	case strings.Contains(b.Error, "this Tegra"):
		return sentence(b.Error), "Allocate memory with cudaHostAlloc: the CPU and the GPU both see it, and libgdrapi is not needed."
	case strings.Contains(b.Error, "coherent with the CPU"):
		return sentence(b.Error), "Load gdrdrv. Or set GDRCOPY_BACKEND=rm for programs that need no mapping through PCIe."
	case strings.Contains(b.Error, "the kernel's pages"):
		return sentence(b.Error), "Take a kernel with pages of 64 KiB or less, or load gdrdrv."
	case b.Errno == "ENOTSUP":
		return sentence(b.Error), "Leave the sandbox, if this is one. Else use a libgdrapi that knows this driver, or load gdrdrv."
	case b.Errno == "EMFILE" || b.Errno == "ENFILE":
		return sentence(b.Error), "Raise the limit of descriptors: ulimit -n."
	}
	return "", "Run nvidia-smi, and look into dmesg for lines of NVRM."
}

// library says which libgdrapi a consumer gets, after those that the loader passes over.
func (e *examination) library() []Finding {
	var findings []Finding
	for _, s := range e.Skipped {
		findings = append(findings, Finding{"library", Fail, fmt.Sprintf("The loader passes over %s: %s.", s.Path, s.Why),
			"Put this machine's library in its place, for all to read, or take its folder out of LD_LIBRARY_PATH and the loader's configuration."})
	}
	return append(findings, e.loaded()...)
}

// loaded is library of what the loader takes.
func (e *examination) loaded() []Finding {
	if len(e.Libraries) == 0 {
		return nil
	}
	so2, so := e.libraryOf("libgdrapi.so.2"), e.libraryOf("libgdrapi.so")
	const path = "Install the package libgdrapi2, or after make install run ldconfig as root. Of a library elsewhere, put its folder into LD_LIBRARY_PATH."
	switch {
	case so2.Died != "":
		return one("library", Fail, "libgdrapi.so.2 was loaded in a process of its own: "+so2.Died+".", "Install the library anew.")
	case e.Beside.Path != "":
		return one("library", e.unfoundStatus(), fmt.Sprintf("The loader finds no libgdrapi.so.2. The one beside this program is examined: %s, version %s.", e.Beside.Path, e.Beside.Version), e.toFind())
	case e.unfound():
		return one("library", Fail, "The loader finds no libgdrapi.so.2.", path)
	case so2.Error != "":
		return one("library", Fail, "libgdrapi.so.2 does not load. "+sentence(so2.Error), "Install the library of this machine's architecture and C library anew.")
	}
	var findings []Finding
	if so2.Ours {
		findings = one("library", OK, fmt.Sprintf("libgdrapi.so.2 is %s, version %s, this project's.", so2.Path, so2.Version), "")
	} else {
		findings = one("library", e.cause(), fmt.Sprintf("libgdrapi.so.2 is %s, version %s, which is not this project's: it has no gdr_get_backend. It needs the module gdrdrv.", so2.Path, so2.Version),
			"Remove that one's package, or put this project's library first: LD_LIBRARY_PATH, or LD_PRELOAD for one program.")
	}
	switch {
	case so.Error != "" || so.Died != "":
		return append(findings, Finding{"library-name", Warn, "The loader finds no libgdrapi.so, the name that NCCL, DPDK and aws-ofi-nccl load.",
			"The package libgdrapi2 has that name, too. Else: ln -s libgdrapi.so.2 libgdrapi.so in the library's folder."})
	case so.Path != so2.Path:
		return append(findings, Finding{"library-name", Warn, fmt.Sprintf("libgdrapi.so is another file than libgdrapi.so.2: %s.", so.Path),
			"Remove one of the two. Consumers load one name or the other."})
	}
	return findings
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

// trial says how the use of the library went.
func (e *examination) trial() []Finding {
	if len(e.Trials) == 0 {
		return nil // library says why
	}
	t := e.Trials[0]
	if t.Worked() {
		return one("trial", OK, fmt.Sprintf("open, pin, map, write, read, compare: all well on %s. %s", t.Backend, speed(t)), "")
	}
	return one("trial", Fail, t.Of.Path+" was tried. "+failure(t)+said(t), e.trialAdvice(t))
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
	switch {
	case t.Died != "" && t.Of.Edited:
		return "Put the file in its place as it was built: an editor of programs, such as patchelf, has changed this one. If that crashes, too: " + lowerFirst(report)
	case t.Died != "":
		return cmp.Or(e.withoutLayers(report), report)
	}
	switch t.Step {
	case "dlopen":
		return cmp.Or(e.see("library"), report)
	case "gdr_open":
		return cmp.Or(e.seeFirst(), "Do what the library says.")
	case "cuInit":
		return cmp.Or(e.see("cuda"), report)
	case "cuMemAlloc":
		return "The GPU's memory is full, or another process has the GPU for itself: look at nvidia-smi."
	case "gdr_pin_buffer", "gdr_map":
		return strings.TrimSpace("Do what the library says. " + e.see("preload", "confidential-computing", "mig", "vgpu", "bar1"))
	}
	return report
}
