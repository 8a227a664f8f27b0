// SPDX-License-Identifier: MIT
/*
 * Preload library of rm_sim: mmap of the simulated driver's files. Test code.
 *
 * Memory is in memfds, and a mapping starts at an offset in one, while a program
 * maps a GPU's file at offset 0. The driver says which memfd and offset that is.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "rm_uapi.h"

static void *map(void *addr, size_t length, int prot, int flags, int fd, off_t offset)
{
	return (void *)syscall(SYS_mmap, addr, length, prot, flags, fd, offset);
}

void *mmap(void *addr, size_t length, int prot, int flags, int fd, off_t offset)
{
	struct rm_sim_mmap m = { .length = length, .offset = (uint64_t)offset };
	int saved = errno;
	void *p;

	if (fd < 0 || !(flags & MAP_SHARED))
		return map(addr, length, prot, flags, fd, offset);
	if (ioctl(fd, RM_SIM_MMAP, &m)) {
		/* Not a file of the driver's, or no driver. */
		if (errno != ENOTTY && errno != EBADF)
			return MAP_FAILED;
		errno = saved;
		return map(addr, length, prot, flags, fd, offset);
	}
	p = map(addr, length, prot, flags, m.out_fd, (off_t)m.offset);
	saved = p == MAP_FAILED ? errno : saved;
	close(m.out_fd);
	errno = saved;
	return p;
}

void *mmap64(void *addr, size_t length, int prot, int flags, int fd, off_t offset)
	__attribute__((alias("mmap")));
