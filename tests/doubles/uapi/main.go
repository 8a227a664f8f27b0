// Command uapi prints build/tests/rm_uapi.h: the requests of the simulated driver, for C.
package main

import (
	"fmt"

	"gdrapi/tests/doubles/nvrm"
)

func main() { fmt.Print(nvrm.Header()) }
