// SPDX-License-Identifier: MIT
/*
 * Simulated libcuda: mmap of the simulated driver's files. Test code.
 *
 * A program maps a GPU's file at offset 0. The memory is in a memfd, at some offset. The
 * driver says which memfd and which offset.
 *
 * So with that driver this file replaces the C library's mmap. The first instruction of
 * mmap jumps here, however a program has found mmap. (A library that comes first in the
 * search for symbols would not be enough. RTLD_DEEPBIND goes past it, and so does a
 * program that sets LD_PRELOAD for another library.)
 */
#include "cuda_sim.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "rm_uapi.h"

static void *map(void *addr, size_t length, int prot, int flags, int fd, off_t offset)
{
	return (void *)syscall(SYS_mmap, addr, length, prot, flags, fd, offset);
}

/* A real mmap takes no descriptor. So the one that this takes for a moment may pass the soft limit. */
static long ask(int fd, struct rm_sim_mmap *m)
{
	long result = syscall(SYS_ioctl, fd, RM_SIM_MMAP, m);
	struct rlimit limit, more;
	int saved;

	if (!result || errno != EMFILE || getrlimit(RLIMIT_NOFILE, &limit))
		return result;
	more = (struct rlimit){ limit.rlim_max, limit.rlim_max };
	setrlimit(RLIMIT_NOFILE, &more);
	result = syscall(SYS_ioctl, fd, RM_SIM_MMAP, m);
	saved = errno;
	setrlimit(RLIMIT_NOFILE, &limit);
	errno = saved;
	return result;
}

static void *sim_mmap(void *addr, size_t length, int prot, int flags, int fd, off_t offset)
{
	struct rm_sim_mmap m = { .length = length, .offset = (uint64_t)offset };
	int saved = errno;
	void *p;

	if (fd < 0 || !(flags & MAP_SHARED))
		return map(addr, length, prot, flags, fd, offset);
	if (ask(fd, &m)) {
		/* The file is none of the driver's. */
		if (errno != ENOTTY && errno != EBADF)
			return MAP_FAILED;
		errno = saved;
		return map(addr, length, prot, flags, fd, offset);
	}
	if (m.address) {
		errno = saved;
		return (void *)(uintptr_t)m.address;
	}
	p = map(addr, length, prot, flags, m.out_fd, (off_t)m.offset);
	saved = p == MAP_FAILED ? errno : saved;
	if (m.out_fd != fd)
		close(m.out_fd);
	errno = saved;
	return p;
}

#if defined(__x86_64__)
typedef uint64_t code_t;

/* A jump over a distance, into the first bytes of a function. Functions begin at multiples of 16. */
static bool put_jump(code_t *code, int64_t distance)
{
	int32_t near = (int32_t)(distance - 5);

	*(uint8_t *)code = 0xe9;
	memcpy((uint8_t *)code + 1, &near, sizeof(near));
	return near == distance - 5;
}
#else	/* nor is there a simulated driver */
typedef uint32_t code_t;

static bool put_jump(code_t *code, int64_t distance)
{
	(void)code;
	(void)distance;
	return false;
}
#endif

/*
 * The jump is written in one store, as other threads may be in the C library. The C
 * library's code is near this library.
 */
static bool jump(void *from, void *to)
{
	uintptr_t page = (uintptr_t)from & ~((uintptr_t)getpagesize() - 1);
	code_t code;

	memcpy(&code, from, sizeof(code));
	if (!put_jump(&code, (char *)to - (char *)from) || (uintptr_t)from % sizeof(code) ||
	    mprotect((void *)page, (size_t)getpagesize(), PROT_READ | PROT_WRITE | PROT_EXEC))
		return false;
	atomic_store((_Atomic code_t *)from, code);
	__builtin___clear_cache((char *)from, (char *)from + sizeof(code));
	return !mprotect((void *)page, (size_t)getpagesize(), PROT_READ | PROT_EXEC);
}

/*
 * Whether this file has replaced mmap. When this library is loaded, a process may be at
 * its limit of mappings. cuInit tries again.
 */
bool mmap_taken(void)
{
	static bool taken;
	void *libc = taken ? NULL : dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);

	if (!libc)
		return taken;
	taken = jump(dlsym(libc, "mmap"), (void *)(uintptr_t)sim_mmap);
	dlclose(libc);
	return taken;
}

__attribute__((constructor)) static void take_mmap(void)
{
	if (rm_mode())
		mmap_taken();
}
