package core

import (
	"errors"
	"fmt"

	"gdrapi/core/backend"

	"golang.org/x/sys/unix"
)

// Span is Size bytes of GPU memory at Addr.
type Span struct{ Addr, Size uint64 }

// Lane is a few spans of GPU memory that a program writes before each step of its work, such as
// the block tables and lengths of an inference server. They are pinned and mapped once.
//
// A kernel that is launched after Write returned sees the bytes. A set may be written again
// when all kernels that read it have ended. So a program that prepares a step while the last
// one runs has two sets, and writes them in turns.
type Lane struct {
	sets [][]*Mapping
}

// OpenLane pins and maps the spans of each set, which must not share bytes. The memory must
// stay until Close. Errors: those of Map; EINVAL (there are no spans); ENOTSUP (the CPU caches
// the memory, as on Grace: have the kernels read host memory instead).
func (d *Device) OpenLane(sets ...[]Span) (*Lane, error) {
	l := &Lane{sets: make([][]*Mapping, len(sets))}
	for i, spans := range sets {
		for _, s := range spans {
			m, err := d.Map(s.Addr, s.Size)
			if err != nil {
				return nil, errors.Join(err, l.Close())
			}
			l.sets[i] = append(l.sets[i], m)
			if m.Type() == backend.Caching {
				return nil, errors.Join(fmt.Errorf("the CPU caches this GPU's memory; have kernels read host memory: %w", unix.ENOTSUP), l.Close())
			}
		}
		if len(spans) == 0 {
			return nil, errors.Join(fmt.Errorf("set %d of the lane has no spans: %w", i, unix.EINVAL), l.Close())
		}
	}
	return l, nil
}

// Write writes each array to the start of the span with its number, and leaves the rest of it. An
// empty array leaves its span as it is. Write allocates nothing. Errors: EINVAL (no such set, another
// number of arrays, an array longer than its span: nothing is written); those of Mapping.WriteAt, after
// which arrays before the failed one are written.
func (l *Lane) Write(set int, arrays ...[]byte) error {
	if set < 0 || set >= len(l.sets) || len(arrays) != len(l.sets[set]) {
		return fmt.Errorf("write of %d arrays to set %d of a lane: %w", len(arrays), set, unix.EINVAL)
	}
	spans := l.sets[set]
	for i, p := range arrays {
		if uint64(len(p)) > spans[i].size {
			return fmt.Errorf("array %d has %d bytes, its span %d: %w", i, len(p), spans[i].size, unix.EINVAL)
		}
	}
	for i, p := range arrays {
		if len(p) == 0 {
			continue
		}
		if _, err := spans[i].WriteAt(p, 0); err != nil {
			return err
		}
	}
	return nil
}

// Close unpins the spans. It waits for Write.
func (l *Lane) Close() error {
	var err error
	for _, spans := range l.sets {
		for _, m := range spans {
			err = first(err, m.Close())
		}
	}
	return err
}
