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
	if slices.ContainsFunc(e.CUDA.Devices, func(d facts.Device) bool { return d.Coherent > 0 }) {
		return append(e.usedUp(false), Finding{"bar1", OK, "The GPU is coherent with the CPU: only what is forced through PCIe is mapped by BAR1.", ""})
	}
	const small, scarce = 1 << 30, 64 * mib
	const most = ". No more than that can be mapped at one time."
	var findings []Finding
	for _, g := range e.NVML.GPUs {
		text := fmt.Sprintf("GPU %s: of %d MiB of BAR1 %d MiB are free", g.PCI, g.BAR1Total/mib, g.BAR1Free/mib)
		known := g.BAR1Total > 0
		findings = append(findings, finding("bar1", []row{
			{known && g.BAR1Free < scarce, e.cause(), text + ".", makeRoom},
			{known && g.BAR1Total < small, Warn, text + most, resize},
			{known, OK, text + ".", ""},
		})...)
	}
	known := len(findings) > 0
	for _, g := range e.GPUs {
		text := fmt.Sprintf("GPU %s: BAR1 has %d MiB", g.PCI, g.BAR1/mib)
		findings = append(findings, finding("bar1", []row{
			{!known && g.BAR1 > 0 && g.BAR1 < small, Warn, text + most, resize},
			{!known && g.BAR1 > 0, OK, text + ". Without NVML it is not known how much is in use.", ""},
		})...)
	}
	failed := slices.ContainsFunc(findings, func(f Finding) bool { return f.Status == Fail })
	return append(e.usedUp(failed), findings...)
}

// usedUp is what the driver said of BAR1, if the figures do not say it.
func (e *examination) usedUp(said bool) []Finding {
	return finding("bar1", []row{{!e.worked && !said && e.isSaid("BAR1 or the driver's memory is used up"), Fail,
		"BAR1 has no room for one more mapping (NV_ERR_INSUFFICIENT_RESOURCES).", makeRoom}})
}

const makeRoom = "Processes that map GPU memory hold it: unmap buffers, or end those (nvidia-smi lists them)."

const resize = "Turn on Resizable BAR (and Above 4G Decoding) in the machine's firmware, if GPU and board have it."

// memory says of GPUs whose memory is not behind PCIe how it is mapped.
func (e *examination) memory() []Finding {
	for _, d := range e.CUDA.Devices {
		if f := finding("memory", []row{
			{d.Integrated > 0, OK, fmt.Sprintf("GPU %s has no memory of its own (as GB10 and Thor). rm maps the system's.", d.PCI), ""},
			{d.Coherent > 0, OK, fmt.Sprintf("The CPU may cache the memory of GPU %s (as on GH200 and GB200). rm's mappings of it are cached.", d.PCI), ""},
		}); f != nil {
			return f
		}
	}
	return nil
}

// thatIs is the first GPU of NVML's that is so.
func (e *examination) thatIs(so func(facts.ManagedGPU) bool) (pci string, found bool) {
	i := slices.IndexFunc(e.NVML.GPUs, so)
	if i < 0 {
		return "", false
	}
	return e.NVML.GPUs[i].PCI, true
}

// mig looks for GPUs that are parted into instances.
func (e *examination) mig() []Finding {
	pci, found := e.thatIs(func(g facts.ManagedGPU) bool { return g.MIG })
	text := fmt.Sprintf("GPU %s is parted into instances (MIG)", pci)
	return finding("mig", []row{
		{found && e.worked, OK, text + ", and the trial went well on one.", ""},
		{found, Warn, text + ". rm does not map their memory.", withoutMIG},
	})
}

// vgpu looks for GPUs that are a part of one.
func (e *examination) vgpu() []Finding {
	pci, found := e.thatIs(func(g facts.ManagedGPU) bool { return g.VGPU })
	return finding("vgpu", []row{{found, Warn, fmt.Sprintf("GPU %s is a virtual one (vGPU). Whether its memory can be mapped is the host's choice.", pci),
		"If the trial failed: have the machine given a whole GPU (passthrough), or a profile of a whole one."}})
}

// confidential looks for confidential computing.
func (e *examination) confidential() []Finding {
	return finding("confidential-computing", []row{{e.NVML.Confidential, e.cause(),
		"Confidential computing is on: the GPU hides its memory from the CPU, which cannot map it.", copyByCUDA}})
}

// littleSpace is SPACE_BYTES of capi/guest/runtime.c.
const littleSpace = 1536 * mib

// TooLittleSpace says whether processes may have less address space than the library takes. Then nothing
// else is worth asking: a child that is asked may run out of it at any point.
func TooLittleSpace(f facts.Facts) bool { return f.Limits.Space < littleSpace }

// limits looks at what a process may have.
func (e *examination) limits() []Finding {
	// CUDA by itself takes dozens of descriptors.
	const fewFiles, tooFewFiles, littleMemory = 1024, 64, 64 * mib
	const more = "Raise the limit: ulimit -n, LimitNOFILE of systemd, --ulimit nofile of a container."
	l, little := e.Limits, TooLittleSpace(e.Facts)
	files, memory := fmt.Sprintf("A process may have %s descriptors", number(l.Files)), fmt.Sprintf("A process may lock %d KiB of memory. libgdrapi locks none", l.Memlock>>10)
	return slices.Concat(finding("limit-files", []row{
		{!e.worked && (l.Files < tooFewFiles || e.outOfFiles()), Fail, files + ", which is too few for CUDA and the library.", more},
		{l.Files < fewFiles, Warn, files + ". The backend dmabuf takes one for each pinned buffer.", more},
		{true, OK, files + ".", ""},
	}), finding("limit-as", []row{
		{little, Fail, fmt.Sprintf("A process may have %d MiB of address space. gdr_open of this library takes %d MiB, and CUDA more. Nothing else was asked.", l.Space/mib, littleSpace/mib),
			"Raise the limit: ulimit -v unlimited, LimitAS of systemd, the batch system's limit of virtual memory."},
	}), finding("limit-memlock", []row{
		{!little && l.Memlock == facts.Unlimited, OK, "A process may lock any amount of memory.", ""},
		{!little && e.RDMA && l.Memlock < littleMemory, Warn, memory + ", but UCX, libfabric and NCCL do for the RDMA card.",
			"Raise the limit: ulimit -l unlimited, LimitMEMLOCK of systemd, --ulimit memlock=-1 of a container."},
		{!little, OK, memory + ".", ""},
	}))
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
	forced, other := e.forced(), e.opens("")
	name := "GDRCOPY_BACKEND=" + forced
	if e.Env["GDRCOPY_BACKEND"] == "" {
		name = "GDRCOPY_USE_DMABUF_MMAP=1"
	}
	var names []string
	shut := false // the one that is asked for does not open
	for _, b := range e.Backends {
		names = append(names, b.Name)
		shut = shut || b.Name == forced && (b.Error != "" || b.Died != "")
	}
	bad, said := e.refused()
	return finding("environment", []row{
		{bad != "", Fail, fmt.Sprintf("The library refuses %s=%s. %s", bad, e.Env[bad], sentence(said)), "Unset " + bad + ", or set it as gdrapi(3) says."},
		{forced != "" && !slices.Contains(names, forced), Fail, fmt.Sprintf("%s names no backend. They are %s.", name, strings.Join(names, ", ")), "Unset it, or name one of these."},
		{forced != "" && !e.worked && other != "" && shut, Fail, fmt.Sprintf("%s forces a backend that does not open here, and %s would.", name, other),
			fmt.Sprintf("Unset it: gdr_open then takes %s. Why %s does not open is in the line backend-%s.", other, forced, forced)},
		{forced != "", OK, name + " forces the backend.", ""},
	})
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
	refused := len(e.Trials) > 0 && e.Trials[0].Step == "gdr_pin_buffer"
	return finding("preload", []row{
		{!e.worked && (e.isSaid("is managed memory") || known && refused), Fail, "cudaMalloc gives managed memory here, which cannot be pinned: " +
			cmp.Or(names, "something between this program and CUDA") + " changes it, as for oversubscription.",
			"Allocate with gdr_mem_alloc, which such layers leave alone. Or run the program without the layer, or without its oversubscription."},
		{names != "", OK, "Each program here has " + names + ".", ""},
	})
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
		r := e.consumer(c)
		findings = append(findings, Finding{"consumer", r.status,
			fmt.Sprintf("%s (%s): %s", strings.TrimSuffix(c.Name, " without its transport"), c.Path, r.cause), r.advice})
	}
	return append(findings, finding("consumer", []row{{len(findings) == 0, OK, "No consumer of libgdrapi was found in the loader's folders.", ""}})...)
}

func (e *examination) consumer(c facts.Consumer) row {
	var l facts.Library // that it takes
	for _, want := range append([]string{c.Finds}, c.Wants...) {
		if of := e.libraryOf(want); l.Name == "" && of.Error == "" && of.Died == "" {
			l = of
		}
	}
	see := e.see("library", "library-name")
	setting, unset := e.setting(c.Name)
	return first([]row{
		{c.Name == facts.UCXWithout, Warn, "its transport for libgdrapi, libuct_cuda_gdrcopy.so, is not there.",
			"Install it (UCX's own packages have it in ucx-gdrcopy or ucx-cuda), or build UCX with --with-gdrcopy."},
		{c.Name == facts.OpenMPI, OK, "it uses libgdrapi through UCX or libfabric.", ""},
		{len(c.Wants) == 0, Warn, "it was built without GDRCopy.", "Take a build with GDRCopy, if you want it to use libgdrapi."},
		{l.Name == "", Warn, fmt.Sprintf("it wants %s, which the loader does not find.", strings.Join(c.Wants, " or ")),
			cmp.Or(see, "Install the library where the loader looks, or put its folder into LD_LIBRARY_PATH.")},
		{!l.Ours && l.Name == c.Finds, Warn, fmt.Sprintf("it takes %s, which is beside it and not this project's.", l.Path), "Remove that file, or put a link to this project's library there."},
		{!l.Ours, Warn, fmt.Sprintf("it takes %s, which is not this project's.", l.Path), cmp.Or(see, "Put this project's library first: LD_LIBRARY_PATH, or LD_PRELOAD for one program.")},
		{c.Name == "NCCL" && e.Env["NCCL_GDRCOPY_ENABLE"] != "1", OK, fmt.Sprintf("with NCCL_GDRCOPY_ENABLE=1 it takes %s.", l.Path), ""},
		{setting != "", Warn, fmt.Sprintf("it would take %s, but %s.", l.Path, setting), unset},
		{true, OK, fmt.Sprintf("it takes %s, as %s.", l.Path, l.Name), ""},
	})
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
