package dl

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOpen(t *testing.T) {
	handle, err := Open("libc.so.6")
	require.NoError(t, err)
	require.NotZero(t, handle)
}

// Goroutines change threads between two calls, all the more often where many of them run.
func TestErrorsHaveText(t *testing.T) {
	var wg sync.WaitGroup
	for range 32 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range 1000 {
				if _, err := Open("libnothing.so.9"); err == nil || err.Error() == "" {
					t.Errorf("the error is %#v", err)
					return
				}
			}
		}()
	}
	wg.Wait()
}
