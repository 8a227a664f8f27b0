// Command golib is a Go library of a host's own.
package main

import "C"

import "runtime"

func main() {}

// golib_sum adds 1 to n on as many goroutines, and collects garbage meanwhile.
//
//export golib_sum
func golib_sum(n C.long) C.long {
	parts := make(chan C.long)
	for i := C.long(1); i <= n; i++ {
		go func() { parts <- i }()
	}
	runtime.GC()
	var sum C.long
	for range n {
		sum += <-parts
	}
	return sum
}
