/* SPDX-License-Identifier: MIT */
#include "sanity.h"
#include "run.h"
#include "progress.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

struct verdict *verdict;
bool verbose;

void note(const char *fmt, ...)
{
	va_list ap;

	if (!verbose)
		return;
	progress_wipe();
	printf("#   ");
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	putchar('\n');
	fflush(stdout);
}

void skip(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(verdict->why, sizeof(verdict->why), fmt, ap);
	va_end(ap);
	_exit(CASE_SKIPPED);
}

__attribute__((format(printf, 3, 4), noreturn))
static void fail(const char *file, int line, const char *fmt, ...)
{
	const char *base = strrchr(file, '/');
	va_list ap;

	progress_wipe();
	printf("#   %s:%d: ", base ? base + 1 : file, line);
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	putchar('\n');
	fflush(stdout);
	_exit(CASE_FAILED);
}

/* Threads and forked children of the case count into the same number. */
static void count_check(void)
{
	__atomic_fetch_add(&verdict->checks, 1, __ATOMIC_RELAXED);
}

void check_at(bool ok, const char *what, const char *file, int line)
{
	count_check();
	if (!ok)
		fail(file, line, "this does not hold: %s", what);
}

void check_eq_at(long long got, long long want, const char *what,
		 const char *file, int line)
{
	count_check();
	if (got != want)
		fail(file, line, "%s is %lld, not %lld", what, got, want);
}

void check_rc_at(int got, int want, const char *what, const char *file,
		 int line)
{
	char name[64];

	count_check();
	if (got == want)
		return;
	snprintf(name, sizeof(name), "%s", strerror(want));
	fail(file, line, "%s gave %d (%s), not %d (%s)", what, got,
	     strerror(got), want, name);
}

void check_cu_at(const struct env *e, int result, const char *what,
		 const char *file, int line)
{
	if (result != CU_OK)
		fail(file, line, "%s gave %s (%d)", what,
		     cuda_error(&e->cu, result), result);
}

void start_cuda(struct env *e)
{
	const char *err = cuda_load(&e->cu);
	int dev;

	if (err)
		fail(__FILE__, __LINE__, "%s", err);
	check_cu(e->cu.init(0));
	check_cu(e->cu.device_get(&dev, e->gpu));
	check_cu(e->cu.primary_retain(&e->ctx, dev));
	check_cu(e->cu.ctx_set(e->ctx));
}

void start(struct env *e)
{
	start_cuda(e);
	e->g = gdr_open();
	check(e->g != NULL);
}

static size_t round_up(size_t n, size_t unit)
{
	return (n + unit - 1) / unit * unit;
}

void buf_alloc_vmm(struct env *e, struct buf *b, size_t size, int gpu,
		   int fd_type)
{
	struct cu_mem_want want = {
		.type = CU_MEM_PINNED,
		.fd_type = fd_type,
		.place = { CU_PLACE_GPU, gpu },
	};
	struct cu_access access = {
		.place = { CU_PLACE_GPU, gpu },
		.flags = CU_ACCESS_RW,
	};
	size_t unit;
	int dev, rdma;

	memset(b, 0, sizeof(*b));
	check_cu(e->cu.device_get(&dev, gpu));
	check_cu(e->cu.device_attribute(&rdma, CU_DEV_VMM_RDMA, dev));
	want.rdma = rdma;
	b->kind = MEM_VMM;
	b->size = round_up(size, GPU_PAGE_SIZE);
	check_cu(e->cu.granularity(&unit, &want, 0));
	b->raw_size = round_up(b->size, unit);
	check_cu(e->cu.create(&b->mem, b->raw_size, &want, 0));
	check_cu(e->cu.reserve(&b->raw, b->raw_size, 0, 0, 0));
	check_cu(e->cu.map(b->raw, b->raw_size, 0, b->mem, 0));
	check_cu(e->cu.set_access(b->raw, b->raw_size, &access, 1));
	b->addr = b->raw;
	check_eq(b->addr & GPU_PAGE_OFFSET, 0);
}

static void alloc_plain(struct env *e, struct buf *b, size_t size)
{
	memset(b, 0, sizeof(*b));
	b->kind = MEM_PLAIN;
	b->size = round_up(size, GPU_PAGE_SIZE);
	b->raw_size = b->size + GPU_PAGE_SIZE - 1;
	check_cu(e->cu.mem_alloc(&b->raw, b->raw_size));
	b->addr = round_up(b->raw, GPU_PAGE_SIZE);
}

static void alloc_ext(struct env *e, struct buf *b, size_t size, int gpu)
{
	memset(b, 0, sizeof(*b));
	b->kind = MEM_EXT;
	b->size = round_up(size, GPU_PAGE_SIZE);
	check_rc(gdr_mem_alloc(e->g, gpu, b->size, 0, &b->ext), 0);
	check_rc(gdr_mem_get_device_ptr(e->g, b->ext, &b->addr, &b->raw_size), 0);
	check(b->raw_size >= b->size);
	check_eq(b->addr & GPU_PAGE_OFFSET, 0);
	b->raw = b->addr;
}

void buf_alloc_on(struct env *e, struct buf *b, enum mem_kind kind, size_t size,
		  int gpu)
{
	if (kind == MEM_VMM)
		buf_alloc_vmm(e, b, size, gpu, CU_EXPORT_FD);
	else if (kind == MEM_EXT)
		alloc_ext(e, b, size, gpu);
	else
		alloc_plain(e, b, size);
}

void buf_alloc(struct env *e, struct buf *b, enum mem_kind kind, size_t size)
{
	buf_alloc_on(e, b, kind, size, e->gpu);
}

void buf_free(struct env *e, struct buf *b)
{
	if (b->kind == MEM_PLAIN) {
		check_cu(e->cu.mem_free(b->raw));
	} else if (b->kind == MEM_EXT) {
		check_rc(gdr_mem_free(e->g, b->ext), 0);
	} else {
		check_cu(e->cu.unmap(b->raw, b->raw_size));
		check_cu(e->cu.release(b->mem));
		check_cu(e->cu.unreserve(b->raw, b->raw_size));
	}
	b->addr = 0;
}

gdr_mh_t pin_only(struct env *e, unsigned long addr, size_t size)
{
	gdr_mh_t mh = { 0 };

	check_rc(gdr_pin_buffer_v2(e->g, addr, size, GDR_PIN_FLAG_DEFAULT, &mh), 0);
	check(mh.h != 0);
	return mh;
}

void map_make(struct env *e, struct map *m, unsigned long addr, size_t size)
{
	gdr_info_t info;

	memset(m, 0, sizeof(*m));
	m->mh = pin_only(e, addr, size);
	m->size = size;
	check_rc(gdr_map(e->g, m->mh, &m->va, size), 0);
	check(m->va != NULL);
	check_eq((uintptr_t)m->va % e->host_page, 0);
	mark(&info, sizeof(info));
	check_rc(gdr_get_info(e->g, m->mh, &info), 0);
	check(info.va <= addr && addr - info.va < e->page);
	m->p = (unsigned char *)m->va + (addr - info.va);
}

void map_drop(struct env *e, struct map *m)
{
	check_rc(gdr_unmap(e->g, m->mh, m->va, m->size), 0);
	check_rc(gdr_unpin_buffer(e->g, m->mh), 0);
	m->p = m->va = NULL;
}

void gpu_write(struct env *e, unsigned long addr, const void *src, size_t size)
{
	check_cu(e->cu.to_gpu(addr, src, size));
	check_cu(e->cu.ctx_sync());
}

void gpu_read(struct env *e, void *dst, unsigned long addr, size_t size)
{
	check_cu(e->cu.from_gpu(dst, addr, size));
	check_cu(e->cu.ctx_sync());
}

void gpu_check(struct env *e, unsigned long addr, const void *want, size_t size)
{
	unsigned char *got = must_alloc(size);
	const unsigned char *w = want;
	size_t i = 0;

	memset(got, (unsigned char)~w[0], size);
	gpu_read(e, got, addr, size);
	if (memcmp(got, w, size))
		for (i = 0; i < size && got[i] == w[i]; i++)
			;
	if (memcmp(got, w, size))
		note("byte %zu of %zu is %#x, not %#x", i, size, got[i], w[i]);
	check(memcmp(got, w, size) == 0);
	free(got);
}

void fill(void *p, size_t size, uint64_t seed)
{
	unsigned char *b = p;
	uint64_t x = seed * 0x9e3779b97f4a7c15ull + 1;
	size_t i;

	for (i = 0; i + 8 <= size; i += 8) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		memcpy(b + i, &x, 8);
	}
	for (; i < size; i++)
		b[i] = (unsigned char)(x >> (i % 8 * 8)) ^ 0x5a;
}

void *must_alloc(size_t size)
{
	void *p = malloc(size ? size : 1);

	check(p != NULL);
	return p;
}

enum { MARK = 0xeb };	/* no bit field of it is 0 */

void mark(void *p, size_t size)
{
	memset(p, MARK, size);
}

bool untouched(const void *p, size_t size)
{
	const unsigned char *b = p;
	size_t i;

	for (i = 0; i < size; i++)
		if (b[i] != MARK)
			return false;
	return true;
}

static sigjmp_buf on_fault;

static void jump(int sig)
{
	(void)sig;
	siglongjmp(on_fault, 1);
}

/* The handlers are ours only while the byte is touched. */
static bool faults(volatile unsigned char *p, bool store, unsigned char byte)
{
	struct sigaction sa = { .sa_handler = jump }, segv, bus;
	volatile bool hit = false;

	sigaction(SIGSEGV, &sa, &segv);
	sigaction(SIGBUS, &sa, &bus);
	if (sigsetjmp(on_fault, 1))
		hit = true;
	else if (store)
		*p = byte;
	else
		(void)*p;
	sigaction(SIGSEGV, &segv, NULL);
	sigaction(SIGBUS, &bus, NULL);
	return hit;
}

bool read_faults(const volatile void *p)
{
	return faults((volatile unsigned char *)(uintptr_t)p, false, 0);
}

bool write_faults(volatile void *p)
{
	return faults((volatile unsigned char *)(uintptr_t)p, true, WRITTEN);
}

bool is_gone(volatile void *p)
{
	volatile unsigned char *byte = p;

	if (read_faults(p))
		return true;
	if (*byte == WRITTEN)
		return false;
	/* The caller looks whether the GPU's memory has this byte. */
	*byte = (unsigned char)~WRITTEN;
	return true;
}

/* Counts the open descriptors that want(fd) holds for. */
static int count_fds_if(bool (*want)(int fd))
{
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *d;
	int n = 0;

	check(dir != NULL);
	while ((d = readdir(dir))) {
		int fd = atoi(d->d_name);

		if (d->d_name[0] != '.' && fd != dirfd(dir) && want(fd))
			n++;
	}
	closedir(dir);
	return n;
}

static bool is_fd(int fd)
{
	return fd >= 0;
}

static bool survives_exec(int fd)
{
	return !(fcntl(fd, F_GETFD) & FD_CLOEXEC);
}

int count_fds(void)
{
	return count_fds_if(is_fd);
}

int count_inheritable_fds(void)
{
	return count_fds_if(survives_exec);
}

pid_t fork_child(void)
{
	pid_t parent = getpid(), pid;

	fflush(stdout);
	pid = fork();
	check(pid >= 0);
	if (pid == 0) {
		alarm(CASE_SECONDS);	/* a fork does not inherit it */
		prctl(PR_SET_PDEATHSIG, SIGKILL);	/* a case that fails leaves nobody */
		if (getppid() != parent)
			_exit(CASE_FAILED);
	}
	return pid;
}

void join_child(pid_t pid)
{
	int status = -1;

	while (waitpid(pid, &status, 0) < 0)
		check_eq(errno, EINTR);
	if (WIFSIGNALED(status))
		note("the child died of signal %d", WTERMSIG(status));
	check(WIFEXITED(status));
	check_eq(WEXITSTATUS(status), CASE_PASSED);
}

void child_done(void)
{
	fflush(stdout);
	_exit(CASE_PASSED);
}
