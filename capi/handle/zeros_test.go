package handle

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// flags are the kernel's of the mapping that begins at mem (proc_pid_smaps(5)).
func flags(t *testing.T, mem []byte) []string {
	text, err := os.ReadFile("/proc/self/smaps")
	require.NoError(t, err)
	_, rest, found := strings.Cut("\n"+string(text), fmt.Sprintf("\n%x-", uintptr(unsafe.Pointer(&mem[0]))))
	require.True(t, found)
	_, rest, found = strings.Cut(rest, "\nVmFlags: ")
	require.True(t, found)
	line, _, _ := strings.Cut(rest, "\n")
	return strings.Fields(line)
}

func TestZeros(t *testing.T) {
	mem, err := zeros(1<<22, unix.PROT_READ|unix.PROT_WRITE)
	require.NoError(t, err)
	require.Len(t, mem, 1<<22)
	require.Equal(t, make([]byte, 1<<22), mem)
	mem[1<<22-1] = 1 // it can be written
	have := flags(t, mem)
	require.Contains(t, have, "dc", "no child has it")
	require.NotContains(t, have, "lo", "it is not locked")
	if _, err := os.Stat("/sys/kernel/mm/transparent_hugepage"); err == nil {
		require.Contains(t, have, "nh", "it has no huge pages")
	}
	if mode, err := os.ReadFile("/proc/sys/vm/overcommit_memory"); err == nil && mode[0] != '2' {
		require.Contains(t, have, "nr", "no memory is set aside for it")
	}
	require.NoError(t, unix.Munmap(mem))

	if unix.Mlockall(unix.MCL_FUTURE) == nil {
		mem, err = zeros(1<<22, unix.PROT_READ|unix.PROT_WRITE)
		if err == nil {
			have = flags(t, mem)
		}
		require.NoError(t, unix.Munlockall())
		require.NoError(t, err)
		require.NotContains(t, have, "lo", "nor where the host locks all")
		require.NoError(t, unix.Munmap(mem))
	}

	_, err = zeros(0, unix.PROT_READ)
	require.ErrorIs(t, err, unix.EINVAL)
	require.ErrorContains(t, err, "reserving 0 bytes of address space")
}
