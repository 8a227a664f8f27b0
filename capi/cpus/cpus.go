// Package cpus chooses on which CPUs threads that share copies run.
//
// A read is limited by what one core can have in flight. So each thread gets a core of its
// own while there are enough cores. The CPUs are of the caller's NUMA node: a host that cares
// has bound the caller next to its GPU.
package cpus

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Max is the number of CPUs that Linux can have.
const Max = 8192

// Set is a set of CPUs in the form that the system calls take.
type Set [Max / 64]uint64

func (s *Set) add(cpu int)      { s[cpu/64] |= 1 << (cpu % 64) }
func (s *Set) has(cpu int) bool { return s[cpu/64]>>(cpu%64)&1 != 0 }

// Len is the number of CPUs in the set.
func (s *Set) Len() int {
	n := 0
	for _, word := range s {
		n += bits.OnesCount64(word)
	}
	return n
}

// Machine is what the kernel says to one thread.
type Machine struct {
	Allowed   Set // CPUs that the thread may run on; empty: the kernel does not say
	cpu, node int // on which it is
	read      func(path string) (string, error)
}

// Here describes the machine to the calling thread.
func Here() *Machine {
	m := &Machine{cpu: Max, read: read}
	var cpu, node uint32
	// x/sys has no call for sets of more than 1024 CPUs, and none for the CPU.
	unix.RawSyscall(unix.SYS_SCHED_GETAFFINITY, 0, unsafe.Sizeof(m.Allowed), uintptr(unsafe.Pointer(&m.Allowed)))
	_, _, errno := unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&cpu)), uintptr(unsafe.Pointer(&node)), 0)
	if errno == 0 {
		m.cpu, m.node = int(cpu), int(node)
	}
	return m
}

func read(path string) (string, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	var text [4096]byte
	n, err := unix.Read(fd, text[:])
	return string(text[:max(n, 0)]), err
}

// Apart gives each of n threads CPUs that no other of them has, and if there are enough
// cores, no CPU of another's core. None has the CPU that the calling thread is on. If this
// NUMA node has enough CPUs, they are all of this node. Apart returns nil where there are
// fewer CPUs than threads.
func (m *Machine) Apart(n int) []Set {
	cpus := m.usable(fmt.Sprintf("/sys/devices/system/node/node%d/cpulist", m.node))
	if len(cpus) < n {
		cpus = m.usable("")
	}
	if len(cpus) < n {
		return nil
	}
	parts := m.cores(cpus)
	if len(parts) < n {
		parts = slices.Collect(slices.Chunk(slices.Concat(parts...), 1))
	}
	sets := make([]Set, n)
	for i := range sets {
		for _, part := range parts[len(parts)*i/n : len(parts)*(i+1)/n] {
			for _, cpu := range part {
				sets[i].add(cpu)
			}
		}
	}
	return sets
}

// usable lists the allowed CPUs but that of the calling thread. If path is not empty, they
// are those that the file lists, too.
func (m *Machine) usable(path string) []int {
	in := &m.Allowed
	if path != "" {
		in = m.list(path)
	}
	var cpus []int
	for cpu := range Max {
		if cpu != m.cpu && m.Allowed.has(cpu) && in.has(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus
}

// cores puts the CPUs of each core together.
func (m *Machine) cores(cpus []int) [][]int {
	first := make(map[int]int, len(cpus)) // a CPU's core, by the core's first CPU
	for _, cpu := range cpus {
		first[cpu] = m.core(cpu)
	}
	slices.SortFunc(cpus, func(a, b int) int {
		return cmp.Or(cmp.Compare(first[a], first[b]), cmp.Compare(a, b))
	})
	var cores [][]int
	for i, cpu := range cpus {
		if i == 0 || first[cpu] != first[cpus[i-1]] {
			cores = append(cores, nil)
		}
		last := &cores[len(cores)-1]
		*last = append(*last, cpu)
	}
	return cores
}

// core is the first CPU of the CPU's core.
func (m *Machine) core(cpu int) int {
	siblings := m.list(fmt.Sprintf("/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu))
	for i := range cpu {
		if siblings.has(i) {
			return i
		}
	}
	return cpu
}

// list reads a list of CPUs in the form of sysfs ("0-3,8"). Where there is none, it is empty.
func (m *Machine) list(path string) *Set {
	s := new(Set)
	text, err := m.read(path)
	if err != nil {
		return s
	}
	for _, span := range strings.Split(strings.TrimSpace(text), ",") {
		from, to, isSpan := strings.Cut(span, "-")
		first, err := strconv.Atoi(from)
		if err != nil || first < 0 {
			break
		}
		last := first
		if isSpan {
			if last, err = strconv.Atoi(to); err != nil {
				break
			}
		}
		for cpu := first; cpu <= min(last, Max-1); cpu++ {
			s.add(cpu)
		}
	}
	return s
}
