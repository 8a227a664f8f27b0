// Package copy has the copy routines between host memory and mappings of GPU
// memory.
//
// It is C, and so are its callers: a copy never enters Go. copy.h and fence.h are what
// it offers; slot.h is the memory that copies share with package handle. It knows nothing
// of package capi.
package copy

// #cgo CFLAGS: -std=gnu11 -O2 -g -Wall -Wextra
// #cgo LDFLAGS: -lpthread
import "C"
