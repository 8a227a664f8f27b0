package cpus

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Two nodes of two cores, each core two CPUs: i and i + 4 are one core, cores 0 and 1 are
// node 0's.
func machine(here int, allowed uint64, sysfs bool) *Machine {
	m := &Machine{cpu: here, node: here % 4 / 2}
	m.Allowed[0] = allowed
	m.read = func(path string) (string, error) {
		var n int
		if _, err := fmt.Sscanf(path, "/sys/devices/system/node/node%d/cpulist", &n); sysfs && err == nil {
			return fmt.Sprintf("%d-%d,%d-%d\n", 2*n, 2*n+1, 2*n+4, 2*n+5), nil
		}
		if _, err := fmt.Sscanf(path, "/sys/devices/system/cpu/cpu%d/topology", &n); sysfs && err == nil {
			return fmt.Sprintf("%d,%d\n", n%4, n%4+4), nil
		}
		return "", unix.ENOENT
	}
	return m
}

func TestApart(t *testing.T) {
	for _, c := range []struct {
		what    string
		here    int
		allowed uint64
		sysfs   bool
		want    []uint64 // for each thread
	}{
		{"one gets all of the node but this CPU", 0, 0xff, true, []uint64{0x32}},
		{"two get a core each", 0, 0xff, true, []uint64{0x10, 0x22}},
		{"two on the other node", 7, 0xff, true, []uint64{0x44, 0x08}},
		{"three get a CPU each of the node", 0, 0xff, true, []uint64{0x10, 0x02, 0x20}},
		{"four need the other node, and get a core each", 0, 0xff, true, []uint64{0x10, 0x22, 0x44, 0x88}},
		{"seven get a CPU each", 1, 0xff, true, []uint64{0x01, 0x10, 0x20, 0x04, 0x40, 0x08, 0x80}},
		{"none gets what is not allowed", 0, 0x0f, true, []uint64{0x02, 0x04, 0x08}},
		{"without sysfs any CPU will do", 0, 0x0f, false, []uint64{0x02, 0x04, 0x08}},
	} {
		t.Run(c.what, func(t *testing.T) {
			sets := machine(c.here, c.allowed, c.sysfs).Apart(len(c.want))
			require.Len(t, sets, len(c.want))
			for i, s := range sets {
				require.Equal(t, Set{c.want[i]}, s, "thread %d", i)
			}
		})
	}
	require.Nil(t, machine(0, 0xff, true).Apart(8), "eight are too many beside this one")
	require.Nil(t, machine(0, 0x01, true).Apart(1), "one is, where this one has the only CPU")
}

func TestLists(t *testing.T) {
	for text, want := range map[string]Set{
		"":                  {},
		"\n":                {},
		"0\n":               {1},
		"0-3,8\n":           {0x10f},
		"63-64\n":           {1 << 63, 1},
		"5-4,6":             {1 << 6},
		"1,x,2":             {2},
		"2-,3":              {},
		"-1":                {},
		"8191-1000000000\n": {127: 1 << 63},
		"9000":              {},
	} {
		m := &Machine{read: func(string) (string, error) { return text, nil }}
		require.Equal(t, want, *m.list(""), "%q", text)
	}
}

// Each thread has CPUs of this machine that no other has.
func TestHere(t *testing.T) {
	m := Here()
	require.NotZero(t, m.Allowed.Len())
	left := m.Allowed
	for i, s := range m.Apart(m.Allowed.Len() - 1) {
		require.NotZero(t, s.Len(), "thread %d", i)
		for w := range s {
			require.Zero(t, s[w]&^left[w], "thread %d", i)
			left[w] &^= s[w]
		}
	}
	require.Nil(t, m.Apart(m.Allowed.Len()))
}

// On each CPU it tells that one, and its node.
func TestWhere(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var was unix.CPUSet
	require.NoError(t, unix.SchedGetaffinity(0, &was))
	defer unix.SchedSetaffinity(0, &was)
	for cpu := range len(was) * 64 {
		if !was.IsSet(cpu) {
			continue
		}
		var one unix.CPUSet
		one.Set(cpu)
		require.NoError(t, unix.SchedSetaffinity(0, &one))
		m := Here()
		require.Equal(t, cpu, m.cpu)
		require.Equal(t, 1, m.Allowed.Len())
		if _, err := os.Stat("/sys/devices/system/node/node0"); err == nil {
			_, err := os.Stat(fmt.Sprintf("/sys/devices/system/cpu/cpu%d/node%d", cpu, m.node))
			require.NoError(t, err, "it is of node %d", m.node)
		}
	}
}
