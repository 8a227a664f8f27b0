package handle

import (
	"fmt"
	"strconv"

	"gdrapi/core"

	"golang.org/x/sys/unix"
)

// LongCopies is what the environment asks of long copies. auto says what gdr_set_copy_policy
// asks: 1 for GDR_COPY_POLICY_AUTO, 0 for CALLER, -1 for nothing. gdrapi(3) has the rule.
func LongCopies(asked func(string) string, auto int) (long core.LongCopies, err error) {
	way := asked("GDRCOPY_COPY")
	if way != "" && way != "auto" && way != "caller" {
		return long, fmt.Errorf(`GDRCOPY_COPY is not "caller" or "auto"; correct or unset it: %w`, unix.EINVAL)
	}
	if auto < 0 && way == "auto" || auto > 0 {
		long = core.AutoCopies
	}
	for _, v := range []struct {
		name string
		to   *uint64
	}{{"GDRCOPY_DMA_READ", &long.Read}, {"GDRCOPY_DMA_WRITE", &long.Write}} {
		text := asked(v.name)
		if text == "" {
			continue
		}
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil || n == 0 {
			return long, fmt.Errorf("%s is not a number of bytes, from 1; correct or unset it: %w", v.name, unix.EINVAL)
		}
		*v.to = n
	}
	if auto == 0 {
		long = core.LongCopies{}
	}
	return long, nil
}
