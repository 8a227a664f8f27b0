package diagnose

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"gdrapi/cmd/gdrcopy_doctor/internal/facts"
)

const mib = 1 << 20

// bar1 looks at the window through which the CPU sees GPU memory: all that is mapped at
// one time has to fit into it.
func (e *examination) bar1() []Finding {
	findings := e.windows()
	failed := slices.ContainsFunc(findings, func(f Finding) bool { return f.Status == Fail })
	if !e.worked && !failed && e.isSaid("BAR1 or the driver's memory is used up") {
		return slices.Insert(findings, 0, Finding{"bar1", Fail, "BAR1 has no room for one more mapping (NV_ERR_INSUFFICIENT_RESOURCES).", makeRoom})
	}
	return findings
}

const makeRoom = "Processes that map GPU memory hold it: unmap buffers, or end those (nvidia-smi lists them)."

func (e *examination) windows() []Finding {
	const small, scarce = 1 << 30, 64 * mib
	if slices.ContainsFunc(e.CUDA.Devices, func(d facts.Device) bool { return d.Coherent > 0 }) {
		return one("bar1", OK, "The GPU is coherent with the CPU: only what is forced through PCIe is mapped by BAR1.", "")
	}
	var findings []Finding
	for _, g := range e.NVML.GPUs {
		if g.BAR1Total == 0 {
			continue
		}
		text := fmt.Sprintf("GPU %s: of %d MiB of BAR1 %d MiB are free", g.PCI, g.BAR1Total/mib, g.BAR1Free/mib)
		switch {
		case g.BAR1Free < scarce:
			findings = append(findings, Finding{"bar1", e.cause(), text + ".", makeRoom})
		case g.BAR1Total < small:
			findings = append(findings, Finding{"bar1", Warn, text + ". No more than that can be mapped at one time.", resize})
		default:
			findings = append(findings, Finding{"bar1", OK, text + ".", ""})
		}
	}
	if findings != nil {
		return findings
	}
	for _, g := range e.GPUs {
		switch {
		case g.BAR1 == 0:
		case g.BAR1 < small:
			findings = append(findings, Finding{"bar1", Warn, fmt.Sprintf("GPU %s: BAR1 has %d MiB. No more than that can be mapped at one time.", g.PCI, g.BAR1/mib), resize})
		default:
			findings = append(findings, Finding{"bar1", OK, fmt.Sprintf("GPU %s: BAR1 has %d MiB. Without NVML it is not known how much is in use.", g.PCI, g.BAR1/mib), ""})
		}
	}
	return findings
}

const resize = "Turn on Resizable BAR (and Above 4G Decoding) in the machine's firmware, if GPU and board have it."

// memory says of GPUs whose memory is not behind PCIe how it is mapped.
func (e *examination) memory() []Finding {
	for _, d := range e.CUDA.Devices {
		switch {
		case d.Integrated > 0:
			return one("memory", OK, fmt.Sprintf("GPU %s has no memory of its own (as GB10 and Thor). rm maps the system's.", d.PCI), "")
		case d.Coherent > 0:
			return one("memory", OK, fmt.Sprintf("The CPU may cache the memory of GPU %s (as on GH200 and GB200). rm's mappings of it are cached.", d.PCI), "")
		}
	}
	return nil
}

// mig looks for GPUs that are parted into instances.
func (e *examination) mig() []Finding {
	for _, g := range e.NVML.GPUs {
		if !g.MIG {
			continue
		}
		if e.worked {
			return one("mig", OK, fmt.Sprintf("GPU %s is parted into instances (MIG), and the trial went well on one.", g.PCI), "")
		}
		return one("mig", Warn, fmt.Sprintf("GPU %s is parted into instances (MIG). rm does not map their memory.", g.PCI),
			"Load gdrdrv, use a GPU that is not parted, or turn MIG off: nvidia-smi -mig 0.")
	}
	return nil
}

// vgpu looks for GPUs that are a part of one.
func (e *examination) vgpu() []Finding {
	for _, g := range e.NVML.GPUs {
		if g.VGPU {
			return one("vgpu", Warn, fmt.Sprintf("GPU %s is a virtual one (vGPU). Whether its memory can be mapped is the host's choice.", g.PCI),
				"If the trial failed: have the machine given a whole GPU (passthrough), or a profile of a whole one.")
		}
	}
	return nil
}

// confidential looks for confidential computing.
func (e *examination) confidential() []Finding {
	if !e.NVML.Confidential {
		return nil
	}
	return one("confidential-computing", e.cause(), "Confidential computing is on: the GPU hides its memory from the CPU, which cannot map it.",
		"Let programs use cuMemcpy. To map memory, turn the mode off on the host.")
}

// littleSpace is SPACE_BYTES of capi/guest/runtime.c.
const littleSpace = 1536 * mib

// TooLittleSpace says whether processes may have less address space than the library takes. Then nothing
// else is worth asking: a child that is asked may run out of it at any point.
func TooLittleSpace(f facts.Facts) bool { return f.Limits.Space < littleSpace }

// limits looks at what a process may have.
func (e *examination) limits() []Finding {
	// CUDA alone takes dozens of descriptors.
	const fewFiles, tooFewFiles, littleMemory = 1024, 64, 64 * mib
	var findings []Finding
	l := e.Limits
	switch {
	case !e.worked && (l.Files < tooFewFiles || e.outOfFiles()):
		findings = one("limit-files", Fail, fmt.Sprintf("A process may have %s descriptors, which is too few for CUDA and the library.", number(l.Files)), "Raise the limit: ulimit -n, LimitNOFILE of systemd, --ulimit nofile of a container.")
	case l.Files < fewFiles:
		findings = one("limit-files", Warn, fmt.Sprintf("A process may have %d descriptors. The backend dmabuf takes one for each pinned buffer.", l.Files), "Raise the limit: ulimit -n, LimitNOFILE of systemd, --ulimit nofile of a container.")
	default:
		findings = one("limit-files", OK, fmt.Sprintf("A process may have %s descriptors.", number(l.Files)), "")
	}
	if TooLittleSpace(e.Facts) {
		return append(findings, Finding{"limit-as", Fail, fmt.Sprintf("A process may have %d MiB of address space. gdr_open of this library takes %d MiB, and CUDA more. Nothing else was asked.", l.Space/mib, littleSpace/mib),
			"Raise the limit: ulimit -v unlimited, LimitAS of systemd, the batch system's limit of virtual memory."})
	}
	switch {
	case l.Memlock == facts.Unlimited:
		return append(findings, Finding{"limit-memlock", OK, "A process may lock any amount of memory.", ""})
	case e.RDMA && l.Memlock < littleMemory:
		return append(findings, Finding{"limit-memlock", Warn, fmt.Sprintf("A process may lock %d KiB of memory. libgdrapi locks none, but UCX, libfabric and NCCL do for the RDMA card.", l.Memlock>>10),
			"Raise the limit: ulimit -l unlimited, LimitMEMLOCK of systemd, --ulimit memlock=-1 of a container."})
	}
	return append(findings, Finding{"limit-memlock", OK, fmt.Sprintf("A process may lock %d KiB of memory. libgdrapi locks none.", l.Memlock>>10), ""})
}

// outOfFiles says whether somebody met the limit of descriptors of the process.
func (e *examination) outOfFiles() bool {
	return slices.ContainsFunc(e.said(), func(s string) bool {
		_, rest, found := strings.Cut(strings.ToLower(s), "too many open files")
		return found && !strings.HasPrefix(rest, " in system")
	})
}

// isSaid says whether somebody said a text.
func (e *examination) isSaid(text string) bool {
	return slices.ContainsFunc(e.said(), func(s string) bool { return strings.Contains(s, text) })
}

// said is all that drivers and libraries said of failures.
func (e *examination) said() []string {
	said := []string{e.CUDA.Died, e.CUDA.Load, e.CUDA.Error, e.NVML.Died, e.NVML.Error}
	for _, b := range e.Backends {
		said = append(said, b.Died, b.Error)
	}
	for _, l := range e.Libraries {
		said = append(said, l.Died, l.Error)
	}
	for _, t := range e.Trials {
		said = append(append(said, t.Died, t.Error), t.Log...)
	}
	return said
}

// environment looks at the variables that force a choice, and at those that the library refuses.
func (e *examination) environment() []Finding {
	if name, said := e.refused(); name != "" {
		return one("environment", Fail, fmt.Sprintf("The library refuses %s=%s. %s", name, e.Env[name], sentence(said)), "Unset "+name+", or set it as gdrapi(3) says.")
	}
	forced := e.forced()
	if forced == "" {
		return nil
	}
	name := "GDRCOPY_BACKEND=" + forced
	if e.Env["GDRCOPY_BACKEND"] == "" {
		name = "GDRCOPY_USE_DMABUF_MMAP=1"
	}
	var names []string
	for _, b := range e.Backends {
		names = append(names, b.Name)
	}
	other := e.opens("")
	asked := slices.IndexFunc(e.Backends, func(b facts.Backend) bool { return b.Name == forced })
	switch {
	case asked < 0:
		return one("environment", Fail, fmt.Sprintf("%s names no backend. They are %s.", name, strings.Join(names, ", ")), "Unset it, or name one of these.")
	case !e.worked && other != "" && (e.Backends[asked].Error != "" || e.Backends[asked].Died != ""):
		return one("environment", Fail, fmt.Sprintf("%s forces a backend that does not open here, and %s would.", name, other),
			fmt.Sprintf("Unset it: gdr_open then takes %s. Why %s does not open is in the line backend-%s.", other, forced, forced))
	}
	return one("environment", OK, name+" forces the backend.", "")
}

// variable is the name of one of the library's.
var variable = regexp.MustCompile(`\bGDRCOPY_[A-Z_]+`)

// refused is the variable that gdr_open names where it says why it fails, with what it says.
func (e *examination) refused() (name, said string) {
	if len(e.Trials) == 0 || e.Trials[0].Step != "gdr_open" {
		return "", ""
	}
	for _, line := range e.Trials[0].Log {
		rest, isError := strings.CutPrefix(line, "ERR: ")
		for _, name := range variable.FindAllString(rest, -1) {
			if isError && e.Env[name] != "" && name != "GDRCOPY_BACKEND" && name != "GDRCOPY_USE_DMABUF_MMAP" {
				return name, rest
			}
		}
	}
	return "", ""
}

// layers are those known to give programs managed memory for cudaMalloc's.
var layers = map[string]string{"libvgpu.so": "HAMi", "libnvshare.so": "nvshare"}

// preloaded names what the loader puts into each program beside this library; known is whether a layer is among it.
func (e *examination) preloaded() (names string, known bool) {
	var list []string
	for _, from := range []struct {
		name  string
		files []string
	}{
		{"LD_PRELOAD", strings.FieldsFunc(e.Env["LD_PRELOAD"], func(c rune) bool { return c == ':' || c == ' ' })},
		{"/etc/ld.so.preload", e.Preload},
	} {
		for _, file := range from.files {
			layer, is := layers[path.Base(file)]
			known = known || is
			switch {
			case strings.HasPrefix(path.Base(file), "libgdrapi.so"):
			case is:
				list = append(list, fmt.Sprintf("%s=%s (%s)", from.name, file, layer))
			default:
				list = append(list, from.name+"="+file)
			}
		}
	}
	return strings.Join(list, ", "), known
}

// preload looks at what changes CUDA for every program.
func (e *examination) preload() []Finding {
	names, known := e.preloaded()
	managed := e.isSaid("is managed memory")
	refused := len(e.Trials) > 0 && e.Trials[0].Step == "gdr_pin_buffer"
	switch {
	case !e.worked && (managed || known && refused):
		return one("preload", Fail, "cudaMalloc gives managed memory here, which cannot be pinned: "+
			cmp.Or(names, "something between this program and CUDA")+" changes it, as for oversubscription.",
			"Allocate with gdr_mem_alloc, which such layers leave alone. Or run the program without the layer, or without its oversubscription.")
	case names != "":
		return one("preload", OK, "Each program here has "+names+".", "")
	}
	return nil
}

// withoutLayers is what to do about a crash beside something preloaded, and then; "" where nothing is.
func (e *examination) withoutLayers(then string) string {
	names, known := e.preloaded()
	switch {
	case names == "":
		return ""
	case known || then == "":
		return "Try it without " + names + ": if it runs then, the crash is a matter of that layer, and its makers'."
	}
	return "Try it without " + names + ". If it crashes then, too: " + lowerFirst(then)
}

func number(n uint64) string {
	if n == facts.Unlimited {
		return "any number of"
	}
	return fmt.Sprint(n)
}

// consumers says of each consumer which libgdrapi it takes.
func (e *examination) consumers() []Finding {
	var findings []Finding
	for _, c := range e.Consumers {
		f := e.consumer(c)
		f.ID = "consumer"
		f.Cause = fmt.Sprintf("%s (%s): %s", strings.TrimSuffix(c.Name, " without its transport"), c.Path, f.Cause)
		findings = append(findings, f)
	}
	if findings == nil {
		return one("consumer", OK, "No consumer of libgdrapi was found in the loader's folders.", "")
	}
	return findings
}

func (e *examination) consumer(c facts.Consumer) Finding {
	switch {
	case c.Name == facts.UCXWithout:
		return Finding{Status: Warn, Cause: "its transport for libgdrapi, libuct_cuda_gdrcopy.so, is not there.",
			Advice: "Install it (UCX's own packages have it in ucx-gdrcopy or ucx-cuda), or build UCX with --with-gdrcopy."}
	case c.Name == facts.OpenMPI:
		return Finding{Status: OK, Cause: "it uses libgdrapi through UCX or libfabric."}
	case len(c.Wants) == 0:
		return Finding{Status: Warn, Cause: "it was built without GDRCopy.", Advice: "Take a build with GDRCopy, if you want it to use libgdrapi."}
	}
	var found *facts.Library
	for _, want := range append([]string{c.Finds}, c.Wants...) {
		if l := e.libraryOf(want); l.Error == "" && l.Died == "" {
			found = &l
			break
		}
	}
	switch {
	case found == nil:
		return Finding{Status: Warn, Cause: fmt.Sprintf("it wants %s, which the loader does not find.", strings.Join(c.Wants, " or ")), Advice: cmp.Or(e.see("library", "library-name"), "Install the library where the loader looks, or put its folder into LD_LIBRARY_PATH.")}
	case !found.Ours && found.Name == c.Finds:
		return Finding{Status: Warn, Cause: fmt.Sprintf("it takes %s, which is beside it and not this project's.", found.Path), Advice: "Remove that file, or put a link to this project's library there."}
	case !found.Ours:
		return Finding{Status: Warn, Cause: fmt.Sprintf("it takes %s, which is not this project's.", found.Path), Advice: cmp.Or(e.see("library", "library-name"), "Put this project's library first: LD_LIBRARY_PATH, or LD_PRELOAD for one program.")}
	}
	if c.Name == "NCCL" && e.Env["NCCL_GDRCOPY_ENABLE"] != "1" {
		return Finding{Status: OK, Cause: fmt.Sprintf("with NCCL_GDRCOPY_ENABLE=1 it takes %s.", found.Path)}
	}
	if setting, advice := e.setting(c.Name); setting != "" {
		return Finding{Status: Warn, Cause: fmt.Sprintf("it would take %s, but %s.", found.Path, setting), Advice: advice}
	}
	return Finding{Status: OK, Cause: fmt.Sprintf("it takes %s, as %s.", found.Path, found.Name)}
}

// setting is what keeps a consumer from using the library that it finds.
func (e *examination) setting(name string) (setting, advice string) {
	switch name {
	case "UCX":
		if tls := e.Env["UCX_TLS"]; tls != "" && !allowsGDRCopy(tls) {
			return "UCX_TLS=" + tls + " leaves it out", "Add gdr_copy to UCX_TLS, or unset it."
		}
	case "libfabric":
		if v := strings.ToLower(e.Env["FI_HMEM_CUDA_USE_GDRCOPY"]); v == "0" || v == "false" || v == "no" {
			return "FI_HMEM_CUDA_USE_GDRCOPY=" + v + " turns it off", "Unset it."
		}
	case "NVSHMEM":
		if v := strings.ToLower(e.Env["NVSHMEM_DISABLE_GDRCOPY"]); v != "" && v != "0" && v != "false" {
			return "NVSHMEM_DISABLE_GDRCOPY=" + v + " turns it off", "Unset it."
		}
	}
	return "", ""
}

// allowsGDRCopy reads a list of UCX's transports. One that begins with ^ is of those
// that are not used.
func allowsGDRCopy(tls string) bool {
	list, without := strings.CutPrefix(tls, "^")
	listed := false
	for _, t := range strings.Split(list, ",") {
		for _, name := range []string{"gdr_copy", "cuda"} {
			matches, _ := path.Match(strings.TrimPrefix(t, "\\"), name)
			listed = listed || matches
		}
		listed = listed || t == "all" && !without
	}
	return listed != without
}
