package long

/*
#include <stdlib.h>
#include "plan.h"
#include "pool.h"
*/
import "C"

import (
	"fmt"
	"math"
	"strconv"
	"unsafe"
)

// setting is a variable of the environment that says how long copies are made.
type setting struct {
	name, want  string
	words       map[string]uint64
	least, most uint64 // of a number
	unset       uint64 // what counts where the variable is unset or empty
}

const (
	copyWay = iota
	copySpin
	readThreads
	writeThreads
	dmaRead
	dmaWrite
	settingCount
)

var (
	threads = fmt.Sprintf("a number from 1 to %d", C.COPY_THREADS_MAX)
	spin    = fmt.Sprintf("a number of microseconds up to %d, or \"forever\"", C.COPY_SPIN_US_MAX)
	bytes1  = "a number of bytes, from 1"
)

// settings has each of them. gdrapi(3) describes them, and tests/man/api.sh compares the two.
var settings = [settingCount]setting{
	copyWay:      {"GDRCOPY_COPY", `"caller" or "auto"`, map[string]uint64{"caller": 0, "auto": 1}, 1, 0, 0},
	copySpin:     {"GDRCOPY_COPY_SPIN", spin, map[string]uint64{"forever": C.COPY_SPIN_FOREVER}, 0, C.COPY_SPIN_US_MAX, C.COPY_SPIN_US},
	readThreads:  {"GDRCOPY_READ_THREADS", threads, nil, 1, C.COPY_THREADS_MAX, 0},
	writeThreads: {"GDRCOPY_WRITE_THREADS", threads, nil, 1, C.COPY_THREADS_MAX, 0},
	dmaRead:      {"GDRCOPY_DMA_READ", bytes1, nil, 1, math.MaxUint64, math.MaxUint64},
	dmaWrite:     {"GDRCOPY_DMA_WRITE", bytes1, nil, 1, math.MaxUint64, math.MaxUint64},
}

// value is what text means. A number has digits only.
func (s setting) value(text string) (uint64, error) {
	if text == "" {
		return s.unset, nil
	}
	if v, ok := s.words[text]; ok {
		return v, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n < s.least || n > s.most {
		return 0, fmt.Errorf("%s is not %s; correct or unset it", s.name, s.want)
	}
	return n, nil
}

// getenv asks C, for the host may have changed the environment. Go's is the one of its start, and
// in libgdrapi.so it is empty.
func getenv(name string) string {
	text := append([]byte(name), 0)
	return C.GoString(C.getenv((*C.char)(unsafe.Pointer(&text[0]))))
}

// values has the value of each setting.
func values() (v [settingCount]uint64, err error) {
	for i, s := range settings {
		if v[i], err = s.value(getenv(s.name)); err != nil {
			return v, err
		}
	}
	return v, nil
}

// ReadSettings reads what the environment asks of copies, and has them made so. After an error
// nothing is changed.
func ReadSettings() error {
	v, err := values()
	if err != nil {
		return err
	}
	C.copy_pool_spin(C.uint64_t(v[copySpin]))
	C.copy_plan_set_by_env(&C.struct_copy_wishes{
		threads:   [2]C.uint{C.uint(v[readThreads]), C.uint(v[writeThreads])},
		least_dma: [2]C.size_t{C.size_t(v[dmaRead]), C.size_t(v[dmaWrite])},
		chooses:   v[copyWay] != 0,
	})
	return nil
}
