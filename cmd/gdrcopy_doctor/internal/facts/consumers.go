package facts

import (
	"debug/elf"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// knownConsumers are the files by which each consumer uses libgdrapi.
var knownConsumers = []struct{ name, pattern string }{
	{"UCX", "libuct_cuda_gdrcopy.so*"},
	{UCXWithout, "libuct.so*"},
	{"NCCL", "libnccl.so*"},
	{"aws-ofi-nccl", "libnccl-net-ofi.so*"},
	{"aws-ofi-nccl", "libnccl-net.so*"},
	{"libfabric", "libfabric.so*"},
	{"NVSHMEM", "nvshmem_transport_*.so*"},
	{OpenMPI, "libmpi.so*"},
	{"DPDK", "librte_gpu_cuda.so*"},
}

// UCXWithout is UCX of which no transport for libgdrapi was found. OpenMPI uses
// libgdrapi through UCX or libfabric alone.
const (
	UCXWithout = "UCX without its transport"
	OpenMPI    = "Open MPI"
)

// consumers looks for consumers in the folders. A file with several names is listed
// once.
func (r Root) consumers(folders []string) []Consumer {
	var list []Consumer
	seen := map[string]bool{}
	for _, known := range knownConsumers {
		for _, dir := range folders {
			for _, path := range r.glob(filepath.Join(dir, known.pattern)) {
				real, err := filepath.EvalSymlinks(r.path(path))
				if err != nil || seen[real] {
					continue
				}
				seen[real] = true
				list = append(list, r.consumer(known.name, path))
			}
		}
	}
	if slices.ContainsFunc(list, func(c Consumer) bool { return c.Name == "UCX" }) {
		list = slices.DeleteFunc(list, func(c Consumer) bool { return c.Name == UCXWithout })
	}
	return list
}

// libraryName is a name of libgdrapi as it stands in a program, with the NUL after it.
var libraryName = regexp.MustCompile(`libgdrapi\.so(\.[0-9]+)*\x00`)

func (r Root) consumer(name, path string) Consumer {
	c := Consumer{Name: name, Path: path}
	text, folders := readStrings(r.path(path))
	for _, m := range libraryName.FindAll(text, -1) {
		want := string(m[:len(m)-1])
		if !slices.Contains(c.Wants, want) {
			c.Wants = append(c.Wants, want)
		}
	}
	for _, dir := range folders {
		dir = strings.NewReplacer("$ORIGIN", filepath.Dir(path), "${ORIGIN}", filepath.Dir(path)).Replace(dir)
		for _, want := range c.Wants {
			if at := filepath.Join(dir, want); c.Finds == "" && r.exists(at) {
				c.Finds = at
			}
		}
	}
	return c
}

// maxText bounds what is read of one section or file, in bytes.
const maxText = 64 << 20

// readStrings gives the bytes of a shared library that its strings are in, and the folders
// of its own in which the loader looks first. Of a file that is no ELF it is the file.
func readStrings(path string) (text []byte, folders []string) {
	f, err := elf.Open(path)
	if err != nil {
		if info, err := os.Stat(path); err == nil && info.Size() <= maxText {
			text, _ = os.ReadFile(path)
		}
		return text, nil
	}
	defer f.Close()
	for _, s := range f.Sections {
		if (s.Name == ".rodata" || s.Name == ".dynstr" || strings.HasPrefix(s.Name, ".rodata.")) && s.Size <= maxText {
			b, _ := s.Data()
			text = append(append(text, b...), 0)
		}
	}
	for _, tag := range []elf.DynTag{elf.DT_RPATH, elf.DT_RUNPATH} {
		values, _ := f.DynString(tag)
		for _, v := range values {
			folders = append(folders, filepath.SplitList(v)...)
		}
	}
	return text, folders
}
