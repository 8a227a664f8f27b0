//go:build !amd64

package main

import "golang.org/x/sys/unix"

const sysStatAt = unix.SYS_FSTATAT

var old map[int32]string
