package probe

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var errRefused = errors.New("refused")

// The time of one call is in nanoseconds, and the empty call's is taken away. The clock is
// the test's.
func TestBeyond(t *testing.T) {
	at := time.Unix(0, 0)
	now := func() time.Time { return at }
	takes := func(d time.Duration) func() error {
		return func() error { at = at.Add(d); return nil }
	}
	refuse := func() error { return errRefused }
	rounds := 0
	slowFirst := func() error {
		rounds++
		if rounds <= callsOfRound {
			at = at.Add(time.Second)
		}
		at = at.Add(700)
		return nil
	}
	for _, c := range []struct {
		name        string
		empty, call func() error
		want        float64
		err         error
	}{
		{"a call", takes(50), takes(1050), 1000, nil},
		{"the quickest round counts", takes(200), slowFirst, 500, nil},
		{"less than an empty call", takes(50), takes(20), 1, nil},
		{"a call that is refused", takes(50), refuse, 0, errRefused},
		{"an empty call that is refused", refuse, takes(50), 0, errRefused},
	} {
		ns, err := beyond(now, c.empty, c.call)
		require.ErrorIs(t, err, c.err, c.name)
		require.Equal(t, c.want, ns, c.name)
	}
}
