// SPDX-License-Identifier: MIT
/*
 * Simulated driver: mappings whose memory object is freed. Test code.
 *
 * The real driver takes the pages of BAR1 away, and the mapping reads zeros. Here the process has
 * the memfd mapped. So the driver stops the thread that made the request, on its way
 * back. The thread maps fresh pages in that place and goes on.
 */
#include "rm_sim.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>

/* Mappings to take away from the caller after its request is answered. */
static struct {
	pid_t tid;	/* 0: there are none */
	uint64_t code;	/* of a system call instruction in it */
	unsigned int n;
	struct {
		uint64_t addr, length;
	} at[16];
} pending;

/* Whether the memory is still mapped at that address. A program may have unmapped it. */
static bool still_mapped(pid_t process, const struct rm_memory *m, const struct rm_mapping *map)
{
	char path[64], line[512];
	unsigned long start, offset, inode;
	bool found = false;
	struct stat st;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/maps", process);
	f = fopen(path, "re");
	if (!f || fstat(m->fd, &st)) {
		if (f)
			fclose(f);
		return false;
	}
	while (!found && fgets(line, sizeof(line), f))
		found = sscanf(line, "%lx-%*x %*s %lx %*s %lu", &start, &offset, &inode) == 3 &&
			start == map->addr && offset == map->offset && inode == st.st_ino;
	fclose(f);
	return found;
}

/* Called before the object ends. revoke_now() follows after the answer. */
void revoke_later(const struct rm_caller *c, const struct rm_client *client,
		  const struct rm_object *o)
{
	const struct rm_mapping *m;

	for (m = o->mappings; m; m = m->next) {
		if (!m->addr || !gpu_has_bar(o->gpu) || pending.n == sizeof(pending.at) / sizeof(pending.at[0]) ||
		    !still_mapped(client->process, o->memory, m))
			continue;
		pending.at[pending.n].addr = m->addr;
		pending.at[pending.n].length = m->length;
		pending.n++;
	}
	if (!pending.n || pending.tid)
		return;
	if (ptrace(PTRACE_SEIZE, c->tid, 0, 0) || ptrace(PTRACE_INTERRUPT, c->tid, 0, 0)) {
		perror("rm_sim: a freed mapping still shows the memory, where the real one reads zeros");
		pending.n = 0;
		return;
	}
	pending.tid = c->tid;
	pending.code = c->code;
}

#ifdef __x86_64__
/* Maps fresh pages at addr, in the stopped thread. */
static bool map_fresh(pid_t tid, uint64_t code, uint64_t addr, uint64_t length)
{
	struct user_regs_struct before, r;
	int status;

	if (ptrace(PTRACE_GETREGS, tid, 0, &before))
		return false;
	r = before;
	r.rip = code;
	r.rax = SYS_mmap;
	r.orig_rax = ~0ull;	/* no system call is restarted */
	r.rdi = addr;
	r.rsi = length;
	r.rdx = PROT_READ | PROT_WRITE;
	r.r10 = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
	r.r8 = ~0ull;
	r.r9 = 0;
	if (ptrace(PTRACE_SETREGS, tid, 0, &r) || ptrace(PTRACE_SINGLESTEP, tid, 0, 0) ||
	    waitpid(tid, &status, __WALL) != tid || !WIFSTOPPED(status) ||
	    ptrace(PTRACE_GETREGS, tid, 0, &r))
		return false;
	return !ptrace(PTRACE_SETREGS, tid, 0, &before) && r.rax == addr;
}
#else
static bool map_fresh(pid_t tid, uint64_t code, uint64_t addr, uint64_t length)
{
	(void)tid;
	(void)code;
	(void)addr;
	(void)length;
	errno = ENOSYS;
	return false;
}
#endif

/* The thread does not go on until this is done. Signals wait. */
void revoke_now(void)
{
	uint64_t mask, all = ~0ull;
	pid_t tid = pending.tid;
	bool done = true;
	unsigned int i;
	int status;

	if (!tid)
		return;
	/* The thread may have been killed. */
	if (waitpid(tid, &status, __WALL) == tid && WIFSTOPPED(status)) {
		ptrace(PTRACE_GETSIGMASK, tid, sizeof(mask), &mask);
		ptrace(PTRACE_SETSIGMASK, tid, sizeof(all), &all);
		for (i = 0; i < pending.n; i++)
			done &= map_fresh(tid, pending.code, pending.at[i].addr, pending.at[i].length);
		if (!done)
			perror("rm_sim: a freed mapping still shows the memory, where the real one reads zeros");
		ptrace(PTRACE_SETSIGMASK, tid, sizeof(mask), &mask);
		ptrace(PTRACE_DETACH, tid, 0, 0);
	}
	memset(&pending, 0, sizeof(pending));
}
