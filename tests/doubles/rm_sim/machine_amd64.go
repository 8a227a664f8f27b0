package main

import "golang.org/x/sys/unix"

// Calls with a path of amd64's alone: the path is their first argument.
const sysStatAt = unix.SYS_NEWFSTATAT

var old = map[int32]string{unix.SYS_OPEN: "open", unix.SYS_ACCESS: "access", unix.SYS_STAT: "stat", unix.SYS_LSTAT: "stat"}
