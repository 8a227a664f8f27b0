package host

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"golang.org/x/sys/unix"
)

// This process has threads, so no start has registered it. Where the kernel refuses, it says so.
func TestRegisterBarrier(t *testing.T) {
	const privateExpedited = 1 << 3
	barrier := func() error {
		if _, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, privateExpedited, 0, 0); errno != 0 {
			return errno
		}
		return nil
	}
	assert.Error(t, barrier())
	if err := RegisterBarrier(); err != nil {
		assert.Error(t, barrier(), "%v", err)
	} else {
		assert.NoError(t, barrier())
	}
}
