// SPDX-License-Identifier: MIT
/*
 * What capi/guest/slot_test.go finds in a library: an exported function, and the slot of ioctl.
 * WATCHED_ABSENT: ioctl is not called by name.
 */
#define _GNU_SOURCE
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

int watched_export(int fd, unsigned long request, void *arg);

int watched_export(int fd, unsigned long request, void *arg)
{
#ifdef WATCHED_ABSENT
	return (int)syscall(SYS_ioctl, fd, request, arg);
#else
	return ioctl(fd, request, arg);
#endif
}
